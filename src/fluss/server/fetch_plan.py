"""What one FetchLog request asks for, and reading it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fluss.model.errors import ErrorCode, FlussError, error_from_code
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.server.context import ConnectionContext
from fluss.server.projection import Projection
from fluss.storage.log import BucketLog
from fluss.storage.store import Storage

LOG_START_OFFSET: Final = -2


@dataclass(slots=True)
class BucketFetch:
    """One bucket of a fetch, and what was read of it."""

    bucket: TableBucket
    fetch_offset: int
    bytes_max: int
    projection: Projection | None = None
    error: Exception | None = None
    high_watermark: int = 0
    log_start_offset: int = 0
    records: bytes = b""

    def start_offset(self, log: BucketLog) -> int:
        """The offset to read from."""
        return log.log_start_offset if self.fetch_offset == LOG_START_OFFSET else self.fetch_offset

    def read(self, storage: Storage, bytes_max: int) -> None:
        """Read at least one batch if there is one."""
        log = storage.bucket(self.bucket)
        self.records = log.read(self.start_offset(log), max(0, min(self.bytes_max, bytes_max)))
        self.high_watermark = log.high_watermark
        self.log_start_offset = log.log_start_offset

    def available(self, storage: Storage) -> bool:
        """Whether there is something to read, or reading is an error."""
        log = storage.bucket(self.bucket)
        offset = self.start_offset(log)
        return offset < log.high_watermark or offset > log.log_end_offset


@dataclass(slots=True)
class FetchPlan:
    """All buckets of a fetch, by table as requested."""

    storage: Storage
    bytes_max: int
    tables: list[tuple[int, list[BucketFetch]]] = field(default_factory=list)

    @classmethod
    def of(cls, context: ConnectionContext, request: pb.FetchLogRequest) -> FetchPlan:
        """The plan of a request; what is wrong with one table or bucket is kept with its buckets."""
        plan = cls(context.storage, min(request.max_bytes, context.limits.fetch_bytes_max))
        for table in request.tables_req:
            buckets = [
                BucketFetch(
                    TableBucket(table.table_id, item.bucket_id, _partition_id(item)),
                    item.fetch_offset,
                    item.max_fetch_bytes,
                )
                for item in table.buckets_req
            ]
            plan._project(table, buckets)
            plan.tables.append((table.table_id, buckets))
        return plan

    @property
    def buckets(self) -> Iterator[BucketFetch]:
        """Every bucket."""
        return (fetch for _, buckets in self.tables for fetch in buckets)

    @property
    def needs_projection(self) -> bool:
        """Whether what was read must be changed before it is sent."""
        return any(fetch.projection is not None for fetch in self.buckets)

    def is_ready(self, min_bytes: int, *, patient: bool) -> bool:
        """Whether there is enough to answer, or an error to tell.

        A patient client waits with its errors, too, if they may pass: told at once, it would ask again at once.
        """
        total_bytes = 0
        for fetch in self.buckets:
            try:
                if fetch.error is not None:
                    raise fetch.error
                if not fetch.available(self.storage):
                    continue
                if min_bytes > 1:
                    fetch.read(self.storage, min_bytes)
                    total_bytes += len(fetch.records)
                    fetch.records = b""
                else:
                    total_bytes += 1
            except FlussError as error:
                if not (patient and error.is_retriable):
                    return True
            if total_bytes >= min_bytes:
                return True
        return False

    def read(self, allowance_bytes: int, first: int) -> None:
        """Read every bucket within the size limits, beginning with number `first` so that each one gets its turn."""
        buckets = list(self.buckets)
        left_bytes = min(self.bytes_max, allowance_bytes)
        anything = False
        for number in range(len(buckets)):
            fetch = buckets[(first + number) % len(buckets)]
            if fetch.error is not None:
                continue
            try:
                fetch.read(self.storage, left_bytes)
            except Exception as error:
                fetch.error = error
                continue
            if anything and len(fetch.records) > left_bytes:
                # Only the first batch of a response may break the limit; this one comes next time.
                fetch.records = b""
            anything = anything or bool(fetch.records)
            left_bytes = max(0, left_bytes - len(fetch.records))

    def project(self) -> None:
        """Pick the columns asked for; meant for a worker thread."""
        for fetch in self.buckets:
            if fetch.projection is None or not fetch.records:
                continue
            try:
                fetch.records = fetch.projection.apply(fetch.records)
            except Exception as error:
                fetch.error = error

    def subscribe(self, callback: Callable[[], None]) -> list[Callable[[], None]]:
        """Call back when any bucket grows or goes away; returns how to stop that."""
        cancels = []
        for fetch in self.buckets:
            try:
                cancels.append(self.storage.bucket(fetch.bucket).on_advance(callback))
            except FlussError:
                continue
        return cancels

    def _project(self, table: pb.PbFetchLogTableRequest, buckets: list[BucketFetch]) -> None:
        if not table.projection_pushdown_enabled:
            return
        catalog = self.storage.catalog
        entry = catalog.table_by_id(table.table_id)
        try:
            if entry is None:
                raise error_from_code(
                    ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, f"There is no table with id {table.table_id}."
                )
            schema_json = catalog.schema_json(entry.table_id, entry.schema_id)
            projection = Projection(entry, schema_json, tuple(table.projected_fields))
        except FlussError as error:
            for fetch in buckets:
                fetch.error = error
            return
        if not projection.is_identity:
            for fetch in buckets:
                fetch.projection = projection


def _partition_id(item: pb.PbFetchLogBucketRequest) -> int | None:
    return item.partition_id if item.HasField("partition_id") else None
