"""What the lake must have: the log, or what is left of the changelog, worked out here row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from fluss.lake.format import CATALOG_NAME
from fluss.lake.report import TieringReport
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.sync import FlussTable, OffsetSpec, TableBucket, TablePath
from tests.kit.lake.lake import Lake

Row = tuple[tuple[str, Any], ...]


def tier_here(lake: Lake, *tables: FlussTable, **arguments: Any) -> list[TieringReport]:
    """One round of each in this process."""
    paths = [table.get_table_info().table_path for table in tables]
    executor = LocalExecutor(lake.connection, 2)
    return tier(lake.connection, executor, tables=paths, warehouse=str(lake.warehouse), **arguments)


def iceberg_table(warehouse: Path, path: TablePath) -> Table:
    """The lake table as anybody finds it, with pyiceberg alone."""
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
    return catalog.load_table((path.database_name, path.table_name))


def check_lake(lake: Lake, table: FlussTable) -> None:
    """The lake has exactly what the table has, each row once, and the server knows how far it reaches."""
    table = lake.connection.get_table(table.get_table_info().table_path)  # with the columns of now
    info = table.get_table_info()
    found = iceberg_table(lake.warehouse, info.table_path).scan().to_arrow()
    places = Counter(zip(found["__bucket"].to_pylist(), found["__offset"].to_pylist(), strict=True))
    if not info.is_partitioned():
        assert max(places.values(), default=1) == 1
    wanted = Counter(_expected(lake, table))
    assert Counter(_rows(found.select([*info.get_column_names(), "__bucket", "__offset", "__timestamp"]))) == wanted
    ends = table.new_scan().bucket_offsets(OffsetSpec.latest(), _partition_ids(lake, table))
    known = lake.connection.get_admin().get_latest_lake_snapshot(info.table_path)
    assert known.table_buckets_offset == ends
    assert known.snapshot_id == iceberg_table(lake.warehouse, info.table_path).current_snapshot().snapshot_id


def check_no_orphans(lake: Lake, table: FlussTable) -> None:
    """All data files on disk are in some snapshot."""
    loaded = iceberg_table(lake.warehouse, table.get_table_info().table_path)
    known = {
        entry.data_file.file_path
        for snapshot in loaded.snapshots()
        for manifest in snapshot.manifests(loaded.io)
        for entry in manifest.fetch_manifest_entry(loaded.io)
    }
    assert {str(path) for path in Path(loaded.location()).rglob("*.parquet")} == known


def _expected(lake: Lake, table: FlussTable) -> Iterator[Row]:
    info, scan = table.get_table_info(), table.new_scan()
    keys = info.primary_keys
    for bucket, end in scan.bucket_offsets(OffsetSpec.latest(), _partition_ids(lake, table)).items():
        rows: dict[Any, dict[str, Any]] = {}
        for row in _changes(table, bucket, end):
            kind = row.pop("_change_type")
            place = tuple(map(repr, (row[key] for key in keys))) if keys else row["__offset"]
            if kind == "-D":
                rows.pop(place)
            elif kind != "-U":
                rows[place] = row
        for row in rows.values():
            yield tuple((name, repr(value)) for name, value in row.items())


def _changes(table: FlussTable, bucket: TableBucket, end: int) -> Iterator[dict[str, Any]]:
    columns = table.get_table_info().get_column_names()
    for batch in table.new_scan().read_bucket(bucket, 0, end, changelog=True):
        for row in batch.to_pylist():
            place = {"__bucket": bucket.bucket, "__offset": row["_log_offset"], "__timestamp": row["_commit_timestamp"]}
            yield {"_change_type": row["_change_type"], **{name: row[name] for name in columns}, **place}


def _rows(found: pa.Table) -> Iterator[Row]:
    for row in found.to_pylist():
        yield tuple((name, repr(value)) for name, value in row.items())


def _partition_ids(lake: Lake, table: FlussTable) -> list[int | None]:
    info = table.get_table_info()
    if not info.is_partitioned():
        return [None]
    return [item.partition_id for item in lake.connection.get_admin().list_partition_infos(info.table_path)]
