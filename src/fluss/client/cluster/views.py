"""What the client knows of a cluster: an answer to Metadata, in the model's terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fluss.model.addresses import Address
from fluss.model.descriptor import TableDescriptor
from fluss.model.infos import PartitionInfo, ServerNode, ServerType, TableInfo
from fluss.model.partitions import SEPARATOR, PartitionSpec
from fluss.model.paths import TablePath
from fluss.protocol import messages_pb2 as pb


@dataclass(slots=True)
class ClusterView:
    """The cluster's servers."""

    coordinator: ServerNode | None = None
    tablets: dict[int, ServerNode] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: pb.MetadataResponse) -> ClusterView:
        coordinator = None
        if answer.HasField("coordinator_server"):
            coordinator = _node(answer.coordinator_server, ServerType.COORDINATOR_SERVER)
        return cls(coordinator, {node.node_id: _node(node, ServerType.TABLET_SERVER) for node in answer.tablet_servers})

    def nodes(self) -> list[ServerNode]:
        """All servers, the coordinator first."""
        return ([self.coordinator] if self.coordinator else []) + list(self.tablets.values())


@dataclass(slots=True)
class TableView:
    """A table and the leaders of its buckets, by (partition id or None, bucket)."""

    info: TableInfo
    leaders: dict[tuple[int | None, int], int]
    partitions: dict[str, int] = field(default_factory=dict)
    """Ids by name, of the partitions that were asked for."""

    def without_leader(self, partition_id: int | None = None) -> list[int]:
        """Buckets that have no leader yet."""
        return [bucket for bucket in range(self.info.num_buckets) if (partition_id, bucket) not in self.leaders]


def table_view(answer: pb.MetadataResponse, path: TablePath) -> TableView | None:
    """The part of an answer about one table, or None."""
    for item in answer.table_metadata:
        if (item.table_path.database_name, item.table_path.table_name) == (path.database_name, path.table_name):
            break
    else:
        return None
    info = table_info(path, item)
    leaders = _leaders(None, item.bucket_metadata)
    partitions: dict[str, int] = {}
    for partition in answer.partition_metadata:
        if partition.table_id == item.table_id:
            partitions[partition.partition_name] = partition.partition_id
            leaders |= _leaders(partition.partition_id, partition.bucket_metadata)
    return TableView(info, leaders, partitions)


def table_info(path: TablePath, item: pb.PbTableMetadata | pb.GetTableInfoResponse) -> TableInfo:
    """A table's info from either message that carries it."""
    descriptor = TableDescriptor.from_json(item.table_json, foreign_properties=True)
    return TableInfo(
        table_path=path,
        table_id=item.table_id,
        schema_id=item.schema_id,
        descriptor=descriptor,
        num_buckets=descriptor.bucket_count or 1,
        created_time=item.created_time,
        modified_time=item.modified_time,
    )


def partition_info(item: pb.PbPartitionInfo) -> PartitionInfo:
    """A partition; its values come in the order of the table's partition columns."""
    values = {pair.key: pair.value for pair in item.partition_spec.partition_key_values}
    return PartitionInfo(item.partition_id, SEPARATOR.join(values.values()), PartitionSpec(values))


def set_spec(target: pb.PbPartitionSpec, spec: PartitionSpec) -> None:
    """Write a partition's values into a message; a spec without values is one, too."""
    target.SetInParent()
    for key, value in spec.get_spec_map().items():
        target.partition_key_values.add(key=key, value=value)


def set_path(target: pb.PbTablePath, path: TablePath) -> None:
    """Write a table's path into a message."""
    target.database_name, target.table_name = path.database_name, path.table_name


def address_of(node: ServerNode) -> Address:
    """Where a server listens."""
    return Address(node.host, node.port)


def _leaders(partition_id: int | None, buckets: Iterable[pb.PbBucketMetadata]) -> dict[tuple[int | None, int], int]:
    return {(partition_id, item.bucket_id): item.leader_id for item in buckets if item.HasField("leader_id")}


def _node(node: pb.PbServerNode, server_type: ServerType) -> ServerNode:
    return ServerNode(node.node_id, node.host, node.port, server_type)
