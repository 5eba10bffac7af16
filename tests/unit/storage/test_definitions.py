"""Definitions of tables: how many buckets and bytes they may have, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.model.errors import FlussError
from fluss.model.paths import TablePath
from fluss.storage.catalog.catalog import AlteredTable, Catalog, CatalogLimits
from fluss.storage.catalog.view import BYTES_MAX, DefinitionCache
from tests.kit.storage.logs import catalog

T = TablePath("fluss", "t")
WIDE = TablePath("fluss", "wide")


async def create(
    c: Catalog, path: TablePath = T, buckets: int = 1, keys: tuple[str, ...] = (), size: int = 100
) -> None:
    await c.create_table(path, "x" * size, "y" * size, buckets, partition_keys=keys)


async def test_buckets_of_a_table_or_partition_are_limited(tmp_path: Path) -> None:
    async with catalog(tmp_path, CatalogLimits(buckets_per_table_max=10)) as c:
        for keys in ((), ("p",)):
            with pytest.raises(
                FlussError, match=r"11 buckets; .* may have 10.*limits\.buckets_per_table_max"
            ) as raised:
                await create(c, buckets=11, keys=keys)
            assert raised.value.error_code == 49
        await create(c, buckets=10)


async def test_the_default_limit_of_buckets(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        await create(c, buckets=4_096)
        with pytest.raises(FlussError, match="4097 buckets"):
            await create(c, WIDE, buckets=4_097)


async def test_tables_above_a_limit_that_came_later_still_work(tmp_path: Path) -> None:
    async with catalog(tmp_path) as c:
        await create(c, buckets=20)
        await create(c, WIDE, buckets=20, keys=("p",))
    limits = CatalogLimits(buckets_per_table_max=10, definition_bytes_per_table_max=100, definition_bytes_total_max=100)
    async with catalog(tmp_path, limits) as c:
        await c.create_partitions(c.table(WIDE).table_id, ["a", "b"])
        await c.alter_table(T, lambda entry, _: AlteredTable("x" * 50))
        assert c.table(T).num_buckets == 20
        await c.drop_table(T)


async def test_a_definition_and_its_history_are_limited(tmp_path: Path) -> None:
    limits = CatalogLimits(definition_bytes_per_table_max=1_000)
    async with catalog(tmp_path, limits) as c:
        with pytest.raises(FlussError, match=r"1200 bytes, 1000 are allowed.*limits\.definition_bytes_per_table_max"):
            await create(c, size=600)
        await create(c, size=300)
        await c.alter_table(T, lambda entry, _: AlteredTable("x" * 300, "y" * 300))
    # Counted at the start, too: earlier schemas are part of it.
    async with catalog(tmp_path, limits) as c:
        with pytest.raises(FlussError, match="1200 bytes, 1000 are allowed"):
            await c.alter_table(T, lambda entry, _: AlteredTable("x" * 300, "y" * 300))
        await c.alter_table(T, lambda entry, _: AlteredTable("x" * 100, "y" * 290))
        assert c.definition_bytes(c.table(T)) == 100 + 300 + 300 + 290


async def test_all_definitions_together_are_limited_and_the_error_names_it(tmp_path: Path) -> None:
    async with catalog(tmp_path, CatalogLimits(definition_bytes_total_max=1_000)) as c:
        await create(c, size=300)
        with pytest.raises(FlussError, match=r"may have 1000 bytes.*limits\.definition_bytes_total_max"):
            await create(c, WIDE, size=300)


def test_what_is_kept_of_definitions_is_bounded_in_bytes() -> None:
    calls = []

    @DefinitionCache
    def length(definition: bytes) -> int:
        calls.append(definition[:4])
        return len(definition)

    megabyte = 1 << 20
    for number in range(100):
        definition = number.to_bytes(4, "big") + bytes(megabyte)
        assert length(definition) == length(definition) == megabyte + 4
        assert length.size_bytes <= BYTES_MAX
    assert len(calls) == 100
    # One that is larger than all that may be kept is kept alone.
    huge = bytes(2 * BYTES_MAX)
    assert length(huge) == length(huge)
    assert (len(calls), length.size_bytes) == (101, len(huge))
