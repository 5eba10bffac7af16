"""Compacted, indexed and other rows back into columns."""

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
    CODE_NESTED,
    CODE_TIMESTAMP,
    CODE_VARINT,
    I64_MAX,
    INLINE_MAX,
    LAYOUT_COMPACTED,
    LAYOUT_INDEXED,
    LAYOUT_KEY,
    LAYOUT_SLOTS,
    as_int32,
    as_int64,
    copy_bytes,
    from_second,
    is_set,
    load,
    pointer,
    signed,
)
from fluss.kernels.row_encoding import size_of_lengths
from fluss.model.errors import CorruptDataError


@cython.cclass
class EncodedRows:
    """Encoded rows and how far each has been read; or slots, each in its binary array or aligned row."""

    data: cython.p_uchar
    data_size: cython.Py_ssize_t
    starts: cython.p_int
    ends: cython.p_int
    cursor: cython.p_int  # where the next value, or the slot, lies
    lengths: cython.p_int  # where the next length lies, in indexed rows
    count: cython.Py_ssize_t
    layout: cython.int
    span: cython.longlong  # bytes of what `take_span` found
    keep: object

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t, column: cython.Py_ssize_t) -> cython.bint:
        return self.layout != LAYOUT_KEY and self.data[self.starts[row] + (column >> 3)] & (1 << (column & 7)) != 0

    @cython.cfunc
    @cython.inline
    def take(self, row: cython.Py_ssize_t, size: cython.longlong) -> cython.Py_ssize_t:
        """The position of the next `size` bytes, which are now read."""
        at: cython.Py_ssize_t = self.cursor[row]
        if size > self.ends[row] - at:
            raise CorruptDataError(f"row {row}: {size} bytes announced, {self.ends[row] - at} are left")
        self.cursor[row] = cython.cast(cython.int, at + size) if cython.compiled else at + size
        return at

    @cython.cfunc
    @cython.inline
    @cython.exceptval(77, check=True)
    def take_varint(self, row: cython.Py_ssize_t, bits: cython.int) -> cython.ulonglong:
        at: cython.Py_ssize_t = self.cursor[row]
        end: cython.Py_ssize_t = self.ends[row]
        pattern: cython.ulonglong = 0
        shift: cython.int = 0
        byte: cython.ulonglong
        while at < end:
            byte = self.data[at]
            at += 1
            if shift + 7 > bits and byte >> (bits - shift):
                raise CorruptDataError(f"row {row}: a number has more than {bits} bits")
            pattern |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.cursor[row] = cython.cast(cython.int, at) if cython.compiled else at
                return pattern
            shift += 7
        raise CorruptDataError(f"row {row}: ends inside a number")

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-77, check=True)
    def take_number(self, row: cython.Py_ssize_t, bits: cython.int) -> cython.longlong:
        if self.layout <= LAYOUT_COMPACTED:
            return signed(self.take_varint(row, bits), bits)
        return load(self.data, self.take(row, bits // 8), bits // 8)

    @cython.cfunc
    @cython.inline
    def take_span(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The position of the next bytes, whose number is `span` then."""
        if self.layout <= LAYOUT_COMPACTED:
            self.span = self.take_varint(row, 32)
            return self.take(row, self.span)
        return self.take_other_span(row)

    @cython.cfunc
    def take_other_span(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if self.layout == LAYOUT_INDEXED:
            self.span = load(self.data, self.lengths[row], 4)
            self.lengths[row] += 4
            if self.span < 0:
                raise CorruptDataError(f"row {row}: a length of {self.span} bytes")
            return self.take(row, self.span)
        slot: cython.Py_ssize_t = self.take(row, 8)
        last: cython.int = self.data[slot + 7]
        if last >= 0x80:
            self.span = last - 0x80
            if self.span > INLINE_MAX:
                raise CorruptDataError(f"element {row}: {self.span} bytes in a slot")
            return slot
        reference: cython.longlong = load(self.data, slot, 8)
        self.span = reference & 0xFFFFFFFF
        return self.at_reference(row, reference, self.span)

    @cython.cfunc
    def at_reference(
        self, row: cython.Py_ssize_t, reference: cython.longlong, size: cython.longlong
    ) -> cython.Py_ssize_t:
        """The position that a slot refers to, where `size` bytes lie."""
        distance: cython.longlong = reference >> 32
        room: cython.longlong = self.ends[row] - self.starts[row]
        if distance < 0 or distance + size > room:
            raise CorruptDataError(f"element {row}: {size} bytes at {distance} do not lie in {room}")
        return self.starts[row] + distance


@cython.cfunc
def rows_behind_each_other(
    data: object, offsets: object, count: object, layout: cython.int, head: cython.int, lengths_size: cython.int
) -> EncodedRows:
    i: cython.Py_ssize_t
    rows: EncodedRows = EncodedRows()
    cursor_bytes = bytearray(4 * (count + 1))
    lengths_bytes = bytearray(4 * (count + 1) if layout == LAYOUT_INDEXED else 0)
    rows.keep = (data, offsets, cursor_bytes, lengths_bytes)
    if len(offsets) < 4 * (count + 1):
        raise CorruptDataError(f"rows: {len(offsets)} bytes of offsets for {count} rows")
    rows.data = pointer(data)
    rows.data_size = len(data)
    rows.starts = as_int32(pointer(offsets))
    rows.ends = from_second(rows.starts)
    rows.cursor = as_int32(pointer(cursor_bytes))
    rows.lengths = as_int32(pointer(lengths_bytes))
    rows.count = count
    rows.layout = layout
    for i in range(rows.count):
        if rows.starts[i] < 0 or rows.ends[i] < rows.starts[i] or rows.ends[i] > rows.data_size:
            raise CorruptDataError(f"rows: the offsets of row {i} are wrong")
        if rows.ends[i] - rows.starts[i] < head + lengths_size:
            raise CorruptDataError(f"row {i}: too short for its null bits")
        rows.cursor[i] = rows.starts[i] + head + lengths_size
    if layout == LAYOUT_INDEXED:
        for i in range(rows.count):
            rows.lengths[i] = rows.starts[i] + head
    return rows


def decode_columns(
    data: Any, offsets: Any, row_count: int, specs: Sequence[Any], layout: int
) -> list[tuple[bytearray | None, int, bytearray | None, bytearray]]:
    """Per column: validity (None when nothing is null), null count, value offsets (None when fixed), values."""
    i: cython.Py_ssize_t
    lengths_size: cython.int = size_of_lengths([spec[0] for spec in specs]) if layout == LAYOUT_INDEXED else 0
    head: cython.int = 0 if layout == LAYOUT_KEY else (len(specs) + 7) // 8
    rows: EncodedRows = rows_behind_each_other(data, offsets, row_count, layout, head, lengths_size)
    columns: list = [take_column(rows, c, specs[c]) for c in range(len(specs))]
    for i in range(rows.count):
        if rows.cursor[i] != rows.ends[i]:
            raise CorruptDataError(f"row {i}: {rows.ends[i] - rows.cursor[i]} bytes left over")
    return columns


@cython.cfunc
def take_column(rows: EncodedRows, column: cython.Py_ssize_t, spec: object) -> tuple:
    i: cython.Py_ssize_t
    null_count: cython.Py_ssize_t = 0
    validity = bytearray((rows.count + 7) // 8)
    valid: cython.p_uchar = pointer(validity)
    for i in range(rows.count):
        if rows.is_null(i, column):
            null_count += 1
        else:
            valid[i >> 3] |= 1 << (i & 7)
    value_offsets, values = take_values(rows, valid, spec)
    return validity if null_count else None, null_count, value_offsets, values


@cython.cfunc
def take_values(rows: EncodedRows, valid: cython.p_uchar, spec: object) -> tuple:
    """Value offsets (None when fixed) and values."""
    code: cython.int = spec[0]
    if code in (CODE_BYTES, CODE_NESTED, CODE_CHAR):
        return _take_bytes(rows, valid, spec[1])
    if code == CODE_VARINT:
        return None, _take_varints(rows, valid, spec)
    if code == CODE_BOOL:
        return None, _take_bools(rows, valid)
    if code == CODE_BIG_DECIMAL:
        return None, _take_big_decimals(rows, valid)
    if code == CODE_TIMESTAMP:
        return None, take_timestamps(rows, valid, spec[2])
    return None, _take_fixed(rows, valid, spec[1], code == CODE_FIXED_BYTES and rows.layout != LAYOUT_INDEXED)


@cython.cfunc
def _take_bytes(rows: EncodedRows, valid: cython.p_uchar, padded_to: cython.Py_ssize_t) -> tuple:
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    starts_bytes = bytearray(4 * (rows.count + 1))
    offsets_bytes = bytearray(4 * (rows.count + 1))
    starts: cython.p_int = as_int32(pointer(starts_bytes))
    offsets: cython.p_int = as_int32(pointer(offsets_bytes))
    for i in range(rows.count):
        if is_set(valid, i):
            if padded_to:
                start = rows.take(i, padded_to)
                size = padded_to
                while size > 0 and rows.data[start + size - 1] == 0:
                    size -= 1
            else:
                start = rows.take_span(i)
                size = rows.span
            starts[i] = cython.cast(cython.int, start) if cython.compiled else start
            total += size
            if total > rows.data_size:
                # Slots may refer to the same bytes again and again, which would take any amount of memory.
                raise CorruptDataError(f"element {i}: its bytes belong to others too")
        offsets[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    values_bytes = bytearray(total)
    values: cython.p_uchar = pointer(values_bytes)
    for i in range(rows.count):
        copy_bytes(values, offsets[i], rows.data, starts[i], offsets[i + 1] - offsets[i])
    return offsets_bytes, values_bytes


@cython.cfunc
def _take_varints(rows: EncodedRows, valid: cython.p_uchar, spec: object) -> bytearray:
    i: cython.Py_ssize_t
    value: cython.longlong
    width: cython.int = spec[1]
    multiplier: cython.longlong = spec[2]
    divisor: cython.longlong = spec[3]
    bits: cython.int = spec[4]
    low: cython.longlong = spec[5]
    high: cython.longlong = spec[6]
    compacted: cython.bint = rows.layout <= LAYOUT_COMPACTED
    out_bytes = bytearray(width * rows.count)
    out32: cython.p_int = as_int32(pointer(out_bytes))
    out64: cython.p_longlong = as_int64(pointer(out_bytes))
    for i in range(rows.count):
        if not is_set(valid, i):
            continue
        value = signed(rows.take_varint(i, bits), bits) if compacted else rows.take_number(i, bits)
        if value < low or value > high:
            raise CorruptDataError(f"row {i}: {value} is outside {low} to {high}")
        if multiplier != 1:
            value = value // multiplier
        # Only times of day have a divisor, and their range leaves room for it.
        value *= divisor
        if width == 4:
            out32[i] = cython.cast(cython.int, value) if cython.compiled else value
        elif width == 8:
            out64[i] = value
        else:
            out64[2 * i] = value
            out64[2 * i + 1] = -1 if value < 0 else 0
    return out_bytes


@cython.cfunc
def _take_bools(rows: EncodedRows, valid: cython.p_uchar) -> bytearray:
    i: cython.Py_ssize_t
    out_bytes = bytearray((rows.count + 7) // 8)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(rows.count):
        if is_set(valid, i) and rows.data[rows.take(i, 1)] != 0:
            out[i >> 3] |= 1 << (i & 7)
    return out_bytes


@cython.cfunc
def _take_fixed(
    rows: EncodedRows, valid: cython.p_uchar, width: cython.Py_ssize_t, with_length: cython.bint
) -> bytearray:
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    out_bytes = bytearray(width * rows.count)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(rows.count):
        if not is_set(valid, i):
            continue
        if with_length:
            start = rows.take_span(i)
            if rows.span != width:
                raise CorruptDataError(f"row {i}: {rows.span} bytes in a column of {width}")
        else:
            start = rows.take(i, width)
        copy_bytes(out, i * width, rows.data, start, width)
    return out_bytes


@cython.cfunc
def _take_big_decimals(rows: EncodedRows, valid: cython.p_uchar) -> bytearray:
    i: cython.Py_ssize_t
    k: cython.int
    at: cython.Py_ssize_t
    size: cython.longlong
    fill: cython.int
    out_bytes = bytearray(16 * rows.count)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(rows.count):
        if not is_set(valid, i):
            continue
        at = rows.take_span(i)
        size = rows.span
        if size < 1 or size > 16:
            raise CorruptDataError(f"row {i}: a decimal of {size} bytes")
        fill = 0xFF if rows.data[at] & 0x80 else 0
        for k in range(16):
            out[16 * i + k] = rows.data[at + size - 1 - k] if k < size else fill
    return out_bytes


@cython.cfunc
def take_timestamps(rows: EncodedRows, valid: cython.p_uchar, units: cython.longlong) -> bytearray:
    """`units` are those of the Arrow type in a millisecond."""
    i: cython.Py_ssize_t
    millis: cython.longlong
    nanos: cython.longlong
    limit: cython.longlong = I64_MAX // units - 1
    out_bytes = bytearray(8 * rows.count)
    out: cython.p_longlong = as_int64(pointer(out_bytes))
    for i in range(rows.count):
        if not is_set(valid, i):
            continue
        if rows.layout == LAYOUT_SLOTS:
            nanos = load(rows.data, rows.take(i, 8), 8)
            millis = load(rows.data, rows.at_reference(i, nanos, 8), 8)
            nanos &= 0xFFFFFFFF
        else:
            millis = rows.take_number(i, 64)
            nanos = rows.take_number(i, 32)
        if millis > limit or millis < -limit or nanos < 0 or nanos > 999_999:
            raise CorruptDataError(f"row {i}: {millis} ms and {nanos} ns are not a timestamp")
        out[i] = millis * units + nanos // (1_000_000 // units)
    return out_bytes
