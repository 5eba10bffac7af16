"""A directory of an older format is brought up to date in place, whenever the upgrade is cut short."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import encode_batch
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints
from fluss.storage.directory import FORMAT_VERSION
from fluss.storage.failpoints import STEPS, Site
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import append, texts

ORDERS, EVENTS = TablePath("shop", "orders"), TablePath("fluss", "events")
_FORMATS = {1: 1, 2: 2, 3: 2, 4: 2}  # of the directory, by version of its catalog
_POINTS = [
    (version, f"{site}.{step}")
    for version, sites in {
        1: (Site.FORMAT_REPLACE, Site.CATALOG_COMMIT),
        2: (Site.CATALOG_COMMIT,),
        3: (Site.CATALOG_COMMIT,),
        4: (Site.CATALOG_COMMIT,),
    }.items()
    for site in sites
    for step in STEPS[site]
]
_PROCESSES = multiprocessing.get_context("forkserver")


def make(root: Path, version: int) -> None:
    """A directory as an older version left it, with a row in one of its tables."""
    bucket = root / "tables" / "1" / "1"
    bucket.mkdir(parents=True)
    batch = encode_batch(b"old row", schema_id=1, record_count=1)
    (bucket / "00000000000000000000.log").write_bytes(batch)
    connection = sqlite3.connect(root / "catalog.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(Path(__file__).with_name(f"catalog_v{version}.sql").read_text())
    connection.close()
    (root / "format_version").write_text(f"{_FORMATS[version]}\n")


def upgrade(root: str, fail_point: str | None) -> None:
    import asyncio

    async def opened() -> None:
        storage = await Storage.open(StorageOptions(root))
        await storage.close()

    if fail_point is not None:
        failpoints.arm(fail_point)
    asyncio.run(opened())


async def check(root: Path, version: int) -> None:
    """Everything of the older version is there, and what is new works."""
    storage = await Storage.open(StorageOptions(root))
    try:
        catalog = storage.catalog
        orders = catalog.table(ORDERS)
        assert (orders.table_id, orders.num_buckets, orders.schema_id, orders.partition_keys) == (1, 2, 1, ())
        assert catalog.table(EVENTS).table_id == 2
        assert [entry.name for entry in catalog.databases()] == ["fluss", "shop"]
        assert b"INTEGER" in catalog.schema_json(1, 1)
        assert catalog.buckets_in_use == (3 if version == 1 else 4)
        if version > 1:
            monday = catalog.partition(catalog.table(TablePath("shop", "days")), "monday")
            assert (monday.table_id, monday.partition_id) == (3, 1)
        assert texts(storage.bucket(TableBucket(1, 1))) == ["old row"]
        table = await catalog.create_table(
            TablePath("shop", "parts"), "{}", "{}", 1, partition_keys=["day"], partitions=["monday"]
        )
        assert table.table_id == (3 if version == 1 else 4)
        bucket = TableBucket(table.table_id, 0, catalog.partition(table, "monday").partition_id)
        await append(storage.bucket(bucket), "new row").durable
        assert texts(storage.bucket(bucket)) == ["new row"]
        assert not catalog.leases()
        assert not catalog.staged_queries()
        assert not catalog.lake_snapshots(orders.table_id)
        assert not await storage.staging.commit(orders.table_id, "query", 4, [])
        assert await catalog.reserve_ids(orders.table_id, 3) == 1
    finally:
        await storage.close()
    assert (root / "format_version").read_text() == f"{FORMAT_VERSION}\n"


@pytest.mark.parametrize("version", _FORMATS)
async def test_a_directory_of_an_older_version_opens_as_it_was(tmp_path: Path, version: int) -> None:
    make(tmp_path, version)
    await check(tmp_path, version)


@pytest.mark.parametrize(("version", "point"), _POINTS)
async def test_an_upgrade_that_was_killed_half_way(tmp_path: Path, version: int, point: str) -> None:
    make(tmp_path, version)
    process = _PROCESSES.Process(target=upgrade, args=(str(tmp_path), point))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    await check(tmp_path, version)
