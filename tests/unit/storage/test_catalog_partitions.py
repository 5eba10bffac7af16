"""Partitions and altered tables in the catalog: what it says, what survives, what a failed change leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TablePath
from fluss.storage import failpoints
from fluss.storage.catalog import catalog as catalog_module
from fluss.storage.catalog.catalog import AlteredTable, Catalog, CatalogLimits, TableEntry
from tests.kit.storage.logs import catalog

T = TablePath("fluss", "t")


async def partitioned(
    c: Catalog, path: TablePath = T, buckets: int = 1, partitions: tuple[str, ...] = ()
) -> TableEntry:
    return await c.create_table(path, "{}", "{}", buckets, partition_keys=["dt"], partitions=partitions)


async def refused(change: Awaitable[object]) -> int:
    with pytest.raises(FlussError) as caught:
        await change
    return caught.value.error_code


def names(c: Catalog, table: TableEntry) -> list[str]:
    return [entry.name for entry in c.partitions(table)]


async def test_partitions(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table = await partitioned(c)
        assert table.partition_keys == ("dt",)
        await c.create_partitions(table.table_id, ["b", "a"])
        a, b = c.partitions(table)
        assert (a.name, a.partition_id, b.name, b.partition_id, a.table_id) == ("a", 1, "b", 0, table.table_id)
        assert a.created_time_ms > 1_600_000_000_000
        assert c.partition(table, "a") == a == c.partition_by_id(1)
        with pytest.raises(FlussError) as caught:
            c.partition(table, "none")
        assert caught.value.error_code == ErrorCode.PARTITION_NOT_EXISTS
    async with catalog(tmp_path) as c:
        assert c.table(T) == table
        assert c.partitions(table) == [a, b]
        await c.drop_partitions(table.table_id, ["a"])
        assert c.partition_by_id(1) is None
        await c.create_partitions(table.table_id, ["a"])
        assert c.partition(table, "a").partition_id == 2
    async with catalog(tmp_path) as c:
        assert [entry.partition_id for entry in c.partitions(table)] == [2, 0]
        assert c.partition_id_next == 3


async def test_codes(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table = await partitioned(c, partitions=("a",))
        plain = await c.create_table(TablePath("fluss", "plain"), "{}", "{}", 1)
        assert await refused(c.create_partitions(99, ["a"])) == ErrorCode.TABLE_NOT_EXIST
        assert await refused(c.create_partitions(plain.table_id, ["a"])) == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
        assert await refused(c.create_partitions(table.table_id, ["b", "a"])) == ErrorCode.PARTITION_ALREADY_EXISTS
        assert names(c, table) == ["a"], "all or nothing"
        await c.create_partitions(table.table_id, ["b", "a", "b"], ignore_if_exists=True)
        assert names(c, table) == ["a", "b"]
        assert await refused(c.drop_partitions(99, ["a"])) == ErrorCode.TABLE_NOT_EXIST
        assert await refused(c.drop_partitions(plain.table_id, ["a"])) == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
        assert await refused(c.drop_partitions(table.table_id, ["a", "z"])) == ErrorCode.PARTITION_NOT_EXISTS
        assert names(c, table) == ["a", "b"], "all or nothing"
        await c.drop_partitions(table.table_id, ["a", "z"], ignore_if_not_exists=True)
        assert names(c, table) == ["b"]


async def test_limits_count_the_buckets_of_partitions(tmp_path: Path) -> None:
    async with catalog(tmp_path, CatalogLimits(buckets_max=10, partitions_per_table_max=3)) as c:
        table = await partitioned(c, buckets=3)
        assert c.buckets_in_use == 0
        await c.create_partitions(table.table_id, ["a", "b"])
        assert c.buckets_in_use == 6
        assert await refused(c.create_partitions(table.table_id, ["c", "d"])) == ErrorCode.PARTITION_MAX_NUM_EXCEPTION
        plain = TablePath("fluss", "plain")
        assert await refused(c.create_table(plain, "{}", "{}", 5)) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        await c.create_table(plain, "{}", "{}", 4)
        assert await refused(c.create_partitions(table.table_id, ["c"])) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        wide = partitioned(c, TablePath("fluss", "wide"), 1, ("a", "b", "c", "d"))
        assert await refused(wide) == ErrorCode.PARTITION_MAX_NUM_EXCEPTION
        assert not c.table_exists(TablePath("fluss", "wide"))
        await c.drop_partitions(table.table_id, ["a"])
        assert c.buckets_in_use == 7
    async with catalog(tmp_path) as c:
        assert c.buckets_in_use == 7
        await c.drop_table(T)
        assert c.buckets_in_use == 4
        await c.drop_database("fluss", cascade=True)
        assert c.buckets_in_use == 0


async def test_the_number_of_tables_is_limited_too(tmp_path: Path) -> None:
    async with catalog(tmp_path, CatalogLimits(buckets_max=2)) as c:
        for number in range(2):
            await partitioned(c, TablePath("fluss", f"t{number}"))
        assert await refused(partitioned(c)) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION


async def test_descriptions_have_a_size_limit_in_all(tmp_path: Path) -> None:
    async with catalog(tmp_path, CatalogLimits(definition_bytes_total_max=1_000)) as c:
        await c.create_table(T, "x" * 300, "y" * 300, 1)
        other = TablePath("fluss", "other")
        for change in (
            lambda: c.create_table(other, "x" * 200, "y" * 200, 1),
            lambda: c.alter_table(T, lambda entry, _: AlteredTable("x" * 400, "y" * 300)),
            lambda: c.create_database("db", "x" * 400),
        ):
            assert await refused(change()) == ErrorCode.INVALID_TABLE_EXCEPTION
        await c.alter_table(T, lambda entry, _: AlteredTable("x" * 200, "y" * 300))
        await c.drop_table(T)
        await c.create_table(other, "x" * 400, "y" * 400, 1)
    async with catalog(tmp_path, CatalogLimits(definition_bytes_total_max=1_000)) as c:
        assert await refused(c.create_table(T, "x" * 200, "{}", 1)) == ErrorCode.INVALID_TABLE_EXCEPTION


async def test_the_number_of_databases_is_limited(tmp_path: Path) -> None:
    async with catalog(tmp_path, CatalogLimits(databases_max=2)) as c:
        await c.create_database("db", "{}")
        assert await refused(c.create_database("more", "{}")) == ErrorCode.INVALID_DATABASE_EXCEPTION
        await c.drop_database("db")
        await c.create_database("more", "{}")


async def test_who_is_told_of_a_drop(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        tables: list[int] = []
        partitions: list[str] = []
        c.on_drop(tables.append)
        c.on_drop_partition(lambda entry: partitions.append(entry.name))
        table = await partitioned(c, partitions=("a", "b"))
        await c.drop_partitions(table.table_id, ["a"])
        assert (tables, partitions) == ([], ["a"])
        await c.drop_table(T)
        assert (tables, partitions) == ([table.table_id], ["a"]), "the table's drop speaks for its partitions"
        assert c.partition_by_id(1) is None


async def test_an_altered_table_keeps_its_old_schemas(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        made = await c.create_table(T, '{"a":1}', '{"s":1}', 1)
        seen: list[bytes] = []

        def add_column(entry: TableEntry, schema_json: bytes) -> AlteredTable:
            seen.append(schema_json)
            return AlteredTable(f'{{"a":{entry.schema_id + 1}}}', f'{{"s":{entry.schema_id + 1}}}')

        for schema_id in (2, 3):
            entry = await c.alter_table(T, add_column)
            assert entry == c.table(T) == c.table_by_id(made.table_id)
            assert (entry.schema_id, entry.table_json) == (schema_id, b'{"a":%d}' % schema_id)
            assert entry.modified_time_ms >= made.modified_time_ms
            assert (entry.table_id, entry.created_time_ms) == (made.table_id, made.created_time_ms)
        assert seen == [b'{"s":1}', b'{"s":2}']
        await c.alter_table(T, lambda entry, _: AlteredTable('{"only":"properties"}'))
        unchanged = await c.alter_table(T, lambda entry, _: None)
        assert unchanged == c.table(T)
        assert (unchanged.schema_id, unchanged.table_json) == (3, b'{"only":"properties"}')
    async with catalog(tmp_path) as c:
        assert c.table(T) == unchanged
        assert [c.schema_json(made.table_id, schema_id) for schema_id in (1, 2, 3)] == [
            b'{"s":1}',
            b'{"s":2}',
            b'{"s":3}',
        ]
        assert await c.alter_table(TablePath("fluss", "none"), add_column, ignore_if_not_exists=True) is None
        missing = c.alter_table(TablePath("fluss", "none"), add_column)
        assert await refused(missing) == ErrorCode.TABLE_NOT_EXIST


async def test_concurrent_additions_each_see_the_other(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        await c.create_table(T, "", "0", 1)

        def append(entry: TableEntry, schema_json: bytes) -> AlteredTable:
            return AlteredTable(entry.table_json.decode() + "x", str(int(schema_json) + 1))

        await asyncio.gather(*(c.alter_table(T, append) for _ in range(20)))
        assert (c.table(T).schema_id, c.table(T).table_json) == (21, b"x" * 20)
        assert c.schema_json(0, 21) == b"20"


async def test_schema_ids_end_where_batch_headers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "SCHEMA_ID_MAX", 2)
    async with catalog(tmp_path) as c:
        await c.create_table(T, "{}", "{}", 1)
        await c.alter_table(T, lambda entry, _: AlteredTable("{}", "{}"))
        more = c.alter_table(T, lambda entry, _: AlteredTable("{}", "{}"))
        assert await refused(more) == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
        assert c.table(T).schema_id == 2


@pytest.mark.parametrize(
    "change", ["create_table", "create_partitions", "drop_partitions", "alter_table", "drop_table"]
)
async def test_a_failed_commit_changes_nothing(tmp_path: Path, change: str) -> None:
    other = TablePath("fluss", "other")
    async with catalog(tmp_path) as c:
        table = await partitioned(c, buckets=2, partitions=("a", "b"))
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "create_table": lambda: partitioned(c, other, 1, ("a",)),
            "create_partitions": lambda: c.create_partitions(table.table_id, ["c", "d"]),
            "drop_partitions": lambda: c.drop_partitions(table.table_id, ["a", "b"]),
            "alter_table": lambda: c.alter_table(T, lambda entry, _: AlteredTable('{"new":1}', '{"new":1}')),
            "drop_table": lambda: c.drop_table(T),
        }
        before = _content(c)
        failpoints.arm("catalog.commit.before_commit:1:enospc")
        assert await refused(changes[change]()) == ErrorCode.STORAGE_EXCEPTION
        assert _content(c) == before
        await changes[change]()
        after = _content(c)
        assert after != before
    async with catalog(tmp_path) as c:
        assert _content(c) == after


def _content(c: Catalog) -> object:
    return [
        (table, table.partition_keys and c.partitions(table), c.schema_json(table.table_id, table.schema_id))
        for table in c.tables("fluss")
    ], c.buckets_in_use
