"""Resources that a request touches, named before anything is done with it; rights can be given on them.

The cluster has databases, and they have tables. Names and ids are taken as they come: whether there is such a table,
and whether a name could be one, is the handler's business. What a request touches follows Apache Fluss: to create a
database touches the cluster, to create a table the database, and all that is in a table touches the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

from fluss.model.paths import TablePath
from fluss.protocol import messages_pb2 as pb


class ResourceKind(Enum):
    """What is named, and how."""

    CLUSTER = auto()
    DATABASE = auto()
    """By name"""
    TABLE = auto()
    """By path"""
    TABLE_ID = auto()
    """A table, by its id"""
    PARTITION_ID = auto()
    """The table of a partition, by the id of that"""
    LEASE = auto()
    """The tables with snapshots that a lease keeps, by its name"""


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that a request names."""

    kind: ResourceKind
    name: str | int | TablePath | None = None


Resources: TypeAlias = tuple[Resource, ...]
"""Each once, in the order of the request; none if anybody may ask it"""

_CLUSTER: Final = (Resource(ResourceKind.CLUSTER),)


class _NamesDatabase(Protocol):
    @property
    def database_name(self) -> str: ...


class _NamesTable(Protocol):
    @property
    def table_path(self) -> pb.PbTablePath: ...


class _NamesTableId(Protocol):
    @property
    def table_id(self) -> int: ...


def nothing(_: object) -> Resources:
    """Of what anybody may ask."""
    return ()


def cluster(_: object) -> Resources:
    """The cluster as a whole."""
    return _CLUSTER


def database(request: _NamesDatabase) -> Resources:
    """The database that is named."""
    return (Resource(ResourceKind.DATABASE, request.database_name),)


def database_of_table(request: _NamesTable) -> Resources:
    """The database of a table that is to be."""
    return database(request.table_path)


def table(request: _NamesTable) -> Resources:
    """The table that is named."""
    return _tables([request.table_path])


def table_id(request: _NamesTableId) -> Resources:
    """The table whose id is given."""
    return _table_ids([request])


def written_tables(request: pb.InitWriterRequest) -> Resources:
    """The tables that are to be written; a writer that names none may write them all."""
    return _tables(request.table_path) or _CLUSTER


def described_tables(request: pb.MetadataRequest) -> Resources:
    """The tables that are named, those of partitions, too."""
    paths: list[pb.PbTablePath | pb.PbPhysicalTablePath] = [*request.table_path, *request.partitions_path]
    partitions = (Resource(ResourceKind.PARTITION_ID, partition_id) for partition_id in request.partitions_id)
    return _once([*_tables(paths), *partitions])


def fetched_tables(request: pb.FetchLogRequest) -> Resources:
    """The tables that are read."""
    return _table_ids(request.tables_req)


def scanned_table(request: pb.ScanKvRequest) -> Resources:
    """The table that a scan begins with; who goes on with one has named its table on the same connection."""
    return _table_ids([request.bucket_scan_req]) if request.HasField("bucket_scan_req") else ()


def prepared_tables(request: pb.PrepareLakeTableSnapshotRequest) -> Resources:
    """The tables whose offsets are told."""
    return _tables([item.table_path for item in request.bucket_offsets])


def committed_tables(request: pb.CommitLakeTableSnapshotRequest) -> Resources:
    """The tables whose snapshots are told."""
    return _table_ids([*request.lake_table_snapshot_metadata, *request.tables_req])


def tiered_tables(request: pb.LakeTieringHeartbeatRequest) -> Resources:
    """The cluster, of which a tiering job gets any table, and the tables that it reports."""
    reported = _table_ids([*request.tiering_tables, *request.finished_tables, *request.failed_tables])
    forced = (Resource(ResourceKind.TABLE_ID, number) for number in request.force_finished_tables)
    return _once([*_CLUSTER, *reported, *forced])


def leased_tables(request: pb.AcquireKvSnapshotLeaseRequest) -> Resources:
    """The tables whose snapshots are to be kept."""
    return _table_ids(request.snapshots_to_lease)


def released_tables(request: pb.ReleaseKvSnapshotLeaseRequest) -> Resources:
    """The tables whose snapshots need not be kept any more."""
    return _table_ids(request.buckets_to_release)


def tables_of_lease(request: pb.DropKvSnapshotLeaseRequest) -> Resources:
    """All tables of a lease."""
    return (Resource(ResourceKind.LEASE, request.lease_id),)


def _tables(paths: Sequence[pb.PbTablePath | pb.PbPhysicalTablePath]) -> Resources:
    return _once(Resource(ResourceKind.TABLE, TablePath(path.database_name, path.table_name)) for path in paths)


def _table_ids(items: Iterable[_NamesTableId]) -> Resources:
    return _once(Resource(ResourceKind.TABLE_ID, item.table_id) for item in items)


def _once(found: Iterable[Resource]) -> Resources:
    return tuple(dict.fromkeys(found))
