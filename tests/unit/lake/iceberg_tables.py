"""Tables in Iceberg: made, written to, and read as they are stored."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fluss.lake.format import BUCKET, OFFSET, TIMESTAMP, WrittenFile
from fluss.lake.iceberg.catalog import IcebergCatalog
from fluss.lake.iceberg.table import IcebergTable
from fluss.lake.options import LakeOptions
from fluss.lake.parquet import FileTarget, read_file, to_schema, write_files
from fluss.model.descriptor import TableDescriptor
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.schema import Schema

PATH = TablePath("shop", "orders")
COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("day", pa.string(), False), ("note", pa.string())])


def info_of(columns: pa.Schema = COLUMNS, keys: tuple[str, ...] = (), partitions: tuple[str, ...] = ()) -> TableInfo:
    descriptor = TableDescriptor(
        Schema(columns, primary_keys=[*keys]),
        partition_keys=[*partitions],
        bucket_count=3,
        bucket_keys=["id"] if keys else [],
        properties={"table.datalake.enabled": "true"},
        custom_properties={"iceberg.write.metadata.delete-after-commit.enabled": "true", "owner": "shop"},
    )
    return TableInfo(PATH, 7, 1, descriptor, 3, 0, 0)


@pytest.fixture
def options(tmp_path: Path) -> LakeOptions:
    return LakeOptions.from_properties({"warehouse": str(tmp_path / "warehouse")})


def rows(columns: pa.Schema, values: list[dict[str, object]], first_offset: int = 0, bucket: int = 0) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(values, schema=columns)
    count = len(values)
    for name, column in (
        (BUCKET, pa.array([bucket] * count, pa.int32())),
        (OFFSET, pa.array(range(first_offset, first_offset + count), pa.int64())),
        (TIMESTAMP, pa.array([1] * count, pa.timestamp("ms", "UTC"))),
    ):
        batch = batch.append_column(name, column)
    return batch


def write(table: IcebergTable, batch: pa.RecordBatch, *partition: str, bucket: int = 0) -> list[WrittenFile]:
    keys = tuple(f"key{place}" for place in range(len(partition)))
    target = FileTarget(table.location, table.file_schema, keys, table.io_properties)
    return write_files(target, partition, bucket, [batch])


def reloaded(options: LakeOptions) -> IcebergTable:
    table = IcebergCatalog(options).load_table(PATH)
    assert table is not None
    return table


def read(table: IcebergTable, columns: pa.Schema) -> list[dict[str, object]]:
    """All rows, read by this package and found the same by pyiceberg."""
    files = table.files(table.snapshot_id)
    batches = [batch for file in files for batch in read_file(file, table.file_schema, table.io_properties)]
    found = pa.Table.from_batches(batches, table.file_schema).sort_by(OFFSET)
    foreign = table._table.scan().to_arrow().sort_by(OFFSET)
    assert foreign.to_pylist() == found.to_pylist()
    return [row for batch in found.to_batches() for row in to_schema(batch, columns).to_pylist()]
