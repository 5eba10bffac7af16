"""Log batches as Arrow batches of the columns wanted, whatever schema they were written with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from fluss.client.admin import AdminCore
from fluss.client.cluster.ask import CLIENT_FOLLOWER_ID, check_buckets
from fluss.client.cluster.cluster import Cluster
from fluss.client.current.changelog import changelog_schema, with_changes
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.decode import FetchedBatch
from fluss.client.scan.filter import ScanFilter
from fluss.formats.arrow.payload import decode_changes
from fluss.formats.arrow.raw_rows import RawRows
from fluss.formats.batches.log_batch import BatchHeader, payload_of, verify_crc, walk
from fluss.formats.batches.row_log import decode_rows
from fluss.model.descriptor import LogFormat
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.model.schema import Schema
from fluss.model.tables.options import LOG_FORMAT
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.fetches import parse_fetch_response

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
    return info.properties.get(LOG_FORMAT, LogFormat.ARROW).upper()


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
        """For each batch its rows from its cursor's offset on, None for none, or what is wrong with it."""
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
    """For each offset where the batch that holds it begins; the offset itself where the leader does not tell."""
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
