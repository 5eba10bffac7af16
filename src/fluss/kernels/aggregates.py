"""Values of one key that are merged into one: sums, products, extremes, first and last, joined texts.

Values of stored rows come first, then those of records. `merged` has what every record is merged with, see
`chain_changes`; a record comes after what it is merged with, so one pass in order is enough. A value that is null is
as if it were not there.
"""

from __future__ import annotations

from typing import Any

from fluss.kernels import codes
from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import (
    I32_MAX,
    LAYOUT_KEY,
    add64,
    as_double,
    as_int32,
    as_int64,
    copy_bytes,
    is_set,
    mul64,
    pointer,
    to_single,
    unsigned,
    wrapped,
)
from fluss.kernels.row_decoding import EncodedRows, rows_behind_each_other

_SUM = cython.declare(cython.int, codes.AGGREGATE_SUM)
_MAX = cython.declare(cython.int, codes.AGGREGATE_MAX)
_MIN = cython.declare(cython.int, codes.AGGREGATE_MIN)
_FIRST = cython.declare(cython.int, codes.AGGREGATE_FIRST)


@cython.cclass
class _Merges:
    """The rows that are merged, in order."""

    held: object
    merged: cython.p_int
    bits: cython.p_uchar
    stored: cython.Py_ssize_t
    records: cython.Py_ssize_t

    def __init__(self, merged: Any, validity: Any, row_count: int) -> None:
        i: cython.Py_ssize_t
        self.held = (merged, validity)
        self.records = len(merged) // 4
        self.stored = row_count - self.records
        self.merged = as_int32(pointer(merged))
        self.bits = pointer(validity)
        if self.stored < 0 or len(validity) < (row_count + 7) // 8:
            raise ValueError(f"{self.records} records are more than {row_count} rows, or bits are missing")
        for i in range(self.records):
            if not -1 <= self.merged[i] < self.stored + i:
                raise ValueError(f"record {i} is merged with row {self.merged[i]}")

    @cython.cfunc
    @cython.exceptval(check=False)
    def other(self, record: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The row whose value a record's value is combined with; -1: there is none."""
        at: cython.Py_ssize_t = self.merged[record]
        return -1 if at < 0 or not is_set(self.bits, at) else at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _set_bit(bits: cython.p_uchar, at: cython.Py_ssize_t) -> cython.void:
    bits[at >> 3] = bits[at >> 3] | (1 << (at & 7))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _clear_bit(bits: cython.p_uchar, at: cython.Py_ssize_t) -> cython.void:
    bits[at >> 3] = bits[at >> 3] & (0xFF ^ (1 << (at & 7)))


def merge_ints(values: bytearray, validity: bytearray, merged: Any, bits: int, function: int) -> None:
    """Sums or products of int64 that wrap at 8, 16, 32 or 64 bits, in place."""
    i: cython.Py_ssize_t
    other: cython.Py_ssize_t
    row: cython.Py_ssize_t
    width: cython.int = bits
    summed: cython.bint = function == _SUM
    rows: _Merges = _Merges(merged, validity, len(values) // 8)
    numbers: cython.p_longlong = as_int64(pointer(values))
    for i in range(rows.records):
        row = rows.stored + i
        other = rows.other(i)
        if other < 0:
            continue
        if not is_set(rows.bits, row):
            _set_bit(rows.bits, row)
            numbers[row] = numbers[other]
        elif summed:
            numbers[row] = wrapped(add64(unsigned(numbers[other], 64), unsigned(numbers[row], 64)), width)
        else:
            numbers[row] = wrapped(mul64(unsigned(numbers[other], 64), unsigned(numbers[row], 64)), width)


def merge_floats(values: bytearray, validity: bytearray, merged: Any, single: bool, function: int) -> None:
    """Sums or products of doubles, rounded to 32 bits each time when `single`, in place."""
    i: cython.Py_ssize_t
    other: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rounded: cython.bint = single
    summed: cython.bint = function == _SUM
    rows: _Merges = _Merges(merged, validity, len(values) // 8)
    numbers: cython.p_double = as_double(pointer(values))
    for i in range(rows.records):
        row = rows.stored + i
        other = rows.other(i)
        if other < 0:
            continue
        if not is_set(rows.bits, row):
            _set_bit(rows.bits, row)
            numbers[row] = numbers[other]
            continue
        numbers[row] = numbers[other] + numbers[row] if summed else numbers[other] * numbers[row]
        if rounded:
            numbers[row] = to_single(numbers[row])


def merge_decimals(
    values: bytearray, validity: bytearray, merged: Any, precision: int, scale: int, function: int
) -> int:
    """Sums or products of 128-bit decimals, in place; one with too many digits is null. Returns how many were."""
    i: cython.Py_ssize_t
    other: cython.Py_ssize_t
    row: cython.Py_ssize_t
    lost: cython.Py_ssize_t = 0
    summed: cython.bint = function == _SUM
    rows: _Merges = _Merges(merged, validity, len(values) // 16)
    limit = 10**precision
    unit = 10**scale
    for i in range(rows.records):
        row = rows.stored + i
        other = rows.other(i)
        if other < 0:
            continue
        left = values[16 * other : 16 * other + 16]
        if not is_set(rows.bits, row):
            _set_bit(rows.bits, row)
            values[16 * row : 16 * row + 16] = left
            continue
        number = int.from_bytes(left, "little", signed=True)
        own = int.from_bytes(values[16 * row : 16 * row + 16], "little", signed=True)
        if summed:
            number += own
        else:
            number *= own
            # Half a unit is rounded away from zero.
            number = (number + unit // 2) // unit if number >= 0 else -((unit // 2 - number) // unit)
        if -limit < number < limit:
            values[16 * row : 16 * row + 16] = number.to_bytes(16, "little", signed=True)
        else:
            _clear_bit(rows.bits, row)
            lost += 1
    return lost


def merge_choices(ranks: Any, validity: Any, merged: Any, row_count: int, function: int) -> bytearray:
    """The row whose value every record has then, int32 each; `row_count` where all values so far are null.

    `ranks`: the order of all values, int64 each, for maximum and minimum.
    """
    i: cython.Py_ssize_t
    other: cython.Py_ssize_t
    own: cython.Py_ssize_t
    chosen: cython.int = function
    rows: _Merges = _Merges(merged, validity, row_count)
    none: cython.Py_ssize_t = row_count
    ordered: cython.bint = chosen in (_MAX, _MIN)
    ranks_bytes = b"" if ranks is None else ranks
    if ordered and len(ranks_bytes) < 8 * row_count:
        raise ValueError(f"{len(ranks_bytes)} bytes are not the ranks of {row_count} values")
    order: cython.p_longlong = as_int64(pointer(ranks_bytes))
    out_bytes = bytearray(4 * rows.records)
    out: cython.p_int = as_int32(pointer(out_bytes))
    for i in range(rows.records):
        own = rows.stored + i
        if not is_set(rows.bits, own):
            own = none
        other = rows.merged[i]
        if other >= rows.stored:
            other = out[other - rows.stored]
        elif other < 0 or not is_set(rows.bits, other):
            other = none
        if other == none or own == none:
            own = other if own == none else own
        elif chosen == _FIRST or (ordered and (order[other] >= order[own]) == (chosen == _MAX)):
            own = other
        out[i] = cython.cast(cython.int, own) if cython.compiled else own
    return out_bytes


def merge_texts(
    data: Any, offsets: Any, validity: bytearray, merged: Any, delimiter: bytes, size_max: int
) -> tuple[bytearray, bytearray] | None:
    """Data and int32 offsets of the records' texts, joined; None if they take more than `size_max` bytes."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    other: cython.Py_ssize_t
    row: cython.Py_ssize_t
    size: cython.longlong
    total: cython.longlong = 0
    limit: cython.longlong = min(size_max, I32_MAX)
    row_count: cython.Py_ssize_t = len(offsets) // 4 - 1
    rows: _Merges = _Merges(merged, validity, row_count)
    texts: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_KEY, 0, 0)
    between: cython.p_uchar = delimiter
    gap: cython.longlong = len(delimiter)
    ends_bytes = bytearray(4 * (rows.records + 1))
    ends: cython.p_int = as_int32(pointer(ends_bytes))
    joined = bytearray(rows.records)  # 1: with the other text in front
    for i in range(rows.records):
        row = rows.stored + i
        other = rows.other(i)
        size = texts.ends[row] - texts.starts[row] if is_set(rows.bits, row) else 0
        if other >= 0:
            size += gap if is_set(rows.bits, row) else 0
            joined[i] = 1 if not is_set(rows.bits, row) else 2
            _set_bit(rows.bits, row)
            if other < rows.stored:
                size += texts.ends[other] - texts.starts[other]
            else:
                size += ends[other - rows.stored + 1] - ends[other - rows.stored]
        total += size
        if total > limit:
            return None
        ends[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(rows.records):
        row = rows.stored + i
        at = ends[i]
        if joined[i]:
            other = rows.merged[i]
            if other < rows.stored:
                size = texts.ends[other] - texts.starts[other]
                copy_bytes(out, at, texts.data, texts.starts[other], size)
            else:
                other -= rows.stored
                size = ends[other + 1] - ends[other]
                copy_bytes(out, at, out, ends[other], size)
            at += size
            if joined[i] == 1:
                continue
            copy_bytes(out, at, between, 0, gap)
            at += gap
        if is_set(rows.bits, row):
            copy_bytes(out, at, texts.data, texts.starts[row], texts.ends[row] - texts.starts[row])
    return out_bytes, ends_bytes
