"""Power loss at random moments of a recorded run: no acknowledged row is lost, and every image opens."""

from __future__ import annotations

import asyncio
import pickle
import random
import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fluss.model.errors import FlussError
from fluss.storage import files
from fluss.storage.log.group_commit import LOOP_SYNC_S_MAX
from fluss.storage.log.log import LogOptions
from tests.kit.storage.logs import NOW_MS, append, opened, read_all

from .power import Disk, Event, RecordingOs, UnsyncedOs

OPTIONS = LogOptions(segment_size_bytes=700, checkpoint_interval_bytes=250)
LONG_SEGMENTS = LogOptions(segment_size_bytes=20_000, checkpoint_interval_bytes=5_000)
SEEDS = 250
ALL_IN_THREADS = 0.0  # as `loop_sync_s`: quick syncs that run on the loop never meet


@pytest.fixture
def images() -> Iterator[Path]:
    """A place for files that need not last: in memory where there is such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


async def _record(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: LogOptions = OPTIONS,
    *,
    overlap: bool = False,
    loop_sync_s: float = LOOP_SYNC_S_MAX,
) -> list[Event]:
    """Two runs on one directory, the second on what the first closed; rows are told as they are acknowledged.

    With `overlap`, rows come while others are synced, and two syncs at a time. Small syncs that take no longer than
    `loop_sync_s` run on the loop.
    """
    root.mkdir()
    recorder = RecordingOs(root)
    rng = random.Random(7)
    number = 0
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", recorder)
        patch.setattr("fluss.storage.log.group_commit.LOOP_SYNC_S_MAX", loop_sync_s)
        if overlap:
            patch.setattr("fluss.storage.log.log.OVERLAP_BYTES_MIN", 1)
        for _ in range(2):
            async with opened(root, options) as log:
                for _ in range(25):
                    appended = []
                    for _ in range(rng.choice((1, 1, 2, 5, 12))):
                        text = f"row {number}".ljust(rng.randrange(10, 200))
                        appended.append((text, append(log, text, writer_id=1, sequence=number)))
                        number += 1
                        if overlap:
                            await asyncio.sleep(0.0002)
                    for text, item in appended:
                        await item.durable
                        recorder.record("ack", item.base_offset, text)
    return recorder.events


@pytest.mark.parametrize(
    ("options", "overlap", "loop_sync_s"),
    [
        (OPTIONS, False, LOOP_SYNC_S_MAX),
        (OPTIONS, True, ALL_IN_THREADS),
        (LONG_SEGMENTS, True, ALL_IN_THREADS),
        (LONG_SEGMENTS, False, 1.0),
    ],
)
async def test_power_loss_takes_no_acknowledged_row(
    tmp_path: Path,
    images: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: LogOptions,
    overlap: bool,
    loop_sync_s: float,
) -> None:
    events = await _record(tmp_path / "live", monkeypatch, options, overlap=overlap, loop_sync_s=loop_sync_s)
    monkeypatch.setattr(files, "os", UnsyncedOs())
    assert sum(event[0] == "ack" for event in events) > 100
    if overlap:
        kinds = [event[0] for event in events if event[0].startswith("sync") and str(event[1]).endswith(".log")]
        assert ("sync begins", "sync begins") in pairwise(kinds)
    for seed in range(SEEDS):
        rng = random.Random(seed)
        moment = rng.randrange(len(events))
        disk = Disk()
        disk.replay(events[:moment])
        image = images / "image"
        image.mkdir()
        disk.leave(image, rng)
        try:
            await _check(image, [event for event in events[:moment] if event[0] == "ack"])
        except Exception as error:
            # The recording depends on the timing of threads, so it is kept with the seed.
            recording = tmp_path / "events.pickle"
            recording.write_bytes(pickle.dumps(events))
            raise AssertionError(f"seed {seed}, power lost after event {moment} of {recording}") from error
        shutil.rmtree(image)


@pytest.mark.parametrize("synced_rows", [0, 1])
async def test_what_is_read_after_a_kill_survives_power_loss_too(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, synced_rows: int
) -> None:
    """A kill leaves good batches that are only in the page cache: they are made durable before anyone sees them."""
    root = tmp_path / "live"
    root.mkdir()
    recorder = RecordingOs(root)
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", recorder)
        async with opened(root, OPTIONS) as log:
            for sequence in range(3):
                appended = append(log, f"row {sequence}", writer_id=1, sequence=sequence)
                if sequence < synced_rows:
                    await appended.durable
            log.end()
            await log.discard()
        async with opened(root, OPTIONS) as log:
            for header, text in read_all(log):
                recorder.record("ack", header.base_offset, text)
            moment = len(recorder.events)
    monkeypatch.setattr(files, "os", UnsyncedOs())
    seen = [event for event in recorder.events if event[0] == "ack"]
    assert len(seen) == 3
    for seed in range(20):
        disk = Disk()
        disk.replay(recorder.events[:moment])
        image = images / str(seed)
        image.mkdir()
        disk.leave(image, random.Random(seed))
        await _check(image, seen)


@pytest.mark.parametrize("everything", [False, True])
async def test_power_loss_while_old_segments_are_removed(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    """Whatever is left has no gaps, all that was not to go is there, and writers go on where they were."""
    root = tmp_path / "live"
    root.mkdir()
    recorder = RecordingOs(root)
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", recorder)
        async with opened(root, OPTIONS) as log:
            for sequence in range(60):
                text = f"row {sequence}".ljust(60)
                await (item := append(log, text, writer_id=1, sequence=sequence)).durable
                recorder.record("ack", item.base_offset, text)
                if sequence % 20 == 19:
                    target = log.log_end_offset if everything else log.log_end_offset - 15
                    if everything:
                        assert log.seal_if_older(NOW_MS + 1)
                    recorder.record("removing", target)
                    await log.remove_before(target)
                    assert target - 20 < log.log_start_offset <= target
    monkeypatch.setattr(files, "os", UnsyncedOs())
    events = recorder.events
    # A power loss in the middle of a removal is the point.
    first = next(index for index, event in enumerate(events) if event[0] == "removing")
    for seed in range(SEEDS):
        rng = random.Random(seed)
        moment = rng.randrange(first + 1, len(events))
        disk = Disk()
        disk.replay(events[:moment])
        image = images / str(seed)
        image.mkdir()
        disk.leave(image, rng)
        target = max(event[1] for event in events[:moment] if event[0] == "removing")
        acknowledged = [event for event in events[:moment] if event[0] == "ack"]
        async with opened(image, OPTIONS) as log:
            rows = {header.base_offset: text for header, text in read_all(log)}
            assert log.log_start_offset <= target, seed
            for _, base_offset, text in acknowledged:
                assert rows.get(base_offset) == text or base_offset < target, seed
            # The batch after the last acknowledged one may be there too.
            stored = append(log, "after", writer_id=1, sequence=len(acknowledged))
            assert stored.base_offset >= len(acknowledged) * 3, seed
        shutil.rmtree(image)


async def _check(image: Path, acknowledged: list[Event]) -> None:
    async with opened(image, OPTIONS) as log:
        rows = {header.base_offset: text for header, text in read_all(log)}
        for _, base_offset, text in acknowledged:
            assert rows.get(base_offset) == text
        assert not log.is_read_only
        appended = append(log, "after", writer_id=1, sequence=len(rows))
        await appended.durable
        assert read_all(log)[-1][1] == "after"


async def test_the_simulated_disk_does_lose_what_was_not_synced(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same recording with every sync of a kind ignored must lose rows: otherwise the test above proves nothing."""
    events = await _record(tmp_path / "live", monkeypatch)
    monkeypatch.setattr(files, "os", UnsyncedOs())
    acknowledged = [event for event in events if event[0] == "ack"]
    for ignored in (".log", "0"):
        deaf = [event for event in events if not (event[0] == "sync ends" and event[1].endswith(ignored))]
        losses = 0
        for seed in range(10):
            disk = Disk()
            disk.replay(deaf)
            image = images / f"image-{ignored}-{seed}"
            image.mkdir()
            disk.leave(image, random.Random(seed))
            try:
                await _check(image, acknowledged)
            except (AssertionError, FlussError):
                losses += 1
        assert losses > 5, f"syncs of *{ignored} are not needed?"
