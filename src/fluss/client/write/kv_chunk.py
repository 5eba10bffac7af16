"""Upserts and deletes on their way to the wire: in the order of the calls, by encoded key."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from fluss.client.write.encoder import BatchLimits, Encoder
from fluss.client.write.partition_routing import Route, Router
from fluss.client.write.routing import row_numbers
from fluss.client.write.row_buffer import BufferOwner, RowBuffer
from fluss.client.write.upsert_columns import KeyBuilder, UpsertColumns
from fluss.formats.arrow.layout import numbers_array
from fluss.formats.batches import kv_batch
from fluss.formats.rows.codecs import CompactedFormat, IndexedFormat
from fluss.formats.rows.keys import primary_key_encoder
from fluss.model.descriptor import KvFormat
from fluss.model.infos import TableInfo
from fluss.model.merge_mode import MergeMode
from fluss.model.tables.options import KV_FORMAT
from fluss.protocol.writes import put_kv

_ROW_INDEX = ""  # no column of a table has this name


class Operations(NamedTuple):
    """Rows to upsert and keys to delete; `order` has indexes into both, keys behind rows."""

    rows: pa.RecordBatch | None
    keys: pa.RecordBatch | None
    order: pa.Array | None


class KvBufferOwner(BufferOwner, Protocol):
    """The writer whose upserts and deletes a row buffer holds."""

    @property
    def columns(self) -> UpsertColumns: ...


class KvRowBuffer(RowBuffer):
    """Operations on a primary-key table that were closed together."""

    __slots__ = ("_deleted_at", "_keys")
    writer: KvBufferOwner

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._keys: KeyBuilder | None = None
        self._deleted_at = array("q")
        """Which of the operations are deletes, by number."""

    @property
    def row_count(self) -> int:
        builder = self._builder  # a worker may take it away meanwhile
        return self._row_count if builder is None else builder.row_count + len(self._deleted_at)

    def add_delete(self, key: Any) -> None:
        """Take the key of a row to delete."""
        if self._keys is None:
            self._keys = KeyBuilder(self.writer.columns)
        self._size_bytes += self._keys.append(key)
        self._deleted_at.append(self.row_count)

    def take_operations(self) -> Operations:
        """All operations; the row builder is free again."""
        if self._builder is None:
            batch = self.take_rows()
            return Operations(None, batch, None) if self.deletes else Operations(batch, None, None)
        row_count, deleted_at = self._builder.row_count, np.array(self._deleted_at)
        rows = self.take_rows()
        if self._keys is None:
            return Operations(rows, None, None)
        is_delete = np.zeros(self._row_count, np.bool_)
        is_delete[deleted_at] = True
        order = np.empty(self._row_count, np.int64)
        order[~is_delete] = np.arange(row_count)
        order[is_delete] = np.arange(row_count, self._row_count)
        return Operations(rows, self._keys.build(), numbers_array(order))


class KvEncoder(Encoder):
    """Batches of primary-key tables."""

    __slots__ = ("_columns", "_key_encoder", "_row_format")
    record_count_max = kv_batch.RECORD_COUNT_MAX

    def __init__(
        self, info: TableInfo, limits: BatchLimits, route: Router, columns: UpsertColumns, merge_mode: MergeMode
    ) -> None:
        super().__init__(info, limits, route, put_kv(columns.targets, merge_mode))
        self._columns = columns
        self._key_encoder = primary_key_encoder(info.descriptor)
        indexed = info.properties.get(KV_FORMAT, KvFormat.COMPACTED).upper() == KvFormat.INDEXED
        self._row_format = (IndexedFormat if indexed else CompactedFormat)(info.schema.columns)

    def _routes(self, buffer: RowBuffer) -> Iterable[Route]:
        assert isinstance(buffer, KvRowBuffer)
        key_columns, records = self._records(buffer.take_operations())
        columns = [*key_columns.columns, row_numbers(records.num_rows)]
        numbered = pa.RecordBatch.from_arrays(columns, [*key_columns.schema.names, _ROW_INDEX])
        routes, buffer.partitions = self._route(numbered)
        if len(routes) == 1:
            ((partition, bucket, _),) = routes
            return [(partition, bucket, records)]
        order = pa.concat_arrays([part.column(_ROW_INDEX) for _, _, part in routes])
        ordered = records.take(order)
        ends = np.cumsum([part.num_rows for _, _, part in routes]).tolist()
        return [
            (partition, bucket, ordered.slice(end - part.num_rows, part.num_rows))
            for (partition, bucket, part), end in zip(routes, ends, strict=True)
        ]

    def _records(self, operations: Operations) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The key columns, and encoded keys and rows; a row that is null is a delete."""
        names = self._columns.key_schema.column_names
        parts = []
        if operations.rows is not None:
            rows = operations.rows
            parts.append((rows.select(names), self._row_format.encode(self._columns.widen(rows))))
        if operations.keys is not None:
            parts.append((operations.keys, pa.nulls(operations.keys.num_rows, pa.binary())))
        encoded = [
            pa.RecordBatch.from_arrays([self._key_encoder.encode(keys), rows], ["key", "row"]) for keys, rows in parts
        ]
        if operations.order is None:
            return parts[0][0], encoded[0]
        key_columns = pa.concat_batches([keys for keys, _ in parts])
        return key_columns.take(operations.order), pa.concat_batches(encoded).take(operations.order)

    def _batch(self, rows: pa.RecordBatch) -> tuple[bytearray, memoryview]:
        records = kv_batch.encode_records(rows.column(0), rows.column(1))
        header = kv_batch.encode_header(records, schema_id=self._info.schema_id, record_count=rows.num_rows)
        return header, memoryview(records)
