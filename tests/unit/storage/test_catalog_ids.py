"""Row ids and leases in the catalog: given out once, kept over a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints
from fluss.storage.catalog.catalog import LeaseEntry
from fluss.storage.catalog.view import BLOCK_DEFAULT, ROW_ID_MAX
from fluss.storage.failpoints import Site, Step
from tests.kit.storage.logs import catalog

T = TablePath("fluss", "t")


def _block_of(size: int) -> str:
    return f'{{"properties": {{"table.auto-increment.cache-size": "{size}"}}}}'


async def test_ids_start_at_one_and_go_on_after_a_clean_stop(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table_id = (await c.create_table(T, "{}", "{}", 1)).table_id
        other_id = (await c.create_table(TablePath("fluss", "u"), "{}", "{}", 1)).table_id
        assert await c.reserve_ids(table_id, 1) == 1
        assert await c.reserve_ids(table_id, 10) == 2
        assert await c.reserve_ids(other_id, 2 * BLOCK_DEFAULT) == 1
        assert await c.reserve_ids(other_id, 1) == 2 * BLOCK_DEFAULT + 1
    async with catalog(tmp_path) as c:
        assert await c.reserve_ids(table_id, 1) == 12
        assert await c.reserve_ids(other_id, 1) == 2 * BLOCK_DEFAULT + 2


async def test_a_killed_server_never_gives_an_id_twice(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table_id = (await c.create_table(T, _block_of(50), "{}", 1)).table_id
        assert await c.reserve_ids(table_id, 20) == 1
        # What a kill leaves is what the files hold now.
        for name in ("catalog.db", "catalog.db-wal"):
            (tmp_path / "killed").mkdir(exist_ok=True)
            (tmp_path / "killed" / name).write_bytes((tmp_path / name).read_bytes())
    async with catalog(tmp_path / "killed") as c:
        assert await c.reserve_ids(table_id, 1) == 51


async def test_many_at_once_get_ids_of_their_own(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table_id = (await c.create_table(T, _block_of(7), "{}", 1)).table_id
        counts = [1, 5, 20, 3, 7, 8] * 10
        firsts = await asyncio.gather(*(c.reserve_ids(table_id, count) for count in counts))
        given = [n for first, count in zip(firsts, counts, strict=True) for n in range(first, first + count)]
        assert sorted(given) == sorted(set(given))
        assert min(given) == 1


async def test_partitions_come_and_go_without_a_trace_in_the_ids(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table = await c.create_table(T, "{}", "{}", 1, partition_keys=["day"], partitions=["a"])
        assert await c.reserve_ids(table.table_id, 5) == 1
        await c.drop_partitions(table.table_id, ["a"])
        assert await c.reserve_ids(table.table_id, 5) == 6


async def test_a_dropped_table_has_no_ids(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table_id = (await c.create_table(T, "{}", "{}", 1)).table_id
        await c.reserve_ids(table_id, 1)
        await c.drop_table(T)
        with pytest.raises(FlussError) as caught:
            await c.reserve_ids(table_id, 1)
        assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST
    async with catalog(tmp_path) as c:
        table_id = (await c.create_table(T, "{}", "{}", 1)).table_id
        assert await c.reserve_ids(table_id, 1) == 1


async def test_a_failed_commit_gives_out_nothing(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table_id = (await c.create_table(T, "{}", "{}", 1)).table_id
        failpoints.arm(f"{Site.CATALOG_COMMIT}.{Step.BEFORE_COMMIT}:1:eio")
        with pytest.raises(FlussError, match="could not be changed"):
            await c.reserve_ids(table_id, 1)
        failpoints.disarm()
        assert await c.reserve_ids(table_id, 1) == 1


async def test_the_last_id_is_the_last_one(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        table_id = (await c.create_table(T, "{}", "{}", 1)).table_id
        assert await c.reserve_ids(table_id, ROW_ID_MAX - 2) == 1
        assert await c.reserve_ids(table_id, 1) == ROW_ID_MAX - 1
        with pytest.raises(FlussError, match="used all ids"):
            await c.reserve_ids(table_id, 1)


async def test_leases_are_kept(tmp_path: Path) -> None:
    first = LeaseEntry("a", 5, {TableBucket(1, 0): 3, TableBucket(2, 1, 7): 0})
    async with catalog(tmp_path) as c:
        await c.put_lease(first)
        await c.put_lease(LeaseEntry("b", 6, {}))
        await c.put_lease(LeaseEntry("c", 6, {}))
        await c.put_lease(LeaseEntry("b", 9, {TableBucket(1, 0): 4}))
        await c.delete_leases(["c", "never"])
    async with catalog(tmp_path) as c:
        assert c.leases() == {"a": first, "b": LeaseEntry("b", 9, {TableBucket(1, 0): 4})}
