"""A bucket of a primary-key table: puts in order, what readers see of them, and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.formats.rows.keys import KeyEncoder
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Schema
from fluss.storage.kv import bucket as kv_bucket
from fluss.storage.kv.store import KvState
from tests.kit.storage.kv_tables import Row, Table, arrow, by_id, fold, make_batch, opened, row
from tests.kit.storage.logs import crash_image

T = TablePath("fluss", "t")


async def test_upserts_and_deletes(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        put = table.kv().put(table.batch([row(1, "a", 1), row(2, "b", 2)]))
        assert await put.appended == 2
        assert await put.applied == 2
        assert await table.get(1) == row(1, "a", 1)
        assert await table.get(3) is None
        assert await table.kv().put(table.batch([row(1, "c", 3)], [2, 9])).applied == 5
        assert await table.all_rows() == [row(1, "c", 3)]
        assert table.changelog() == [
            ("+I", row(1, "a", 1)),
            ("+I", row(2, "b", 2)),
            ("-U", row(1, "a", 1)),
            ("+U", row(1, "c", 3)),
            ("-D", row(2, "b", 2)),
        ]
        assert await table.kv().row_count() == 1


async def test_a_batch_without_changes_is_an_empty_log_batch(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        assert await table.kv().put(table.batch([], [1, 2], writer_id=5, sequence=0)).applied == 1
        assert await table.kv().put(table.batch([], [], writer_id=5, sequence=1)).applied == 2
        assert table.log_batches() == [[], []]
        assert await table.kv().put(table.batch([row(1)], writer_id=5, sequence=2)).applied == 3


async def test_puts_are_folded_in_order_of_arrival(tmp_path: Path) -> None:
    """None waits for another, yet each sees those before it."""
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        puts = []
        for number in range(60):
            deletes = [number % 7] if number % 5 == 4 else []
            puts.append(table.kv().put(table.batch([row(number % 3, f"{number}"), row(100 + number)], deletes)))
        ends = [await put.applied for put in puts]
        assert ends == sorted(set(ends))
        expected: dict[tuple[int], Row] = {}
        for number in range(60):
            expected[number % 3,] = row(number % 3, f"{number}")
            expected[100 + number,] = row(100 + number)
            if number % 5 == 4:
                expected.pop((number % 7,), None)
        assert fold(table.changelog()) == expected
        assert await table.all_rows() == by_id(expected.values())
        assert await table.kv().row_count() == len(expected)
        assert len(table.log_batches()) == 60
        assert not table.kv()._unapplied


async def test_rows_are_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(number, "x") for number in range(500)])).applied
        puts = [table.kv().put(table.batch([row(number, "y")], [number + 1])) for number in range(0, 100, 2)]
    # Closing waits for the puts.
    assert all(put.applied.done() and not put.applied.exception() for put in puts)
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        assert await table.kv().row_count() == 450
        assert await table.get(0) == row(0, "y")
        assert await table.get(1) is None
        assert await table.all_rows() == by_id(fold(table.changelog()).values())


async def test_after_a_crash_the_log_is_replayed(tmp_path: Path) -> None:
    """The copied files have all of the log, and of the store what was flushed: nothing."""
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        for number in range(20):
            rows = [row(key, f"{number}/{key}") for key in range(number, number + 30)]
            await table.kv().put(table.batch(rows, [number, 1000])).applied
        expected = await table.all_rows()
        row_count = await table.kv().row_count()
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        table = Table(storage, T)
        assert await table.all_rows() == expected
        assert await table.kv().row_count() == row_count == len(expected)
        await table.kv().put(table.batch([row(7, "after")])).applied
        assert await table.get(7) == row(7, "after")
        fold(table.changelog())


async def test_a_long_log_is_replayed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        for number in range(50):
            await table.kv().put(table.batch([row(key, f"{number}") for key in range(number, number + 5)])).applied
        expected = await table.all_rows()
        image = crash_image(tmp_path / "data", "image")
    monkeypatch.setattr("fluss.storage.kv.engine.CHUNK_BYTES", 500)
    async with opened(image) as storage:
        table = Table(storage, T)
        assert await table.all_rows() == expected


async def test_a_repeated_batch_is_put_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        batches = [table.batch([row(1, f"{number}")], writer_id=8, sequence=number) for number in range(3)]
        first = [table.kv().put(batch) for batch in batches]
        again = [table.kv().put(batch) for batch in batches]
        assert [await put.applied for put in first] == [await put.applied for put in again] == [1, 3, 5]
        assert [await put.appended for put in again] == [1, 3, 5]
        assert await table.get(1) == row(1, "2")
        assert len(table.log_batches()) == 3
        with pytest.raises(FlussError) as refused:
            await table.kv().put(table.batch([row(1, "9")], writer_id=8, sequence=9)).applied
        assert refused.value.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        image = crash_image(tmp_path / "data", "image")
    for root in (tmp_path / "data", image):
        async with opened(root) as storage:
            table = Table(storage, T)
            assert await table.kv().put(table.batch([row(1, "1")], writer_id=8, sequence=1)).applied == 3
            assert await table.get(1) == row(1, "2")
            assert await table.kv().put(table.batch([row(1, "3")], writer_id=8, sequence=3)).applied == 7


async def test_only_durable_rows_are_read(tmp_path: Path) -> None:
    """What a look-up finds lies below the high watermark, and what was applied before it is found."""
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        ends: dict[str, int] = {}
        applied = -1

        async def write() -> None:
            nonlocal applied
            for number in range(100):
                put = table.kv().put(table.batch([row(1, str(number))]))
                ends[str(number)] = await put.appended
                if number % 10 == 9:
                    await put.applied
                    applied = number

        writing = asyncio.ensure_future(write())
        seen = -1
        while not writing.done():
            await asyncio.sleep(0)
            at_least = applied
            found = await table.get(1)
            if found is not None:
                assert ends[found["name"]] <= storage.bucket(table.bucket()).high_watermark
                assert int(found["name"]) >= max(seen, at_least)
                seen = int(found["name"])
        await writing


async def test_room_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_bucket, "QUEUED_BYTES_MAX", 2_000)
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        batch_bytes = len(table.batch([row(1, "x" * 100)]))
        queued: list[int] = []

        async def write(writer: int) -> None:
            for number in range(20):
                await table.kv().room()
                table.kv().put(table.batch([row(number, "x" * 100)]))
                queued.append(table.kv()._queued_bytes)

        await asyncio.gather(*(write(writer) for writer in range(5)))
        await table.kv().settle()
        assert 2_000 <= max(queued) <= 2_000 + batch_bytes
        assert table.kv()._queued_bytes == 0
        await table.kv().room()


async def test_prefixes_and_first_values(tmp_path: Path) -> None:
    schema = Schema(
        pa.schema([("region", pa.string()), ("id", pa.int32()), ("v", pa.string())]), primary_keys=["region", "id"]
    )
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, schema, bucket_keys=["region"])
        rows = [{"region": region, "id": number, "v": "x"} for region in ("a", "b", "c") for number in range(20)]
        await table.kv().put(table.batch(rows)).applied
        prefix = KeyEncoder(schema.columns[:1])
        prefixes = [prefix.encode_row([region]) for region in ("c", "z", "a")]
        found = await table.kv().get_prefixes(prefixes, 1 << 20)
        assert [table.rows(values) for values in found] == [rows[40:], [], rows[:20]]
        assert table.rows(await table.kv().first_values(7, 1 << 20)) == rows[:7]
        with pytest.raises(FlussError, match="more bytes") as refused:
            await table.kv().get_prefixes(prefixes, 100)
        assert refused.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        with pytest.raises(FlussError, match="more bytes"):
            await table.kv().first_values(50, 100)
        assert len(await table.kv().first_values(3, 100)) == 3


async def test_a_bucket_that_was_never_written_has_no_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        assert await table.get(1) is None
        assert await table.all_rows() == []
        assert await table.kv().get_prefixes([b"x"], 100) == [[]]
        assert await table.kv().row_count() == 0
        assert not storage.bucket_path(table.bucket()).exists()
        scan = await table.kv().open_scan()
        assert scan.log_offset == 0
        assert await scan.read(100, 100) == []
        scan.close()


async def test_a_scan_is_of_one_moment(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(number, "old") for number in range(300)])).applied
        scan = await table.kv().open_scan()
        assert scan.log_offset == 300
        first = await scan.read(1 << 20, 10)
        assert len(first) == 10
        await table.kv().put(table.batch([row(number, "new") for number in range(200)], range(200, 300))).applied
        found = [*first]
        while values := await scan.read(1_000, 1_000):
            found += values
        assert by_id(table.rows(found)) == [row(number, "old") for number in range(300)]
        assert await scan.read(1_000, 1_000) == []
        scan.close()
        scan.close()
        with pytest.raises(FlussError, match="begin it again"):
            await scan.read(1_000, 1_000)
        assert len(await table.all_rows()) == 200


async def test_scans_beside_puts_equal_the_log_up_to_their_offset(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        scanned: list[tuple[int, list[Row]]] = []

        async def scans() -> None:
            while not writing.done():
                scan = await table.kv().open_scan()
                values: list[bytes] = []
                while page := await scan.read(500, 20):
                    values += page
                scanned.append((scan.log_offset, by_id(table.rows(values))))
                scan.close()

        async def puts() -> None:
            for number in range(60):
                rows = [row(key, str(number)) for key in range(number, number + 10)]
                await table.kv().put(table.batch(rows, [number])).applied

        writing = asyncio.ensure_future(puts())
        await scans()
        await writing
        changes = table.changelog()
        offsets = {offset for offset, _ in scanned}
        folded = {offset: by_id(fold(changes[:offset]).values()) for offset in offsets}
        for offset, rows in scanned:
            assert rows == folded[offset]
        assert len(offsets) > 1, "no scan came between two puts"


async def test_a_checkpoint_is_of_one_moment(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(number) for number in range(30)])).applied
        directory = storage.bucket_path(table.bucket()) / "copy"
        assert await table.kv().checkpoint(directory) == KvState(30, 30)
        assert (directory / "CURRENT").exists()


async def test_log_tables_and_unknown_buckets(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        log_table = await Table.create(storage, Schema(pa.schema([("id", pa.int64())])), "log")
        for bucket, code in (
            (TableBucket(log_table.table_id, 0), ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION),
            (TableBucket(table.table_id, 1), ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION),
            (TableBucket(99, 0), ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION),
        ):
            with pytest.raises(FlussError) as refused:
                storage.kv.bucket(bucket)
            assert refused.value.error_code == code


def refused_batches(table: Table) -> dict[str, tuple[memoryview, tuple[int, ...], int]]:
    """What must not be accepted, with its target columns and the code that says so."""
    good = table.batch([row(1, "x")])
    damaged = memoryview(bytearray(good))
    damaged[-1] ^= 1
    key = table.key(2)
    good_row = table.codec.encode(arrow([row(1, "x")], table.codec.arrow_schema))[0]
    assert good_row is not None
    return {
        "checksum": (damaged, (), ErrorCode.CORRUPT_RECORD_EXCEPTION),
        "cut": (good[:-1], (), ErrorCode.UNSUPPORTED_VERSION),
        "no row": (make_batch([key], [b"\x00"], 1), (), ErrorCode.UNSUPPORTED_VERSION),
        "another row's key": (make_batch([key], [good_row[2:]], 1), (), ErrorCode.UNSUPPORTED_VERSION),
        "unknown schema": (make_batch([table.key(1)], [good_row[2:]], 7), (), ErrorCode.INVALID_TABLE_EXCEPTION),
        "no key column": (good, (1,), ErrorCode.INVALID_TARGET_COLUMN),
        "no such column": (good, (0, 9), ErrorCode.INVALID_TARGET_COLUMN),
    }


async def test_a_refused_batch_leaves_no_trace(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "first")], writer_id=3, sequence=0)).applied
        for name, (batch, targets, code) in refused_batches(table).items():
            put = table.kv().put(batch, targets)
            after = table.kv().put(table.batch([row(5, name)]))
            for future in (put.appended, put.applied):
                with pytest.raises(FlussError) as refused:
                    await future
                assert refused.value.error_code == code, name
            await after.applied
            assert await table.get(5) == row(5, name)
        assert await table.get(1) == row(1, "first")
        assert fold(table.changelog()).keys() == {(1,), (5,)}
        assert table.kv()._queued_bytes == 0
        # A refused batch has used no sequence.
        bad = make_batch([table.key(2)], [b"\x00"], 1, 3, 1)
        with pytest.raises(FlussError):
            await table.kv().put(bad).applied
        await table.kv().put(table.batch([row(1, "second")], writer_id=3, sequence=1)).applied


async def test_a_waiter_that_gives_up_takes_nothing_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        put = table.kv().put(table.batch([row(1, "x")]))
        waiting = asyncio.ensure_future(put.applied)  # the future itself
        assert not waiting.cancel()
        assert await put.applied == 1
