"""Compacted rows, the default row format of primary-key tables, and compacted keys: the same without null bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.rows.binary_rows import RowFormat
from fluss.formats.rows.row_builder import RowBuilder
from fluss.formats.rows.specs import kind_of
from fluss.kernels.codes import LAYOUT_COMPACTED, LAYOUT_KEY
from fluss.model.schema import Column, Schema


class CompactedFormat(RowFormat):
    """Writes and reads compacted rows of given columns; `with_null_bits=False` makes keys, which can't be null.

    One thread at a time may use `encode_row`; the rest has no state.
    """

    __slots__ = ("_appender", "_builder", "_with_null_bits")

    def __init__(self, columns: Sequence[Column], *, with_null_bits: bool = True) -> None:
        super().__init__(columns, LAYOUT_COMPACTED if with_null_bits else LAYOUT_KEY)
        self._appender = kernel.RowAppender(self._names, [kind_of(column.data_type) for column in columns])
        has_nested = any(column.data_type.is_nested for column in columns)
        self._builder = RowBuilder(Schema.of(columns)) if has_nested else None
        self._with_null_bits = with_null_bits

    def encode_row(self, row: Any) -> bytes:
        """One row (dict, list or tuple of Python values)."""
        if self._builder is not None:
            self._builder.append(row)
            return bytes(self._encode_buffers(self._builder.build())[0])
        values = self._appender.convert(row)
        return kernel.encode_values(self._names, self._specs, values, self._with_null_bits)

    def buckets(self, batch: pa.RecordBatch, bucket_count: int, sign_extend: bool) -> pa.Array:
        """The bucket of every row, int32, when the rows of this format are bucket keys."""
        data, offsets = self._encode_buffers(batch)
        result = kernel.buckets(data, offsets, batch.num_rows, bucket_count, sign_extend)
        return pa.Array.from_buffers(pa.int32(), batch.num_rows, [None, pa.py_buffer(result)], null_count=0)
