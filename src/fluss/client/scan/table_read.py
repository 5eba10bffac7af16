"""Reads of whole tables as they are now, or of some rows of one bucket in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.cluster.cluster import Cluster, is_stale, leader_of
from fluss.client.cluster.metadata import routing_problem
from fluss.client.cluster.retry import Tries, repeat
from fluss.client.current.current_rows import CurrentRows
from fluss.client.lookup.pending import ValueReader
from fluss.client.net.connection import server_error
from fluss.client.scan.batches import BatchReader, Cursor, FetchedBatch, RawBatch, to_table
from fluss.client.scan.filter import ScanFilter
from fluss.client.scan.scanner import LogScannerCore
from fluss.formats.batches.log_batch import walk
from fluss.formats.rows.values import decode_value_batch
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.offsets import EARLIEST_OFFSET
from fluss.model.paths import TableBucket
from fluss.model.records import NO_COMMIT_TIMESTAMP
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb


class LimitScanCore:
    """One scan of one bucket. Coroutines are for the I/O loop."""

    def __init__(
        self, cluster: Cluster, info: TableInfo, bucket: TableBucket, limit: int, projection: Sequence[int] | None
    ) -> None:
        self._cluster = cluster
        self._info = info
        self._limit = limit
        self._projection = projection
        self._reader = BatchReader(AdminCore(cluster), info, projection)
        self._pid = runtime.process_id
        self._spent = False
        self.bucket = bucket

    @property
    def arrow_schema(self) -> pa.Schema:
        return self._reader.schema

    async def next_batch(self) -> FetchedBatch | None:
        """The rows at the first call, None afterwards, also when the first has failed."""
        runtime.check_process(self._pid, "scanner")
        self._cluster.check_usable()
        if self._spent:
            return None
        self._spent = True
        records = await self._ask()
        if self._info.has_primary_key():
            return await self._current(records)
        batches = await self._decoded(memoryview(records))
        if not batches:
            return FetchedBatch(_empty(self.arrow_schema), self.bucket, 0, -1, NO_COMMIT_TIMESTAMP, None)
        table = pa.Table.from_batches([fetched.batch for fetched in batches]).combine_chunks()
        (batch,) = table.to_batches() or [_empty(self.arrow_schema)]
        first, last = batches[0], batches[-1]
        whole = FetchedBatch(batch, self.bucket, first.base_offset, last.last_offset, last.timestamp_ms, None)
        surplus = max(0, whole.row_count - self._limit)
        return whole.slice(surplus, whole.row_count - surplus)

    async def _current(self, records: bytes) -> FetchedBatch:
        """Rows as they are now: they have no place in the log."""
        values = decode_value_batch(records) if records else []
        rows = await ValueReader(AdminCore(self._cluster), self._info).decode(values[: self._limit])
        rows = rows if self._projection is None else rows.select(list(self._projection))
        return FetchedBatch(rows, self.bucket, 0, -1, NO_COMMIT_TIMESTAMP, None)

    async def _decoded(self, records: memoryview) -> list[FetchedBatch]:
        cursor = Cursor(self.bucket, 0)
        raw = [RawBatch(cursor, records, position, header, projected=False) for position, header in walk(records)]
        await self._reader.learn(raw)
        batches: list[FetchedBatch] = []
        for result in await runtime.in_worker(self._reader.decode, raw):
            if isinstance(result, FlussError):
                raise result
            if result is not None:
                batches.append(result)
        return batches

    async def _ask(self) -> bytes:
        """The answer's records; asked again while the bucket's leader moves."""
        metadata, path = self._cluster.metadata, self._info.table_path
        partition_id, bucket = self.bucket.partition_id, self.bucket.bucket
        if partition_id is not None:
            metadata.watch_partitions(path, [partition_id])
            await metadata.refresh(path)
        request = pb.LimitScanRequest(
            table_id=self._info.table_id, partition_id=partition_id, bucket_id=bucket, limit=self._limit
        )

        async def attempt(tries: Tries) -> bytes:
            connection = await leader_of(metadata, path, self.bucket, tries)
            answer = await connection.request(api_keys.LIMIT_SCAN, request, tries.wait_s)
            if answer.error_code:
                raise self._explained(server_error(answer.error_code, answer.error_message))
            return answer.records

        tries = self._cluster.tries(is_stale, lambda: metadata.refresh(path))
        return await repeat(tries, attempt)

    def _explained(self, error: FlussError) -> FlussError:
        if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
            return error
        return InvalidRequestError(
            f"The last {self._limit} rows of bucket {self.bucket.bucket} of table {self._info.table_path} are partly "
            "in the cluster's remote storage, which a limit scan of Apache Fluss does not read; use a smaller limit or "
            "a log scanner.",
            error.error_code,
        )


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


# Buckets that are read side by side: each has an answer or two on the way.
BUCKETS_AT_ONCE_MAX = 4
# A bucket whose rows are lost on the way is read from its beginning again, so many times.
LOST_SCANS_MAX = 5


async def existing_partitions(cluster: Cluster, info: TableInfo) -> dict[int | None, str | None]:
    """The names of a table's partitions by id; a table without is its own partition."""
    if not info.is_partitioned():
        return {None: None}
    found = await AdminCore(cluster).list_partition_infos(info.table_path)
    for partition in found:
        problem = routing_problem(info, partition.bucket_count)
        if problem is not None:
            raise problem  # buckets that nobody counts would be left out
    return {partition.partition_id: partition.partition_name for partition in found}


async def watched_partitions(cluster: Cluster, info: TableInfo) -> dict[int | None, str | None]:
    """The same, and from now on their leaders are asked for with the table."""
    found = await existing_partitions(cluster, info)
    if info.is_partitioned():
        cluster.metadata.watch_partitions(info.table_path, [partition for partition in found if partition is not None])
        await cluster.metadata.refresh(info.table_path)
    return found


async def read_log_table(cluster: Cluster, scanner: LogScannerCore) -> tuple[pa.Table, dict[TableBucket, int]]:
    """All rows from the earliest kept to the latest as of the call, and each bucket's end."""
    partitions = await watched_partitions(cluster, scanner.info)
    buckets = range(scanner.info.num_buckets)
    offsets = {(partition, bucket): EARLIEST_OFFSET for partition in partitions for bucket in buckets}
    if not offsets:
        return scanner.arrow_schema.empty_table(), {}
    await scanner.subscribe(offsets)
    batches, stops = await scanner.read_to_latest_with_offsets()
    return to_table(batches, scanner.arrow_schema), stops


class TableRead:
    """One read of a primary-key table: its partitions as of the call, each bucket as of one offset of its changelog."""

    def __init__(
        self, cluster: Cluster, info: TableInfo, projection: Sequence[int] | None, scan_filter: ScanFilter | None
    ) -> None:
        self._cluster = cluster
        self._info = info
        self._filter = scan_filter
        self._rows = CurrentRows(cluster, info)
        full = arrow_schema(info.schema)
        self._wanted = list(range(len(full))) if projection is None else list(projection)
        self._schema = pa.schema([full.field(index) for index in self._wanted])
        self._turns = asyncio.Semaphore(BUCKETS_AT_ONCE_MAX)

    async def run(self) -> tuple[pa.Table, dict[TableBucket, int]]:
        """The rows, and the offset that each bucket's changelog goes on from."""
        partitions = await watched_partitions(self._cluster, self._info)
        buckets = {
            TableBucket(self._info.table_id, bucket, partition): name
            for partition, name in partitions.items()
            for bucket in range(self._info.num_buckets)
        }
        reads = [asyncio.ensure_future(self._read(bucket, name)) for bucket, name in buckets.items()]
        try:
            results = await asyncio.gather(*reads)
        finally:
            for read in reads:
                read.cancel()
        batches = [batch for found, _ in results for batch in found]
        offsets = {bucket: offset for bucket, (_, offset) in zip(buckets, results, strict=True)}
        return pa.Table.from_batches(batches, self._schema), offsets

    async def _read(self, bucket: TableBucket, partition_name: str | None) -> tuple[list[pa.RecordBatch], int]:
        async with self._turns:
            tries, losses = self._rows.tries(), 0
            while True:
                batches: list[pa.RecordBatch] = []
                try:
                    return batches, await self._read_once(bucket, partition_name, batches)
                except FlussError as error:
                    if batches:
                        losses += 1
                        if losses == LOST_SCANS_MAX:
                            raise
                        tries = self._rows.tries()
                    await tries.again(error)

    async def _read_once(self, bucket: TableBucket, partition_name: str | None, batches: list[pa.RecordBatch]) -> int:
        """Rows go into `batches`; the offset is returned."""
        rows = await self._rows.open(bucket, partition_name)
        try:
            while (batch := await rows.next()) is not None:
                batches.append(await runtime.in_worker(self._narrowed, batch))
        finally:
            rows.close()
        return rows.log_offset

    def _narrowed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows and columns that are wanted."""
        if self._filter is not None:
            batch = batch.filter(self._filter.mask(batch.column))
        return batch.select(self._wanted)
