"""Compacted rows, the default row format of primary-key tables, and compacted keys: the same without null bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.kinds import CODE_BYTES, Spec, kind_of, spec_of
from fluss.model.arrow_types import arrow_field
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.schema import Column

_EMPTY: Final = b""

KernelColumn: TypeAlias = tuple[str, Spec, tuple[Any, Any, Any], int]


class CompactedFormat:
    """Writes and reads compacted rows of given columns; `with_null_bits=False` makes keys, which can't be null.

    One thread at a time may use `encode_row`; the rest has no state.
    """

    __slots__ = ("_appender", "_arrow_schema", "_names", "_specs", "_with_null_bits")

    def __init__(self, columns: Sequence[Column], *, with_null_bits: bool = True) -> None:
        self._names = [column.name for column in columns]
        self._specs = [spec_of(column.name, column.data_type) for column in columns]
        self._arrow_schema = pa.schema([arrow_field(column.name, column.data_type) for column in columns])
        kinds = [kind_of(column.data_type) for column in columns]
        self._appender = kernel.RowAppender(self._names, kinds, [None] * len(columns))
        self._with_null_bits = with_null_bits

    def encode_row(self, row: Any) -> bytes:
        """One row (dict, list or tuple of Python values)."""
        values = self._appender.convert(row)
        return kernel.encode_values(self._names, self._specs, values, self._with_null_bits)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """All rows of a batch that has the columns of this format, in order."""
        data, offsets = self._encode_buffers(batch)
        return pa.Array.from_buffers(
            pa.binary(), batch.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
        )

    def _encode_buffers(self, batch: pa.RecordBatch) -> tuple[bytearray, bytearray]:
        columns = [
            _kernel_column(name, spec, field.type, column)
            for name, spec, field, column in zip(
                self._names, self._specs, self._arrow_schema, batch.columns, strict=True
            )
        ]
        return kernel.encode_columns(columns, batch.num_rows, self._with_null_bits)

    def buckets(self, batch: pa.RecordBatch, bucket_count: int, sign_extend: bool) -> pa.Array:
        """The bucket of every row, int32, when the rows of this format are bucket keys."""
        data, offsets = self._encode_buffers(batch)
        result = kernel.buckets(data, offsets, batch.num_rows, bucket_count, sign_extend)
        return pa.Array.from_buffers(pa.int32(), batch.num_rows, [None, pa.py_buffer(result)], null_count=0)

    def decode(self, rows: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch:
        """The batch of encoded rows; raises `CorruptDataError` for bytes that are none."""
        array = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.binary())
        if array.null_count:
            raise CorruptDataError("rows: a row is null")
        _, offsets, data = array.buffers()
        starts = _view(offsets)[4 * array.offset :]
        columns = kernel.decode_columns(_view(data), starts, len(array), self._specs, self._with_null_bits)
        arrays = [
            _array(field.type, len(array), column) for field, column in zip(self._arrow_schema, columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)
        try:
            batch.validate(full=True)  # text that is not UTF-8, decimals with too many digits
        except pa.ArrowException as error:
            raise CorruptDataError(f"rows: {error}") from error
        self._check_not_null(batch)
        return batch

    def _check_not_null(self, batch: pa.RecordBatch) -> None:
        for field, column in zip(self._arrow_schema, batch.columns, strict=True):
            if column.null_count and not field.nullable:
                raise CorruptDataError(f"rows: column {field.name!r} is NOT NULL and null")


def _kernel_column(name: str, spec: Spec, expected: pa.DataType, column: pa.Array) -> KernelColumn:
    if column.type != expected:
        raise SchemaMismatchError(f"Column {name!r} expects {expected}, not {column.type}.")
    buffers = column.buffers()
    validity = _view(buffers[0]) if buffers[0] is not None and column.null_count else None
    if spec.code == CODE_BYTES:
        # An empty Arrow array may come without offsets.
        offsets = _view(buffers[1]) if len(column) else memoryview(bytes(4))
        return name, spec, (validity, offsets, _view(buffers[2])), column.offset if len(column) else 0
    return name, spec, (validity, None, _view(buffers[1])), column.offset


def _array(arrow_type: pa.DataType, row_count: int, column: tuple[Any, int, Any, Any]) -> pa.Array:
    validity, null_count, offsets, values = column
    buffers = [None if validity is None else pa.py_buffer(validity)]
    if offsets is not None:
        buffers.append(pa.py_buffer(offsets))
    buffers.append(pa.py_buffer(values))
    return pa.Array.from_buffers(arrow_type, row_count, buffers, null_count=null_count)


def _view(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(_EMPTY if buffer is None else buffer).cast("B")
