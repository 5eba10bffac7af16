"""Power loss at random moments: a staged request that was acknowledged is there, whole, as it was last acknowledged."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.staging import commit as staged_files
from fluss.storage.staging.commit import StagedKey, StagedRequest

from .power import Disk, Event, RecordingOs, UnsyncedOs

TABLE_ID = 3
STAGING = Path("tables", str(TABLE_ID), "staging")
SEEDS, FULL_SEEDS = 100, 300


def key(number: int) -> StagedKey:
    return StagedKey(TABLE_ID, staged_files.query_name("query"), 0, 0, 0, number)


def request(content: bytes) -> StagedRequest:
    half = len(content) // 2
    parts = (memoryview(content[:half]), memoryview(content[half:]))
    return StagedRequest([(TableBucket(TABLE_ID, number), part) for number, part in enumerate(parts)], (1, 2), True)


def content_of(staged: StagedRequest) -> bytes:
    return b"".join(bytes(records) for _, records in staged.batches)


def record(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Requests staged, replaced and removed; others made the table's directory and did not sync it."""
    root.mkdir()
    recorder = RecordingOs(root)
    rng = random.Random(3)
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", recorder)
        recorder.mkdir(root / "tables", 0o750)
        recorder.mkdir(root / "tables" / str(TABLE_ID), 0o750)
        staged_files.make_directory(root / STAGING, root)
        for number in range(12):
            for text in (b"first", b"second")[: rng.choice((1, 2))]:
                content = text * rng.randrange(1, 80)
                recorder.record("stage", number, content)
                staged_files.write(root / STAGING, key(number).file_name, request(content))
                recorder.record("ack", number, content)
            if number % 4 == 3:
                recorder.record("forget", number)
                staged_files.remove(root / STAGING, [key(number).file_name])
    return recorder.events


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(FULL_SEEDS, marks=pytest.mark.full)])
def test_acknowledged_requests_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    events = record(tmp_path / "live", monkeypatch)
    monkeypatch.setattr(files, "os", UnsyncedOs())
    for seed in range(seeds):
        rng = random.Random(seed)
        moment = rng.randrange(len(events))
        disk = Disk()
        disk.replay(events[:moment])
        image = tmp_path / "image"
        image.mkdir()
        disk.leave(image, rng)
        expected: dict[int, set[bytes]] = {}
        for kind, *what in events[:moment]:
            if kind == "ack":
                expected[what[0]] = {what[1]}
            elif kind == "stage" and what[0] in expected:
                expected[what[0]].add(what[1])  # the old or the new
            elif kind == "forget":
                del expected[what[0]]
        for number, contents in expected.items():
            staged = staged_files.read(image / STAGING, key(number))
            assert content_of(staged) in contents, f"seed {seed}, power lost after event {moment}"
            assert (list(staged.target_columns), staged.overwrite) == ([1, 2], True)
        for found in staged_files.find(image / "tables"):
            # Whatever else has a whole name has a whole content.
            staged_files.read(image / STAGING, found.key)
        shutil.rmtree(image)
