"""Partitioned tables and their partitions, by single requests."""

from __future__ import annotations

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import (
    Wire,
    batch,
    create_table,
    path,
    produce_request,
)


def spec(values: dict[str, str]) -> pb.PbPartitionSpec:
    return pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key=key, value=v) for key, v in values.items()])


def create(wire: Wire, values: dict[str, str], table: str = "t", ignore: bool = False) -> None:
    request = pb.CreatePartitionRequest(table_path=path(table), partition_spec=spec(values), ignore_if_exists=ignore)
    wire.call(api_keys.CREATE_PARTITION, request)


def listed(wire: Wire, partial: dict[str, str] | None = None, table: str = "t") -> list[tuple[int, dict[str, str]]]:
    request = pb.ListPartitionInfosRequest(table_path=path(table))
    if partial is not None:
        request.partial_partition_spec.CopyFrom(spec(partial))
    answer = wire.call(api_keys.LIST_PARTITION_INFOS, request)
    return [
        (info.partition_id, {pair.key: pair.value for pair in info.partition_spec.partition_key_values})
        for info in answer.partitions_info
    ]


def partition_id(wire: Wire, name: str, table: str = "t") -> int:
    request = pb.MetadataRequest(
        partitions_path=[pb.PbPhysicalTablePath(database_name="fluss", table_name=table, partition_name=name)]
    )
    (entry,) = wire.call(api_keys.METADATA, request).partition_metadata
    return entry.partition_id


def partitioned(wire: Wire, table: str = "t", buckets: int = 1, keys: tuple[str, ...] = ("name",)) -> int:
    return create_table(wire, table, buckets, partition_key=list(keys))


def produce_into(wire: Wire, table_id: int, partition: int | None, count: int = 3) -> pb.PbProduceLogBucketResponse:
    request = produce_request(table_id, (0, batch(count)))
    if partition is not None:
        request.buckets_req[0].partition_id = partition
    (entry,) = wire.call(api_keys.PRODUCE_LOG, request).buckets_resp
    return entry
