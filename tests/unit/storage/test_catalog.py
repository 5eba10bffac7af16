"""The catalog: what it says, what survives, and what a failed or abandoned change leaves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints
from fluss.storage.catalog import cluster
from fluss.storage.catalog.catalog import BUCKETS_MAX, DEFAULT_DATABASE, WRITER_ID_MAX, Catalog, CatalogLimits
from fluss.storage.catalog.db import SCHEMA_VERSION, ProducerEntry
from tests.kit.storage.logs import catalog

T = TablePath("fluss", "t")


def _code(caught: pytest.ExceptionInfo[FlussError]) -> int:
    return caught.value.error_code


async def test_the_default_database_is_there_from_the_start(tmp_path: Path) -> None:
    for _ in range(2):
        async with catalog(tmp_path) as c:
            assert [entry.name for entry in c.databases()] == [DEFAULT_DATABASE]
            assert c.database_exists("fluss")


async def test_databases(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        made = await c.create_database("db", '{"version":1,"comment":"x"}')
        assert c.database("db") == made
        assert made.json == b'{"version":1,"comment":"x"}'
        assert made.created_time_ms > 1_600_000_000_000
        with pytest.raises(FlussError) as caught:
            await c.create_database("db", "{}")
        assert _code(caught) == ErrorCode.DATABASE_ALREADY_EXIST
        assert await c.create_database("db", "{}", ignore_if_exists=True) == made
        with pytest.raises(FlussError) as caught:
            await c.drop_database("none")
        assert _code(caught) == ErrorCode.DATABASE_NOT_EXIST
        await c.drop_database("none", ignore_if_not_exists=True)
    async with catalog(tmp_path) as c:
        assert c.database("db") == made
        await c.drop_database("db")
        with pytest.raises(FlussError) as caught:
            c.database("db")
        assert _code(caught) == ErrorCode.DATABASE_NOT_EXIST


async def test_tables(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        with pytest.raises(FlussError) as caught:
            await c.create_table(TablePath("none", "t"), "{}", "{}", 1)
        assert _code(caught) == ErrorCode.DATABASE_NOT_EXIST
        made = await c.create_table(T, '{"a":1}', '{"s":1}', 3)
        assert (made.table_id, made.schema_id, made.num_buckets, made.table_json) == (0, 1, 3, b'{"a":1}')
        assert c.table(T) == made
        assert c.table_by_id(0) == made
        assert c.schema_json(0, 1) == b'{"s":1}'
        with pytest.raises(FlussError) as caught:
            c.schema_json(0, 2)
        assert _code(caught) == ErrorCode.SCHEMA_NOT_EXIST
        with pytest.raises(FlussError) as caught:
            await c.create_table(T, "{}", "{}", 1)
        assert _code(caught) == ErrorCode.TABLE_ALREADY_EXIST
        assert await c.create_table(T, "{}", "{}", 1, ignore_if_exists=True) == made
        second = await c.create_table(TablePath("fluss", "a"), "{}", "{}", 1)
        assert c.tables("fluss") == [second, made]
        with pytest.raises(FlussError) as caught:
            c.tables("none")
        assert _code(caught) == ErrorCode.DATABASE_NOT_EXIST
    async with catalog(tmp_path) as c:
        assert c.tables("fluss") == [second, made]
        assert c.schema_json(0, 1) == b'{"s":1}'
        await c.drop_table(T)
        assert not c.table_exists(T)
        assert c.table_by_id(0) is None
        with pytest.raises(FlussError) as caught:
            c.table(T)
        assert _code(caught) == ErrorCode.TABLE_NOT_EXIST
        with pytest.raises(FlussError) as caught:
            await c.drop_table(T)
        assert _code(caught) == ErrorCode.TABLE_NOT_EXIST
        await c.drop_table(T, ignore_if_not_exists=True)
    connection = sqlite3.connect(tmp_path / "catalog.db")
    assert connection.execute("SELECT table_id FROM schemas").fetchall() == [(1,)]
    connection.close()


async def test_a_database_with_tables_goes_only_in_cascade(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        dropped: list[int] = []
        c.on_drop(dropped.append)
        await c.create_database("db", "{}")
        for name in ("x", "y"):
            await c.create_table(TablePath("db", name), "{}", "{}", 1)
        with pytest.raises(FlussError) as caught:
            await c.drop_database("db")
        assert _code(caught) == ErrorCode.DATABASE_NOT_EMPTY
        assert not dropped
        await c.drop_database("db", cascade=True)
        assert dropped == [0, 1]
    async with catalog(tmp_path) as c:
        assert not c.database_exists("db")
        assert c.table_by_id(0) is None


async def test_table_ids_are_never_used_again(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        async with catalog(tmp_path) as c:
            for _ in range(2):
                seen.append((await c.create_table(T, "{}", "{}", 1)).table_id)
                await c.drop_table(T)
    assert seen == list(range(6))


async def test_writer_ids_are_random_and_need_no_disk(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        failpoints.arm("catalog.commit.before_commit:1:eio")
        ids = [c.next_writer_id() for _ in range(1_000)]
        failpoints.disarm()
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 1
    assert max(ids) <= WRITER_ID_MAX


async def test_limits(tmp_path: Path) -> None:
    async with catalog(tmp_path, CatalogLimits(buckets_per_table_max=BUCKETS_MAX)) as c:
        for buckets in (0, -1, BUCKETS_MAX + 1):
            with pytest.raises(FlussError) as caught:
                await c.create_table(T, "{}", "{}", buckets)
            assert _code(caught) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        await c.create_table(T, "{}", "{}", BUCKETS_MAX)
        with pytest.raises(FlussError) as caught:
            await c.create_table(TablePath("fluss", "u"), "{}", "{}", 1)
        assert _code(caught) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION


async def test_concurrent_changes_are_one_after_the_other(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        results = await asyncio.gather(*(c.create_table(T, "{}", "{}", 1) for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(result, FlussError) for result in results) == 9
        many = [TablePath("fluss", f"t{number}") for number in range(20)]
        entries = await asyncio.gather(*(c.create_table(path, "{}", "{}", 1) for path in many))
        assert sorted(entry.table_id for entry in entries) == list(range(1, 21))


@pytest.mark.parametrize("change", ["create_database", "drop_database", "create_table", "drop_table"])
async def test_a_failed_commit_changes_nothing(tmp_path: Path, change: str) -> None:
    async with catalog(tmp_path) as c:
        await c.create_database("db", "{}")
        await c.create_table(T, "{}", "{}", 1)
        before = (c.databases(), c.tables("fluss"), c.table_id_next)
        changes: dict[str, Callable[[], Awaitable[object]]] = {
            "create_database": lambda: c.create_database("new", "{}"),
            "drop_database": lambda: c.drop_database("db"),
            "create_table": lambda: c.create_table(TablePath("db", "t"), "{}", "{}", 1),
            "drop_table": lambda: c.drop_table(T),
        }
        failpoints.arm("catalog.commit.before_commit:1:enospc")
        with pytest.raises(FlussError) as caught:
            await changes[change]()
        assert _code(caught) == ErrorCode.STORAGE_EXCEPTION
        assert (c.databases(), c.tables("fluss"), c.table_id_next) == before
        await changes[change]()
        assert (c.databases(), c.tables("fluss"), c.table_id_next) != before or change == "create_table"
        after = (c.databases(), c.tables("fluss"), c.table_id_next)
    async with catalog(tmp_path) as c:
        assert (c.databases(), c.tables("fluss"), c.table_id_next) == after


async def test_a_cancelled_caller_does_not_split_memory_from_disk(tmp_path: Path) -> None:
    for cancel_after_turns in range(6):
        path = TablePath("fluss", f"t{cancel_after_turns}")
        async with catalog(tmp_path) as c:
            caller = asyncio.create_task(c.create_table(path, "{}", "{}", 1))
            for _ in range(cancel_after_turns):
                await asyncio.sleep(0)
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)
            # Changes are serial: when this one is through, the abandoned one is too.
            await c.create_database(f"db{cancel_after_turns}", "{}")
            in_memory = c.tables("fluss")
        async with catalog(tmp_path) as c:
            assert c.tables("fluss") == in_memory


async def test_a_damaged_catalog_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(FlussError, match=r"catalog\.db.*can't be opened"):
        await Catalog.open(tmp_path / "catalog.db")


async def test_a_newer_catalog_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "catalog.db")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(FlussError, match="Upgrade flussbett"):
        await Catalog.open(tmp_path / "catalog.db")


async def test_producers_and_settings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ProducerEntry("job", 100, {TableBucket(1, 0, 7): 5, TableBucket(1, 1, 7): 6})
    async with catalog(tmp_path) as c:
        assert await c.register_producer(entry, 50)
        assert not await c.register_producer(entry._replace(expires_ms=999, offsets={}), 99)
        await c.change_settings({"a": "1", "b": "2"})
        await c.change_settings({"a": None, "b": "3"})
    async with catalog(tmp_path) as c:
        assert (c.producer("job"), dict(c.settings())) == (entry, {"b": "3"})
        assert not await c.register_producer(entry, None), "a clock in doubt lets nothing expire"
        later = entry._replace(expires_ms=300, offsets={})
        assert await c.register_producer(later, 100), "it has expired"
        assert await c.register_producer(ProducerEntry("other", 200, {}), 100)
        assert await c.register_producer(ProducerEntry("third", 400, {}), 200)
        assert c.producer("other") is None, "expired ones go"
    async with catalog(tmp_path) as c:
        assert (c.producer("job"), c.producer("other")) == (later, None)
        await c.delete_producer("job")
        await c.delete_producer("job")
        assert c.producer("job") is None
        monkeypatch.setattr(cluster, "PRODUCER_OFFSETS_MAX", 1)
        with pytest.raises(FlussError, match="with 1 offsets in all"):
            await c.register_producer(entry, 50)
        assert c.producer("job") is None
