"""The plan of one FetchLog request: which buckets, how much of each, which batches and columns of them.

Batches of older schemas may lack columns that were added since. Apache Fluss refuses to project those; here they come
as nulls, because every client reads a projected batch with the columns it asked for, whatever schema the batch was
written with. New columns are always the last ones, so indexes mean the same in all schemas of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from fluss.formats.arrow.messages import ArrowLayout, ColumnSlicer
from fluss.formats.batches.log_batch import BatchHeader, payload_of, resized_header, walk
from fluss.model.descriptor import LogFormat
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError, error_from_code
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Part, table_bucket
from fluss.server.net.context import ConnectionContext
from fluss.server.read.filter import BatchFilter
from fluss.server.tables.rules import schema_columns, table_format
from fluss.storage.catalog.catalog import Catalog, TableEntry
from fluss.storage.catalog.view import DefinitionCache
from fluss.storage.log.log import BucketLog, LogPosition
from fluss.storage.store import Storage

_INDEXES_SHOWN: Final = 20


class Projection:
    """Some columns of one table."""

    def __init__(self, catalog: Catalog, entry: TableEntry, indexes: tuple[int, ...]) -> None:
        self._catalog = catalog
        self._table_id = entry.table_id
        self._indexes = indexes
        self._target_json = catalog.schema_json(entry.table_id, entry.schema_id)
        self._slicers: dict[int, ColumnSlicer | None] = {}
        _check(indexes, len(schema_columns(self._target_json).types), table_format(entry.table_json).log_format)

    def apply(self, data: bytes, position: int, header: BatchHeader) -> tuple[list[Part], int]:
        """The batch at `position` with these columns only, in parts, and its size.

        The checksum is the old one, as clients know: they do not look at it when they project. Statistics are dropped.
        """
        slicer = self._slicer(header.schema_id) if header.record_count else None
        if slicer is None:
            return [memoryview(data)[position : position + header.size_bytes]], header.size_bytes
        changes, payload = payload_of(data, position, header)
        try:
            pieces, size_bytes = slicer.slice(payload)
        except CorruptDataError as error:
            # Not CORRUPT_RECORD: that is retriable, and the batch on disk stays as it is.
            raise CorruptDataError(
                f"The batch at offset {header.base_offset} can't be projected: {error.message}.",
                ErrorCode.CORRUPT_MESSAGE,
            ) from error
        if changes is not None:
            pieces.insert(0, changes)
            size_bytes += len(changes)
        head = resized_header(data, position, header, size_bytes)
        return [head, *pieces], len(head) + size_bytes

    def _slicer(self, schema_id: int) -> ColumnSlicer | None:
        """None when the batches of a schema have just the columns asked for."""
        try:
            return self._slicers[schema_id]
        except KeyError:
            batch_json = self._catalog.schema_json(self._table_id, schema_id)
            slicer = self._slicers[schema_id] = _slicer(batch_json, self._target_json, self._indexes)
            return slicer


def _check(indexes: tuple[int, ...], columns: int, log_format: LogFormat) -> None:
    if log_format is not LogFormat.ARROW:
        raise InvalidRequestError(
            f"Only ARROW log tables can be projected, this one is {log_format}; read all columns.",
            ErrorCode.INVALID_COLUMN_PROJECTION,
        )
    ascending = all(left < right for left, right in pairwise(indexes))
    if not indexes or not ascending or indexes[0] < 0 or indexes[-1] >= columns:
        raise InvalidRequestError(
            f"Projected columns must be ascending indexes from 0 to {columns - 1}, "
            f"not {list(indexes[:_INDEXES_SHOWN])}.",
            ErrorCode.INVALID_COLUMN_PROJECTION,
        )


@DefinitionCache
def _slicer(batch_json: bytes, target_json: bytes, indexes: tuple[int, ...]) -> ColumnSlicer | None:
    batch = schema_columns(batch_json)
    if indexes == tuple(range(len(batch.types))):
        return None
    target = schema_columns(target_json)
    there = [index for index in indexes if index < len(batch.types)]
    missing = [target.types[index] for index in indexes if index >= len(batch.types)]
    return ColumnSlicer(batch.layout, there, ArrowLayout(missing))


# One fetch looks at so many batches, fewer with a large filter; the rest is for the next one, so that nobody holds the
# loop for long.
BATCHES_PER_FETCH_MAX: Final = 1_000

# Parts smaller than this on average are put together.
_PART_SIZE_MIN_BYTES: Final = 16 << 10


class Picked(NamedTuple):
    parts: list[Part]
    size_bytes: int
    filtered_end_offset: int | None  # where to go on, if batches at the end were left out
    cost: int  # in batches


class BatchPicker:
    """A filter, a projection, or both."""

    def __init__(self, batch_filter: BatchFilter | None, projection: Projection | None) -> None:
        self._filter = batch_filter
        self._cost = 1 if batch_filter is None else batch_filter.cost
        self._projection = projection

    @property
    def filters(self) -> bool:
        """Whether batches may be left out."""
        return self._filter is not None

    def pick(self, data: bytes, bytes_max: int, batches_max: int, kept_end_offset: int) -> Picked:
        """The batches to send, at least one if there is any; they end where a limit is reached.

        The batch that ends at `kept_end_offset` is never filtered out.
        """
        parts: list[Part] = []
        size_bytes = cost = 0
        filtered_end_offset: int | None = None
        for position, header in walk(data):
            if cost >= batches_max:
                break
            cost += self._cost
            if header.next_offset != kept_end_offset and not self._may_match(data, position, header):
                filtered_end_offset = header.next_offset
                continue
            try:
                pieces, piece_bytes = self._project(data, position, header)
            except FlussError:
                if not parts and filtered_end_offset is None:
                    raise
                # What is good comes first, the error next time.
                break
            if parts and size_bytes + piece_bytes > bytes_max:
                break
            # Parts keep all of `data` in memory, and sending them has its price: only large ones are worth it.
            parts += pieces if piece_bytes >= len(pieces) * _PART_SIZE_MIN_BYTES else [b"".join(pieces)]
            size_bytes += piece_bytes
            filtered_end_offset = None
        if 2 * size_bytes < len(data) or size_bytes < len(parts) * _PART_SIZE_MIN_BYTES:
            parts = [b"".join(parts)] if parts else []
        return Picked(parts, size_bytes, filtered_end_offset, cost)

    def _may_match(self, data: bytes, position: int, header: BatchHeader) -> bool:
        return self._filter is None or self._filter.may_match(data, position, header)

    def _project(self, data: bytes, position: int, header: BatchHeader) -> tuple[list[Part], int]:
        if self._projection is None:
            return [memoryview(data)[position : position + header.size_bytes]], header.size_bytes
        return self._projection.apply(data, position, header)


LOG_START_OFFSET: Final = -2


@dataclass(slots=True)
class Allowance:
    """What one fetch may still read, and look at, on its turn of the loop."""

    size_bytes: int
    batches: int = BATCHES_PER_FETCH_MAX
    anything: bool = False  # was read so far

    @property
    def is_spent(self) -> bool:
        """The first batch of a response may break its limit, no other one."""
        return self.batches <= 0 or (self.anything and self.size_bytes <= 0)


@dataclass(slots=True)
class BucketFetch:
    """One bucket of a fetch, and what was read of it."""

    bucket: TableBucket
    fetch_offset: int
    bytes_max: int
    picker: BatchPicker | None = None
    kept_end_offset: int = -1  # the batch that ends there is sent whatever the filter says
    error: Exception | None = None
    high_watermark: int = 0
    log_start_offset: int = 0
    parts: list[Part] = field(default_factory=list)
    size_bytes: int = 0
    filtered_end_offset: int | None = None
    _position: LogPosition | None = None

    def start_offset(self, log: BucketLog) -> int:
        """The offset to read from."""
        return log.log_start_offset if self.fetch_offset == LOG_START_OFFSET else self.fetch_offset

    def read(self, storage: Storage, allowance: Allowance) -> None:
        """Read at least one batch if there is one."""
        log = storage.bucket(self.bucket)
        self.high_watermark = log.high_watermark
        self.log_start_offset = log.log_start_offset
        if allowance.is_spent:
            return
        if self.picker is not None:
            self._read_picked(log, self.picker, allowance)
            return
        # Bytes that this process reads for the first time are verified: after a start that is everything.
        checked = log.batches_checked
        records = log.read(
            self.start_offset(log), self._read_bytes_max(allowance), batches_max=max(allowance.batches, 0)
        )
        allowance.batches -= log.batches_checked - checked
        self.parts, self.size_bytes = [records] if records else [], len(records)
        allowance.size_bytes -= len(records)

    def _read_picked(self, log: BucketLog, picker: BatchPicker, allowance: Allowance) -> None:
        """Read on while everything is filtered out, within what one fetch may do."""
        offset = self.start_offset(log)
        while not self.parts and allowance.batches > 0:
            try:
                # Readers get batches that are made anew, and can't see whether bytes changed since they were verified.
                bytes_max, batches_max = self._read_bytes_max(allowance), allowance.batches
                data = log.read(offset, bytes_max, verify=True, batches_max=batches_max)
                picked = picker.pick(data, bytes_max, batches_max, self.kept_end_offset)
            except FlussError:
                if self.filtered_end_offset is None:
                    raise
                # The client goes on from there, and is told then.
                return
            allowance.size_bytes -= len(data)
            allowance.batches -= picked.cost
            self.parts, self.size_bytes = picked.parts, picked.size_bytes
            if not data:
                return
            self.filtered_end_offset = picked.filtered_end_offset
            if picked.filtered_end_offset is None or allowance.size_bytes <= 0:
                return
            offset = picked.filtered_end_offset

    def keep_last_batch(self, storage: Storage) -> None:
        """Filter out no batch that ends at the present end.

        pyfluss knows that it has read up to an offset only from a batch that reaches it, and would wait for ever.
        """
        with suppress(FlussError):  # reading will tell it
            self.kept_end_offset = storage.bucket(self.bucket).high_watermark

    def _read_bytes_max(self, allowance: Allowance) -> int:
        return max(0, min(self.bytes_max, allowance.size_bytes))

    def forget(self) -> None:
        """Give nothing this time."""
        self.parts, self.size_bytes, self.filtered_end_offset = [], 0, None

    def available_bytes(self, storage: Storage, wanted_bytes: int) -> int:
        """How much there is to read, at least when it is less than wanted."""
        log = storage.bucket(self.bucket)
        offset = self.start_offset(log)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            # Reading will tell the error.
            return wanted_bytes
        if offset >= log.high_watermark:
            return 0
        if wanted_bytes <= 1:
            return 1
        if self._position is None:
            self._position = log.locate(offset)
        return log.bytes_behind(self._position)


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
                    table_bucket(table.table_id, item.bucket_id, _partition_id(item)),
                    item.fetch_offset,
                    item.max_fetch_bytes,
                )
                for item in table.buckets_req
            ]
            plan._select(table, buckets)
            plan.tables.append((table.table_id, buckets))
        return plan

    @property
    def buckets(self) -> Iterator[BucketFetch]:
        """Every bucket."""
        return (fetch for _, buckets in self.tables for fetch in buckets)

    def is_ready(self, min_bytes: int, *, patient: bool) -> bool:
        """Whether there is enough to answer, or an error to tell.

        A patient client waits with its errors, too, if they may pass: told at once, it would ask again at once.
        """
        total_bytes = 0
        for fetch in self.buckets:
            try:
                if fetch.error is not None:
                    raise fetch.error
                total_bytes += fetch.available_bytes(self.storage, min_bytes)
            except FlussError as error:
                if not (patient and error.is_retriable):
                    return True
            if total_bytes >= min_bytes:
                return True
        return False

    def read(self, allowance_bytes: int, first: int) -> None:
        """Read every bucket within the size limits, beginning with number `first` so that each one gets its turn."""
        buckets = list(self.buckets)
        allowance = Allowance(min(self.bytes_max, allowance_bytes))
        for number in range(len(buckets)):
            fetch = buckets[(first + number) % len(buckets)]
            if fetch.error is not None:
                continue
            left_bytes = allowance.size_bytes
            try:
                fetch.read(self.storage, allowance)
            except Exception as error:
                fetch.error = error
                continue
            if allowance.anything and fetch.size_bytes > left_bytes:
                # It comes next time.
                fetch.forget()
                allowance.size_bytes = left_bytes
            allowance.anything = allowance.anything or bool(fetch.parts)

    def subscribe(self, callback: Callable[[], None]) -> list[Callable[[], None]]:
        """Call back when any bucket grows or goes away; returns how to stop that."""
        cancels = []
        for fetch in self.buckets:
            try:
                cancels.append(self.storage.bucket(fetch.bucket).on_advance(callback))
            except FlussError:
                continue
        return cancels

    def _select(self, table: pb.PbFetchLogTableRequest, buckets: list[BucketFetch]) -> None:
        if not table.projection_pushdown_enabled and not table.HasField("filter_predicate"):
            return
        try:
            picker = self._picker(table)
        except FlussError as error:
            for fetch in buckets:
                fetch.error = error
            return
        for fetch in buckets:
            fetch.picker = picker
            if picker.filters:
                fetch.keep_last_batch(self.storage)

    def _picker(self, table: pb.PbFetchLogTableRequest) -> BatchPicker:
        catalog = self.storage.catalog
        entry = catalog.table_by_id(table.table_id)
        if entry is None:
            raise error_from_code(
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, f"There is no table with id {table.table_id}."
            )
        batch_filter = BatchFilter(catalog, table) if table.HasField("filter_predicate") else None
        projection = None
        if table.projection_pushdown_enabled:
            projection = Projection(catalog, entry, tuple(table.projected_fields))
        return BatchPicker(batch_filter, projection)


def _partition_id(item: pb.PbFetchLogBucketRequest) -> int | None:
    return item.partition_id if item.HasField("partition_id") else None
