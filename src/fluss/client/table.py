"""A table, from which its writers and scanners are made."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from fluss.client.admin import AdminCore
from fluss.client.cluster.cluster import Cluster, check_buckets, list_offsets
from fluss.client.current.changes import ChangesCore
from fluss.client.current.rows_at import RowsAt
from fluss.client.lookup.lookuper import ClientLookups, LookuperCore, PrefixLookuperCore
from fluss.client.runtime import run
from fluss.client.scan.batches import batch_starts, log_format
from fluss.client.scan.filter import ScanFilter
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.scan.table_read import LimitScanCore, TableRead, existing_partitions, read_log_table
from fluss.client.write.sender import Sender
from fluss.client.write.staged import StagedWriteCore, staging_connection
from fluss.client.write.upsert import UpsertColumns, UpsertWriterCore
from fluss.client.write.writer import AppendWriterCore
from fluss.model.descriptor import LogFormat
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.merge_mode import MergeMode
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.model.predicates import Predicate


class Client(Protocol):
    """What writers and readers of tables share."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def sender(self) -> Sender: ...
    @property
    def lookups(self) -> ClientLookups: ...


class TableCore:
    """A table as it was when it was looked up."""

    def __init__(self, client: Client, info: TableInfo) -> None:
        self._client = client
        self._cluster = client.cluster
        self.info = info
        self.arrow_schema: pa.Schema = arrow_schema(info.schema)

    @property
    def client(self) -> Client:
        """The client that the table was looked up with."""
        return self._client

    def append_writer(self) -> AppendWriterCore:
        """A writer of rows and batches; all writers of a client share its sender."""
        self._cluster.check_usable()
        if self.info.has_primary_key():
            raise InvalidRequestError(
                f"Table {self.info.table_path} has a primary key: its rows are upserted, not appended."
            )
        return AppendWriterCore(self._cluster, self._client.sender, self.info)

    def upsert_writer(
        self, columns: UpsertColumns | None = None, merge_mode: MergeMode = MergeMode.DEFAULT
    ) -> UpsertWriterCore:
        """A writer of rows by key; all writers of a client share its sender."""
        self._cluster.check_usable()
        self.check_upserts()
        return UpsertWriterCore(self._cluster, self._client.sender, self.info, columns, merge_mode)

    def staged_write(self, query_id: str, batch_id: int) -> StagedWriteCore:
        """One batch of a query, to be stored once."""
        self._cluster.check_usable()
        return StagedWriteCore(self._cluster, self.info, query_id, batch_id)

    async def check_staged_writes(self) -> None:
        """Raise unless the server knows staged writes."""
        self._cluster.check_usable()
        await staging_connection(self._cluster)

    def check_upserts(self) -> None:
        """Raise unless rows are upserted."""
        if not self.info.has_primary_key():
            raise InvalidRequestError(
                f"Table {self.info.table_path} has no primary key: its rows are appended, not upserted."
            )

    def lookuper(self, *, insert_if_not_exists: bool = False) -> LookuperCore:
        """Looks rows up by primary key; all lookups of a client share its requests."""
        self._cluster.check_usable()
        return LookuperCore(self._cluster, self._client.lookups, self.info, insert_if_not_exists=insert_if_not_exists)

    def prefix_lookuper(self, columns: Sequence[str]) -> PrefixLookuperCore:
        """Looks rows up by their partition columns and bucket key."""
        self._cluster.check_usable()
        return PrefixLookuperCore(self._cluster, self._client.lookups, self.info, columns)

    def log_scanner(
        self,
        projection: Sequence[int] | None = None,
        predicate: Predicate | None = None,
        *,
        fixed_schema: bool = True,
        changelog: bool = False,
        records: bool = False,
    ) -> LogScannerCore:
        """A reader of the table's log; `projection` has column indexes in the order wanted.

        With `changelog`, what happened to each row comes in front of its columns. With `records`, rows are wanted.
        """
        self._cluster.check_usable()
        self._check_projection(projection)
        scan_filter = None if predicate is None else self.scan_filter(predicate)
        return LogScannerCore(
            self._cluster,
            self.info,
            projection,
            scan_filter,
            fixed_schema=fixed_schema,
            changelog=changelog,
            records=records,
        )

    async def read(
        self,
        projection: Sequence[int] | None = None,
        predicate: Predicate | None = None,
        *,
        fixed_schema: bool = True,
    ) -> tuple[pa.Table, dict[TableBucket, int]]:
        """All rows as they are now, and the offset that each bucket's log goes on from."""
        self._cluster.check_usable()
        self._check_projection(projection)
        if not self.info.has_primary_key():
            scanner = self.log_scanner(projection, predicate, fixed_schema=fixed_schema)
            try:
                return await read_log_table(self._cluster, scanner)
            finally:
                scanner.close()
        scan_filter = None if predicate is None else self.scan_filter(predicate)
        return await TableRead(self._cluster, self.info, projection, scan_filter).run()

    def read_bucket(
        self,
        bucket: TableBucket,
        start_offset: int,
        end_offset: int,
        projection: Sequence[int] | None = None,
        predicate: Predicate | None = None,
        *,
        changelog: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The rows, or changes, of a bucket between two offsets; blocks its caller."""
        self._check_range(bucket, start_offset, end_offset)
        scanner = self.log_scanner(projection, predicate, changelog=changelog)
        try:
            yield from scanner.batches_between(bucket, start_offset, end_offset)
        finally:
            scanner.close()

    def read_bucket_at(
        self,
        bucket: TableBucket,
        offset: int | None,
        projection: Sequence[int] | None = None,
        predicate: Predicate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a primary-key table's bucket as they were at an offset of its changelog; blocks its caller."""
        self._cluster.check_usable()
        self.check_upserts()
        self._check_projection(projection)
        self._check_range(bucket, 0, offset or 0)
        scan_filter = None if predicate is None else self.scan_filter(predicate)
        return RowsAt(self._cluster, self.info, bucket, offset, projection, scan_filter).batches()

    def batches(
        self, projection: Sequence[int] | None = None, predicate: Predicate | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """All rows of the buckets there are at the call, one bucket after the other; blocks its caller."""
        ids = list(run(existing_partitions(self._cluster, self.info)))
        ends = run(self.bucket_offsets(ids, OffsetSpec.latest()))
        starts = {} if self.info.has_primary_key() else run(self.bucket_offsets(ids, OffsetSpec.earliest()))
        for bucket, end in ends.items():
            if self.info.has_primary_key():
                yield from self.read_bucket_at(bucket, None, projection, predicate)
            elif bucket in starts:
                yield from self.read_bucket(bucket, starts[bucket], end, projection, predicate)

    def row_count(self, predicate: Predicate | None = None) -> int:
        """How many rows there are, or match; blocks its caller."""
        if predicate is None:
            try:
                return run(AdminCore(self._cluster).get_table_stats(self.info.table_path)).row_count
            except FlussError:
                pass  # not every server counts every table's rows
        return sum(batch.num_rows for batch in self.batches((0,), predicate))

    async def batch_starts(self, bucket: TableBucket, offsets: Sequence[int]) -> list[int]:
        """The offset at which the batch of each offset of a bucket begins, as far as its leader tells."""
        self._cluster.check_usable()
        self._check_bucket(bucket)
        return await batch_starts(self._cluster, self.info, bucket, offsets)

    async def bucket_offsets(self, partition_ids: Sequence[int | None], spec: OffsetSpec) -> dict[TableBucket, int]:
        """An offset for every bucket of these partitions; those that are gone are left out."""
        self._cluster.check_usable()
        metadata, path = self._cluster.metadata, self.info.table_path
        watched = [partition_id for partition_id in partition_ids if partition_id is not None]
        if watched:
            metadata.watch_partitions(path, watched)
            await metadata.refresh(path)
        while True:
            there = [item for item in partition_ids if item is None or not metadata.is_gone(path, item)]
            for problem in filter(None, (metadata.routing_problem(self.info, item) for item in there)):
                raise problem
            keys = [(partition_id, bucket) for partition_id in there for bucket in range(self.info.num_buckets)]
            try:
                found = await list_offsets(self._cluster, self.info, keys, spec)
            except NotFoundError:
                if all(item is None or not metadata.is_gone(path, item) for item in there):
                    raise
                continue  # one was dropped meanwhile
            return {TableBucket(self.info.table_id, key[1], key[0]): offset for key, offset in found.items()}

    def changes(self) -> ChangesCore:
        """A reader of changes, to be started."""
        self._cluster.check_usable()
        return ChangesCore(self._cluster, self.info)

    def limit_scan(self, bucket: TableBucket, limit: int, projection: Sequence[int] | None = None) -> LimitScanCore:
        """A reader of a bucket's last rows, or of its first ones by key in a primary-key table."""
        self._cluster.check_usable()
        self._check_projection(projection)
        if not self.info.has_primary_key():
            self.check_batches("a limit scan")
        self._check_bucket(bucket)
        return LimitScanCore(self._cluster, self.info, bucket, limit, projection)

    def scan_filter(self, predicate: Predicate) -> ScanFilter:
        """A filter checked against the table's columns."""
        return ScanFilter(predicate, self.info.schema)

    def check_batches(self, what: str) -> None:
        """Raise unless the log is of Arrow batches, without change types beside them."""
        if self.info.has_primary_key():
            raise InvalidRequestError(
                f"Table {self.info.table_path} has a primary key: its changes are read with create_log_scanner(), or "
                "as Arrow batches with create_changelog_batch_scanner()."
            )
        if log_format(self.info) != LogFormat.ARROW:
            raise InvalidRequestError(
                f"Table {self.info.table_path} has the log format {log_format(self.info)}: {what} needs ARROW. "
                "Read its records with create_log_scanner()."
            )

    def _check_range(self, bucket: TableBucket, start_offset: int, end_offset: int) -> None:
        self._check_bucket(bucket)
        if not 0 <= start_offset <= end_offset:
            raise InvalidRequestError(f"{start_offset} to {end_offset} is not a range of offsets.")

    def _check_bucket(self, bucket: TableBucket) -> None:
        if bucket.table_id != self.info.table_id:
            raise InvalidRequestError(
                f"The bucket is of the table with id {bucket.table_id}, but {self.info.table_path} has id "
                f"{self.info.table_id}."
            )
        check_buckets(self.info, [(bucket.partition_id, bucket.bucket)])

    def _check_projection(self, projection: Sequence[int] | None) -> None:
        count = len(self.info.schema.columns)
        for index in projection or ():
            if not 0 <= index < count:
                raise InvalidRequestError(
                    f"Column index {index} is not in the range 0 to {count - 1} of table {self.info.table_path}.",
                    ErrorCode.INVALID_COLUMN_PROJECTION,
                )
