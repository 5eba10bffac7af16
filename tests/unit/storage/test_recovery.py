"""Opening after a crash, after bit rot, and without the files that are only there for speed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES, walk
from fluss.model.errors import ErrorCode, FlussError
from fluss.storage.log.index import CorruptBatchError
from fluss.storage.log.log import LogOptions
from tests.kit.storage.logs import (
    READ_BYTES,
    append,
    bucket_directory,
    crash_image,
    log_files,
    opened,
    parse,
    read_all,
    texts,
)

SMALL = LogOptions(segment_size_bytes=250)
ROWS = [f"row {number} " + "x" * (number % 7) for number in range(12)]


async def _killed(tmp_path: Path, options: LogOptions | None = None, rows: list[str] = ROWS) -> Path:
    """The files of a log that was killed after its rows were durable."""
    async with opened(tmp_path / "live", options) as log:
        for number, row in enumerate(rows):
            await append(log, row, writer_id=5, sequence=number).durable
        return crash_image(tmp_path / "live", "killed")


def _boundaries(path: Path) -> list[int]:
    data = path.read_bytes()
    return [position + header.size_bytes for position, header in walk(data)]


async def _assert_good_prefix(root: Path, rows: list[str], options: LogOptions | None = None) -> None:
    """The log has exactly these rows, and takes new ones at the next offset."""
    async with opened(root, options) as log:
        assert texts(log) == rows
        assert log.log_end_offset == log.high_watermark == 3 * len(rows)
        appended = append(log, "new", writer_id=5, sequence=len(rows))
        assert appended.base_offset == 3 * len(rows)
        await appended.durable
        assert texts(log) == [*rows, "new"]


async def test_a_tail_cut_at_any_byte_of_the_last_three_batches_opens(tmp_path: Path) -> None:
    killed = await _killed(tmp_path)
    (path,) = log_files(killed)
    boundaries = _boundaries(path)
    whole = path.read_bytes()
    assert len(boundaries) == len(ROWS)
    for size in range(boundaries[-4], boundaries[-1] + 1):
        path.write_bytes(whole[:size])
        for stale in (*log_files(killed, ".index"), *log_files(killed, ".writers")):
            stale.unlink()
        good = sum(boundary <= size for boundary in boundaries)
        await _assert_good_prefix(killed, ROWS[:good])


async def test_garbage_behind_the_last_batch_is_cut(tmp_path: Path) -> None:
    killed = await _killed(tmp_path)
    (path,) = log_files(killed)
    whole = path.read_bytes()
    for garbage in (b"\0", b"\0" * 5000, b"\xff" * 100, whole[:150], whole):
        path.write_bytes(whole + garbage)
        image = crash_image(killed, "image")
        await _assert_good_prefix(image, ROWS)


async def test_a_flipped_header_byte_in_the_tail_cuts_there(tmp_path: Path) -> None:
    killed = await _killed(tmp_path)
    (path,) = log_files(killed)
    whole = path.read_bytes()
    start = _boundaries(path)[-3]
    commit_time = range(13, 21)  # outside the checksum, and any value is a time
    for at in range(HEADER_SIZE_BYTES):
        damaged = bytearray(whole)
        damaged[start + at] ^= 0x41
        path.write_bytes(damaged)
        image = crash_image(killed, "image")
        await _assert_good_prefix(image, ROWS if at in commit_time else ROWS[:-2])


async def test_unsynced_pages_that_never_reached_the_disk_are_cut(tmp_path: Path) -> None:
    """Power loss may keep a later page and lose an earlier one: nothing behind the hole can be trusted."""
    killed = await _killed(tmp_path)
    (path,) = log_files(killed)
    whole = bytearray(path.read_bytes())
    boundaries = _boundaries(path)
    whole[boundaries[-4] : boundaries[-3]] = bytes(boundaries[-3] - boundaries[-4])
    path.write_bytes(whole)
    await _assert_good_prefix(killed, ROWS[:-3])


async def test_a_kill_takes_nothing_from_a_log_with_os_durability(tmp_path: Path) -> None:
    options = LogOptions(fsync=False, segment_size_bytes=250)
    async with opened(tmp_path / "live", options) as log:
        for number, row in enumerate(ROWS):
            append(log, row, writer_id=5, sequence=number)
        killed = crash_image(tmp_path / "live", "killed")
    assert len(log_files(killed)) > 2
    await _assert_good_prefix(killed, ROWS, options)


async def test_what_was_cut_does_not_come_back(tmp_path: Path) -> None:
    """A batch that takes the place of a torn one byte for byte must not revive the good-looking ones behind it."""
    rows = [f"row {number:02d}" for number in range(6)]
    killed = await _killed(tmp_path, rows=rows)
    (path,) = log_files(killed)
    damaged = bytearray(path.read_bytes())
    damaged[_boundaries(path)[-3] - 1] ^= 1
    path.write_bytes(damaged)
    async with opened(killed) as log:
        assert texts(log) == rows[:3]
        await append(log, "new 03", writer_id=5, sequence=3).durable
        image = crash_image(killed, "image")
    async with opened(image) as log:
        assert texts(log) == [*rows[:3], "new 03"]


async def test_a_kill_before_the_first_batch_of_a_new_segment(tmp_path: Path) -> None:
    killed = await _killed(tmp_path, SMALL)
    (bucket_directory(killed) / f"{3 * len(ROWS):020d}.log").touch()
    await _assert_good_prefix(killed, ROWS, SMALL)


async def test_a_kill_before_the_first_segment(tmp_path: Path) -> None:
    bucket_directory(tmp_path / "data").mkdir(parents=True)
    await _assert_good_prefix(tmp_path / "data", [])


async def test_corruption_in_a_sealed_segment_is_an_error_with_file_and_position(tmp_path: Path) -> None:
    killed = await _killed(tmp_path, SMALL)
    sealed = log_files(killed)[0]
    whole = sealed.read_bytes()
    boundaries = [0, *_boundaries(sealed)]
    commit_time = range(13, 21)
    for number in (0, 1, len(boundaries) - 2):
        start, end = boundaries[number], boundaries[number + 1]
        for at in range(end - start):
            if at in commit_time:
                continue
            damaged = bytearray(whole)
            damaged[start + at] ^= 0x41
            sealed.write_bytes(damaged)
            async with opened(killed, SMALL) as log:
                with pytest.raises(CorruptBatchError) as caught:
                    log.read(3 * number, 1 << 20)
                assert caught.value.error_code == ErrorCode.CORRUPT_MESSAGE
                assert (caught.value.path, caught.value.position) == (sealed, start)
                assert f"tables/0/0/{sealed.name}: corrupt batch at byte {start}" in str(caught.value)
                if number:
                    # What lies before it is served, in one piece.
                    assert [text for _, text in parse(log.read(0, 1 << 20))] == ROWS[:number]
                # So are later segments.
                assert parse(log.read(log.log_end_offset - 1, 1 << 20))[-1][1] == ROWS[-1]
        assert sealed.stat().st_size == len(whole), "corruption is reported, never removed"


async def test_corruption_before_the_checkpoint_of_the_last_segment_is_reported_not_cut(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        for row in ROWS:
            await append(log, row).durable
    (path,) = log_files(tmp_path / "data")
    damaged = bytearray(path.read_bytes())
    start = _boundaries(path)[-3]
    damaged[start + HEADER_SIZE_BYTES] ^= 1
    path.write_bytes(damaged)
    async with opened(tmp_path / "data") as log:
        assert log.high_watermark == 3 * len(ROWS)
        assert len(parse(log.read(0, 1 << 20))) == len(ROWS) - 2
        with pytest.raises(CorruptBatchError, match=f"byte {start}"):
            log.read(3 * (len(ROWS) - 2), 1 << 20)
    assert path.stat().st_size == len(damaged)


@pytest.mark.parametrize("how", ["shorter", "missing"])
async def test_a_sealed_segment_that_lost_bytes_is_an_error(tmp_path: Path, how: str) -> None:
    killed = await _killed(tmp_path, SMALL)
    first, second = log_files(killed)[:2]
    missing_from = len(_boundaries(first))
    if how == "shorter":
        second.write_bytes(second.read_bytes()[: _boundaries(second)[0]])
        missing_from += 1
    else:
        second.unlink()
    async with opened(killed, SMALL) as log:
        assert [text for _, text in parse(log.read(0, 1 << 20))] == ROWS[: len(_boundaries(first))]
        with pytest.raises(FlussError) as caught:
            log.read(3 * missing_from, 1 << 20)
        assert caught.value.error_code == ErrorCode.CORRUPT_MESSAGE
        assert ".log" in str(caught.value)


async def test_unknown_writer_state_makes_a_bucket_read_only(tmp_path: Path) -> None:
    """Two faults at once: a corrupt header in a sealed segment and no snapshot behind it."""
    killed = await _killed(tmp_path, SMALL)
    for path in log_files(killed, ".writers"):
        path.unlink()
    sealed = log_files(killed)[0]
    damaged = bytearray(sealed.read_bytes())
    damaged[12] ^= 1
    sealed.write_bytes(damaged)
    async with opened(killed, SMALL) as log:
        assert log.is_read_only
        with pytest.raises(FlussError, match="read-only"):
            append(log, "new")
        assert parse(log.read(log.log_end_offset - 1, 1 << 20))[-1][1] == ROWS[-1]


def _damages(path: Path) -> dict[str, bytes | None]:
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    return {"missing": None, "empty": b"", "cut": whole[:-3], "flipped": bytes(flipped), "foreign": b"\0" * 64}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".writers"])
async def test_index_and_writers_files_are_disposable(tmp_path: Path, suffix: str, clean: bool) -> None:
    root = await _killed(tmp_path, SMALL)
    if clean:
        root = tmp_path / "live"
    expected = await _answers(crash_image(root, "reference"))
    victims = log_files(root, suffix)
    assert len(victims) >= 2
    for victim in victims:
        for damage in _damages(victim).values():
            image = crash_image(root, "image")
            path = bucket_directory(image) / victim.name
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
            assert await _answers(image) == expected
    image = crash_image(root, "image")
    for path in (*log_files(image, ".index"), *log_files(image, ".writers")):
        path.unlink()
    assert await _answers(image) == expected


async def _answers(root: Path) -> object:
    """What a client can learn from a bucket: rows, offsets by time, and the fate of each possible next batch."""
    async with opened(root, SMALL) as log:
        rows = read_all(log)
        times = [log.offset_for_timestamp(header.commit_timestamp_ms, 1 << 60) for header, _ in rows]
        fates = []
        for sequence in range(len(ROWS)):
            try:
                fates.append(append(log, "again", writer_id=5, sequence=sequence).base_offset)
            except FlussError as error:
                fates.append(-error.error_code)
        return rows, times, fates, log.log_start_offset, log.log_end_offset


async def test_a_log_that_is_shorter_than_its_checkpoint_is_read_only(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        for row in ROWS:
            await append(log, row).durable
    (path,) = log_files(tmp_path / "data")
    cut = path.read_bytes()[: _boundaries(path)[4]]
    path.write_bytes(cut)
    async with opened(tmp_path / "data") as log:
        assert log.high_watermark == 3 * len(ROWS), "an offset that was used must not be free"
        assert [text for _, text in parse(log.read(0, READ_BYTES))] == ROWS[:5]
        with pytest.raises(CorruptBatchError, match=rf"{path.name}: corrupt batch at byte {len(cut)}"):
            log.read(15, READ_BYTES)
        with pytest.raises(FlussError, match=rf"{path.name}.* read-only"):
            append(log, "new")
    assert path.read_bytes() == cut


async def test_checkpoints_bound_what_is_walked_again(tmp_path: Path) -> None:
    options = LogOptions(checkpoint_interval_bytes=200)
    killed = await _killed(tmp_path, options)
    (path,) = log_files(killed)
    assert log_files(killed, ".index"), "no checkpoint was written while the log was running"
    damaged = bytearray(path.read_bytes())
    damaged[HEADER_SIZE_BYTES] ^= 1
    path.write_bytes(damaged)
    async with opened(killed, options) as log:
        assert log.high_watermark == 3 * len(ROWS)
        with pytest.raises(CorruptBatchError, match="byte 0"):
            log.read(0, 100)
        assert append(log, "again", writer_id=5, sequence=len(ROWS) - 1).duplicate


@pytest.mark.parametrize("suffix", [".index", ".writers", ".log"])
async def test_a_file_that_gets_no_descriptor_is_not_taken_for_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    async with opened(tmp_path / "data", SMALL) as log:
        for number, row in enumerate(ROWS):
            await append(log, row, writer_id=5, sequence=number).durable
    real_open = os.open
    real_read = Path.read_bytes

    def refuse(path: object) -> None:
        if str(path).endswith(suffix):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda path, *rest, **more: refuse(path) or real_open(path, *rest, **more))
        patch.setattr(Path, "read_bytes", lambda path: refuse(path) or real_read(path))
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="Too many open files"):
            async with opened(tmp_path / "data", SMALL):
                pass
        assert len(os.listdir("/proc/self/fd")) <= len(before)
    async with opened(tmp_path / "data", SMALL) as log:
        assert texts(log) == ROWS
        assert append(log, ROWS[-1], writer_id=5, sequence=len(ROWS) - 1).duplicate


async def test_leftover_temporary_files_do_no_harm(tmp_path: Path) -> None:
    killed = await _killed(tmp_path, SMALL)
    for path in (*log_files(killed, ".index"), *log_files(killed, ".writers")):
        shutil.copy(path, path.with_name(path.name + ".tmp"))
        path.write_bytes(b"")
    await _assert_good_prefix(killed, ROWS, SMALL)
