"""Hashes of keys, which choose buckets, and digests of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import (
    CODE_BOOL,
    CODE_FIXED_FLOAT,
    I64_MAX,
    LAYOUT_KEY,
    add32,
    add64,
    as_int32,
    as_int64,
    check_size,
    is_set,
    mul32,
    mul64,
    pointer,
    rotl32,
    signed,
    unsigned,
)
from fluss.kernels.row_decoding import EncodedRows, rows_behind_each_other
from fluss.model.errors import SchemaMismatchError

if cython.compiled:
    from cython.cimports.libc.string import memcpy


# --- Buckets --------------------------------------------------------------------------------------------------------

_C1 = cython.declare(cython.uint, 0xCC9E2D51)
_C2 = cython.declare(cython.uint, 0x1B873593)
_C3 = cython.declare(cython.uint, 0xE6546B64)
_C4 = cython.declare(cython.uint, 0x85EBCA6B)
_C5 = cython.declare(cython.uint, 0xC2B2AE35)
_SIGN_FILL = cython.declare(cython.uint, 0xFFFFFF00)
_INT_MIN_PATTERN = cython.declare(cython.uint, 0x80000000)
_SEED = cython.declare(cython.uint, 42)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word_step(state: cython.uint, word: cython.uint) -> cython.uint:
    word = mul32(rotl32(mul32(word, _C1), 15), _C2)
    return add32(mul32(rotl32(state ^ word, 13), 5), _C3)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _finish(state: cython.uint) -> cython.uint:
    state = mul32(state ^ (state >> 16), _C4)
    state = mul32(state ^ (state >> 13), _C5)
    return state ^ (state >> 16)


@cython.cfunc
@cython.exceptval(check=False)
def _hash(
    data: cython.p_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t, sign_extend: cython.bint
) -> cython.uint:
    """Murmur3 with seed 42 whose leftover bytes each take a full word step, sign-extended as Java does it."""
    at: cython.Py_ssize_t = start
    word: cython.uint
    state: cython.uint = _SEED
    while at + 4 <= end:
        word = data[at + 3]
        word = (word << 8) | data[at + 2]
        word = (word << 8) | data[at + 1]
        word = (word << 8) | data[at]
        state = _word_step(state, word)
        at += 4
    while at < end:
        word = data[at]
        if sign_extend and word >= 0x80:
            word |= _SIGN_FILL
        state = _word_step(state, word)
        at += 1
    length: cython.uint = end - start
    return _finish(state ^ length)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _bucket(hashed: cython.uint, bucket_count: cython.uint) -> cython.uint:
    mixed: cython.uint = _finish(_word_step(0, hashed) ^ 4)
    if mixed == _INT_MIN_PATTERN:
        mixed = 0
    elif mixed > _INT_MIN_PATTERN:
        mixed = add32(~mixed if cython.compiled else mixed ^ 0xFFFFFFFF, 1)
    return mixed % bucket_count


def hash_key(key: bytes, sign_extend: bool) -> int:
    """The signed 32-bit hash of an encoded key."""
    view: object = key
    pattern: cython.ulonglong = _hash(pointer(view), 0, len(key), sign_extend)
    return signed(pattern, 32)


def bucket_of(key: bytes, bucket_count: int, sign_extend: bool) -> int:
    """The bucket of an encoded key."""
    view: object = key
    _check_bucket_count(bucket_count)
    return _bucket(_hash(pointer(view), 0, len(key), sign_extend), bucket_count)


def buckets(data: Any, offsets: Any, row_count: int, bucket_count: int, sign_extend: bool) -> bytearray:
    """The buckets of encoded keys, int32 each."""
    i: cython.Py_ssize_t
    count: cython.uint = _check_bucket_count(bucket_count)
    extend: cython.bint = sign_extend
    rows: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_KEY, 0, 0)
    out_bytes = bytearray(4 * row_count)
    out: cython.p_int = as_int32(pointer(out_bytes))
    for i in range(rows.count):
        out[i] = _bucket(_hash(rows.data, rows.starts[i], rows.ends[i], extend), count)
    return out_bytes


@cython.cfunc
@cython.exceptval(check=False)
def _published_hash(data: cython.p_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.uint:
    """Murmur3 as it was published, with seed 0."""
    at: cython.Py_ssize_t = start
    word: cython.uint
    state: cython.uint = 0
    while at + 4 <= end:
        word = data[at + 3]
        word = (word << 8) | data[at + 2]
        word = (word << 8) | data[at + 1]
        word = (word << 8) | data[at]
        state = _word_step(state, word)
        at += 4
    if at < end:
        word = 0
        if end - at > 2:
            word = data[at + 2]
        if end - at > 1:
            word = (word << 8) | data[at + 1]
        word = (word << 8) | data[at]
        state ^= mul32(rotl32(mul32(word, _C1), 15), _C2)
    length: cython.uint = end - start
    return _finish(state ^ length)


def lake_buckets(data: Any, offsets: Any, row_count: int, bucket_count: int, iceberg: bool) -> bytearray:
    """The buckets of encoded keys as Iceberg, or else Paimon, chooses them, int32 each."""
    i: cython.Py_ssize_t
    hashed: cython.uint
    count: cython.uint = _check_bucket_count(bucket_count)
    is_iceberg: cython.bint = iceberg
    rows: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_KEY, 0, 0)
    out_bytes = bytearray(4 * row_count)
    out: cython.p_int = as_int32(pointer(out_bytes))
    for i in range(rows.count):
        if is_iceberg:
            hashed = _published_hash(rows.data, rows.starts[i], rows.ends[i]) & 0x7FFFFFFF
        else:
            # The amount of Java's remainder, which has the sign of the hash.
            hashed = _hash(rows.data, rows.starts[i], rows.ends[i], True)
            if hashed > _INT_MIN_PATTERN:
                hashed = add32(~hashed if cython.compiled else hashed ^ 0xFFFFFFFF, 1)
        out[i] = hashed % count
    return out_bytes


@cython.cfunc
def _check_bucket_count(bucket_count: object) -> object:
    if not 1 <= bucket_count <= 0x7FFFFFFF:
        raise ValueError(f"a table has at least one bucket, not {bucket_count}")
    return bucket_count


# --- Digests of rows ------------------------------------------------------------------------------------------------

_FACTOR_1 = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
_FACTOR_2 = cython.declare(cython.ulonglong, 0xC2B2AE3D27D4EB4F)
_FACTOR_3 = cython.declare(cython.ulonglong, 0xD6E8FEB86659FD93)
_INFINITY_32 = cython.declare(cython.ulonglong, 0x7F800000)
_INFINITY_64 = cython.declare(cython.ulonglong, 0x7FF0000000000000)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word_at(base: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.ulonglong:
    """The unsigned number in 1 to 8 bytes."""
    if cython.compiled:
        i: cython.Py_ssize_t
        word: cython.ulonglong = 0
        if size == 8:
            memcpy(cython.address(word), cython.address(base[at]), 8)
            return word
        for i in range(size):
            word |= cython.cast(cython.ulonglong, base[at + i]) << (8 * i)
        return word
    else:
        return int.from_bytes(base[at : at + size], "little")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _stirred(state: cython.ulonglong, word: cython.ulonglong, factor: cython.ulonglong) -> cython.ulonglong:
    state = mul64(state ^ word, factor)
    return state ^ (state >> 32)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _same_nan(word: cython.ulonglong, width: cython.Py_ssize_t) -> cython.ulonglong:
    """The bits of a float; those of a NaN depend on how it came about, so all are taken for one."""
    if width == 4:
        return _INFINITY_32 + 1 if (word & 0x7FFFFFFF) > _INFINITY_32 else word
    return _INFINITY_64 + 1 if (word & I64_MAX) > _INFINITY_64 else word


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash_of_bytes(
    seed: cython.ulonglong, base: cython.p_uchar, start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.ulonglong:
    """Two states take turns, so that neither waits for the other."""
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + size
    even: cython.ulonglong = seed
    odd: cython.ulonglong = seed ^ _FACTOR_3
    while at + 16 <= end:
        even = _stirred(even, _word_at(base, at, 8), _FACTOR_1)
        odd = _stirred(odd, _word_at(base, at + 8, 8), _FACTOR_2)
        at += 16
    if at + 8 <= end:
        even = _stirred(even, _word_at(base, at, 8), _FACTOR_1)
        at += 8
    if at < end:
        odd = _stirred(odd, _word_at(base, at, end - at), _FACTOR_2)
    length: cython.ulonglong = size
    return _stirred(even ^ length, odd, _FACTOR_3)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add_to_row(
    hashes: cython.p_longlong, row: cython.Py_ssize_t, seed: cython.ulonglong, word: cython.ulonglong
) -> cython.void:
    """Columns come one after the other; the seed tells them apart, so that one may be left out where it is null."""
    hashes[row] = signed(_stirred(add64(unsigned(hashes[row], 64), seed), word, _FACTOR_1), 64)


def add_hashes(hashes: bytearray, seed: int, code: int, width: int, buffers: Sequence[Any], offset: int) -> None:
    """Add a column's values to the hashes of their rows, 8 bytes each; a null adds nothing.

    `buffers` are validity or None and values, both from row `offset` on. `width` is that of a value in bytes.
    """
    i: cython.Py_ssize_t
    rows: cython.Py_ssize_t = len(hashes) // 8
    step: cython.Py_ssize_t = width
    first: cython.Py_ssize_t = offset
    is_bool: cython.bint = code == CODE_BOOL
    is_float: cython.bint = code == CODE_FIXED_FLOAT
    validity_view, values_view = buffers
    has_nulls: cython.bint = validity_view is not None
    if has_nulls:
        check_size("", validity_view, (first + rows + 7) // 8)
    check_size("", values_view, (first + rows + 7) // 8 if is_bool else (first + rows) * step)
    validity: cython.p_uchar = pointer(validity_view if has_nulls else b"")
    values: cython.p_uchar = pointer(values_view)
    out: cython.p_longlong = as_int64(pointer(hashes))
    start: cython.ulonglong = _stirred(seed, _FACTOR_1, _FACTOR_3)
    word: cython.ulonglong
    if step == 8 and not (has_nulls or is_float):
        for i in range(rows):
            _add_to_row(out, i, start, _word_at(values, (first + i) * 8, 8))
        return
    for i in range(rows):
        if has_nulls and not is_set(validity, first + i):
            continue
        if is_bool:
            word = 1 if is_set(values, first + i) else 0
        elif step == 8:
            word = _word_at(values, (first + i) * 8, 8)
        elif step < 8:
            word = _word_at(values, (first + i) * step, step)
        else:
            word = _hash_of_bytes(start, values, (first + i) * step, step)
        if is_float:
            word = _same_nan(word, step)
        _add_to_row(out, i, start, word)


def add_hashes_of_bytes(
    hashes: bytearray, seed: int, width: int, buffers: Sequence[Any], offset: int, base: int
) -> None:
    """The same for values of any number of items, each `width` bytes.

    `buffers` are validity or None, value offsets, and the items from that with number `base` on.
    """
    i: cython.Py_ssize_t
    at: cython.longlong
    end: cython.longlong
    rows: cython.Py_ssize_t = len(hashes) // 8
    step: cython.Py_ssize_t = width
    first: cython.Py_ssize_t = offset
    skipped: cython.longlong = base
    validity_view, offsets_view, values_view = buffers
    has_nulls: cython.bint = validity_view is not None
    if has_nulls:
        check_size("", validity_view, (first + rows + 7) // 8)
    check_size("", offsets_view, 4 * (first + rows + 1))
    validity: cython.p_uchar = pointer(validity_view if has_nulls else b"")
    offsets: cython.p_int = as_int32(pointer(offsets_view))
    values: cython.p_uchar = pointer(values_view)
    values_size: cython.longlong = len(values_view)
    out: cython.p_longlong = as_int64(pointer(hashes))
    start: cython.ulonglong = _stirred(seed, _FACTOR_1, _FACTOR_3)
    for i in range(rows):
        if has_nulls and not is_set(validity, first + i):
            continue
        at = (offsets[first + i] - skipped) * step
        end = (offsets[first + i + 1] - skipped) * step
        if at < 0 or end < at or end > values_size:
            raise SchemaMismatchError(f"An Arrow column has a value at bytes {at} to {end} of {values_size}.")
        _add_to_row(out, i, start, _hash_of_bytes(start, values, at, end - at))


def sum_hashes(hashes: bytearray, seed: int) -> int:
    """The sum of the hashes of rows, in 64 bits: the same in whatever order they come."""
    i: cython.Py_ssize_t
    of_rows: cython.p_longlong = as_int64(pointer(hashes))
    start: cython.ulonglong = seed
    total: cython.ulonglong = 0
    for i in range(len(hashes) // 8):
        total = add64(total, _stirred(_stirred(start, unsigned(of_rows[i], 64), _FACTOR_1), 0, _FACTOR_3))
    return total
