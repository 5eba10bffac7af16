"""The row formats: compacted, indexed and aligned rows from record batches, and back; row logs.

Kernels take Arrow arrays of scalars as they are. An ARRAY, MAP or ROW is packed first: its values become bytes, with
whole columns at a time from the innermost outwards, and are then a column of bytes like any other. Reading goes the
other way.

Aligned rows have a slot of eight bytes per column, and longer values behind the slots. Paimon has its keys like this.

A log batch in the formats INDEXED and COMPACTED is a row log: per record its length, its change type, which is always
written, and its row. So there is no vector of change types as in front of an Arrow payload.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.batches.log_batch import BatchHeader, BufferLike
from fluss.formats.rows.python_rows import RowBuilder
from fluss.formats.rows.specs import kind_of, spec_of
from fluss.kernels.codes import LAYOUT_COMPACTED, LAYOUT_INDEXED, LAYOUT_KEY, Spec
from fluss.model.descriptor import LogFormat
from fluss.model.errors import CorruptDataError, ErrorCode, SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_field, to_arrow
from fluss.model.schema import Column, Schema
from fluss.model.types import DataType, TypeRoot

_BINARY: Final = pa.binary()

# Name, spec, (validity, value offsets, values), offset.
KernelColumn: TypeAlias = tuple[str, Spec, tuple[Any, Any, Any], int]
# Validity, null count, value offsets, values.
DecodedColumn: TypeAlias = tuple[Any, int, Any, Any]


class ColumnCodec:
    """A scalar column, or an element, key, value or field of a nested one; `name` is the way to it."""

    __slots__ = ("arrow_type", "name", "nullable", "spec")

    def __init__(self, name: str, data_type: DataType, layout: int) -> None:
        self.name = name
        self.nullable = data_type.nullable
        self.arrow_type = to_arrow(data_type)
        self.spec = spec_of(data_type, layout)

    def source(self, array: pa.Array) -> KernelColumn:
        """The array as the kernels read it."""
        if array.type != self.arrow_type:
            raise SchemaMismatchError(f"Column {self.name!r} expects {self.arrow_type}, not {array.type}.")
        return self._kernel_column(array)

    def _kernel_column(self, array: pa.Array) -> KernelColumn:
        buffers = array.buffers()
        validity = view_of(buffers[0]) if buffers[0] is not None and array.null_count else None
        if len(buffers) == 3:
            # An empty Arrow array may come without offsets.
            offsets = view_of(buffers[1]) if len(array) else memoryview(bytes(4))
            return self.name, self.spec, (validity, offsets, view_of(buffers[2])), array.offset if len(array) else 0
        return self.name, self.spec, (validity, None, view_of(buffers[1])), array.offset

    def array(self, count: int, column: DecodedColumn) -> pa.Array:
        """The array of a column that a kernel read."""
        if column[1] and not self.nullable:
            raise _null_in(self.name)
        return _array(self.arrow_type, count, column)


class _PackedCodec(ColumnCodec):
    """A nested column; the kernels see the bytes that `pack` makes of its values."""

    __slots__ = ()

    def _kernel_column(self, array: pa.Array) -> KernelColumn:
        return super()._kernel_column(self.pack(array))

    def array(self, count: int, column: DecodedColumn) -> pa.Array:
        if column[1] and not self.nullable:
            raise _null_in(self.name)
        return self.unpack(_array(_BINARY, count, column))

    def pack(self, array: pa.Array) -> pa.Array:
        raise NotImplementedError

    def unpack(self, packed: pa.Array) -> pa.Array:
        raise NotImplementedError


class _ArrayCodec(_PackedCodec):
    __slots__ = ("_element",)

    def __init__(self, name: str, data_type: DataType, layout: int) -> None:
        super().__init__(name, data_type, layout)
        assert data_type.element is not None
        self._element = column_codec(f"{name}[]", data_type.element, layout)

    def pack(self, array: pa.Array) -> pa.Array:
        offsets, elements = _list_parts(array)
        return _packed_arrays(self._element, offsets, elements, array)

    def unpack(self, packed: pa.Array) -> pa.Array:
        offsets, elements = _unpacked_arrays(self._element, packed)
        return pa.Array.from_buffers(
            self.arrow_type, len(packed), [packed.buffers()[0], offsets], packed.null_count, children=[elements]
        )


class _MapCodec(_PackedCodec):
    """An array of keys and one of values, behind the size of the first."""

    __slots__ = ("_key", "_value")

    def __init__(self, name: str, data_type: DataType, layout: int) -> None:
        super().__init__(name, data_type, layout)
        assert data_type.key is not None
        assert data_type.value is not None
        self._key = column_codec(f"{name}.key", data_type.key.not_null(), layout)
        self._value = column_codec(f"{name}{{}}", data_type.value, layout)

    def pack(self, array: pa.Array) -> pa.Array:
        offsets, entries = _list_parts(array)
        keys = _packed_arrays(self._key, offsets, entries.field(0), array)
        values = _packed_arrays(self._value, offsets, entries.field(1), array)
        sizes = pc.fill_null(pc.binary_length(keys), 0)
        head = pa.Array.from_buffers(pa.binary(4), len(sizes), [None, sizes.buffers()[1]], 0, sizes.offset)
        return pc.binary_join_element_wise(head.cast(_BINARY), keys, values, b"")

    def unpack(self, packed: pa.Array) -> pa.Array:
        data, offsets = rows_of(packed)
        validity = packed.buffers()[0]
        halves = kernel.split_maps(data, offsets, _optional_view(validity), len(packed))
        keys, values = (
            _array(_BINARY, len(packed), (validity, packed.null_count, ends, half)) for half, ends in halves
        )
        key_offsets, key_array = _unpacked_arrays(self._key, keys)
        value_offsets, value_array = _unpacked_arrays(self._value, values)
        if key_offsets != value_offsets:
            raise CorruptDataError(f"rows: column {self.name!r} has maps with more keys than values, or fewer")
        entries_type = pa.struct([self.arrow_type.key_field, self.arrow_type.item_field])
        entries = pa.Array.from_buffers(entries_type, len(key_array), [None], 0, children=[key_array, value_array])
        return pa.Array.from_buffers(
            self.arrow_type, len(packed), [validity, key_offsets], packed.null_count, children=[entries]
        )


class _RowCodec(_PackedCodec):
    __slots__ = ("_fields", "_layout", "_specs")

    def __init__(self, name: str, data_type: DataType, layout: int) -> None:
        super().__init__(name, data_type, layout)
        self._layout = layout
        self._fields = [column_codec(f"{name}.{field.name}", field.data_type, layout) for field in data_type.fields]
        self._specs = [field.spec for field in self._fields]

    def pack(self, array: pa.Array) -> pa.Array:
        columns = [field.source(child) for field, child in zip(self._fields, array.flatten(), strict=True)]
        data, offsets = kernel.encode_columns(columns, len(array), self._layout)
        return _array(_BINARY, len(array), (_validity_of(array), array.null_count, offsets, data))

    def unpack(self, packed: pa.Array) -> pa.Array:
        present = packed.drop_null() if packed.null_count else packed
        data, offsets = rows_of(present)
        columns = kernel.decode_columns(data, offsets, len(present), self._specs, self._layout)
        children = [field.array(len(present), column) for field, column in zip(self._fields, columns, strict=True)]
        rows = pa.Array.from_buffers(self.arrow_type, len(present), [None], 0, children=children)
        if not packed.null_count:
            return rows
        valid = packed.is_valid()
        ordinals = pc.subtract(pc.cumulative_sum(valid.cast(pa.int32())), 1)
        return rows.take(pc.if_else(valid, ordinals, pa.scalar(None, pa.int32())))


_CODECS: Final = {TypeRoot.ARRAY: _ArrayCodec, TypeRoot.MAP: _MapCodec, TypeRoot.ROW: _RowCodec}


def column_codec(name: str, data_type: DataType, layout: int) -> ColumnCodec:
    return _CODECS.get(data_type.root, ColumnCodec)(name, data_type, layout)


def _packed_arrays(element: ColumnCodec, offsets: memoryview, elements: pa.Array, lists: pa.Array) -> pa.Array:
    validity = _validity_of(lists)
    data, ends = kernel.encode_arrays(
        element.source(elements), len(elements), offsets, _optional_view(validity), len(lists)
    )
    return _array(_BINARY, len(lists), (validity, lists.null_count, ends, data))


def _unpacked_arrays(element: ColumnCodec, packed: pa.Array) -> tuple[pa.Buffer, pa.Array]:
    """Offsets and elements of all lists."""
    data, offsets = rows_of(packed)
    ends, count, column = kernel.decode_arrays(
        data, offsets, _optional_view(packed.buffers()[0]), len(packed), element.spec
    )
    return pa.py_buffer(ends), element.array(count, column)


def _list_parts(array: pa.Array) -> tuple[memoryview, pa.Array]:
    """Offsets that begin with 0, and the elements they speak of."""
    if len(array) == 0:
        return memoryview(bytes(4)), array.values.slice(0, 0)
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if first:
        offsets = pc.subtract(offsets, pa.scalar(first, pa.int32()))
    return view_of(offsets.buffers()[1])[4 * offsets.offset :], array.values.slice(first, last - first)


def _validity_of(array: pa.Array) -> pa.Buffer | None:
    """Bits from the array's first value on."""
    return array.is_valid().buffers()[1] if array.null_count else None


def _array(arrow_type: pa.DataType, count: int, column: DecodedColumn) -> pa.Array:
    validity, null_count, offsets, values = column
    buffers = [None if validity is None or not null_count else _buffer(validity)]
    if offsets is not None:
        buffers.append(_buffer(offsets))
    buffers.append(_buffer(values))
    return pa.Array.from_buffers(arrow_type, count, buffers, null_count)


def _buffer(content: Any) -> pa.Buffer:
    return content if isinstance(content, pa.Buffer) else pa.py_buffer(content)


def _null_in(name: str) -> CorruptDataError:
    return CorruptDataError(
        f"The column {name!r} is NOT NULL and null in a row; give it a value.", ErrorCode.INVALID_TARGET_COLUMN
    )


def rows_of(array: pa.Array) -> tuple[memoryview, memoryview]:
    """Bytes, and int32 offsets from the array's first value on, of a binary array."""
    if len(array) == 0:
        return memoryview(b""), memoryview(bytes(4))
    _, offsets, data = array.buffers()
    return view_of(data), view_of(offsets)[4 * array.offset :]


def binary_array(data: Any, offsets: Any, count: int) -> pa.BinaryArray:
    return _array(_BINARY, count, (None, 0, offsets, data))


def view_of(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B")


def _optional_view(buffer: pa.Buffer | None) -> memoryview | None:
    return None if buffer is None else view_of(buffer)


class RowFormat:
    """Writes and reads rows of given columns in one layout; has no state."""

    __slots__ = ("_arrow_schema", "_codecs", "_layout", "_names", "_specs")

    def __init__(self, columns: Sequence[Column], layout: int) -> None:
        self._names = [column.name for column in columns]
        if layout == LAYOUT_KEY:
            refuse_nested(columns, "keys")
        self._layout = layout
        self._codecs = [column_codec(column.name, column.data_type, layout) for column in columns]
        self._specs = [codec.spec for codec in self._codecs]
        self._arrow_schema = pa.schema([arrow_field(column.name, column.data_type) for column in columns])

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """All rows of a batch that has the columns of this format, in order."""
        data, offsets = self._encode_buffers(batch)
        return binary_array(data, offsets, batch.num_rows)

    def _encode_buffers(self, batch: pa.RecordBatch) -> tuple[bytearray, bytearray]:
        return kernel.encode_columns(self._sources(batch), batch.num_rows, self._layout)

    def _sources(self, batch: pa.RecordBatch) -> list[KernelColumn]:
        return [codec.source(column) for codec, column in zip(self._codecs, batch.columns, strict=True)]

    def decode(self, rows: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch:
        """The batch of encoded rows; raises `CorruptDataError` for bytes that are not rows."""
        array = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.binary())
        if array.null_count:
            raise CorruptDataError("rows: a row is null")
        data, offsets = rows_of(array)
        return self._decode_buffers(data, offsets, len(array))

    def _decode_buffers(
        self, data: memoryview | bytearray, offsets: memoryview | bytearray, row_count: int
    ) -> pa.RecordBatch:
        return self._batch(kernel.decode_columns(data, offsets, row_count, self._specs, self._layout), row_count)

    def _batch(self, columns: Sequence[DecodedColumn], row_count: int) -> pa.RecordBatch:
        try:
            arrays = [codec.array(row_count, column) for codec, column in zip(self._codecs, columns, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)
            batch.validate(full=True)  # text that is not UTF-8, decimals with too many digits
        except pa.ArrowException as error:
            raise CorruptDataError(f"rows: {error}") from error
        return batch


def refuse_nested(columns: Sequence[Column], where: str) -> None:
    for column in columns:
        if column.data_type.is_nested:
            raise SchemaMismatchError(f"Column {column.name!r} is {column.data_type}: {where} hold no nested types.")


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


class IndexedFormat(RowFormat):
    """Writes and reads indexed rows of given columns.

    A CHAR(n) has n bytes of UTF-8 there, filled up with zeros: text that needs more is refused, and zeros at the end of
    a text are not kept. A TIME keeps milliseconds only.
    """

    __slots__ = ()

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__(columns, LAYOUT_INDEXED)


class AlignedFormat(RowFormat):
    """Writes and reads aligned rows of given scalar columns."""

    __slots__ = ()

    def __init__(self, columns: Sequence[Column]) -> None:
        refuse_nested(columns, "aligned rows")
        super().__init__(columns, LAYOUT_COMPACTED)  # values in slots are described alike

    def _encode_buffers(self, batch: pa.RecordBatch) -> tuple[bytearray, bytearray]:
        return kernel.encode_aligned(self._sources(batch), batch.num_rows)

    def _decode_buffers(
        self, data: memoryview | bytearray, offsets: memoryview | bytearray, row_count: int
    ) -> pa.RecordBatch:
        return self._batch(kernel.decode_aligned(data, offsets, row_count, self._specs), row_count)


# A null takes a bit in a row and its type's full width in Arrow, so a small batch could ask for any amount of memory.
DECODED_SIZE_MAX_BYTES: Final = 1 << 30


def encode(
    rows: pa.RecordBatch, schema: Schema, log_format: str, change_types: bytes | bytearray | None = None
) -> bytes:
    """The records of a batch; without `change_types` every row is an append."""
    if change_types is not None and len(change_types) != rows.num_rows:
        raise ValueError(f"{len(change_types)} change types for {rows.num_rows} rows")
    data, offsets = rows_of(_format(schema, log_format).encode(rows))
    changes = bytes(rows.num_rows) if change_types is None else change_types
    return bytes(kernel.join_records(data, offsets, rows.num_rows, changes))


def decode(
    payload: BufferLike, record_count: int, schema: Schema, log_format: str
) -> tuple[bytes | None, pa.RecordBatch]:
    """Change types (None when every row is an append) and rows; bytes that are no such records are refused."""
    if record_count * _width_bytes(schema) > DECODED_SIZE_MAX_BYTES:
        raise CorruptDataError(f"log batch: {record_count} records take more than {DECODED_SIZE_MAX_BYTES} bytes")
    change_types, data, offsets = kernel.split_records(payload, record_count)
    batch = _format(schema, log_format).decode(binary_array(data, offsets, record_count))
    appends_only = change_types.count(0) == record_count
    return None if appends_only else bytes(change_types), batch


def decode_rows(
    buf: BufferLike, position: int, header: BatchHeader, schema: Schema, log_format: str
) -> tuple[bytes | None, pa.RecordBatch]:
    """Change types and rows, see `decode`, of the log batch at `position`."""
    start = position + header.header_size_bytes + header.statistics_size_bytes
    payload = memoryview(buf)[start : position + header.size_bytes]
    return decode(payload, header.record_count, schema, log_format)


@functools.lru_cache(maxsize=64)
def _format(schema: Schema, log_format: str) -> RowFormat:
    if log_format == LogFormat.INDEXED:
        return IndexedFormat(schema.columns)
    if log_format == LogFormat.COMPACTED:
        return CompactedFormat(schema.columns)
    raise SchemaMismatchError(f"The log format {log_format} has no rows; INDEXED and COMPACTED have.")


@functools.lru_cache(maxsize=64)
def _width_bytes(schema: Schema) -> int:
    """What a row takes in Arrow at least."""
    return sum(kind_of(column.data_type).fixed_size_bytes for column in schema.columns)
