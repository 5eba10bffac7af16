"""Batches of staged writes that come again: done with the same rows, refused with others, and what settles them."""

from __future__ import annotations

import sqlite3
from itertools import chain
from pathlib import Path

import pytest

from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import StagedRows, StagedTask
from fluss.storage import failpoints
from fluss.storage.catalog import db
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.store import Storage
from tests.kit.storage.kv_tables import opened
from tests.kit.storage.logs import crash_image, texts
from tests.kit.storage.staging import LOG, create_log, log_batch, stage, staged_files

QUERY = "a query"
OTHER = TablePath("fluss", "other")


async def write(storage: Storage, entry: TableEntry, batch_id: int, *contents: str, attempt: int = 0) -> bool:
    """Stage a batch and commit it; the digest is what a client would send, more or less."""
    for task, content in enumerate(contents):
        batches = [(TableBucket(entry.table_id, 0), log_batch(content))]
        await stage(storage, entry.table_id, batches, query=QUERY, batch_id=batch_id, task=task, attempt=attempt)
    tasks = [
        StagedTask(task, attempt, 1, 1, int.from_bytes(content.encode().ljust(8, b"~")[:8], "big"))
        for task, content in enumerate(contents)
    ]
    return await storage.staging.commit(entry.table_id, QUERY, batch_id, tasks)


def found(storage: Storage, entry: TableEntry) -> list[str]:
    return sorted(texts(storage.bucket(TableBucket(entry.table_id, 0))))


async def test_the_last_batch_is_done_if_it_has_the_same_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        assert not await write(storage, entry, 5, "a", "b")
        assert await write(storage, entry, 5, "b", "a", attempt=1)
        for contents in (("a",), ("a", "c"), ("a", "b", "b"), ("a", "a"), ()):
            with pytest.raises(InvalidRequestError, match=r"with other rows .* Does another program run this query"):
                await write(storage, entry, 5, *contents, attempt=2)
        assert found(storage, entry) == ["a", "b"]
        assert staged_files(storage) == []
    async with opened(tmp_path) as storage:
        assert await write(storage, entry, 5, "b", "a", attempt=3)
        with pytest.raises(InvalidRequestError, match="with other rows"):
            await write(storage, entry, 5, "a", "c", attempt=4)
        assert not await write(storage, entry, 6, "c")
        assert found(storage, entry) == ["a", "b", "c"]


async def test_an_earlier_batch_is_refused_with_the_way_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for batch_id, content in ((5, "a"), (6, "b")):
            await write(storage, entry, batch_id, content)
        for contents in (("a",), ("other",), ()):
            with pytest.raises(InvalidRequestError) as raised:
                await write(storage, entry, 5, *contents, attempt=1)
            for part in (
                "Batch 5 of query 'a query' is refused: batch 6 is the last one committed to table fluss.log",
                "Does another program run this query, from the same checkpoint? Then stop one of them",
                "`fluss staged accept fluss.log 'a query' 6`",
                "`fluss staged reset fluss.log 'a query' --to 4`",
            ):
                assert part in raised.value.message
            assert not raised.value.is_retriable
            assert raised.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION
        assert found(storage, entry) == ["a", "b"]
        assert staged_files(storage) == []


async def test_the_first_batch_that_comes_again_with_other_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await write(storage, entry, 0, "a")
        with pytest.raises(InvalidRequestError, match=r"`fluss staged reset fluss\.log 'a query'`"):
            await write(storage, entry, 0, "b", attempt=1)


async def test_what_is_accepted_is_done_until_the_next_batch(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for batch_id in range(4):
            await write(storage, entry, batch_id, str(batch_id))
        await storage.staging.accept(entry.table_id, QUERY, 2)
        assert await write(storage, entry, 1, "other", attempt=1)
        with pytest.raises(InvalidRequestError, match="with other rows"):
            await write(storage, entry, 3, "other", attempt=1)
        await storage.staging.accept(entry.table_id, QUERY, 3)
    async with opened(tmp_path) as storage:
        for batch_id in range(1, 4):
            assert await write(storage, entry, batch_id, "other", attempt=2)
        assert not await write(storage, entry, 4, "4")
        assert found(storage, entry) == ["0", "1", "2", "3", "4"]
        for batch_id in (1, 3, 4):
            with pytest.raises(InvalidRequestError, match="is refused"):
                await write(storage, entry, batch_id, "other", attempt=3)


async def test_only_what_was_committed_can_be_accepted(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        with pytest.raises(InvalidRequestError, match="has committed nothing"):
            await storage.staging.accept(entry.table_id, QUERY, 0)
        await write(storage, entry, 2, "a")
        with pytest.raises(InvalidRequestError, match=r"the last one committed to table fluss\.log is 2"):
            await storage.staging.accept(entry.table_id, QUERY, 3)
        assert not await write(storage, entry, 3, "b")


async def test_a_query_that_is_reset_begins_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for batch_id in range(3):
            await write(storage, entry, batch_id, str(batch_id))
        await stage(
            storage, entry.table_id, [(TableBucket(entry.table_id, 0), log_batch("x"))], query=QUERY, batch_id=3
        )
        await storage.staging.reset(entry.table_id, QUERY, None)
        assert (storage.staging.queries(), staged_files(storage)) == ([], [])
        assert not await write(storage, entry, 0, "again")
        assert found(storage, entry) == ["0", "1", "2", "again"]
        with pytest.raises(InvalidRequestError, match="has committed nothing"):
            await storage.staging.reset(entry.table_id, "unknown", None)
    async with opened(tmp_path) as storage:
        assert not await write(storage, entry, 1, "again")


@pytest.mark.parametrize("to", [0, 1, 9])
async def test_a_query_is_moved(tmp_path: Path, to: int) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for batch_id in range(3):
            await write(storage, entry, batch_id, str(batch_id))
        await storage.staging.reset(entry.table_id, QUERY, to)
    async with opened(tmp_path) as storage:
        assert await write(storage, entry, to, "what it has is not known", attempt=1)
        if to:
            with pytest.raises(InvalidRequestError, match="is refused"):
                await write(storage, entry, to - 1, "other", attempt=1)
        assert not await write(storage, entry, to + 1, "new")
        assert found(storage, entry) == ["0", "1", "2", "new"]
        await storage.staging.reset(entry.table_id, "another query, forgotten long ago", 7)
        assert [query.batch_id for query in storage.staging.queries()] in ([7, to + 1], [to + 1, 7])


async def test_queries_are_listed(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry, other = await create_log(storage), await create_log(storage, OTHER)
        await write(storage, entry, 4, "a", "b")
        await storage.staging.accept(entry.table_id, QUERY, 3)
        await stage(storage, other.table_id, [(TableBucket(other.table_id, 0), log_batch("x"))], query="new")
        await stage(
            storage, other.table_id, [(TableBucket(other.table_id, 0), log_batch("y"))], query="new", batch_id=1
        )
        one, two = storage.staging.queries()
        assert one[:2] == (LOG, QUERY)
        assert (one.batch_id, one.row_count, one.decided_batch_id, one.accepted_batch_id) == (4, 2, None, 3)
        assert (one.staged_bytes, one.staged_since_ms) == (0, None)
        assert two[:2] == (OTHER, None)
        assert (two.batch_id, two.row_count, two.used_ms) == (None, None, None)
        assert two.staged_bytes == storage.staging.size_bytes > 0
        assert two.staged_since_ms is not None
        assert all(two.file_name in name for name in staged_files(storage))
        await storage.catalog.drop_table(OTHER)
        assert storage.staging.queries() == [one]
    async with opened(tmp_path) as storage:
        assert storage.staging.queries() == [one]


async def test_a_commit_that_goes_on_later_knows_its_rows(tmp_path: Path) -> None:
    """Decided, interrupted by a crash, carried out by the next start: then compared as any other."""
    async with opened(tmp_path / "data") as storage:
        entry = await create_log(storage)
        await write(storage, entry, 0, "0")
        failpoints.arm("segment.append.before_write:2:eio")
        with pytest.raises(FlussError):
            await write(storage, entry, 1, "a", "b")
        (query,) = storage.staging.queries()
        assert (query.batch_id, query.decided_batch_id) == (0, 1)
        # Its batch can only be repeated, the one before not even that.
        with pytest.raises(InvalidRequestError, match=r"batch 1 is the last one .* accept fluss\.log 'a query' 1`"):
            await stage(storage, entry.table_id, [], query=QUERY, batch_id=0)
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        with pytest.raises(InvalidRequestError, match="2 rows now, 2 then"):
            await write(storage, entry, 1, "a", "c", attempt=1)
        assert await write(storage, entry, 1, "b", "a", attempt=2)
        assert found(storage, entry) == ["0", "a", "b"]


async def test_a_commit_that_cant_be_finished_is_given_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        failpoints.arm("segment.append.before_write:1:eio")
        with pytest.raises(FlussError):
            await write(storage, entry, 0, "a")
        (name,) = staged_files(storage)
        (tmp_path / name).write_bytes(b"rot")
    async with opened(tmp_path) as storage:
        for call in (
            write(storage, entry, 1, "b"),
            storage.staging.accept(entry.table_id, QUERY, 0),
            storage.staging.reset(entry.table_id, QUERY, None),
        ):
            with pytest.raises(CorruptDataError, match="damaged"):
                await call
        await storage.staging.reset(entry.table_id, QUERY, None, gives_up=True)
        assert (storage.staging.queries(), staged_files(storage)) == ([], [])
        assert not await write(storage, entry, 0, "a", attempt=1)
        assert found(storage, entry) == ["a"]


@pytest.mark.parametrize("telling", ["client", "server"])
async def test_rows_that_are_not_known_are_not_compared(
    tmp_path: Path, telling: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an older client, and of a batch that an older server has committed."""
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await write(storage, entry, 3, "a")
        if telling == "server":
            assert await storage.staging.commit(entry.table_id, QUERY, 3, [StagedTask(0, 9, 1)])
    if telling == "client":
        (tmp_path / "marks").unlink()  # which know the catalog's checksum
        with sqlite3.connect(tmp_path / "catalog.db") as database:
            database.execute("UPDATE staged_queries SET row_count = NULL, digest = NULL")
        database.close()
        async with opened(tmp_path) as storage:
            assert await write(storage, entry, 3, "other", attempt=1)
    assert "batch 3 of query 'a query' to fluss.log came again and is taken for done" in caplog.text
    async with opened(tmp_path) as storage:
        with pytest.raises(InvalidRequestError, match="is refused"):
            await write(storage, entry, 2, "other", attempt=1)


def test_queries_of_an_older_catalog_are_kept(tmp_path: Path) -> None:
    """With a commit that was decided: what its rows are is not known."""
    path = tmp_path / "catalog.db"
    database = sqlite3.connect(path)
    for statement in chain.from_iterable(db._MIGRATIONS[:5]):
        database.execute(statement)
    database.execute("PRAGMA user_version = 5")
    database.execute("INSERT INTO databases VALUES ('fluss', x'7b7d', 0, 0)")
    columns = "table_id, database, name, json, schema_id, buckets, created_ms, modified_ms"
    database.execute(f"INSERT INTO tables ({columns}) VALUES (1, 'fluss', 'log', x'7b7d', 1, 1, 0, 0)")
    database.execute("INSERT INTO staged_queries VALUES (1, 'a query', 7, 99, '[8, 1000, [[0, 5, 2], [1, 6, 1]]]')")
    database.commit()
    database.close()
    opened_again = db.CatalogDatabase(path)
    (query,) = opened_again.load().staged_queries
    decided = db.StagedDecision(8, 1000, (StagedTask(0, 5, 2), StagedTask(1, 6, 1)))
    assert query == db.StagedQuery(1, QUERY, 7, 99, decided, None, -1)
    changed = query._replace(rows=StagedRows(3, 2**64 - 1), accepted=6)
    opened_again.put_staged_query(changed)
    assert opened_again.load().staged_queries == [changed]
    opened_again.close()
