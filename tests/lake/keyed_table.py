"""A table with a primary key that is upserted into, tiered, and read in its three forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss.lake.format import LakeTable
from fluss.lake.options import LakeOptions
from fluss.lake.report import Status
from fluss.sync import FlussTable
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import tier_here

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("tags", pa.list_(pa.string()))])


def upsert(table: FlussTable, *ids: int, day: str = "d1", tag: str = "a") -> None:
    """A batch of rows."""
    if table.get_table_info().has_primary_key():
        with table.new_upsert().create_writer() as writer:
            for number in ids:
                writer.upsert({"id": number, "day": day, "tags": [tag]})
    else:
        with table.new_append().create_writer() as appender:
            for number in ids:
                appender.append({"id": number, "day": day, "tags": [tag]})


def rounds(lake: Lake, table: FlussTable, count: int, first: int = 0) -> None:
    """Some rows, tiered; so often."""
    for number in range(first, first + count):
        upsert(table, *range(10 * number, 10 * number + 10))
        (report,) = tier_here(lake, table)
        assert report.status is Status.TIERED


def loaded(lake: Lake, table: FlussTable) -> LakeTable:
    found = LakeOptions(warehouse=str(lake.warehouse)).open().load_table(table.get_table_info().table_path)
    assert found is not None
    return found


def on_disk(lake: Lake) -> set[Path]:
    return {path for path in (lake.warehouse / lake.database).rglob("*") if path.is_file()}


def union_ids(lake: Lake, table: FlussTable) -> list[Any]:
    found = lake.connection.get_table(table.get_table_info().table_path).new_scan().union().to_arrow()
    return sorted(found["id"].to_pylist())
