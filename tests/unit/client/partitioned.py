"""A partitioned table: made, filled, and its rows and partitions."""

from __future__ import annotations

import pyarrow as pa

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.scan.batches import to_table
from fluss.client.table import TableCore
from fluss.model.partitions import PartitionSpec

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("day", pa.date32())])


def create(client: ClientCore, table: TableCore, region: str) -> None:
    run(client.admin.create_partition(table.info.table_path, PartitionSpec({"region": region})))


def drop(client: ClientCore, table: TableCore, region: str) -> None:
    run(client.admin.drop_partition(table.info.table_path, PartitionSpec({"region": region})))


def ids(client: ClientCore, table: TableCore, region: str) -> list[list[int]]:
    """What each bucket of a partition holds, in order."""
    infos = run(client.admin.list_partition_infos(table.info.table_path))
    partition_id = next(info.partition_id for info in infos if info.partition_name == region)
    result = []
    for bucket in range(table.info.num_buckets):
        scanner = table.log_scanner(None)
        run(scanner.subscribe({(partition_id, bucket): -2}))
        result.append(to_table(run(scanner.read_to_latest()), scanner.arrow_schema)["id"].to_pylist())
        scanner.close()
    return result
