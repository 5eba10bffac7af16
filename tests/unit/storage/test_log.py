"""The log of one bucket on real files: append, read, roll, reopen, wait, find by time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import parse_header, walk
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.storage.log.index import BATCHES_PER_ENTRY_MAX
from fluss.storage.log.log import UNSEALED_MAX, LogOptions
from fluss.storage.log.segment import UNCHECKED_BYTES_MAX
from tests.kit.storage.logs import NOW_MS, append, log_files, make_batch, opened, parse, read_all, texts

SMALL = LogOptions(segment_size_bytes=2000)
COMMIT_TIME_AT = 13  # in a batch


async def test_a_fresh_bucket_is_empty_and_has_no_files(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 0, 0)
        assert log.read(0, 1000) == b""
    assert not (tmp_path / "data" / "tables").exists()


async def test_append_stamps_dense_offsets_and_commit_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        first = append(log, "a", records=3)
        second = append(log, "b", records=1)
        empty = append(log, "", records=0)
        assert (first.base_offset, first.last_offset) == (0, 2)
        assert (second.base_offset, second.last_offset) == (3, 3)
        assert (empty.base_offset, empty.last_offset) == (4, 4)
        assert log.log_end_offset == 5
        await empty.durable
        headers = [header for header, _ in read_all(log)]
        assert [header.commit_timestamp_ms for header in headers] == [NOW_MS] * 3


async def test_the_clock_going_back_does_not_take_commit_times_along(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        for now_ms in (NOW_MS, NOW_MS - 5000, NOW_MS + 1):
            await append(log, "x", now_ms=now_ms).durable
        assert [header.commit_timestamp_ms for header, _ in read_all(log)] == [NOW_MS, NOW_MS, NOW_MS + 1]
    async with opened(tmp_path / "data") as log:
        await append(log, "x", now_ms=NOW_MS - 5000).durable
        assert read_all(log)[-1][0].commit_timestamp_ms == NOW_MS + 1


async def test_nothing_is_visible_before_it_is_durable(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        appended = append(log, "a")
        assert not appended.durable.done()
        assert log.high_watermark == 0
        assert log.read(0, 1000) == b""
        await appended.durable
        assert log.high_watermark == 3
        assert texts(log) == ["a"]


async def test_os_durability_is_visible_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", fsync=False, segment_size_bytes=500) as log:
        for number in range(20):
            appended = append(log, f"row {number}")
            assert appended.durable.done()
            assert log.high_watermark == appended.last_offset + 1
        assert texts(log) == [f"row {number}" for number in range(20)]
    async with opened(tmp_path / "data", fsync=False) as log:
        assert texts(log) == [f"row {number}" for number in range(20)]


async def test_read_starts_with_the_batch_that_has_the_offset(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        for number in range(200):
            last = append(log, f"row {number} " + "x" * 60, records=3)
        await last.durable
        for offset in (0, 1, 2, 3, 299, 300, 598, 599):
            first, text = parse(log.read(offset, 500))[0]
            assert first.base_offset <= offset <= first.last_offset
            assert text.startswith(f"row {offset // 3} ")


@pytest.mark.parametrize("max_bytes", [0, 1, 100, 5000, 9000, 1 << 20])
async def test_read_returns_whole_batches_within_the_limit_but_at_least_one(tmp_path: Path, max_bytes: int) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=30_000) as log:
        for number in range(100):
            last = append(log, f"row {number}".ljust(number * 13 % 2000))
        await last.durable
        assert len(read_all(log, max_bytes)) == 100
        for offset in range(0, 300, 7):
            batches = parse(log.read(offset, max_bytes))
            assert len(batches) == 1 or sum(header.size_bytes for header, _ in batches) <= max_bytes


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
async def test_a_reader_that_follows_the_log_gets_each_batch_once(tmp_path: Path, fsync: bool, max_bytes: int) -> None:
    async with opened(tmp_path / "data", fsync=fsync, segment_size_bytes=30_000) as log:
        offset, read = 0, []
        for number in range(300):
            rows = [f"row {number}.{part}".ljust(number * 13 % 500) for part in range(1 + number % 3)]
            for row in rows:
                last = append(log, row)
            await last.durable
            while offset < log.high_watermark:
                batches = parse(log.read(offset, max_bytes))
                offset = batches[-1][0].next_offset
                read += [text for _, text in batches]
            assert read[-len(rows) :] == rows
        assert read == texts(log)


async def test_a_reader_that_follows_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        await append(log, "a").durable
        assert len(read_all(log)) == 1
        (path,) = log_files(tmp_path / "data")
        size_bytes = path.stat().st_size
        appended = append(log, "b")
        await appended.durable
        os.truncate(path, size_bytes)
        with pytest.raises(CorruptDataError, match="ends before offset"):
            log.read(appended.base_offset, 1 << 20)


async def test_cold_bytes_are_checked_a_bounded_part_at_a_time(tmp_path: Path) -> None:
    count, text_bytes = 40, 100_000
    async with opened(tmp_path / "log") as log:
        for number in range(count):
            append(log, f"{number}".ljust(text_bytes), records=1)
        await log.flush()
        assert len(parse(log.read(0, 16 << 20))) == count
    async with opened(tmp_path / "log") as log:
        first = log.read(0, 16 << 20)
        assert 0 < len(first) <= UNCHECKED_BYTES_MAX
        assert [int(text) for _, text in read_all(log)] == list(range(count))
        assert len(parse(log.read(0, 16 << 20))) == count


@pytest.mark.parametrize("batches_max", [1, 50, 400])
async def test_small_batches_are_verified_a_bounded_number_at_a_time(tmp_path: Path, batches_max: int) -> None:
    count = 1_000
    async with opened(tmp_path / "data") as log:
        for number in range(count):
            append(log, f"{number}", records=1)
        await log.flush()
        for offset in (0, 1, 77, 500, count - 1):
            found = parse(log.read(offset, 16 << 20, verify=True, batches_max=batches_max))
            assert found[0][0].base_offset == offset
            assert min(batches_max, count - offset) <= len(found) <= batches_max + 2 * BATCHES_PER_ENTRY_MAX
        offset, read = 0, []
        while offset < count:
            read += parse(log.read(offset, 16 << 20, verify=True, batches_max=batches_max))
            offset = read[-1][0].next_offset
        assert [int(text) for _, text in read] == list(range(count))


async def test_commit_times_are_verified_behind_the_last_batch_that_is_counted(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        for number in range(400):
            append(log, f"{number}", records=1)
        await log.flush()
        (path,) = log_files(tmp_path / "data")
        data = path.read_bytes()
        third = [position for position, _ in walk(data)][3]
        with path.open("r+b") as file:
            file.seek(third + COMMIT_TIME_AT)
            file.write(bytes([data[third + COMMIT_TIME_AT] ^ 1]))
        with pytest.raises(CorruptDataError, match="checksum of commit times"):
            log.read(0, 16 << 20, verify=True, batches_max=1)


async def test_offsets_out_of_range(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        appended = append(log, "a")
        # Written but not yet durable: known to the log, so not an error, but not shown either.
        assert log.read(3, 100) == b""
        await appended.durable
        for offset in (-2, -1, 4, 1 << 60):
            with pytest.raises(FlussError) as caught:
                log.read(offset, 100)
            assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


async def test_segments_roll_and_survive_reopening(tmp_path: Path) -> None:
    rows = [f"row {number} " + "x" * (number % 50) for number in range(100)]
    async with opened(tmp_path / "data", SMALL) as log:
        for row in rows:
            await append(log, row).durable
        assert texts(log) == rows
    names = [path.name for path in log_files(tmp_path / "data")]
    assert len(names) > 3
    assert names[0] == "00000000000000000000.log"
    assert all(path.stat().st_size <= 2000 for path in log_files(tmp_path / "data"))
    async with opened(tmp_path / "data", SMALL) as log:
        assert texts(log) == rows
        appended = append(log, "after")
        assert appended.base_offset == 300
        await appended.durable
        assert texts(log) == [*rows, "after"]


async def test_a_log_reads_more_segments_than_it_keeps_open(tmp_path: Path) -> None:
    rows = [f"row {number}".ljust(100) for number in range(60)]
    async with opened(tmp_path / "data", segment_size_bytes=300) as log:
        for row in rows:
            await append(log, row).durable
    assert len(log_files(tmp_path / "data")) > 20
    async with opened(tmp_path / "data", segment_size_bytes=300) as log:
        assert texts(log) == rows
        for offset in range(179, -1, -1):
            assert parse(log.read(offset, 1))[0][1] == rows[offset // 3]


async def test_a_pipelined_flood_is_sealed_before_the_next_segment_begins(tmp_path: Path) -> None:
    """Appends that never wait still roll, until so many segments wait for their syncs that the last one takes more."""
    async with opened(tmp_path / "data", SMALL) as log:
        appended = [append(log, f"row {number}".ljust(100)) for number in range(300)]
        await asyncio.gather(*(item.durable for item in appended))
        assert len(texts(log)) == 300
        sizes = [path.stat().st_size for path in log_files(tmp_path / "data")]
        assert len(sizes) == UNSEALED_MAX + 1
        assert max(sizes[:-1]) <= 2000 < sizes[-1]
        await append(log, "the next segment").durable
        assert len(log_files(tmp_path / "data")) == UNSEALED_MAX + 2
    assert not log_files(tmp_path / "data", ".tmp")


async def test_a_batch_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", SMALL) as log:
        for text in ("small", "y" * 10_000, "small again"):
            await append(log, text).durable
        assert texts(log) == ["small", "y" * 10_000, "small again"]


async def test_waiters_are_called_when_the_high_watermark_moves(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        seen: list[int] = []
        stop = log.on_advance(lambda: seen.append(log.high_watermark))
        assert not log.is_idle
        await append(log, "a").durable
        await asyncio.sleep(0)
        assert seen == [3]
        stop()
        stop()
        await append(log, "b").durable
        await asyncio.sleep(0)
        assert seen == [3]
        assert log.is_idle


async def test_a_corrupt_batch_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        good = make_batch("good")
        bad = make_batch("bad!")
        bad[-1] ^= 1
        longer = make_batch("good") + b"\0"
        for batch in (bad, longer):
            with pytest.raises(CorruptDataError) as caught:
                log.append(batch, parse_header(batch), NOW_MS)
            assert caught.value.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
        assert log.log_end_offset == 0
        await log.append(memoryview(good), parse_header(good), NOW_MS).durable
        assert texts(log) == ["good"]


async def test_offset_for_timestamp(tmp_path: Path) -> None:
    times = [NOW_MS + 10 * (number // 3) for number in range(90)]
    async with opened(tmp_path / "data", SMALL) as log:
        for number, now_ms in enumerate(times):
            last = append(log, f"row {number}".ljust(150), now_ms=now_ms)
            if number % 4 == 0:
                await last.durable
        await last.durable
    assert len(log_files(tmp_path / "data")) > 5
    async with opened(tmp_path / "data", SMALL) as log:
        later_ms = times[-1] + 1000
        for target_ms in range(times[0] - 5, times[-1] + 1):
            expected = next(3 * number for number, time_ms in enumerate(times) if time_ms >= target_ms)
            assert log.offset_for_timestamp(target_ms, later_ms) == expected
        assert log.offset_for_timestamp(times[-1] + 1, later_ms) == log.high_watermark
        with pytest.raises(FlussError) as caught:
            log.offset_for_timestamp(later_ms + 1, later_ms)
        assert caught.value.error_code == ErrorCode.INVALID_TIMESTAMP_EXCEPTION
        appended = append(log, "not yet durable", now_ms=later_ms)
        assert log.offset_for_timestamp(later_ms, later_ms) == 270
        await appended.durable


async def test_a_closed_log_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        await append(log, "a").durable
    for call in (lambda: append(log, "b"), lambda: log.read(0, 10), lambda: log.offset_for_timestamp(0, 1)):
        with pytest.raises(FlussError, match="look it up again"):
            call()
