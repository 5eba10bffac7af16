"""Binary arrays and aligned rows, in which values lie in slots: from columns and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import (
    CODE_BIG_DECIMAL,
    CODE_BOOL,
    CODE_BYTES,
    CODE_FIXED_BYTES,
    CODE_FIXED_FLOAT,
    CODE_FIXED_INT,
    CODE_NESTED,
    CODE_TIMESTAMP,
    CODE_VARINT,
    I32_MAX,
    INLINE_MAX,
    LAYOUT_SLOTS,
    as_int32,
    check_size,
    copy_bytes,
    is_set,
    load,
    pointer,
    save,
)
from fluss.kernels.row_decoding import EncodedRows, rows_behind_each_other, take_column, take_values
from fluss.kernels.row_encoding import (
    ColumnSource,
    checked_length,
    decimal_size,
    grow,
    millis_of,
    nanos_of,
    put_big_endian,
    stored_varint,
    sum_up,
)
from fluss.model.errors import CorruptDataError, SchemaMismatchError


def encode_arrays(
    column: Any, element_count: int, list_offsets: Any, validity: Any, row_count: int
) -> tuple[bytearray, bytearray]:
    """Binary arrays, and the int32 offsets of where each begins and ends; a null list takes no bytes.

    `column` has the elements of all lists, as for `encode_columns`; list i has those from list_offsets[i] on.
    """
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    start: cython.Py_ssize_t
    base: cython.Py_ssize_t
    slots: cython.Py_ssize_t
    tail: cython.Py_ssize_t
    size: cython.longlong
    total: cython.longlong = 0
    rows: cython.Py_ssize_t = row_count
    name, spec, buffers, offset = column
    source: ColumnSource = ColumnSource(name, spec, buffers, offset, element_count)
    lists: _Lists = _Lists(list_offsets, validity, row_count, element_count)
    width: cython.Py_ssize_t = _slot_width(source.code, source.width, source.bits)
    offsets_bytes = bytearray(4 * (row_count + 1))
    offsets: cython.p_int = as_int32(pointer(offsets_bytes))
    for i in range(rows):
        if not lists.is_null(i):
            start = lists.ends[i]
            size = _padded(_array_head(lists.size(i)) + lists.size(i) * width)
            for k in range(start, start + lists.size(i)):
                if not source.is_null(k):
                    size += _tail_size(source, k)
            total += size
            if total > I32_MAX:
                raise SchemaMismatchError(f"The rows take more than {I32_MAX} bytes; write fewer at a time.")
        offsets[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(rows):
        if lists.is_null(i):
            continue
        base = offsets[i]
        start = lists.ends[i]
        save(out, base, 4, lists.size(i))
        slots = base + _array_head(lists.size(i))
        tail = base + _padded(slots - base + lists.size(i) * width)
        for k in range(lists.size(i)):
            if source.is_null(start + k):
                out[base + 4 + (k >> 3)] |= 1 << (k & 7)
            else:
                tail = _put_slot(source, start + k, out, slots + k * width, base, tail)
    return out_bytes, offsets_bytes


@cython.cclass
class _Lists:
    """Which elements belong to which list."""

    ends: cython.p_int
    validity: cython.p_uchar
    has_nulls: cython.bint
    _keep: object

    def __init__(self, offsets: Any, validity: Any, count: int, element_count: int) -> None:
        i: cython.Py_ssize_t
        rows: cython.Py_ssize_t = count
        self._keep = (offsets, validity)
        check_size("list", offsets, 4 * (count + 1))
        self.ends = as_int32(pointer(offsets))
        self.has_nulls = validity is not None
        if validity is not None:
            check_size("list", validity, (count + 7) // 8)
            self.validity = pointer(validity)
        for i in range(rows):
            if self.ends[i] < 0 or self.ends[i + 1] < self.ends[i] or self.ends[i + 1] > element_count:
                raise SchemaMismatchError(f"The offsets of list {i} are wrong.")

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t) -> cython.bint:
        return self.has_nulls and not is_set(self.validity, row)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def size(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.ends[row + 1] - self.ends[row]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _slot_width(code: cython.int, width: cython.Py_ssize_t, bits: cython.int) -> cython.int:
    """Bytes of an element of a binary array, apart from its variable part."""
    if code == CODE_VARINT:
        return bits // 8
    if code in (CODE_BOOL, CODE_FIXED_INT, CODE_FIXED_FLOAT):
        return width
    return 8


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _padded(size: cython.longlong) -> cython.longlong:
    return (size + 7) // 8 * 8


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _array_head(count: cython.longlong) -> cython.longlong:
    """Bytes of a binary array's element count and null bits."""
    return 4 + (count + 31) // 32 * 4


@cython.cfunc
def _tail_size(source: ColumnSource, row: cython.Py_ssize_t) -> cython.longlong:
    """Bytes that a value takes behind the slots."""
    if source.code == CODE_TIMESTAMP:
        return 8
    if source.code == CODE_BIG_DECIMAL:
        return 16
    if source.code == CODE_NESTED:
        return _padded(checked_length(source, row))
    if source.code == CODE_BYTES:
        size: cython.longlong = checked_length(source, row)
        return _padded(size) if size > INLINE_MAX else 0
    if source.code == CODE_FIXED_BYTES:
        return _padded(source.width) if source.width > INLINE_MAX else 0
    if source.code == CODE_VARINT:
        stored_varint(source, row)
    return 0


@cython.cfunc
def _put_slot(
    source: ColumnSource,
    row: cython.Py_ssize_t,
    out: cython.p_uchar,
    slot: cython.Py_ssize_t,
    base: cython.Py_ssize_t,
    tail: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a value that is not null; returns the new end of the variable part. Positions there count from `base`."""
    size: cython.Py_ssize_t
    reference: cython.longlong = (cython.cast(cython.longlong, tail - base) if cython.compiled else tail - base) << 32
    at: cython.Py_ssize_t = source.offset + row
    if source.code == CODE_VARINT:
        save(out, slot, source.bits // 8, stored_varint(source, row))
    elif source.code == CODE_BOOL:
        out[slot] = 1 if is_set(source.values, at) else 0
    elif source.code == CODE_FIXED_INT or source.code == CODE_FIXED_FLOAT:
        copy_bytes(out, slot, source.values, at * source.width, source.width)
    elif source.code == CODE_TIMESTAMP:
        save(out, slot, 8, reference | nanos_of(source, row))
        save(out, tail, 8, millis_of(source, row))
        tail += 8
    elif source.code == CODE_BIG_DECIMAL:
        size = decimal_size(source.values, 16 * at)
        save(out, slot, 8, reference | size)
        put_big_endian(out, tail, source.values, 16 * at, size)
        tail += 16
    else:
        size = source.size_of(row)
        if size <= INLINE_MAX and source.code != CODE_NESTED:
            copy_bytes(out, slot, source.values, source.start_of(row), size)
            out[slot + 7] = 0x80 | size
        else:
            save(out, slot, 8, reference | size)
            copy_bytes(out, tail, source.values, source.start_of(row), size)
            tail += _padded(size)
    return tail


def encode_aligned(columns: Sequence[Any], row_count: int) -> tuple[bytearray, bytearray]:
    """Aligned rows, as `encode_columns` returns them."""
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    rows: cython.Py_ssize_t = row_count
    source: ColumnSource
    sources: list = [ColumnSource(name, spec, buffers, offset, row_count) for name, spec, buffers, offset in columns]
    head: cython.Py_ssize_t = _aligned_head(len(sources))
    fixed: cython.int = head + 8 * len(sources)
    offsets_bytes = bytearray(4 * (row_count + 1))
    tail_bytes = bytearray(4 * (row_count + 1))
    offsets: cython.p_int = as_int32(pointer(offsets_bytes))
    tail: cython.p_int = as_int32(pointer(tail_bytes))
    for i in range(rows):
        tail[i] = fixed
    for c in range(len(sources)):
        source = sources[c]
        for i in range(rows):
            if not source.is_null(i):
                grow(source, tail, i, _tail_size(source, i))
    out_bytes = bytearray(sum_up(tail, offsets, rows))
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(rows):
        tail[i] = offsets[i] + fixed
    for c in range(len(sources)):
        source = sources[c]
        for i in range(rows):
            if source.is_null(i):
                out[offsets[i] + ((c + 8) >> 3)] |= 1 << (c & 7)
            else:
                tail[i] = _put_slot(source, i, out, offsets[i] + head + 8 * c, offsets[i], tail[i])
    return out_bytes, offsets_bytes


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _aligned_head(column_count: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Bytes of an aligned row's null bits, of which the first eight mean something else."""
    return (column_count + 63 + 8) // 64 * 8


def decode_aligned(
    data: Any, offsets: Any, row_count: int, specs: Sequence[Any]
) -> list[tuple[bytearray | None, int, bytearray | None, bytearray]]:
    """Columns of aligned rows, as `decode_columns` returns them."""
    i: cython.Py_ssize_t
    c: cython.int
    head: cython.int = _aligned_head(len(specs))
    rows: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_SLOTS, head + 8 * len(specs), 0)
    columns: list = []
    for c in range(len(specs)):
        for i in range(rows.count):
            rows.cursor[i] = rows.starts[i] + head + 8 * c
        columns.append(take_column(rows, c + 8, specs[c]))
    return columns


def decode_arrays(
    data: Any, offsets: Any, validity: Any, row_count: int, spec: Any
) -> tuple[bytearray, int, tuple[bytearray | None, int, bytearray | None, bytearray]]:
    """Offsets of the lists, number of all elements, and the elements, as `decode_columns` returns a column."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    size: cython.longlong
    count: cython.longlong
    total: cython.longlong = 0
    arrays: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_SLOTS, 0, 0)
    present_bytes = _all_set(row_count) if validity is None else validity
    present: cython.p_uchar = pointer(present_bytes)
    width: cython.Py_ssize_t = _slot_width(spec[0], spec[1], spec[4])
    ends_bytes = bytearray(4 * (row_count + 1))
    ends: cython.p_int = as_int32(pointer(ends_bytes))
    for i in range(arrays.count):
        if is_set(present, i):
            size = arrays.ends[i] - arrays.starts[i]
            count = load(arrays.data, arrays.starts[i], 4) if size >= 4 else -1
            if count < 0 or _array_head(count) + count * width > size:
                raise CorruptDataError(f"row {i}: no array of {count} elements in {size} bytes")
            total += count
        ends[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    places = [bytearray(4 * total) for _ in range(3)]
    elements: EncodedRows = EncodedRows()
    elements.keep = (arrays, places)
    elements.data = arrays.data
    elements.data_size = arrays.data_size
    elements.starts = as_int32(pointer(places[0]))
    elements.ends = as_int32(pointer(places[1]))
    elements.cursor = as_int32(pointer(places[2]))
    elements.count = total
    elements.layout = LAYOUT_SLOTS
    valid_bytes = bytearray((total + 7) // 8)
    valid: cython.p_uchar = pointer(valid_bytes)
    null_count: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    slots: cython.Py_ssize_t
    for i in range(arrays.count):
        count = ends[i + 1] - ends[i]
        slots = arrays.starts[i] + _array_head(count)
        for k in range(count):
            at = ends[i] + k
            elements.starts[at] = arrays.starts[i]
            elements.ends[at] = arrays.ends[i]
            elements.cursor[at] = cython.cast(cython.int, slots + k * width) if cython.compiled else slots + k * width
            if arrays.data[arrays.starts[i] + 4 + (k >> 3)] & (1 << (k & 7)) != 0:
                null_count += 1
            else:
                valid[at >> 3] |= 1 << (at & 7)
    value_offsets, values = take_values(elements, valid, spec)
    return ends_bytes, total, (valid_bytes if null_count else None, null_count, value_offsets, values)


@cython.cfunc
def _all_set(count: object) -> bytearray:
    return bytearray(b"\xff") * ((count + 7) // 8)


def split_maps(
    data: Any, offsets: Any, validity: Any, row_count: int
) -> tuple[tuple[bytearray, bytearray], tuple[bytearray, bytearray]]:
    """The key arrays and the value arrays of binary maps, each as data and int32 offsets."""
    i: cython.Py_ssize_t
    size: cython.longlong
    key_size: cython.longlong
    maps: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_SLOTS, 0, 0)
    present_bytes = _all_set(row_count) if validity is None else validity
    present: cython.p_uchar = pointer(present_bytes)
    key_ends_bytes = bytearray(4 * (row_count + 1))
    value_ends_bytes = bytearray(4 * (row_count + 1))
    key_ends: cython.p_int = as_int32(pointer(key_ends_bytes))
    value_ends: cython.p_int = as_int32(pointer(value_ends_bytes))
    for i in range(maps.count):
        key_size = 0
        size = 4
        if is_set(present, i):
            size = maps.ends[i] - maps.starts[i]
            key_size = load(maps.data, maps.starts[i], 4) if size >= 4 else -1
            if key_size < 0 or key_size > size - 4:
                raise CorruptDataError(f"row {i}: no map with {key_size} bytes of keys in {size} bytes")
        key_ends[i + 1] = key_ends[i] + key_size
        value_ends[i + 1] = value_ends[i] + size - 4 - key_size
    keys_bytes = bytearray(key_ends[row_count])
    values_bytes = bytearray(value_ends[row_count])
    keys: cython.p_uchar = pointer(keys_bytes)
    values: cython.p_uchar = pointer(values_bytes)
    for i in range(maps.count):
        key_size = key_ends[i + 1] - key_ends[i]
        copy_bytes(keys, key_ends[i], maps.data, maps.starts[i] + 4, key_size)
        size = value_ends[i + 1] - value_ends[i]
        copy_bytes(values, value_ends[i], maps.data, maps.starts[i] + 4 + key_size, size)
    return (keys_bytes, key_ends_bytes), (values_bytes, value_ends_bytes)
