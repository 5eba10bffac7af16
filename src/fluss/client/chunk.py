"""Rows on their way from a writer to the wire: a chunk is closed as one, then cut into wire batches by bucket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss.client.handles import Outcome, RowsOutcome, WriteHandle
from fluss.formats import arrow_payload, row_log, statistics
from fluss.formats.arrow_payload import Codec
from fluss.formats.log_batch import encode_header
from fluss.formats.row_builder import RowBuilder
from fluss.model.descriptor import LogFormat
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.table_options import LOG_FORMAT

if TYPE_CHECKING:
    from fluss.client.append import AppendWriterCore
    from fluss.client.partition_routing import Router, RowPartitions


class WireBatch:
    """One encoded log batch of one bucket, with its place in the writer's sequence once it was sent."""

    __slots__ = (
        "attempts",
        "bucket",
        "chunk",
        "header",
        "in_doubt",
        "partition",
        "payload",
        "row_count",
        "sequence",
        "size_bytes",
        "writer_id",
    )

    def __init__(
        self,
        chunk: Chunk,
        bucket: int,
        header: bytearray,
        payload: memoryview,
        row_count: int,
        partition: str | None = None,
    ) -> None:
        self.chunk = chunk
        self.partition = partition
        self.bucket = bucket
        self.header = header
        self.payload = payload
        self.size_bytes = len(header) + len(payload)
        self.row_count = row_count
        self.attempts = 0
        self.writer_id = -1
        self.sequence = -1
        self.in_doubt = False
        """An attempt ended without a clear answer: the server may have stored the batch."""


class Chunk:
    """Rows of one writer that were closed together and share an outcome."""

    __slots__ = (
        "_builder",
        "_row_count",
        "add_row",
        "batches",
        "deadline",
        "error",
        "failures",
        "handle",
        "opened_at",
        "outcome",
        "partitions",
        "prepared",
        "records",
        "reserved_bytes",
        "size_bytes",
        "unfinished",
        "writer",
    )

    def __init__(self, writer: AppendWriterCore, delivery_timeout_s: float, builder: RowBuilder | None = None) -> None:
        self.writer = writer
        self._builder = builder
        self.add_row = None if builder is None else builder.append
        """Takes a row and returns its size; None when the chunk gathers Arrow batches."""
        self.records: list[pa.RecordBatch] = []
        self._row_count = 0
        self.size_bytes = 0
        self.reserved_bytes = 0
        self.opened_at = time.monotonic()
        self.deadline = self.opened_at + delivery_timeout_s
        self.outcome = Outcome(self)
        self.handle = WriteHandle(self.outcome)
        self.prepared = False
        self.batches: list[WireBatch] = []
        self.unfinished = 0
        self.error: FlussError | None = None
        self.failures: dict[str | None, FlussError] = {}
        """The first failure of each partition; rows of other partitions are stored."""
        self.partitions: RowPartitions | None = None

    @property
    def row_count(self) -> int:
        builder = self._builder  # a worker may take it away meanwhile
        return self._row_count if builder is None else builder.row_count

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Take an Arrow batch."""
        self.records.append(batch)
        self._row_count += batch.num_rows
        self.size_bytes += batch.nbytes

    def outcome_of(self, row_count: int) -> RowsOutcome:
        """The outcome of the rows taken last."""
        stop = self.row_count
        return RowsOutcome(self, self.outcome, stop - row_count, stop)

    def error_of(self, start: int, stop: int) -> FlussError | None:
        """The failure of some of the rows, once the outcome is known."""
        if self.partitions is None or not self.failures:
            return self.error
        for index in self.partitions.indexes.slice(start, stop - start).unique().to_pylist():
            error = self.failures.get(self.partitions.names[index])
            if error is not None:
                return error
        return None

    def expedite(self) -> None:
        """Somebody waits for these rows."""
        self.writer.expedite(self)

    def seen(self, error: FlussError) -> None:
        """Somebody was told this failure of these rows."""
        self.writer.seen(error)

    def take_rows(self) -> pa.RecordBatch:
        """All rows as one record batch; the builder is free again."""
        self._row_count = self.row_count
        if self._builder is not None:
            builder, self._builder, self.add_row = self._builder, None, None
            batch = builder.build()
            self.writer.give_back(builder)
            return batch
        records, self.records = self.records, []
        return records[0] if len(records) == 1 else pa.concat_batches(records)


class Encoder:
    """Cuts a table's chunks into wire batches. Has no state of its own, so that workers can share it."""

    __slots__ = (
        "_batch_size_bytes",
        "_codec",
        "_info",
        "_log_format",
        "_request_size_bytes_max",
        "_statistics_columns",
        "_types",
    )

    def __init__(self, info: TableInfo, batch_size_bytes: int, request_size_bytes_max: int) -> None:
        self._info = info
        self._codec = Codec.of(info.properties)
        self._log_format = info.properties.get(LOG_FORMAT, LogFormat.ARROW).upper()
        columns = [(column.name, column.data_type) for column in info.schema.columns]
        self._types = [data_type for _, data_type in columns]
        self._statistics_columns = statistics.columns_of(info.properties, columns)
        self._batch_size_bytes = batch_size_bytes
        self._request_size_bytes_max = request_size_bytes_max

    def prepare(self, chunk: Chunk, route: Router) -> None:
        """Fill the chunk's wire batches, or its error. Never raises: the chunk would wait for ever."""
        try:
            routes, chunk.partitions = route(chunk.take_rows())
            for partition, bucket, rows in routes:
                for piece in pieces(rows, self._batch_size_bytes):
                    self._encode(chunk, partition, bucket, piece)
        except FlussError as error:
            chunk.error = error
        except Exception as error:
            chunk.error = FlussError(f"Rows for table {self._info.table_path} could not be encoded: {error!r}")
            chunk.error.__cause__ = error
        if chunk.error is not None:
            chunk.batches.clear()

    def _encode(self, chunk: Chunk, partition: str | None, bucket: int, rows: pa.RecordBatch) -> None:
        if self._log_format == LogFormat.ARROW:
            payload = memoryview(arrow_payload.encode(rows, self._codec)).cast("B")
        else:
            payload = memoryview(row_log.encode(rows, self._info.schema, self._log_format))
        wanted = self._statistics_columns
        header = encode_header(
            payload,
            schema_id=self._info.schema_id,
            record_count=rows.num_rows,
            statistics=statistics.encode(rows, self._types, wanted) if wanted else b"",
        )
        batch = WireBatch(chunk, bucket, header, payload, rows.num_rows, partition)
        if batch.size_bytes <= self._request_size_bytes_max:
            chunk.batches.append(batch)
            return
        if rows.num_rows == 1:
            raise InvalidRequestError(
                f"One row for table {self._info.table_path} takes {batch.size_bytes} bytes on the wire; the limit "
                f"writer.request-max-size leaves {self._request_size_bytes_max}.",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        half = rows.num_rows // 2
        self._encode(chunk, partition, bucket, rows.slice(0, half))
        self._encode(chunk, partition, bucket, rows.slice(half))


def pieces(rows: pa.RecordBatch, size_bytes: int) -> list[pa.RecordBatch]:
    """Slices of about `size_bytes` each."""
    count = min(max(1, -(-rows.nbytes // size_bytes)), rows.num_rows)
    if count <= 1:
        return [rows] if rows.num_rows else []
    step = -(-rows.num_rows // count)
    return [rows.slice(start, step) for start in range(0, rows.num_rows, step)]
