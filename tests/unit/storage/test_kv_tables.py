"""All kinds of primary-key tables: formats, merge rules, partitions, numbered rows, schemas that grow."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.model.descriptor import TableDescriptor, with_columns
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes
from fluss.storage.catalog.catalog import AlteredTable, TableEntry
from fluss.storage.store import Storage
from tests.kit.storage.kv_tables import Table, by_id, fold, opened, row
from tests.kit.storage.logs import crash_image

T = TablePath("fluss", "t")

LAKE_SCHEMA = Schema(pa.schema([("id", pa.string()), ("v", pa.int32())]), primary_keys=["id"])


@pytest.mark.parametrize("log_format", ["ARROW", "INDEXED", "COMPACTED"])
@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
async def test_formats(tmp_path: Path, log_format: str, kv_format: str) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, log_format=log_format, kv_format=kv_format)
        for number in range(6):
            rows = [row(key, f"{number}-{key}", None if key % 2 else key) for key in range(number, number + 8)]
            await table.kv().put(table.batch(rows, [number])).applied
        assert await table.kv().put(table.batch([], [99])).applied
        expected = await table.all_rows()
        assert expected == by_id(fold(table.changelog()).values())
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        table = Table(storage, T)
        assert await table.all_rows() == expected
        assert await table.kv().row_count() == len(expected)


@pytest.mark.parametrize("compression", ["NONE", "LZ4_FRAME", "ZSTD"])
async def test_compressions(tmp_path: Path, compression: str) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, properties={"table.log.arrow.compression.type": compression})
        await table.kv().put(table.batch([row(number, "text" * 20) for number in range(1_000)])).applied
        assert len(table.changelog()) == 1_000


@pytest.mark.parametrize("lake", ["PAIMON", "ICEBERG"])
@pytest.mark.parametrize("version", ["1", "2"])
async def test_lake_keys(tmp_path: Path, lake: str, version: str) -> None:
    properties = {"table.datalake.format": lake, "table.kv.format-version": version}
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, LAKE_SCHEMA, properties=properties)
        rows = [{"id": f"key {number}", "v": number} for number in range(50)]
        await table.kv().put(table.batch(rows)).applied
        await table.kv().put(table.batch([{"id": "key 3", "v": -3}], ["key 4"])).applied
        assert await table.get("key 3") == {"id": "key 3", "v": -3}
        assert await table.get("key 4") is None
        image = crash_image(tmp_path / "data", "image")
        with pytest.raises(FlussError, match="can't be decoded"):
            await table.kv().insert_missing([table.key("new")])
    async with opened(image) as storage:
        table = Table(storage, T)
        assert await table.get("key 3") == {"id": "key 3", "v": -3}
        assert await table.kv().row_count() == 49


async def test_the_wal_image_counts_no_rows(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, properties={"table.changelog.image": "WAL"})
        await table.kv().put(table.batch([row(1, "a"), row(1, "b"), row(2)])).applied
        await table.kv().put(table.batch([row(2, "c")], [1, 7])).applied
        assert await table.kv().row_count() is None
        kinds = [change for change, _ in table.changelog()]
        assert kinds == ["+U", "+U", "+U", "+U", "-D"]
        image = crash_image(tmp_path / "data", "image")
    for root in (tmp_path / "data", image):
        async with opened(root) as storage:
            assert await Table(storage, T).all_rows() == [row(2, "c")]


async def test_first_row(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, properties={"table.merge-engine": "FIRST_ROW"})
        await table.kv().put(table.batch([row(1, "a"), row(1, "b")])).applied
        await table.kv().put(table.batch([row(1, "c"), row(2, "d")], [1])).applied
        assert await table.all_rows() == [row(1, "a"), row(2, "d")]
        await table.kv().put(table.batch([row(1, "over")]), overwrite=True).applied
        assert await table.get(1) == row(1, "over")


async def test_versioned(tmp_path: Path) -> None:
    properties = {"table.merge-engine": "VERSIONED", "table.merge-engine.versioned.ver-column": "score"}
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, properties=properties)
        puts = [table.kv().put(table.batch([row(1, str(version), version)])) for version in (3, 5, 4, 5, 1)]
        for put in puts:
            await put.applied
        assert [changed["score"] for change, changed in table.changelog() if change != "-U"] == [3, 5, 5]
        assert len(table.log_batches()) == 5


async def test_partial_updates(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        first = table.kv().put(table.batch([row(1, "a", None), row(2, "b")]), (0, 1))
        second = table.kv().put(table.batch([row(1, None, 7), row(3, None, 8)]), (0, 2))
        assert await first.applied == 2
        await second.applied
        assert await table.all_rows() == [row(1, "a", 7), row(2, "b"), row(3, None, 8)]
        await table.kv().put(table.batch([], [1, 3]), (0, 2)).applied
        assert await table.all_rows() == [row(1, "a"), row(2, "b")]
        assert fold(table.changelog()) == {(1,): row(1, "a"), (2,): row(2, "b")}


async def test_partitions(tmp_path: Path) -> None:
    schema = Schema(pa.schema([("day", pa.string()), ("id", pa.int64()), ("v", pa.string())]), ["day", "id"])
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, schema, partition_keys=["day"], partitions=["mon", "tue"])
        for day in ("mon", "tue"):
            rows = [{"day": day, "id": number, "v": day} for number in range(10)]
            await table.kv(partition=day).put(table.batch(rows, [3])).applied
        assert await table.get(3, partition="mon") is None
        assert await table.get(4, partition="tue") == {"day": "tue", "id": 4, "v": "tue"}
        await table.kv(partition="mon").insert_missing([table.key(4), table.key(70)])
        assert await table.get(4, partition="mon") == {"day": "mon", "id": 4, "v": "mon"}
        assert await table.get(70, partition="mon") == {"day": "mon", "id": 70, "v": None}
        expected = await table.all_rows(partition="tue")
        kv, directory = table.kv(partition="mon"), storage.bucket_path(table.bucket(0, "mon"))
        await storage.catalog.drop_partitions(table.table_id, ["mon"])
        with pytest.raises(FlussError):
            await kv.get_many([table.key(1)])
        while storage._removals:
            await asyncio.wait(storage._removals.values())
        assert not directory.exists()
        assert await table.all_rows(partition="tue") == expected
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        assert await Table(storage, T).all_rows(partition="tue") == expected


async def test_insert_missing(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "a")])).applied
        keys = [table.key(1), table.key(2), table.key(2), table.key(3)]
        await asyncio.gather(*(table.kv().insert_missing(keys) for _ in range(3)))
        assert await table.all_rows() == [row(1, "a"), row(2), row(3)]
        assert [change for change, _ in table.changelog()] == ["+I"] * 3
        assert await table.kv().row_count() == 3
        with pytest.raises(FlussError):
            await table.kv().insert_missing([b"\xff" * 20])
        await table.kv().insert_missing([])


NUMBERED = Schema(
    pa.schema([("name", pa.string()), ("number", pa.int64()), ("v", pa.int32())]),
    primary_keys=["name"],
    auto_increment_column="number",
)


def named(name: str, v: int | None = None) -> dict[str, Any]:
    return {"name": name, "number": None, "v": v}


async def test_numbered_rows(tmp_path: Path) -> None:
    # Without the numbered column, which the server fills in.
    targets = (0, 2)
    names = [f"a{number}" for number in range(5)] + ["b", "c"]
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, NUMBERED)
        batches = [table.batch([named(f"a{number}", number), named("b", number)]) for number in range(5)]
        for put in [table.kv().put(batch, targets) for batch in batches]:
            await put.applied
        await table.kv().insert_missing([table.key("c"), table.key("b")])
        found = {name: await table.get(name) or {} for name in names}
        numbers = {name: kept["number"] for name, kept in found.items()}
        assert len(set(numbers.values())) == len(names)
        assert all(isinstance(number, int) and number > 0 for number in numbers.values())
        assert found["b"]["v"] == 4
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        table = Table(storage, T)
        await table.kv().put(table.batch([named("new", 1), named("b", 9)]), targets).applied
        assert await table.get("b") == {"name": "b", "number": numbers["b"], "v": 9}
        new = await table.get("new") or {}
        assert new["number"] not in numbers.values()


async def numbers_of(table: Table) -> list[int]:
    values = await table.kv().first_values(1 << 20, 1 << 20)
    return [kept["number"] for kept in table.rows(values) if kept is not None]


async def test_no_number_comes_twice_with_an_older_catalog(tmp_path: Path) -> None:
    """As in a directory that was copied under a running server: the catalog and its mark first, the rows later."""
    targets, small_blocks = (0, 2), {"table.auto-increment.cache-size": "3"}
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, NUMBERED, properties=small_blocks)
        await table.kv().put(table.batch([named("first", 1)]), targets).applied
        earlier = crash_image(tmp_path / "data", "earlier")
        rows = [named(f"a{number}", number) for number in range(20)]
        await table.kv().put(table.batch(rows), targets).applied
        used = await numbers_of(table)
        image = crash_image(tmp_path / "data", "image")
    for name in ("catalog.db", "catalog.db-wal", "marks"):
        (image / name).write_bytes((earlier / name).read_bytes())
    (image / "catalog.db-shm").unlink(missing_ok=True)
    async with opened(image) as storage:
        table = Table(storage, T)
        assert await numbers_of(table) == used
        await table.kv().put(table.batch([named("new", 1), named("newer", 1)]), targets).applied
        numbers = await numbers_of(table)
        assert len(set(numbers)) == len(used) + 2
    async with opened(image) as storage:  # after a clean stop
        table = Table(storage, T)
        await table.kv().put(table.batch([named("newest", 1)]), targets).applied
        assert (await table.get("newest") or {})["number"] == max(numbers) + 1


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"version": 1, "crc32": 0, "note": [1]}', b"\xff" * 99])
async def test_a_damaged_note_of_numbers_says_nothing(tmp_path: Path, content: bytes) -> None:
    targets = (0, 2)
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, NUMBERED)
        await table.kv().put(table.batch([named("a", 1)]), targets).applied
        note = storage.bucket_path(table.bucket()).parent / "numbers"
        assert note.exists()
    note.write_bytes(content)
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        await table.kv().put(table.batch([named("b", 1)]), targets).applied
        assert (await table.get("b") or {})["number"] == (await table.get("a") or {})["number"] + 1


async def add_column(storage: Storage, name: str) -> None:
    def alteration(entry: TableEntry, schema_json: bytes) -> AlteredTable:
        before = TableDescriptor.from_json(entry.table_json)
        after = with_columns(before, [Column(name, DataTypes.string())])
        return AlteredTable(after.to_json().decode(), json.dumps(after.schema.to_json()))

    await storage.catalog.alter_table(T, alteration)


async def test_a_schema_that_grows(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        old = await Table.create(storage)
        await old.kv().put(old.batch([row(1, "a"), row(2, "b")])).applied
        await add_column(storage, "extra")
        new = Table(storage, T)
        assert new.schema_id == 2
        assert await new.get(1) == {**row(1, "a"), "extra": None}
        # Writers of both schemas, at the same time.
        puts = [
            new.kv().put(new.batch([{**row(1, "c"), "extra": "x"}])),
            old.kv().put(old.batch([row(2, "d"), row(3, "e")])),
            new.kv().put(new.batch([{**row(3, "f"), "extra": "y"}]), (0, 3)),
        ]
        for put in puts:
            await put.applied
        expected = [
            {**row(1, "c"), "extra": "x"},
            {**row(2, "d"), "extra": None},
            {**row(3, "e"), "extra": "y"},
        ]
        assert await new.all_rows() == expected
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        table = Table(storage, T)
        assert await table.all_rows() == expected
        assert await table.kv().row_count() == 3


async def test_altered_while_puts_run(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        puts = []
        for number in range(40):
            puts.append(table.kv().put(table.batch([row(number % 10, str(number))])))
            if number % 10 == 5:
                await add_column(storage, f"extra{number}")
        for put in puts:
            await put.applied
        newest = Table(storage, T)
        assert newest.schema_id == 5
        rows = await newest.all_rows()
        assert [kept["name"] for kept in rows] == [str(30 + number) for number in range(10)]
        assert set(rows[0]) == {"id", "name", "score", "extra5", "extra15", "extra25", "extra35"}
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        assert await Table(storage, T).all_rows() == rows


async def test_deletes_disabled(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, properties={"table.delete.behavior": "DISABLE"})
        with pytest.raises(FlussError) as refused:
            await table.kv().put(table.batch([row(1)], [1])).applied
        assert refused.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
        assert storage.bucket(TableBucket(table.table_id, 0)).log_end_offset == 0


def test_log_tables_load_neither_arrow_nor_rocksdb() -> None:
    program = "import sys, fluss.storage.store; print({'pyarrow', 'rocksdict'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
