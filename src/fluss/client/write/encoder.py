"""Row buffers into wire batches of a limited size, bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from fluss.client.write.partition_routing import Route, Router
from fluss.client.write.row_buffer import RowBuffer, WireBatch
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.protocol.writes import WriteRequest

REQUEST_OVERHEAD_BYTES = 1024


class BatchLimits(NamedTuple):
    """How large batches are."""

    batch_size_bytes: int
    request_size_bytes_max: int

    @classmethod
    def of(cls, config: Config) -> BatchLimits:
        """The limits that a client's settings say."""
        request_size_bytes_max = max(1, config.writer_request_max_size - REQUEST_OVERHEAD_BYTES)
        return cls(min(config.writer_batch_size, request_size_bytes_max), request_size_bytes_max)


class Encoder:
    """Cuts a table's row buffers into wire batches. Has no state of its own, so that workers can share it."""

    __slots__ = ("_info", "_limits", "_request", "_route")
    record_count_max = 1 << 31

    def __init__(self, info: TableInfo, limits: BatchLimits, route: Router, request: WriteRequest) -> None:
        self._info = info
        self._limits = limits
        self._route = route
        self._request = request

    def prepare(self, buffer: RowBuffer) -> None:
        """Fill the row buffer's wire batches, or its error. Never raises: the row buffer would wait for ever."""
        try:
            self._fill(buffer)
        except FlussError as error:
            buffer.error = error
        except Exception as error:
            buffer.error = FlussError(f"Rows for table {self._info.table_path} could not be encoded: {error!r}")
            buffer.error.__cause__ = error
        if buffer.error is not None:
            buffer.batches.clear()

    def _fill(self, buffer: RowBuffer) -> None:
        # Encoded keys and rows take a little more than the Arrow that a buffer is measured by: no reason to halve it.
        size_bytes = self._limits.batch_size_bytes * 5 // 4
        for partition, bucket, rows in self._routes(buffer):
            for piece in pieces(rows, size_bytes):
                self._encode(buffer, partition, bucket, piece)

    def _routes(self, buffer: RowBuffer) -> Iterable[Route]:
        """Where the row buffer's rows go; rows of one bucket in their order."""
        raise NotImplementedError

    def _batch(self, rows: pa.RecordBatch) -> tuple[bytearray, memoryview]:
        """Header and payload."""
        raise NotImplementedError

    def _encode(self, buffer: RowBuffer, partition: str | None, bucket: int, rows: pa.RecordBatch) -> None:
        if rows.num_rows <= self.record_count_max:
            header, payload = self._batch(rows)
            batch = WireBatch(buffer, bucket, header, payload, rows.num_rows, partition, self._request)
            if batch.size_bytes <= self._limits.request_size_bytes_max:
                buffer.batches.append(batch)
                return
            if rows.num_rows == 1:
                raise InvalidRequestError(
                    f"One row for table {self._info.table_path} takes {batch.size_bytes} bytes on the wire; the limit "
                    f"writer.request-max-size leaves {self._limits.request_size_bytes_max}.",
                    ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
                )
        half = rows.num_rows // 2
        self._encode(buffer, partition, bucket, rows.slice(0, half))
        self._encode(buffer, partition, bucket, rows.slice(half))


def pieces(rows: pa.RecordBatch, size_bytes: int) -> list[pa.RecordBatch]:
    """Slices of about `size_bytes` each."""
    # Quick to get, but it counts all of a slice's parent.
    if rows.num_rows and rows.get_total_buffer_size() <= size_bytes:
        return [rows]
    count = min(max(1, -(-rows.nbytes // size_bytes)), rows.num_rows)
    if count <= 1:
        return [rows] if rows.num_rows else []
    step = -(-rows.num_rows // count)
    return [rows.slice(start, step) for start in range(0, rows.num_rows, step)]
