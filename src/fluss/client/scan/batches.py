"""Fetched batches with their bucket's cursor, and what the caller's thread makes of them: Arrow, records, changes.

Of changes that are read forwards, the last of each key wins. Read backwards the first one does, which tells the row as
it was.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.admin import AdminCore
from fluss.client.cluster.cluster import CLIENT_FOLLOWER_ID, Cluster, check_buckets
from fluss.client.cluster.retry import Failures
from fluss.client.scan.filter import ScanFilter
from fluss.client.write.routing import row_numbers
from fluss.formats import kernel
from fluss.formats.arrow.payload import RawRows, decode_changes, numbers_array, texts_array
from fluss.formats.batches.log_batch import BatchHeader, payload_of, verify_crc, walk
from fluss.formats.changelog.fold import LastChangeFold
from fluss.formats.rows.codecs import decode_rows
from fluss.formats.rows.keys import PrimaryKeyEncoder
from fluss.formats.rows.python_rows import to_rows
from fluss.formats.rows.records import ScanRecord, ScanRecords
from fluss.model.descriptor import LogFormat
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.offsets import EARLIEST_OFFSET
from fluss.model.paths import TableBucket
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ChangeType, RecordBatch
from fluss.model.schema import Schema
from fluss.model.tables.options import LOG_FORMAT, choice
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.fetches import parse_fetch_response


class Cursor:
    """One subscribed bucket. A new subscription is a new cursor: what was fetched for the old one is dropped."""

    __slots__ = (
        "bucket",
        "error",
        "fetch_offset",
        "position",
        "remote",
        "remote_failures",
        "start_offset",
        "stop_offset",
        "trouble",
        "trouble_since",
    )

    def __init__(self, bucket: TableBucket, start_offset: int, stop_offset: int | None = None) -> None:
        self.bucket = bucket
        self.start_offset = start_offset
        self.stop_offset = stop_offset
        self.fetch_offset = start_offset
        """What the next request asks for."""
        self.position = start_offset
        """What the reader gets next."""
        self.remote: pb.PbRemoteLogFetchInfo | None = None
        """Files of the remote storage that are being read; the leader is not asked meanwhile."""
        self.remote_failures = Failures()
        self.error: FlussError | None = None
        """Why reading can't go on."""
        self.trouble: FlussError | None = None
        """A failure that may pass."""
        self.trouble_since = 0.0

    @property
    def key(self) -> tuple[int | None, int]:
        return self.bucket.partition_id, self.bucket.bucket

    @property
    def wanted(self) -> bool:
        """Whether the leader is to be asked for more."""
        return self.error is None and self.remote is None and not self.fetched

    @property
    def fetched(self) -> bool:
        """Whether a bounded read has asked for all it wants."""
        return self._is_end(self.fetch_offset)

    @property
    def finished(self) -> bool:
        """Whether the reader of a bounded read has got all it wants."""
        return self._is_end(self.position)

    def _is_end(self, offset: int) -> bool:
        if self.stop_offset is None:
            return False
        return offset >= self.stop_offset or (offset == EARLIEST_OFFSET and self.stop_offset == 0)

    def in_trouble(self, error: FlussError, now: float) -> None:
        """A fetch failed; remember since when."""
        if self.trouble is None:
            self.trouble_since = now
        self.trouble = error

    def failed(self, error: FlussError, now: float) -> None:
        """Reading failed, for now or for good."""
        if error.is_retriable:
            self.in_trouble(error, now)
        else:
            self.error = error


ROW_SIZE_BYTES = 1_024
"""Of a row as Python objects, about."""


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Rows of one log batch, or some of them, with their place in the log."""

    batch: pa.RecordBatch
    bucket: TableBucket
    base_offset: int
    last_offset: int
    timestamp_ms: int
    change_types: bytes | None
    """One byte per row; None when every row was appended."""
    offsets: pa.Array | None = None
    """Each row's offset where a filter has left gaps; None when they follow one another."""
    rows: list[dict[str, Any]] | None = None
    """For a scanner of records: the rows as they are, where they were read without Arrow; `batch` then has none."""

    @property
    def row_count(self) -> int:
        count: int = self.batch.num_rows if self.rows is None else len(self.rows)
        return count

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory; rows may have long values besides."""
        size: int = self.batch.get_total_buffer_size() if self.rows is None else len(self.rows) * ROW_SIZE_BYTES
        return size

    def slice(self, start: int, count: int) -> FetchedBatch:
        """Some of the rows; nothing is copied."""
        if start == 0 and count == self.row_count:
            return self
        base_offset, last_offset = self.base_offset + start, self.base_offset + start + count - 1
        offsets = None if self.offsets is None else self.offsets.slice(start, count)
        if offsets is not None and count:
            base_offset, last_offset = offsets[0].as_py(), offsets[-1].as_py()
        return FetchedBatch(
            self.batch.slice(start, count),
            self.bucket,
            base_offset,
            last_offset,
            self.timestamp_ms,
            None if self.change_types is None else self.change_types[start : start + count],
            offsets,
            None if self.rows is None else self.rows[start : start + count],
        )

    def filter(self, mask: pa.Array) -> FetchedBatch | None:
        """The rows for which `mask` is true, None for none."""
        count = mask.true_count
        if count == 0:
            return None
        if count == self.row_count:
            return self
        offsets = pc.add(pc.indices_nonzero(mask).cast(pa.int64()), self.base_offset)
        changes = self.change_types
        if changes is not None:
            kept = pa.Array.from_buffers(pa.uint8(), len(changes), [None, pa.py_buffer(changes)]).filter(mask)
            changes = kept.buffers()[1].to_pybytes()[: len(kept)]
        return FetchedBatch(
            self.batch.filter(mask),
            self.bucket,
            offsets[0].as_py(),
            offsets[-1].as_py(),
            self.timestamp_ms,
            changes,
            offsets,
        )


class ScanStep(NamedTuple):
    """What brings a reader on in one bucket: rows, or just an offset to move on to, where nothing is for this scan."""

    cursor: Cursor
    next_offset: int
    fetched: FetchedBatch | None = None
    size_bytes: int = 0
    """About what the rows take in memory"""


_CHANGE_TYPES = tuple(ChangeType)


def to_records(batches: Sequence[FetchedBatch]) -> ScanRecords:
    """Rows as records, by bucket."""
    by_bucket: dict[TableBucket, list[ScanRecord]] = {}
    for fetched in batches:
        records = kernel.records_of_rows(
            to_rows(fetched.batch) if fetched.rows is None else fetched.rows,
            fetched.base_offset,
            None if fetched.offsets is None else fetched.offsets.to_pylist(),
            fetched.timestamp_ms,
            _CHANGE_TYPES,
            fetched.change_types,
        )
        by_bucket.setdefault(fetched.bucket, []).extend(records)
    return ScanRecords(by_bucket)


def to_table(batches: Sequence[FetchedBatch], schema: pa.Schema) -> pa.Table:
    """Rows as one table; nothing is copied. Batches of other schemas are padded with null, and bring their columns."""
    if all(fetched.batch.schema == schema for fetched in batches):
        return pa.Table.from_batches([fetched.batch for fetched in batches], schema=schema)
    tables = [schema.empty_table(), *(pa.Table.from_batches([fetched.batch]) for fetched in batches)]
    return pa.concat_tables(tables, promote_options="default")


def to_record_batches(batches: Sequence[FetchedBatch]) -> list[RecordBatch]:
    """Arrow batches with bucket and offsets."""
    return [
        RecordBatch(fetched.batch, fetched.bucket, fetched.base_offset, fetched.last_offset, fetched.timestamp_ms)
        for fetched in batches
    ]


_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(LOG_OFFSET, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("ms", tz="UTC")),
)
_TIMESTAMP = _FIELDS[2].type


_SHORT = texts_array([change.short_string() for change in ChangeType])


def changelog_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of changes of rows of `schema`."""
    return pa.schema([*_FIELDS, *schema])


def with_changes(fetched: FetchedBatch) -> FetchedBatch:
    """The same rows with what happened to each in front."""
    count = fetched.row_count
    kinds = pa.repeat(_SHORT[ChangeType.AppendOnly], count)
    if fetched.change_types is not None:
        kinds = _SHORT.take(change_types_array(fetched.change_types))
    offsets = fetched.offsets
    if offsets is None:
        offsets = row_numbers(fetched.base_offset + count, fetched.base_offset)
    times = numbers_array(np.full(count, fetched.timestamp_ms, np.int64), _TIMESTAMP)
    return replace(fetched, batch=_joined(kinds, offsets, times, fetched.batch))


def as_inserts(rows: pa.RecordBatch, log_offset: int) -> pa.RecordBatch:
    """Rows that are there, as changes: when each was made is not known."""
    kinds = pa.repeat(_SHORT[ChangeType.Insert], rows.num_rows)
    offsets = numbers_array(np.full(rows.num_rows, log_offset, np.int64))
    return _joined(kinds, offsets, pa.nulls(rows.num_rows, _TIMESTAMP), rows)


def change_types_array(change_types: bytes) -> pa.Array:
    """Change types, one per row, as Arrow has them; nothing is copied."""
    return pa.Array.from_buffers(pa.uint8(), len(change_types), [None, pa.py_buffer(change_types)])


def _joined(kinds: pa.Array, offsets: pa.Array, times: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([kinds, offsets, times, *rows.columns], schema=changelog_schema(rows.schema))


class Folded:
    """What is known of each key that has changed, in the order of keys."""

    def __init__(self, keys: pa.Array, removals: pa.Array, rows: pa.Table) -> None:
        self.keys = keys
        self._removals = removals
        self._rows = rows

    def __len__(self) -> int:
        return len(self.keys)

    def place_after(self, key: bytes) -> int:
        """How many keys are at or before `key`."""
        return bisect.bisect_right(range(len(self)), key, key=lambda place: self.keys[place].as_py())

    def rows(self, start: int, end: int) -> list[pa.RecordBatch]:
        """The rows that are there, of some keys."""
        count = end - start
        kept = self._rows.slice(start, count).filter(pc.invert(self._removals.slice(start, count)))
        batches: list[pa.RecordBatch] = kept.to_batches()
        return batches


class ChangelogFold:
    """Folds batches of one bucket, in the order of its log. Not for the I/O loop: it works on all rows at once."""

    def __init__(self, keys: PrimaryKeyEncoder, schema: pa.Schema, *, backwards: bool = False) -> None:
        self._fold = LastChangeFold(keys.encode, backwards=backwards)
        self._schema = schema

    def add(self, batches: list[FetchedBatch]) -> None:
        """Take further changes."""
        for fetched in batches:
            types = bytes(fetched.row_count) if fetched.change_types is None else fetched.change_types
            self._fold.add(change_types_array(types), fetched.batch)

    def result(self) -> Folded:
        """What the changes leave."""
        last = self._fold.take()
        if last is None:
            return Folded(pa.nulls(0, pa.binary()), pa.nulls(0, pa.bool_()), self._schema.empty_table())
        order = pc.sort_indices(last.keys)
        rows = pa.Table.from_arrays(last.rows.take(order).columns, schema=self._schema)
        return Folded(last.keys.take(order), last.is_removed.take(order).combine_chunks(), rows)


SCHEMAS_MAX = 10_000


class RawBatch(NamedTuple):
    """One log batch as it came, not decoded yet, and the cursor that it was asked for."""

    cursor: Cursor
    records: memoryview
    position: int
    header: BatchHeader
    projected: bool
    """Whether the server was asked to leave columns out."""


class _Plan(NamedTuple):
    """How batches of one schema, or projected ones, are read."""

    written: Schema
    on_wire: pa.Schema
    output: pa.Schema
    sources: tuple[int | None, ...]
    """For each column of the output its place on the wire, None where the writer did not know it."""
    filtered: dict[int, int | None]
    """The same for the columns of the filter, by their index in the table."""
    raw_rows: RawRows | None
    """Reads small batches for a scanner of records."""


def log_format(info: TableInfo) -> str:
    """How a table's log holds rows."""
    return choice(info.properties, LOG_FORMAT)


class BatchReader:
    """Decodes for one table and projection. `decode` may run on any thread."""

    def __init__(
        self,
        admin: AdminCore,
        info: TableInfo,
        projection: Sequence[int] | None = None,
        scan_filter: ScanFilter | None = None,
        *,
        fixed_schema: bool = True,
        changelog: bool = False,
        records: bool = False,
    ) -> None:
        """With `changelog`, batches have what happened to each row in front of its columns.

        With `records`, rows of small batches are rows already.
        """
        self._records = records and scan_filter is None and not changelog
        self._admin = admin
        self._info = info
        self._filter = scan_filter
        self._changelog = changelog
        self.is_arrow = log_format(info) == LogFormat.ARROW
        # A projection names columns of this schema, so it fixes the schema.
        self.fixed_schema = fixed_schema or projection is not None
        full = arrow_schema(info.schema)
        self._wanted = list(range(len(full))) if projection is None else list(projection)
        self._rows_schema = pa.schema([full.field(index) for index in self._wanted])
        self.schema: pa.Schema = changelog_schema(self._rows_schema) if changelog else self._rows_schema
        fields = sorted({*self._wanted, *(scan_filter.columns if scan_filter else ())})
        # The server does not renew checksums when it leaves columns out, so a full read is read in full.
        self.pushed_fields: list[int] | None = None if len(fields) == len(full) or not self.is_arrow else fields
        self._schemas: dict[int, Schema] = {info.schema_id: info.schema}
        self._plans: dict[int | None, _Plan] = {}

    def unknown(self, batches: Sequence[RawBatch]) -> set[int]:
        """The schemas that batches name and that are not known yet."""
        return {batch.header.schema_id for batch in batches if not batch.projected} - self._schemas.keys()

    async def learn(self, batches: Sequence[RawBatch]) -> None:
        """Ask for the schemas that are not known yet."""
        for schema_id in self.unknown(batches):
            if len(self._schemas) >= SCHEMAS_MAX:
                raise FlussError(f"Table {self._info.table_path} has more than {SCHEMAS_MAX} schemas.")
            _, self._schemas[schema_id] = await self._admin.get_table_schema(self._info.table_path, schema_id)

    def _plan(self, schema_id: int, projected: bool) -> _Plan:
        # A projected batch has the columns that were asked for, whatever schema it was written with.
        plan_id = None if projected else schema_id
        plan = self._plans.get(plan_id)
        if plan is None:
            written = self._info.schema if projected else self._schemas.get(schema_id)
            if written is None:
                raise FlussError(f"schema {schema_id} is not known", ErrorCode.SCHEMA_NOT_EXIST)
            plan = self._plans[plan_id] = self._make_plan(written, self.pushed_fields if projected else None)
        return plan

    def _make_plan(self, written: Schema, pushed_fields: list[int] | None) -> _Plan:
        columns = arrow_schema(written)
        indexes = list(range(len(columns))) if pushed_fields is None else pushed_fields
        on_wire = pa.schema([columns.field(index) for index in indexes])
        # A field id stays with its column when others come and go.
        places = {written.field_ids[index]: place for place, index in enumerate(indexes)}
        ids = self._info.schema.field_ids
        filtered = {index: places.get(ids[index]) for index in (self._filter.columns if self._filter else ())}
        output = self._rows_schema if self.fixed_schema else on_wire
        sources = tuple(places.get(ids[index]) for index in self._wanted) if self.fixed_schema else ()
        is_plain = self._records and self.is_arrow and pushed_fields is None and on_wire == output
        raw_rows = RawRows.of(on_wire) if is_plain else None
        return _Plan(written, on_wire, output, sources, filtered, raw_rows)

    def decode(self, batches: Sequence[RawBatch]) -> list[FetchedBatch | FlussError | None]:
        """The rows of each batch from its cursor's offset on, None for none, or what is wrong with it."""
        results: list[FetchedBatch | FlussError | None] = []
        for batch in batches:
            try:
                results.append(self._decode(batch))
            except FlussError as error:
                results.append(self._named(batch, error))
            except Exception as error:  # no batch may be passed over in silence
                results.append(self._named(batch, FlussError(f"unexpected failure: {error!r}")))
        return results

    def _named(self, batch: RawBatch, error: FlussError) -> FlussError:
        bucket, offset = batch.cursor.bucket.bucket, batch.header.base_offset
        place = f"bucket {bucket} of table {self._info.table_path}, offset {offset}"
        return type(error)(f"Can't read {place}: {error.message}", error.error_code)

    def _decode(self, batch: RawBatch) -> FetchedBatch | None:
        cursor, records, position, header, projected = batch
        if not projected:
            verify_crc(records, position, header)
        skipped = max(0, cursor.start_offset - header.base_offset)
        end = header.next_offset if cursor.stop_offset is None else min(header.next_offset, cursor.stop_offset)
        count = end - header.base_offset - skipped
        if header.record_count == 0 or count <= 0:
            return None
        plan = self._plan(header.schema_id, projected)
        if plan.raw_rows is not None and header.append_only and count == header.record_count:
            rows = plan.raw_rows.read(payload_of(records, position, header)[1])
            if rows is not None and len(rows) == count:
                place = (cursor.bucket, header.base_offset, header.last_offset, header.commit_timestamp_ms)
                return FetchedBatch(plan.raw_rows.no_rows, *place, None, rows=rows)
        change_types, on_wire = self._rows(batch, plan)
        fetched = FetchedBatch(
            _conform(plan, on_wire),
            cursor.bucket,
            header.base_offset,
            header.last_offset,
            header.commit_timestamp_ms,
            change_types,
        ).slice(skipped, count)
        if self._filter is not None:
            kept = fetched.filter(_mask(self._filter, plan, on_wire.slice(skipped, count), self._info.schema))
            if kept is None:
                return None
            fetched = kept
        return with_changes(fetched) if self._changelog else fetched

    def _rows(self, batch: RawBatch, plan: _Plan) -> tuple[bytes | None, pa.RecordBatch]:
        if self.is_arrow:
            return decode_changes(batch.records, batch.position, batch.header, plan.on_wire)
        return decode_rows(batch.records, batch.position, batch.header, plan.written, log_format(self._info))


def _conform(plan: _Plan, on_wire: pa.RecordBatch) -> pa.RecordBatch:
    if plan.on_wire == plan.output:
        return on_wire
    arrays = [
        pa.nulls(on_wire.num_rows, field.type) if place is None else on_wire.column(place)
        for place, field in zip(plan.sources, plan.output, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=plan.output)


def _mask(scan_filter: ScanFilter, plan: _Plan, on_wire: pa.RecordBatch, schema: Schema) -> pa.Array:
    def column(index: int) -> pa.Array:
        place = plan.filtered[index]
        if place is not None:
            return on_wire.column(place)
        return pa.nulls(on_wire.num_rows, arrow_schema(schema).field(index).type)

    return scan_filter.mask(column)


QUESTIONS_AT_ONCE_MAX = 8
# The server sends one whole batch however little is asked for.
_FETCH_BYTES = 1


async def batch_starts(cluster: Cluster, info: TableInfo, bucket: TableBucket, offsets: Sequence[int]) -> list[int]:
    """The offset at which the batch of each offset begins; the offset itself where the leader does not tell."""
    key = (bucket.partition_id, bucket.bucket)
    check_buckets(info, [key])
    if bucket.partition_id is not None:
        cluster.metadata.watch_partitions(info.table_path, [bucket.partition_id])
        await cluster.metadata.refresh(info.table_path)
    turns = asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX)

    async def ask(offset: int) -> int:
        async with turns:
            try:
                return await _batch_start(cluster, info, bucket, offset)
            except FlussError:
                return offset  # cutting elsewhere costs a little time, not a row

    return await asyncio.gather(*map(ask, offsets))


async def _batch_start(cluster: Cluster, info: TableInfo, bucket: TableBucket, offset: int) -> int:
    leader = cluster.metadata.leader(info.table_path, bucket.partition_id, bucket.bucket)
    if leader is None:
        return offset
    request = pb.FetchLogRequest(
        follower_server_id=CLIENT_FOLLOWER_ID, max_bytes=_FETCH_BYTES, max_wait_ms=0, min_bytes=0
    )
    # One column is enough; without the first one no batch was ever written.
    projected = log_format(info) == LogFormat.ARROW
    table = request.tables_req.add(
        table_id=info.table_id, projection_pushdown_enabled=projected, projected_fields=[0] if projected else []
    )
    table.buckets_req.add(
        partition_id=bucket.partition_id, bucket_id=bucket.bucket, fetch_offset=offset, max_fetch_bytes=_FETCH_BYTES
    )
    timeout_s = cluster.request_timeout_s
    connection = await cluster.metadata.tablet(leader, timeout_s)
    body = await connection.send(api_keys.FETCH_LOG, (request.SerializeToString(),), timeout_s)
    for answer in parse_fetch_response(body, leader.address):
        for _, header in walk(answer.records):
            return header.base_offset if header.base_offset <= offset < header.next_offset else offset
    return offset
