"""Some rows of one bucket, in one request: the last of a log, the first by key of a primary-key table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.cluster.ask import is_stale, leader_of
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.retry import Tries, repeat
from fluss.client.lookup.values import ValueReader
from fluss.client.net.answers import server_error
from fluss.client.scan.batch_reader import BatchReader, RawBatch
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.fetched import FetchedBatch
from fluss.formats.batches.log_batch import walk
from fluss.formats.rows.values import decode_value_batch
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
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
            return FetchedBatch(_empty(self.arrow_schema), self.bucket, 0, -1, 0, None)
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
        return FetchedBatch(rows, self.bucket, 0, -1, 0, None)

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
