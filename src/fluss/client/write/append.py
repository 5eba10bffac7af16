"""Appending to log tables, and the batches made of rows that are appended."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from fluss.client.cluster.cluster import Cluster
from fluss.client.write.encode_queue import BatchLimits, Encoder
from fluss.client.write.routing import BucketRouter, OneBucket, Route, Router, router, writable_schema
from fluss.client.write.row_buffer import RowBuffer, WireBatch
from fluss.client.write.sender import Sender
from fluss.client.write.writer import WriterCore
from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches import row_log, statistics
from fluss.formats.batches.log_batch import encode_header
from fluss.model.descriptor import LogFormat
from fluss.model.infos import TableInfo
from fluss.model.tables.options import LOG_FORMAT
from fluss.protocol.writes import PRODUCE_LOG

# What a column can take at most of a batch that is encoded without Arrow.
SMALL_COLUMN_BYTES_MAX = 1024


class AppendWriterCore(WriterCore):
    """Takes rows and Arrow batches of a log table."""

    append = WriterCore.take_row

    def __init__(self, cluster: Cluster, sender: Sender, info: TableInfo) -> None:
        encoder = LogEncoder(info, BatchLimits.of(cluster.config), router(info, cluster.config))
        super().__init__(cluster, sender, info, encoder, writable_schema(info))


class LogEncoder(Encoder):
    """Batches of log tables."""

    __slots__ = ("_bucket_of_small", "_codec", "_log_format", "_statistics_columns", "_types")

    def __init__(self, info: TableInfo, limits: BatchLimits, route: Router) -> None:
        super().__init__(info, limits, route, PRODUCE_LOG)
        self._codec = Codec.of(info.properties)
        self._log_format = info.properties.get(LOG_FORMAT, LogFormat.ARROW).upper()
        columns = [(column.name, column.data_type) for column in info.schema.columns]
        self._types = [data_type for _, data_type in columns]
        self._statistics_columns = statistics.columns_of(info.properties, columns)
        self._bucket_of_small: OneBucket | None = None
        is_plain = self._log_format == LogFormat.ARROW and not self._statistics_columns
        if is_plain and limits.batch_size_bytes >= SMALL_COLUMN_BYTES_MAX * (1 + len(columns)):
            self._bucket_of_small = route.one_bucket if isinstance(route, BucketRouter) else None

    def _fill(self, buffer: RowBuffer) -> None:
        """Most batches of somebody who waits for each row are small, and then all that can be spared counts."""
        payload = None if self._bucket_of_small is None else buffer.take_payload(self._codec)
        if self._bucket_of_small is None or payload is None:
            super()._fill(buffer)
            return
        header = encode_header(payload, schema_id=self._info.schema_id, record_count=buffer.row_count)
        bucket = self._bucket_of_small.choose()
        buffer.batches.append(WireBatch(buffer, bucket, header, memoryview(payload), buffer.row_count))

    def _routes(self, buffer: RowBuffer) -> Iterable[Route]:
        routes, buffer.partitions = self._route(buffer.take_rows())
        return routes

    def _batch(self, rows: pa.RecordBatch) -> tuple[bytearray, memoryview]:
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
        return header, payload
