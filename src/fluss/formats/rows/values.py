"""Stored values of primary-key tables: a schema id and a row of that schema, in batches and as Python rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.batches.log_batch import BufferLike
from fluss.formats.rows.codecs import (
    DECODED_SIZE_MAX_BYTES,
    CompactedFormat,
    IndexedFormat,
    RowFormat,
    binary_array,
    rows_of,
)
from fluss.formats.rows.specs import kind_of, spec_of, units_per_second
from fluss.model.descriptor import KvFormat
from fluss.model.errors import CorruptDataError, ErrorCode, NotFoundError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.schema import Schema
from fluss.model.types import DataType, TypeRoot

_SCHEMA_ID: Final = struct.Struct("<h")
_BATCH_HEADER: Final = struct.Struct(
    "<"
    "i"  # length: bytes after this field
    "b"  # magic: layout of what follows
    "i"  # value count
)
_LENGTH_PREFIX_BYTES: Final = 4  # what the length field does not count
_MAGIC: Final = 0


class ValueCodec:
    """Writes values of a table's newest schema, and reads those of all its schemas as rows of the newest."""

    __slots__ = ("_formats", "_kv_format", "_prefix", "_schemas", "arrow_schema", "row_width_bytes", "schema_id")

    def __init__(self, schemas: Mapping[int, Schema], kv_format: str = KvFormat.COMPACTED) -> None:
        self._schemas = dict(schemas)
        self._kv_format = KvFormat(kv_format)
        self._formats: dict[int, RowFormat] = {}
        self.schema_id = max(schemas)
        self.arrow_schema = arrow_schema(self.schema)
        self._prefix = _SCHEMA_ID.pack(self.schema_id)
        # What a row takes in Arrow at least, be it of nulls only.
        self.row_width_bytes = sum(kind_of(column.data_type).fixed_size_bytes for column in self.schema.columns)

    @property
    def schema(self) -> Schema:
        """The newest schema."""
        return self._schemas[self.schema_id]

    def encode(self, batch: pa.RecordBatch, places: list[bytes | None] | None = None) -> list[bytes | None]:
        """Values of rows of the newest schema; with `places`, as many as those have, and None where those have None."""
        data, offsets = rows_of(self._format(self.schema_id).encode(batch))
        return kernel.values_of_rows(data, offsets, batch.num_rows, self._prefix, places)

    def decode(self, values: list[bytes]) -> pa.RecordBatch:
        """Rows of the newest schema, in the order of the values; columns an older row does not have are null."""
        # A null takes a bit in a row and its type's full width in Arrow.
        if len(values) * self.row_width_bytes > DECODED_SIZE_MAX_BYTES:
            raise CorruptDataError(f"{len(values)} values take more than {DECODED_SIZE_MAX_BYTES} bytes as Arrow")
        schema_ids = kernel.schema_ids_of(values) or [self.schema_id]
        formats = [self._format(schema_id) for schema_id in schema_ids]
        batches, places = [], []
        for schema_id, row_format in zip(schema_ids, formats, strict=True):
            data, offsets, rows_at = kernel.rows_of_schema(values, schema_id)
            batches.append(self._padded(row_format.decode(binary_array(data, offsets, len(rows_at) // 4))))
            places.append(_int32_array(rows_at))
        if len(batches) == 1:
            return batches[0]
        return pa.concat_batches(batches).take(pc.sort_indices(pa.concat_arrays(places)))

    def _format(self, schema_id: int) -> RowFormat:
        row_format = self._formats.get(schema_id)
        if row_format is None:
            schema = self._schemas.get(schema_id)
            if schema is None:
                raise NotFoundError(
                    f"The schema {schema_id} of a value is not known; the newest is {self.schema_id}.",
                    ErrorCode.SCHEMA_NOT_EXIST,
                )
            indexed = self._kv_format is KvFormat.INDEXED
            row_format = IndexedFormat(schema.columns) if indexed else CompactedFormat(schema.columns)
            self._formats[schema_id] = row_format
        return row_format

    def _padded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A table's columns are only ever added at the end."""
        missing = self.arrow_schema.types[batch.num_columns :]
        if not missing:
            return batch
        columns = [*batch.columns, *(pa.nulls(batch.num_rows, arrow_type) for arrow_type in missing)]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)


def _int32_array(content: bytearray) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(content) // 4, [None, pa.py_buffer(content)], null_count=0)


def encode_value_batch(values: list[bytes]) -> bytearray:
    """The batch that LimitScan and ScanKv answer with."""
    records = kernel.join_values(values)
    length = _BATCH_HEADER.size - _LENGTH_PREFIX_BYTES + len(records)
    return bytearray().join((_BATCH_HEADER.pack(length, _MAGIC, len(values)), records))


def decode_value_batch(buf: BufferLike) -> list[bytes]:
    """The values of a batch; bytes that are no such batch are refused."""
    if len(buf) < _BATCH_HEADER.size:
        raise CorruptDataError(f"value batch: a header takes {_BATCH_HEADER.size} bytes, {len(buf)} are there")
    length, magic, count = _BATCH_HEADER.unpack_from(buf)
    if magic != _MAGIC:
        raise CorruptDataError(f"value batch: magic {magic} is not known, only {_MAGIC} is")
    if _LENGTH_PREFIX_BYTES + length != len(buf):
        raise CorruptDataError(f"value batch: {_LENGTH_PREFIX_BYTES + length} bytes announced, {len(buf)} are there")
    return kernel.split_values(memoryview(buf)[_BATCH_HEADER.size :], count)


_EPOCHS: Final = {
    TypeRoot.TIMESTAMP: datetime(1970, 1, 1),
    TypeRoot.TIMESTAMP_LTZ: datetime(1970, 1, 1, tzinfo=UTC),
}
_TEXT: Final = (TypeRoot.CHAR, TypeRoot.STRING)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_MICROS_PER_SECOND: Final = 1_000_000
_WIDE: Final = Context(prec=120)

Convert: TypeAlias = Callable[[Any], Any]


class ValueRows(NamedTuple):
    """What `kernel.decode_values` needs to know to read COMPACTED values of one schema as rows of another.

    Rows are the same as those of `python_rows.to_rows`: columns the value does not have are None. Bytes that are no
    value raise `CorruptDataError`, text that is not UTF-8 and times that Python can't hold ValueError or OverflowError.
    """

    columns: tuple[tuple[str | None, tuple[Any, ...], bool, bool, Convert | None], ...]
    nulls: dict[str, Any]


def value_rows(written: Schema, wanted: Schema) -> ValueRows:
    """Columns are matched by field id."""
    names = dict(zip(wanted.field_ids, wanted.column_names, strict=True))
    columns = []
    for field_id, column in zip(written.field_ids, written.columns, strict=True):
        kind, is_text = column.data_type, column.data_type.root in _TEXT
        columns.append((names.get(field_id), tuple(spec_of(kind)), kind.nullable, is_text, _converter(kind)))
    return ValueRows(tuple(columns), dict.fromkeys(wanted.column_names))


def is_readable(schema: Schema) -> bool:
    """Whether all columns are scalars: nested ones are read through Arrow."""
    return not any(column.data_type.is_nested for column in schema.columns)


def _converter(data_type: DataType) -> Convert | None:
    root = data_type.root
    if root is TypeRoot.DATE:
        return lambda days: date.fromordinal(days + _EPOCH_ORDINAL)
    if root is TypeRoot.DECIMAL:
        return _decimals(data_type)
    if root in (TypeRoot.TIME, *_EPOCHS):
        units = units_per_second(data_type.precision)
        if root is TypeRoot.TIME:
            return lambda count: _time(count * _MICROS_PER_SECOND // units)
        epoch = _EPOCHS[root]
        return lambda count: epoch + timedelta(0, 0, count * _MICROS_PER_SECOND // units)
    return None


def _decimals(data_type: DataType) -> Convert:
    exponent, limit = -data_type.scale, 10**data_type.precision

    def convert(unscaled: int) -> Decimal:
        if not -limit < unscaled < limit:
            raise CorruptDataError(f"rows: {unscaled} has too many digits for {data_type}")
        return _WIDE.scaleb(Decimal(unscaled), exponent)

    return convert


def _time(micros: int) -> time:
    seconds, micros = divmod(micros, _MICROS_PER_SECOND)
    minutes, seconds = divmod(seconds, 60)
    return time(minutes // 60, minutes % 60, seconds, micros)
