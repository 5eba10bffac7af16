"""Current rows of one bucket from the server's own store, answer by answer (ScanKv)."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.cluster.cluster import Cluster
from fluss.client.lookup.values import ValueReader
from fluss.client.net.answers import server_error
from fluss.client.net.connection import Connection
from fluss.formats.rows.keys import PrimaryKeyEncoder
from fluss.formats.rows.values import decode_value_batch
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import parse_answer

# What one answer may take, and what is read ahead of the reader.
ANSWER_SIZE_BYTES_MAX = 4 << 20


class KvScan:
    """Rows in the order of their keys, all as of `log_offset`. Coroutines are for the I/O loop."""

    def __init__(
        self,
        cluster: Cluster,
        connection: Connection,
        values: ValueReader,
        keys: PrimaryKeyEncoder,
        after_key: bytes | None,
    ) -> None:
        self._timeout_s = cluster.request_timeout_s
        self._connection = connection
        self._values = values
        self._keys = keys
        self._after_key = after_key
        self._scanner_id: bytes | None = None
        self._calls = 0
        self._answer: asyncio.Future[memoryview] | None = None
        self._first: pb.ScanKvResponse | None = None
        """The answer that brought the offset, until its rows are asked for."""
        self.log_offset = 0
        self.last_key = after_key
        """The rows up to here were given."""

    async def open(self, bucket: TableBucket) -> None:
        """Fix the rows that are read."""
        request = pb.ScanKvRequest()
        target = request.bucket_scan_req
        target.table_id, target.bucket_id = bucket.table_id, bucket.bucket
        if bucket.partition_id is not None:
            target.partition_id = bucket.partition_id
        self._ask(request)
        self._first = await self._received()
        self.log_offset = self._first.log_offset

    async def next(self) -> pa.RecordBatch | None:
        """Further rows; None at the end."""
        while True:
            if self._first is not None:
                answer, self._first = self._first, None
            elif self._answer is not None:
                answer = await self._received()
            else:
                return None
            values = decode_value_batch(answer.records) if answer.records else []
            if not values:
                continue
            rows = self._behind(await self._values.decode(values))
            if rows.num_rows:
                return rows

    def _behind(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows after `last_key`, which moves behind them."""
        ends = self._keys.encode(pa.concat_batches([rows.slice(0, 1), rows.slice(rows.num_rows - 1)])).to_pylist()
        first_key, final_key = ends[0], ends[-1]
        if self.last_key is not None and first_key <= self.last_key:
            if self.last_key != self._after_key:
                raise CorruptDataError("the server's scan is not in the order of keys")
            rows = rows.filter(pc.greater(self._keys.encode(rows), pa.scalar(self.last_key)))
        if rows.num_rows:
            self.last_key = final_key
        return rows

    async def _received(self) -> pb.ScanKvResponse:
        """An answer; the next one is asked for at once."""
        assert self._answer is not None
        pending, self._answer = self._answer, None
        answer = parse_answer(pb.ScanKvResponse, await pending, self._connection.address)
        if answer.error_code:
            self._scanner_id = None
            raise server_error(answer.error_code, answer.error_message)
        self._scanner_id = answer.scanner_id if answer.has_more_results else None
        if self._scanner_id is not None:
            self._ask(pb.ScanKvRequest(scanner_id=self._scanner_id))
        return answer

    def _ask(self, request: pb.ScanKvRequest) -> None:
        request.call_seq_id, request.batch_size_bytes = self._calls, ANSWER_SIZE_BYTES_MAX
        self._calls += 1
        self._answer = self._connection.send(api_keys.SCAN_KV, (request.SerializeToString(),), self._timeout_s)

    def close(self) -> None:
        """Tell the server that no more is wanted; what becomes of that does not matter."""
        if self._answer is not None:
            self._answer.cancel()
        if self._scanner_id is not None:
            request = pb.ScanKvRequest(scanner_id=self._scanner_id, close_scanner=True)
            try:
                farewell = self._connection.send(api_keys.SCAN_KV, (request.SerializeToString(),), self._timeout_s)
                farewell.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            except FlussError:
                pass
            self._scanner_id = None
