"""Staged writes: rows that the server keeps aside until a commit names the attempts that count, and then stores once.

All requests may be repeated without harm, so they are, until the time for a write is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias, cast

import pyarrow as pa
from google.protobuf.message import Message

from fluss.client import runtime
from fluss.client.cluster.cluster import Cluster, ask, ask_once
from fluss.client.cluster.retry import Tries, is_retriable, repeat
from fluss.client.net.connection import BytesLike, Connection
from fluss.client.write.encode_queue import BatchLimits, Encoder, pieces
from fluss.client.write.routing import PartitionFinder, router, writable_schema
from fluss.client.write.row_buffer import BufferOwner, RowBuffer, WireBatch
from fluss.client.write.upsert import KvEncoder, KvRowBuffer, UpsertColumns, check_deletes
from fluss.client.write.writer import LogEncoder
from fluss.formats.arrow.cast import ArrowCaster
from fluss.formats.rows.digest import RowDigest, sum_of
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.merge_mode import MergeMode
from fluss.model.paths import TablePath
from fluss.model.staging import StagedQueryInfo, StagedTask
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp
from fluss.protocol.protobuf import parse_answer
from fluss.protocol.writes import BUCKET_OVERHEAD_BYTES, bucket_parts

# Of one writer; each waits for a sync of the server.
REQUESTS_IN_FLIGHT_MAX: Final = 4
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

# Makes the body of a request, anew for each try.
Body: TypeAlias = Callable[[], Awaitable[list[BytesLike]]]


async def staging_connection(cluster: Cluster) -> Connection:
    """A connection to a server that knows staged writes; raises for one that does not."""
    connection = await cluster.coordinator()
    if api_keys.STAGE_WRITE.key not in connection.versions:
        raise InvalidRequestError(
            f"Exactly-once writes need a Flussbett server; the one at {connection.address} knows no staged writes. "
            "Write without them there: rows are then stored at least once.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    return connection


class StagedWriteCore:
    """One batch of a query. Coroutines run on the I/O loop."""

    def __init__(self, cluster: Cluster, info: TableInfo, query_id: str, batch_id: int) -> None:
        if not isinstance(query_id, str) or not query_id:
            raise InvalidRequestError(f"A query id is a text, not {query_id!r}.")
        _check_number("batch_id", batch_id, _INT64_MAX)
        self.cluster = cluster
        self.info = info
        self.query_id = query_id
        self.batch_id = batch_id
        self._timeout_ms: int = cluster.config.request_timeout_ms
        self._limit_s: float = cluster.config.writer_delivery_timeout_ms / 1000
        self.partitions = PartitionFinder(cluster.metadata, cluster.config)

    def writer(self, task: int, attempt: int, columns: Sequence[str] | None) -> StagedWriterCore:
        """A writer of rows that count only if the commit names this attempt."""
        self.cluster.check_usable()
        _check_number("task", task, _INT32_MAX)
        _check_number("attempt", attempt, _INT64_MAX)
        return StagedWriterCore(self, task, attempt, columns)

    async def commit(self, tasks: Iterable[StagedTask]) -> bool:
        """Store what these attempts have staged; True when the batch was committed before, with the same rows."""
        request = pb.CommitStagedRequest(
            table_id=self.info.table_id,
            query_id=self.query_id,
            batch_id=self.batch_id,
            timeout_ms=self._timeout_ms,
        )
        for task in tasks:
            request.tasks.add(**task._asdict())
        return (await self._ask(api_keys.COMMIT_STAGED, request)).is_repeated

    async def abort(self) -> None:
        """Let the server forget what is staged."""
        request = pb.DropStagedRequest(table_id=self.info.table_id, query_id=self.query_id, batch_id=self.batch_id)
        await self._ask(api_keys.DROP_STAGED, request)

    async def stage(self, request: pb.StageWriteRequest, batches: Sequence[WireBatch]) -> None:
        """Return when the server has the batches on its disk."""
        request.table_id, request.query_id, request.batch_id = self.info.table_id, self.query_id, self.batch_id
        request.timeout_ms = self._timeout_ms
        head = request.SerializeToString()
        looked = False

        async def body() -> list[BytesLike]:
            nonlocal looked
            names = {batch.partition for batch in batches if batch.partition is not None}
            ids = {name: await self._partition_id(name, again=looked) for name in names}
            looked = True
            places = (
                (None if batch.partition is None else ids[batch.partition], batch.bucket, batch.header, batch.payload)
                for batch in batches
            )
            return [head, *bucket_parts(pb.StageWriteRequest.BUCKETS_REQ_FIELD_NUMBER, places)]

        await self._send(api_keys.STAGE_WRITE, body)

    async def _partition_id(self, name: str, *, again: bool) -> int:
        known = None if again else self.cluster.metadata.partition_id(self.info.table_path, name)
        return await self.partitions.find(self.info, name) if known is None else known

    async def _ask(self, api: Api[Req, Resp], request: Message) -> Resp:
        async def body() -> list[BytesLike]:
            return [request.SerializeToString()]

        return await self._send(api, body)

    async def _send(self, api: Api[Req, Resp], body: Body) -> Resp:
        """Ask until there is an answer that another try won't change, or the time is over."""
        self.cluster.check_usable()

        async def attempt(_: Tries) -> Resp:
            connection = await staging_connection(self.cluster)
            answer = await connection.send(api, await body(), self.cluster.request_timeout_s)
            return parse_answer(api.response, answer, connection.address)

        return await repeat(Tries(self._limit_s, is_retriable), attempt)


class StagedWriterCore:
    """Encodes rows as other writers do and stages them. Coroutines run on the I/O loop, one after the other."""

    def __init__(self, write: StagedWriteCore, task: int, attempt: int, columns: Sequence[str] | None) -> None:
        info, config = write.info, write.cluster.config
        self._write = write
        self._task = task
        self._attempt = attempt
        self._limits = BatchLimits.of(config)
        self._columns: UpsertColumns | None = None
        self._buffer_class: type[RowBuffer] = RowBuffer
        route = router(info, config)
        if info.has_primary_key():
            self._columns = UpsertColumns(info) if columns is None else UpsertColumns.named(info, columns)
            self._buffer_class = KvRowBuffer
            self._encoder: Encoder = KvEncoder(info, self._limits, route, self._columns, MergeMode.DEFAULT)
            self._caster = ArrowCaster(self._columns.schema)
            self._key_caster = ArrowCaster(self._columns.key_schema)
        elif columns is not None:
            raise InvalidRequestError(f"Table {info.table_path} has no primary key: its rows are appended whole.")
        else:
            self._encoder = LogEncoder(info, self._limits, route)
            self._caster = ArrowCaster(writable_schema(info))
        self._rows_digest, self._keys_digest = _digests(info, columns, self._columns)
        self._buffer: RowBuffer | None = None
        self._request_count = 0
        self._in_flight: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()
        self._ended: FlussError | None = None

    async def write(self, batch: pa.RecordBatch, *, deletes: bool = False) -> None:
        """Take rows, or keys of rows to delete; waits while many requests are under way."""
        async with self._lock:
            self._check()
            rows = await runtime.in_worker(self._taken, batch, deletes)
            for piece in pieces(rows, self._limits.request_size_bytes_max):
                await self._add(piece, deletes)

    async def pass_over_deletes(self, batch: pa.RecordBatch) -> None:
        """Take note of keys whose rows do not exist: part of what the batch is known by, and not staged."""
        async with self._lock:
            self._check()
            await runtime.in_worker(self._taken, batch, True)

    async def finish(self) -> StagedTask:
        """Stage what is left and wait until the server has all: what the commit has to name."""
        async with self._lock:
            self._check()
            await self._stage_buffer()
            await self._await_in_flight(0)
            self._ended = FlussError("The writer was finished; make another one with another attempt.")
            rows, keys = self._rows_digest, self._keys_digest
            digest = sum_of((rows.value, keys.value))
            return StagedTask(self._task, self._attempt, self._request_count, rows.row_count + keys.row_count, digest)

    async def close(self) -> None:
        """Stop; what is not finished can't be committed."""
        self._ended = self._ended or FlussError("The writer is closed.")
        self._buffer = None
        in_flight, self._in_flight = self._in_flight, []
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _taken(self, batch: pa.RecordBatch, deletes: bool) -> pa.RecordBatch:
        rows = self._fitted(batch, deletes)
        (self._keys_digest if deletes else self._rows_digest).add(rows)
        return rows

    def _fitted(self, batch: pa.RecordBatch, deletes: bool) -> pa.RecordBatch:
        if not deletes:
            if self._columns is not None:
                self._columns.check_names(batch.schema.names)
            return self._caster.cast(batch)
        if self._columns is None:
            raise InvalidRequestError(f"Table {self._write.info.table_path} has no primary key: it takes no deletes.")
        check_deletes(self._write.info)
        return self._key_caster.cast(batch.select(self._columns.key_names(batch.schema.names)))

    async def _add(self, rows: pa.RecordBatch, deletes: bool) -> None:
        buffer = self._buffer
        if buffer is not None and buffer.deletes is not deletes:
            await self._stage_buffer()
            buffer = None
        if buffer is None:
            # No rows but Arrow batches come to it, so it asks nothing of its writer.
            buffer = self._buffer = self._buffer_class(cast(BufferOwner, None), 0, None, deletes=deletes)
        buffer.add_batch(rows)
        if buffer.size_bytes >= self._limits.request_size_bytes_max:
            await self._stage_buffer()

    async def _stage_buffer(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        await runtime.in_worker(self._encoder.prepare, buffer)
        if buffer.error is not None:
            # The digest has rows that were not staged.
            self._ended = FlussError("The writer has failed; make another one with another attempt.")
            raise buffer.error
        batches: list[WireBatch] = []
        size_bytes = 0
        for batch in buffer.batches:
            added_bytes = batch.size_bytes + BUCKET_OVERHEAD_BYTES
            if batches and size_bytes + added_bytes > self._limits.request_size_bytes_max:
                await self._stage(batches)
                batches, size_bytes = [], 0
            batches.append(batch)
            size_bytes += added_bytes
        if batches:
            await self._stage(batches)

    async def _stage(self, batches: list[WireBatch]) -> None:
        await self._await_in_flight(REQUESTS_IN_FLIGHT_MAX - 1)
        request = pb.StageWriteRequest(task=self._task, attempt=self._attempt, sequence=self._request_count)
        how = batches[0].request
        request.target_columns.extend(how.target_columns)
        self._request_count += 1
        self._in_flight.append(asyncio.ensure_future(self._write.stage(request, batches)))

    async def _await_in_flight(self, count_max: int) -> None:
        """Wait until so few requests are under way; a failed one fails the writer."""
        while len(self._in_flight) > count_max:
            try:
                await self._in_flight.pop(0)
            except FlussError as error:
                self._ended = error
                await self.close()
                raise


def _digests(
    info: TableInfo, targets: Sequence[str] | None, columns: UpsertColumns | None
) -> tuple[RowDigest, RowDigest]:
    """Those of rows and of deleted keys. To set a column to null is not to leave it as it is."""
    schema = writable_schema(info) if columns is None else columns.schema
    number_of = info.schema.column_names.index
    numbers = [number_of(name) for name in schema.column_names]
    kind = "" if targets is None else f"columns {sorted(numbers)}"
    keys = [] if columns is None else [number_of(name) for name in columns.key_schema.column_names]
    return RowDigest(numbers, kind), RowDigest(keys, "deletes")


def _check_number(name: str, number: int, high: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= high:
        raise InvalidRequestError(f"{name} must be an integer from 0 to {high}, not {number!r}.")


_OPTIONAL = StagedQueryInfo._fields[1:]


async def list_staged(cluster: Cluster) -> list[StagedQueryInfo]:
    """All queries of all tables."""
    await _check_known(cluster)
    response = await ask(cluster, api_keys.LIST_STAGED, pb.ListStagedRequest())
    return [_info(query) for query in response.queries]


async def accept_staged(cluster: Cluster, table_id: int, query_id: str, batch_id: int) -> None:
    """Let repeated batches up to this one be done, whatever rows they have."""
    await _check_known(cluster)
    request = pb.AcceptStagedRequest(table_id=table_id, query_id=query_id, batch_id=batch_id)
    await ask(cluster, api_keys.ACCEPT_STAGED, request)


async def reset_staged(cluster: Cluster, table_id: int, query_id: str, batch_id: int | None, *, gives_up: bool) -> None:
    """Let the server forget a query, or take this batch for the last one committed."""
    await _check_known(cluster)
    request = pb.ResetStagedRequest(table_id=table_id, query_id=query_id, batch_id=batch_id, gives_up=gives_up)
    await ask_once(cluster, api_keys.RESET_STAGED, request)


async def _check_known(cluster: Cluster) -> None:
    cluster.check_usable()
    connection = await staging_connection(cluster)
    if api_keys.LIST_STAGED.key not in connection.versions:
        text = f"The server at {connection.address} is too old for 'fluss staged': upgrade it."
        raise InvalidRequestError(text, ErrorCode.UNSUPPORTED_VERSION)


def _info(query: pb.PbStagedQuery) -> StagedQueryInfo:
    values = (getattr(query, name) if query.HasField(name) else None for name in _OPTIONAL)
    return StagedQueryInfo._make((TablePath(query.database_name, query.table_name), *values))
