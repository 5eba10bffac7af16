"""Columns into compacted rows and keys, and into indexed rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import (
    CODE_BIG_DECIMAL,
    CODE_BOOL,
    CODE_BYTES,
    CODE_CHAR,
    CODE_FIXED_BYTES,
    CODE_FIXED_FLOAT,
    CODE_FIXED_INT,
    CODE_NESTED,
    CODE_TIMESTAMP,
    CODE_VARINT,
    I32_MAX,
    LAYOUT_INDEXED,
    LAYOUT_KEY,
    as_int32,
    as_int64,
    check_size,
    copy_bytes,
    floor_div,
    is_set,
    pointer,
    put_varint,
    save,
    unsigned,
    varint_size,
)
from fluss.model.errors import SchemaMismatchError

_SECONDS_TO_MS_MAX = cython.declare(cython.longlong, 9_223_372_036_854_775)


def encode_columns(columns: Sequence[Any], row_count: int, layout: int) -> tuple[bytearray, bytearray]:
    """Rows or keys, and the int32 offsets of where each begins and ends.

    A column is (name, spec, (validity, value offsets, values), offset).
    """
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    rows: cython.Py_ssize_t = row_count
    null_bits: cython.bint = layout != LAYOUT_KEY
    indexed: cython.bint = layout == LAYOUT_INDEXED
    head: cython.int = (len(columns) + 7) // 8 if null_bits else 0
    sources: list = [ColumnSource(name, spec, buffers, offset, row_count) for name, spec, buffers, offset in columns]
    lengths_size: cython.int = size_of_lengths([column[1][0] for column in columns]) if indexed else 0
    offsets_bytes = bytearray(4 * (row_count + 1))
    cursor_bytes = bytearray(4 * (row_count + 1))
    lengths_bytes = bytearray(4 * row_count if indexed else 0)
    offsets: cython.p_int = as_int32(pointer(offsets_bytes))
    cursor: cython.p_int = as_int32(pointer(cursor_bytes))
    lengths: cython.p_int = as_int32(pointer(lengths_bytes))
    for i in range(rows):
        cursor[i] = head + lengths_size
    for c in range(len(sources)):
        if indexed:
            _add_indexed_sizes(sources[c], cursor, rows)
        else:
            _add_sizes(sources[c], cursor, rows, null_bits)
    total: cython.longlong = sum_up(cursor, offsets, rows)
    for i in range(rows):
        cursor[i] = offsets[i] + head + lengths_size
    if indexed:
        for i in range(rows):
            lengths[i] = offsets[i] + head
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for c in range(len(sources)):
        if null_bits:
            _put_null_bits(sources[c], out, offsets, rows, c)
        if indexed:
            _put_indexed_column(sources[c], out, cursor, lengths, rows)
        else:
            _put_column(sources[c], out, cursor, rows)
    return out_bytes, offsets_bytes


@cython.cclass
class ColumnSource:
    """One Arrow column, ready for reading."""

    name: str
    code: cython.int
    width: cython.Py_ssize_t
    multiplier: cython.longlong
    divisor: cython.longlong
    bits: cython.int
    low: cython.longlong
    high: cython.longlong
    has_nulls: cython.bint
    validity: cython.p_uchar
    offset: cython.Py_ssize_t
    values: cython.p_uchar
    values_size: cython.Py_ssize_t
    offsets: cython.p_int
    values32: cython.p_int
    values64: cython.p_longlong
    _keep: object

    def __init__(self, name: str, spec: Any, buffers: Sequence[Any], offset: int, row_count: int) -> None:
        """`buffers` are validity or None, value offsets or None, values."""
        self.name = name
        self.code, self.width, self.multiplier, self.divisor, self.bits, self.low, self.high = spec
        self.offset = offset
        self._keep = buffers
        validity, value_offsets, values = buffers
        end: cython.Py_ssize_t = offset + row_count
        self.has_nulls = validity is not None
        if validity is not None:
            check_size(name, validity, (end + 7) // 8)
            self.validity = pointer(validity)
        if value_offsets is not None:
            check_size(name, value_offsets, (end + 1) * 4)
            self.offsets = as_int32(pointer(value_offsets))
        elif self.code == CODE_BOOL:
            check_size(name, values, (end + 7) // 8)
        else:
            check_size(name, values, end * self.width)
        self.values = pointer(values)
        self.values_size = len(values)
        if self.width == 4:
            self.values32 = as_int32(self.values)
        elif self.width == 8 or self.width == 16:
            self.values64 = as_int64(self.values)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t) -> cython.bint:
        return self.has_nulls and not is_set(self.validity, self.offset + row)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def start_of(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where the bytes of a value lie, whether their number varies or not."""
        if self.code == CODE_FIXED_BYTES:
            return (self.offset + row) * self.width
        return self.offsets[self.offset + row]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def size_of(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if self.code == CODE_FIXED_BYTES:
            return self.width
        return self.offsets[self.offset + row + 1] - self.offsets[self.offset + row]


@cython.cfunc
def stored_varint(source: ColumnSource, row: cython.Py_ssize_t) -> cython.longlong:
    """The number a varint column stores for a row that is not null."""
    at: cython.Py_ssize_t = source.offset + row
    value: cython.longlong
    if source.width == 4:
        value = source.values32[at]
    elif source.width == 8:
        value = source.values64[at]
    else:
        value = source.values64[2 * at]
    if source.multiplier != 1:
        if value > _SECONDS_TO_MS_MAX or value < -_SECONDS_TO_MS_MAX:
            raise _does_not_fit(source, row, value)
        value *= source.multiplier
    elif source.divisor != 1:
        value = value // source.divisor
    if value < source.low or value > source.high:
        raise _does_not_fit(source, row, value)
    return value


@cython.cfunc
def _does_not_fit(source: ColumnSource, row: cython.Py_ssize_t, value: cython.longlong) -> object:
    return SchemaMismatchError(f"Column {source.name!r}: {value} in row {row} does not fit.")


@cython.cfunc
def size_of_lengths(codes: object) -> cython.int:
    """Bytes that the lengths of variable columns take in an indexed row."""
    return 4 * sum(code in (CODE_BYTES, CODE_NESTED, CODE_BIG_DECIMAL) for code in codes)


@cython.cfunc
def sum_up(sizes: cython.p_int, offsets: cython.p_int, rows: cython.Py_ssize_t) -> cython.longlong:
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    for i in range(rows):
        total += sizes[i]
        if total > I32_MAX:
            raise SchemaMismatchError(f"The rows take more than {I32_MAX} bytes; write fewer at a time.")
        offsets[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    return total


@cython.cfunc
def _add_sizes(source: ColumnSource, sizes: cython.p_int, rows: cython.Py_ssize_t, nulls: cython.bint) -> object:
    i: cython.Py_ssize_t
    fixed: cython.int = 1 if source.code == CODE_BOOL else source.width
    length: cython.longlong
    if source.has_nulls and not nulls:
        for i in range(rows):
            if source.is_null(i):
                raise SchemaMismatchError(f"Column {source.name!r} is part of a key and null in row {i}.")
    for i in range(rows):
        if source.is_null(i):
            continue
        if source.code == CODE_VARINT:
            sizes[i] += varint_size(unsigned(stored_varint(source, i), source.bits))
        elif source.code == CODE_BOOL or source.code == CODE_FIXED_INT or source.code == CODE_FIXED_FLOAT:
            sizes[i] += fixed
        elif source.code == CODE_BYTES or source.code == CODE_NESTED:
            length = checked_length(source, i)
            grow(source, sizes, i, length + varint_size(length))
        elif source.code == CODE_FIXED_BYTES:
            grow(source, sizes, i, source.width + varint_size(source.width))
        elif source.code == CODE_BIG_DECIMAL:
            sizes[i] += 1 + decimal_size(source.values, 16 * (source.offset + i))
        else:
            sizes[i] += varint_size(unsigned(millis_of(source, i), 64)) + varint_size(nanos_of(source, i))
    return None


@cython.cfunc
@cython.inline
def checked_length(source: ColumnSource, row: cython.Py_ssize_t) -> cython.longlong:
    start: cython.longlong = source.offsets[source.offset + row]
    end: cython.longlong = source.offsets[source.offset + row + 1]
    if start < 0 or end < start or end > source.values_size:
        raise SchemaMismatchError(f"Column {source.name!r}: offsets {start} and {end} of row {row} are wrong.")
    return end - start


@cython.cfunc
@cython.inline
def grow(source: ColumnSource, sizes: cython.p_int, row: cython.Py_ssize_t, added: cython.longlong) -> cython.int:
    if sizes[row] + added > I32_MAX:
        raise SchemaMismatchError(f"Column {source.name!r}: row {row} takes more than {I32_MAX} bytes.")
    sizes[row] += cython.cast(cython.int, added) if cython.compiled else added
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def decimal_size(values: cython.p_uchar, at: cython.Py_ssize_t) -> cython.int:
    """Bytes of the shortest two's complement of the 16 little-endian bytes at `at`."""
    size: cython.int = 16
    fill: cython.int = 0xFF if values[at + 15] & 0x80 else 0
    # The sign must stay visible in the highest byte that is kept.
    while size > 1 and values[at + size - 1] == fill and (values[at + size - 2] & 0x80) == (fill & 0x80):
        size -= 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def millis_of(source: ColumnSource, row: cython.Py_ssize_t) -> cython.longlong:
    return floor_div(source.values64[source.offset + row], source.multiplier)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def nanos_of(source: ColumnSource, row: cython.Py_ssize_t) -> cython.longlong:
    """Nanoseconds behind the millisecond."""
    value: cython.longlong = source.values64[source.offset + row]
    return (value - millis_of(source, row) * source.multiplier) * (1_000_000 // source.multiplier)


@cython.cfunc
def _put_null_bits(
    source: ColumnSource, out: cython.p_uchar, offsets: cython.p_int, rows: cython.Py_ssize_t, column: cython.Py_ssize_t
) -> object:
    i: cython.Py_ssize_t
    if source.has_nulls:
        for i in range(rows):
            if source.is_null(i):
                out[offsets[i] + (column >> 3)] |= 1 << (column & 7)
    return None


@cython.cfunc
def _put_column(source: ColumnSource, out: cython.p_uchar, cursor: cython.p_int, rows: cython.Py_ssize_t) -> object:
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for i in range(rows):
        if source.is_null(i):
            continue
        at = cursor[i]
        if source.code == CODE_VARINT:
            at = put_varint(out, at, unsigned(stored_varint(source, i), source.bits))
        elif source.code == CODE_BOOL:
            out[at] = 1 if is_set(source.values, source.offset + i) else 0
            at += 1
        elif source.code == CODE_FIXED_INT or source.code == CODE_FIXED_FLOAT:
            copy_bytes(out, at, source.values, (source.offset + i) * source.width, source.width)
            at += source.width
        elif source.code == CODE_BYTES or source.code == CODE_FIXED_BYTES or source.code == CODE_NESTED:
            if source.code == CODE_FIXED_BYTES:
                start = (source.offset + i) * source.width
                size = source.width
            else:
                start = source.offsets[source.offset + i]
                size = source.offsets[source.offset + i + 1] - start
            at = put_varint(out, at, size)
            copy_bytes(out, at, source.values, start, size)
            at += size
        elif source.code == CODE_BIG_DECIMAL:
            at = _put_big_decimal(out, at, source.values, 16 * (source.offset + i))
        else:
            at = put_varint(out, at, unsigned(millis_of(source, i), 64))
            at = put_varint(out, at, nanos_of(source, i))
        cursor[i] = at
    return None


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_big_decimal(
    out: cython.p_uchar, at: cython.Py_ssize_t, values: cython.p_uchar, source_at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    out[at] = decimal_size(values, source_at)
    return put_big_endian(out, at + 1, values, source_at, out[at])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_big_endian(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    values: cython.p_uchar,
    source_at: cython.Py_ssize_t,
    size: cython.int,
) -> cython.Py_ssize_t:
    k: cython.int
    for k in range(size):
        out[at + k] = values[source_at + size - 1 - k]
    return at + size


@cython.cfunc
def _add_indexed_sizes(source: ColumnSource, sizes: cython.p_int, rows: cython.Py_ssize_t) -> object:
    i: cython.Py_ssize_t
    length: cython.longlong
    for i in range(rows):
        if source.is_null(i):
            continue
        if source.code == CODE_VARINT:
            stored_varint(source, i)
            sizes[i] += source.bits // 8
        elif source.code == CODE_BOOL:
            sizes[i] += 1
        elif source.code == CODE_BIG_DECIMAL:
            sizes[i] += decimal_size(source.values, 16 * (source.offset + i))
        elif source.code == CODE_TIMESTAMP:
            sizes[i] += 12
        elif source.code == CODE_BYTES or source.code == CODE_NESTED:
            grow(source, sizes, i, checked_length(source, i))
        else:
            if source.code == CODE_CHAR:
                length = checked_length(source, i)
                if length > source.width:
                    raise SchemaMismatchError(
                        f"Column {source.name!r}: {length} bytes of text in row {i}; "
                        f"an INDEXED row has {source.width} for a CHAR({source.width})."
                    )
            grow(source, sizes, i, source.width)
    return None


@cython.cfunc
def _put_indexed_column(
    source: ColumnSource, out: cython.p_uchar, cursor: cython.p_int, lengths: cython.p_int, rows: cython.Py_ssize_t
) -> object:
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for i in range(rows):
        if source.is_null(i):
            continue
        at = cursor[i]
        if source.code == CODE_VARINT:
            size = source.bits // 8
            save(out, at, size, stored_varint(source, i))
        elif source.code == CODE_BOOL:
            size = 1
            out[at] = 1 if is_set(source.values, source.offset + i) else 0
        elif source.code == CODE_FIXED_INT or source.code == CODE_FIXED_FLOAT:
            size = source.width
            copy_bytes(out, at, source.values, (source.offset + i) * size, size)
        elif source.code == CODE_TIMESTAMP:
            size = 12
            save(out, at, 8, millis_of(source, i))
            save(out, at + 8, 4, nanos_of(source, i))
        elif source.code == CODE_BIG_DECIMAL:
            size = decimal_size(source.values, 16 * (source.offset + i))
            put_big_endian(out, at, source.values, 16 * (source.offset + i), size)
            _put_length(out, lengths, i, size)
        else:
            size = source.size_of(i)
            copy_bytes(out, at, source.values, source.start_of(i), size)
            if source.code == CODE_CHAR:
                size = source.width  # what is not filled stays 0
            elif source.code != CODE_FIXED_BYTES:
                _put_length(out, lengths, i, size)
        cursor[i] += cython.cast(cython.int, size) if cython.compiled else size
    return None


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_length(
    out: cython.p_uchar, lengths: cython.p_int, row: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.void:
    save(out, lengths[row], 4, size)
    lengths[row] += 4
