"""Changes of a table with a primary key: what puts do to the rows that are there; values merged into one.

Where values are merged, those of stored rows come first, then those of records. `merged` has what every record is
merged with, see `chain_changes`; a record comes after what it is merged with, so one pass in order is enough. A value
that is null is as if it were not there.
"""

from __future__ import annotations

from typing import Any

from fluss.kernels import codes
from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import (
    I32_MAX,
    LAYOUT_KEY,
    MISSING,
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

_INSERT = cython.declare(cython.int, 1)
_UPDATE_BEFORE = cython.declare(cython.int, 2)
_UPDATE_AFTER = cython.declare(cython.int, 3)
_DELETE = cython.declare(cython.int, 4)


def fold_changes(
    keys: list[bytes],
    values: list[bytes | None],
    old: dict[bytes, bytes | None],
    with_before: bool,
    with_inserts: bool,
    keep_present: bool,
    versions: list[int] | None = None,
    old_versions: dict[bytes, int] | None = None,
) -> tuple[bytearray, list[bytes], list[bytes], dict[bytes, bytes | None]]:
    """Change types, keys and values they are about, and what is left at each key that changed; None is a delete.

    `keep_present`: a value does not replace another. `versions`: it does not replace one with a higher version; those
    of old values are in `old_versions`, which is changed.
    """
    i: cython.Py_ssize_t
    listed_keys: list = keys
    listed: list = values
    before: cython.bint = with_before
    inserts: cython.bint = with_inserts
    keep: cython.bint = keep_present
    versioned: cython.bint = versions is not None
    news: list = [] if versions is None else versions
    olds: dict = {} if old_versions is None else old_versions
    table: dict = old
    if len(listed) != len(listed_keys) or (versioned and len(news) != len(listed)):
        raise ValueError(
            f"{len(listed_keys)} keys, {len(listed)} values and {len(news)} versions do not belong together"
        )
    changes = bytearray()
    changed_keys: list = []
    changed: list = []
    state: dict = {}
    for i in range(len(listed_keys)):
        key = listed_keys[i]
        new = listed[i]
        current = state.get(key, MISSING)
        if current is MISSING:
            current = table.get(key)
        if new is None:
            if current is None:
                continue
        elif current is not None and (keep or (versioned and news[i] < olds[key])):
            continue
        if versioned:
            olds[key] = news[i]
        state[key] = new
        changed_keys.append(key)
        if new is None:
            changes.append(_DELETE)
            changed.append(current)
            continue
        if current is None and inserts:
            changes.append(_INSERT)
        else:
            if before:
                changes.append(_UPDATE_BEFORE)
                changed.append(current)
                changed_keys.append(key)
            changes.append(_UPDATE_AFTER)
        changed.append(new)
    return changes, changed_keys, changed, state


def chain_changes(
    keys: list[bytes],
    values: list[bytes | None],
    stored: dict[bytes, int],
    kept: Any,
    kept_new: bool,
    with_before: bool,
    keep_present: bool,
) -> tuple[bytearray, bytearray, bytearray, list[bytes], bytearray, dict[bytes, int]]:
    """What the records do, by the numbers of rows: stored rows come first, then one for every record.

    `stored` has the keys of stored rows. A delete (None) removes a row, unless `kept` has a byte for its stored row
    that is not 0, or `kept_new` for one that came with the batch: then the delete leaves a row. Returned are, int32
    each, what every record's row is merged with (-1: nothing) and which row it began with; change types, keys and rows
    they are about, and what is left at each key that changed; -1 is a delete.
    """
    i: cython.Py_ssize_t
    current: cython.int
    origin: cython.int
    row: cython.int
    listed_keys: list = keys
    listed: list = values
    places: dict = stored
    count: cython.int = len(places)
    keeps_rows: cython.bint = kept is not None
    flags_bytes = b"" if kept is None else kept
    flags: cython.p_uchar = pointer(flags_bytes)
    new_stays: cython.bint = kept_new
    before: cython.bint = with_before
    keep: cython.bint = keep_present
    if len(listed) != len(listed_keys) or (keeps_rows and len(flags_bytes) != count):
        raise ValueError(f"{len(listed_keys)} keys, {len(listed)} values and {count} rows do not belong together")
    merged_bytes = bytearray(4 * len(listed))
    merged: cython.p_int = as_int32(pointer(merged_bytes))
    origins_bytes = bytearray(4 * len(listed))
    origins: cython.p_int = as_int32(pointer(origins_bytes))
    changes = bytearray()
    changed_keys: list = []
    rows_bytes = bytearray(8 * len(listed))
    rows: cython.p_int = as_int32(pointer(rows_bytes))
    changed: cython.Py_ssize_t = 0
    state: dict = {}
    for i in range(len(listed_keys)):
        key = listed_keys[i]
        found = state.get(key)
        if found is None:
            found = places.get(key)
        current = -1 if found is None else found
        if current >= count + i:
            raise ValueError(f"there is no row {current} before record {i}")
        row = count + i
        merged[i] = -1
        origins[i] = row
        origin = row
        if current >= 0:
            origin = current if current < count else origins[current - count]
        if listed[i] is None:
            if current < 0:
                continue
            if not keeps_rows or not (new_stays if origin >= count else flags[origin]):
                changes.append(_DELETE)
                changed_keys.append(key)
                rows[changed] = current
                changed += 1
                state[key] = -1
                continue
        elif current >= 0:
            if keep:
                continue
            merged[i] = current
        origins[i] = origin
        state[key] = row
        if current < 0:
            changes.append(_INSERT)
        else:
            if before:
                changes.append(_UPDATE_BEFORE)
                changed_keys.append(key)
                rows[changed] = current
                changed += 1
            changes.append(_UPDATE_AFTER)
        changed_keys.append(key)
        rows[changed] = row
        changed += 1
    return merged_bytes, origins_bytes, changes, changed_keys, rows_bytes[: 4 * changed], state


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
