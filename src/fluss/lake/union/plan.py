"""The plan of a union read: of each bucket the lake's files as of the registered snapshot, and the log behind them.

The server is asked for the snapshot first and for the latest offsets then, so that nothing lies between the two. What
the lake has committed since, and the server does not know yet, is in the log and is read there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from fluss.lake.format import LakeFile, PartitionValues, by_bucket
from fluss.lake.log_ranges import log_stretches
from fluss.lake.modes import AUTO, MODES, NONE, ONLY
from fluss.lake.options import LakeOptions, is_lake_named
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.partitions import PartitionSpec, PartitionSpecLike
from fluss.model.paths import TableBucket, TablePath
from fluss.model.trust import Trust

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussConnection, FlussTable

# A plan that was overtaken by a newer snapshot is made again so often.
ATTEMPTS_MAX: Final = 10


BucketFiles: TypeAlias = dict[tuple[PartitionValues, int], list[LakeFile]]


class OvertakenError(InvalidRequestError):
    """What a plan counts on is gone: its snapshot, or the log behind it."""


@dataclass(frozen=True)
class UnionBucket:
    """One bucket: files of the lake, and the log from `start_offset` up to, not including, `end_offset`.

    Both offsets are None where there is no log: the partition was dropped, or the lake alone is read. A bucket of a
    primary-key table that was never tiered begins at 0, whatever is left of its log: its rows are those as of
    `end_offset`.
    """

    partition: PartitionValues
    partition_id: int | None
    partition_name: str | None
    bucket: int
    files: tuple[LakeFile, ...] = ()
    start_offset: int | None = None
    end_offset: int | None = None
    is_tiered: bool = True

    @property
    def tail_rows(self) -> int:
        """How many rows, or changes, of the log are read."""
        if self.start_offset is None or self.end_offset is None:
            return 0
        return max(0, self.end_offset - self.start_offset)


@dataclass(frozen=True)
class LakeSource:
    """How the files of a lake table are read. Plain values, which go to every task."""

    schema: pa.Schema
    """Of the files, with field ids; it has the system columns, too"""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UnionPlan:
    """A read of a table as of one moment. Plain values, so that tasks can be sent it."""

    snapshot_id: int | None = None
    schema: pa.Schema | None = None  # of the lake's files
    io_properties: Mapping[str, str] = field(default_factory=dict)
    buckets: list[UnionBucket] = field(default_factory=list)

    @property
    def source(self) -> LakeSource:
        """How the files are read, of a plan that has some."""
        assert self.schema is not None
        return LakeSource(self.schema, self.io_properties)


def plan_union(
    connection: FlussConnection,
    table: FlussTable,
    *,
    options: LakeOptions | None = None,
    partitions: Sequence[PartitionSpecLike] | None = None,
    mode: str = AUTO,
) -> UnionPlan:
    """Plan a read of all rows as of now, or of those of some partitions.

    Without `options` the lake is where the table's server says. `mode` is "auto", "none" (the log alone) or "only"
    (the lake alone).
    """
    planner = UnionPlanner(connection, table, options, partitions, mode)
    tried: list[LakeSnapshot | None] = []
    while True:
        snapshot = planner.snapshot()
        try:
            return planner.plan(snapshot)
        except OvertakenError:
            # A newer snapshot explains what is gone; the same one again does not.
            if snapshot in tried or len(tried) >= ATTEMPTS_MAX:
                raise
            tried.append(snapshot)


class UnionPlanner:
    """Plans reads of one table; a plan is of one snapshot."""

    def __init__(
        self,
        connection: FlussConnection,
        table: FlussTable,
        options: LakeOptions | None,
        partitions: Sequence[PartitionSpecLike] | None,
        mode: str,
    ) -> None:
        self._connection = connection
        self._table = table
        self._info = table.get_table_info()
        self._options = options
        self._mode = check_mode(mode)
        self._chosen = None if partitions is None else [PartitionSpec.of(item) for item in partitions]
        if partitions is not None and not self._info.is_partitioned():
            raise InvalidRequestError(f"{self._info.table_path} has no partitions to choose from.")

    def snapshot(self) -> LakeSnapshot | None:
        """The snapshot that the server knows."""
        from fluss.api.operations import LakeRegistry

        if self._mode == NONE:
            return None
        try:
            return LakeRegistry(self._connection).latest(self._info.table_path)
        except FlussError as error:
            if error.error_code != ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION:
                raise
            return None

    def plan(self, snapshot: LakeSnapshot | None) -> UnionPlan:
        """A plan as of now; raises OvertakenError when something of this snapshot's is gone."""
        if snapshot is None:
            return UnionPlan(buckets=self._tails(None, {}))
        plan, files = self.stored(snapshot.snapshot_id)
        plan.buckets.extend(self._tails(snapshot, files))
        # What is left is of partitions that were dropped, or the lake alone is read.
        plan.buckets.extend(self.rest(files))
        return plan

    def stored(self, snapshot_id: int) -> tuple[UnionPlan, BucketFiles]:
        """A plan without buckets yet, and a snapshot's files in the chosen partitions; raises OvertakenError."""
        options = self._options or self._named_options()
        try:
            lake = options.open().load_table(self._info.table_path)
        except ImportError as error:
            raise FlussError(f"{error.name} is not installed; install flussbett[lake].") from error
        if lake is None or lake.sequence_number(snapshot_id) is None:
            raise self._gone(snapshot_id, options)
        files = by_bucket(file for file in lake.files(snapshot_id) if self._is_chosen(file.partition))
        return UnionPlan(snapshot_id, lake.file_schema, lake.io_properties), files

    def rest(self, files: BucketFiles) -> list[UnionBucket]:
        """Buckets without a log, or whose log is not read."""
        return [
            UnionBucket(partition, None, self._name(partition), bucket, tuple(kept))
            for (partition, bucket), kept in sorted(files.items())
        ]

    def _tails(self, snapshot: LakeSnapshot | None, files: BucketFiles) -> list[UnionBucket]:
        """The buckets that have a log; their files are taken out of `files`."""
        if self._mode == ONLY:
            return []
        buckets, is_cut = [], False
        for item in log_stretches(self._connection, self._table, snapshot, self._is_chosen):
            key, start = item.bucket, item.tiered
            kept = tuple(files.pop((item.partition, key.bucket), ()))
            if start is None and self._info.has_primary_key():
                start, kept = 0, ()  # files are of a dropped partition of the same name, which its successor replaces
            elif start is None:
                start = item.earliest
                is_cut = is_cut or start > 0
            elif start < min(item.earliest, item.end):
                raise _cut(self._info, key, start, item.earliest)
            buckets.append(
                UnionBucket(
                    item.partition,
                    key.partition_id,
                    item.partition_name,
                    key.bucket,
                    kept,
                    start,
                    max(start, item.end),
                    item.tiered is not None,
                )
            )
        if is_cut and self.snapshot() != snapshot:
            # What is gone may be in the lake by now.
            raise OvertakenError(f"{self._info.table_path} was tiered while its read was planned; read it again.")
        return buckets

    def _name(self, partition: PartitionValues) -> str | None:
        return PartitionSpec(self._spec(partition)).name(self._info.partition_keys) if partition else None

    def _spec(self, partition: PartitionValues) -> dict[str, str]:
        return dict(zip(self._info.partition_keys, partition, strict=True))

    def _is_chosen(self, partition: PartitionValues) -> bool:
        if self._chosen is None:
            return True
        own = PartitionSpec(self._spec(partition))
        return any(spec.matches(own) for spec in self._chosen)

    def _named_options(self) -> LakeOptions:
        """The lake's options as the server names them now; they may have been set since the table was looked up."""
        info = self._connection.get_admin().get_table_info(self._info.table_path)
        return LakeOptions.of(info, trust=Trust.of(self._connection.config))

    def _gone(self, snapshot_id: int, options: LakeOptions) -> OvertakenError:
        where = options.warehouse or options.uri
        return OvertakenError(
            f"The lake at {where} does not have snapshot {snapshot_id} of {self._info.table_path}, up to "
            "which its server counts on it: was it expired, or is this another warehouse?",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )


def named_options(
    connection: FlussConnection, path: TablePath, warehouse: str | None, catalog: Mapping[str, str] | None
) -> LakeOptions | None:
    """The lake of a table as it is named here; None if nothing is."""
    trust = Trust.of(connection.config)
    if is_lake_named(warehouse, catalog):
        return LakeOptions.of(None, warehouse, catalog, trust)
    if not catalog:
        return None
    # What a table was looked up with does not say where its lake is, if the server is Apache Fluss.
    return LakeOptions.of(connection.get_admin().get_table_info(path), None, catalog, trust)


def check_mode(mode: str) -> str:
    """The mode; raises when there is no such one."""
    if mode not in MODES:
        raise InvalidRequestError(f"A union read has a mode of {', '.join(map(repr, MODES))}, not {mode!r}.")
    return mode


def _cut(info: TableInfo, key: TableBucket, start: int, first: int) -> OvertakenError:
    where = "" if key.partition_id is None else f" of the partition with id {key.partition_id}"
    return OvertakenError(
        f"The lake has bucket {key.bucket}{where} of {info.table_path} up to offset {start}, and its log begins at "
        f"{first}: rows in between have expired. Tier the table more often, or keep its log for longer.",
        ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
    )
