"""What C and Python do differently; numbers, bits, bytes and times that several subjects read and write alike."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta
from typing import Any

from fluss.kernels import codes
from fluss.kernels._cyshim import cython
from fluss.model.errors import SchemaMismatchError

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcmp, memcpy


I64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
I32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)

CODE_BOOL = cython.declare(cython.int, codes.CODE_BOOL)
CODE_FIXED_INT = cython.declare(cython.int, codes.CODE_FIXED_INT)
CODE_FIXED_FLOAT = cython.declare(cython.int, codes.CODE_FIXED_FLOAT)
CODE_VARINT = cython.declare(cython.int, codes.CODE_VARINT)
CODE_BYTES = cython.declare(cython.int, codes.CODE_BYTES)
CODE_FIXED_BYTES = cython.declare(cython.int, codes.CODE_FIXED_BYTES)
CODE_BIG_DECIMAL = cython.declare(cython.int, codes.CODE_BIG_DECIMAL)
CODE_TIMESTAMP = cython.declare(cython.int, codes.CODE_TIMESTAMP)
CODE_CHAR = cython.declare(cython.int, codes.CODE_CHAR)
CODE_NESTED = cython.declare(cython.int, codes.CODE_NESTED)

LAYOUT_KEY = cython.declare(cython.int, codes.LAYOUT_KEY)
LAYOUT_COMPACTED = cython.declare(cython.int, codes.LAYOUT_COMPACTED)
LAYOUT_INDEXED = cython.declare(cython.int, codes.LAYOUT_INDEXED)
# Values in the slots of binary arrays and aligned rows; no layout of rows by itself.
LAYOUT_SLOTS = cython.declare(cython.int, 3)
INLINE_MAX = cython.declare(cython.int, 7)  # bytes that a slot itself can hold

MISSING = object()


# --- Bytes ----------------------------------------------------------------------------------------------------------


@cython.cfunc
def pointer(view: object) -> cython.p_uchar:
    """The first byte of a bytes-like object; uncompiled, the object as a view of bytes."""
    if cython.compiled:
        typed: cython.const[cython.uchar][::1] = view
        if typed.shape[0] == 0:
            return cython.NULL
        return cython.cast(cython.p_uchar, cython.address(typed[0]))
    else:
        return memoryview(view)


@cython.cfunc
@cython.inline
def as_int32(base: cython.p_uchar) -> cython.p_int:
    if cython.compiled:
        return cython.cast(cython.p_int, base)
    else:
        return base[: len(base) // 4 * 4].cast("i")


@cython.cfunc
@cython.inline
def as_int64(base: cython.p_uchar) -> cython.p_longlong:
    if cython.compiled:
        return cython.cast(cython.p_longlong, base)
    else:
        return base[: len(base) // 8 * 8].cast("q")


@cython.cfunc
@cython.inline
def as_double(base: cython.p_uchar) -> cython.p_double:
    if cython.compiled:
        return cython.cast(cython.p_double, base)
    else:
        return base[: len(base) // 8 * 8].cast("d")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def copy_bytes(
    target: cython.p_uchar,
    target_at: cython.Py_ssize_t,
    source: cython.p_uchar,
    source_at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        if size > 0:
            memcpy(cython.address(target[target_at]), cython.address(source[source_at]), size)
    else:
        target[target_at : target_at + size] = source[source_at : source_at + size]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def is_equal(
    left: cython.p_uchar,
    left_at: cython.Py_ssize_t,
    right: cython.p_uchar,
    right_at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.bint:
    if cython.compiled:
        return size == 0 or memcmp(cython.address(left[left_at]), cython.address(right[right_at]), size) == 0
    else:
        return left[left_at : left_at + size] == right[right_at : right_at + size]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def content_of(buffer: bytearray) -> cython.p_uchar:
    """Valid until the next `resize`; uncompiled the buffer itself, as one with views could not grow."""
    if cython.compiled:
        return cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
    else:
        return buffer


@cython.cfunc
def bytes_behind(prefix: bytes, base: cython.p_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    """A new byte string: the prefix, then what lies from `start` to `end`."""
    if cython.compiled:
        head: cython.Py_ssize_t = len(prefix)
        joined: bytes = PyBytes_FromStringAndSize(cython.NULL, head + end - start)
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(joined))
        copy_bytes(out, 0, cython.cast(cython.p_uchar, PyBytes_AS_STRING(prefix)), 0, head)
        copy_bytes(out, head, base, start, end - start)
        return joined
    else:
        return prefix + bytes(base[start:end])


@cython.cfunc
def resize(buffer: bytearray, size: cython.Py_ssize_t) -> cython.int:
    """Bytes that are added have no particular value."""
    if cython.compiled:
        PyByteArray_Resize(buffer, size)
    elif size > len(buffer):
        buffer.extend(bytes(size - len(buffer)))
    else:
        del buffer[size:]
    return 0


@cython.cfunc
def check_size(name: str, buffer: object, size: cython.Py_ssize_t) -> object:
    if len(buffer) < size:
        raise SchemaMismatchError(f"Column {name!r}: a buffer of {len(buffer)} bytes where {size} are needed.")
    return None


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def int32_at(base: cython.p_uchar, at: cython.Py_ssize_t) -> cython.int:
    if cython.compiled:
        return cython.cast(cython.p_int, base)[at]
    else:
        return int.from_bytes(base[4 * at : 4 * at + 4], "little", signed=True)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def load(base: cython.p_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.longlong:
    """The signed number in 4 or 8 bytes at any place."""
    if cython.compiled:
        wide: cython.longlong = 0
        narrow: cython.int = 0
        if width == 8:
            memcpy(cython.address(wide), cython.address(base[at]), 8)
            return wide
        memcpy(cython.address(narrow), cython.address(base[at]), 4)
        return narrow
    else:
        return int.from_bytes(base[at : at + width], "little", signed=True)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def save(base: cython.p_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t, number: cython.longlong) -> cython.void:
    """Put a signed number into 4 or 8 bytes at any place."""
    if cython.compiled:
        narrow: cython.int = cython.cast(cython.int, number)
        if width == 8:
            memcpy(cython.address(base[at]), cython.address(number), 8)
        else:
            memcpy(cython.address(base[at]), cython.address(narrow), 4)
    else:
        base[at : at + width] = number.to_bytes(width, "little", signed=True)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def from_second(base: cython.p_int) -> cython.p_int:
    if cython.compiled:
        return cython.address(base[1])
    else:
        return base[1:]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_int(
    base: cython.p_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t, number: cython.longlong
) -> cython.void:
    if cython.compiled:
        if width == 8:
            cython.cast(cython.p_longlong, base)[at] = number
        elif width == 4:
            cython.cast(cython.p_int, base)[at] = cython.cast(cython.int, number)
        elif width == 2:
            cython.cast(cython.p_short, base)[at] = cython.cast(cython.short, number)
        else:
            base[at] = cython.cast(cython.uchar, number)
    else:
        base[at * width : (at + 1) * width] = number.to_bytes(width, "little", signed=True)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_float(
    base: cython.p_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t, number: cython.double
) -> cython.void:
    if cython.compiled:
        if width == 8:
            cython.cast(cython.p_double, base)[at] = number
        else:
            cython.cast(cython.p_float, base)[at] = cython.cast(cython.float, number)
    else:
        struct.pack_into("<d" if width == 8 else "<f", base, at * width, number)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def is_set(bits: cython.p_uchar, at: cython.Py_ssize_t) -> cython.bint:
    return (bits[at >> 3] >> (at & 7)) & 1 != 0


# --- Numbers --------------------------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def unsigned(value: cython.longlong, bits: cython.int) -> cython.ulonglong:
    """The two's-complement pattern of `value` in 32 or 64 bits."""
    if cython.compiled:
        if bits == 32:
            return cython.cast(cython.uint, value)
        return cython.cast(cython.ulonglong, value)
    else:
        return value & ((1 << bits) - 1)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def signed(pattern: cython.ulonglong, bits: cython.int) -> cython.longlong:
    if cython.compiled:
        if bits == 32:
            return cython.cast(cython.int, cython.cast(cython.uint, pattern))
        return cython.cast(cython.longlong, pattern)
    else:
        return pattern - (1 << bits) if pattern >> (bits - 1) else pattern


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def wrapped(pattern: cython.ulonglong, bits: cython.int) -> cython.longlong:
    """The number that the lowest 8, 16, 32 or 64 bits of a pattern mean."""
    if cython.compiled:
        if bits == 8:
            return cython.cast(cython.schar, cython.cast(cython.uchar, pattern))
        if bits == 16:
            return cython.cast(cython.short, cython.cast(cython.ushort, pattern))
        return signed(pattern, bits)
    else:
        return signed(pattern & ((1 << bits) - 1), bits)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def to_single(number: cython.double) -> cython.double:
    """The nearest number of 32 bits."""
    if cython.compiled:
        return cython.cast(cython.float, number)
    else:
        try:
            return struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            return math.copysign(math.inf, number)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def mul32(left: cython.uint, right: cython.uint) -> cython.uint:
    if cython.compiled:
        return left * right
    else:
        return (left * right) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def rotl32(value: cython.uint, shift: cython.int) -> cython.uint:
    if cython.compiled:
        return (value << shift) | (value >> (32 - shift))
    else:
        return ((value << shift) | (value >> (32 - shift))) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def add32(left: cython.uint, right: cython.uint) -> cython.uint:
    if cython.compiled:
        return left + right
    else:
        return (left + right) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def add64(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return left + right
    else:
        return (left + right) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def mul64(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return left * right
    else:
        return (left * right) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def floor_div(value: cython.longlong, divisor: cython.longlong) -> cython.longlong:
    return value // divisor


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def varint_size(pattern: cython.ulonglong) -> cython.int:
    size: cython.int = 1
    while pattern >= 0x80:
        pattern >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_varint(out: cython.p_uchar, at: cython.Py_ssize_t, pattern: cython.ulonglong) -> cython.Py_ssize_t:
    while pattern >= 0x80:
        out[at] = (pattern & 0x7F) | 0x80
        pattern >>= 7
        at += 1
    out[at] = pattern
    return at + 1


if cython.compiled:
    from cython.cimports.cpython.datetime import (
        date_day,
        date_month,
        date_year,
        datetime_hour,
        datetime_microsecond,
        datetime_minute,
        datetime_new,
        datetime_second,
        datetime_tzinfo,
        import_datetime,
    )

    import_datetime()


# Seconds beyond these do not fit 64-bit nanoseconds.
NANOSECOND_RANGE_SECONDS = cython.declare(cython.longlong, 9_223_372_035)
EPOCH = datetime(1970, 1, 1)
EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = cython.declare(cython.longlong, date(1970, 1, 1).toordinal())
_MARCH_0_US = cython.declare(cython.longlong, 719_468 * 86_400_000_000)  # from 0000-03-01 to 1970-01-01
_DATETIME_US_MIN = cython.declare(cython.longlong, (datetime.min - EPOCH) // timedelta(microseconds=1))
_DATETIME_US_MAX = cython.declare(cython.longlong, (datetime.max - EPOCH) // timedelta(microseconds=1))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def epoch_days(value: object) -> cython.longlong:
    """Days from 1970-01-01 to a date or datetime."""
    if cython.compiled:
        # Years begin in March, so that the leap day is the last one of its year; all operands are positive.
        month: cython.longlong = (date_month(value) + 9) % 12
        year: cython.longlong = date_year(value) - (1 if month >= 10 else 0)
        days: cython.longlong = 365 * year + year // 4 - year // 100 + year // 400
        return days + (153 * month + 2) // 5 + date_day(value) - 719_469
    else:
        return value.toordinal() - _EPOCH_ORDINAL


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def second_of_day(value: object) -> cython.longlong:
    if cython.compiled:
        return datetime_hour(value) * 3600 + datetime_minute(value) * 60 + datetime_second(value)
    else:
        return value.hour * 3600 + value.minute * 60 + value.second


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def microsecond_of(value: object) -> cython.longlong:
    if cython.compiled:
        return datetime_microsecond(value)
    else:
        return value.microsecond


@cython.cfunc
@cython.inline
def zone_of(value: object) -> object:
    if cython.compiled:
        return datetime_tzinfo(value)
    else:
        return value.tzinfo


@cython.cfunc
def whole_seconds(delta: object) -> cython.longlong:
    days: cython.longlong = delta.days
    seconds: cython.longlong = delta.seconds
    return days * 86_400 + seconds


@cython.cfunc
@cython.inline
def in_units(seconds: cython.longlong, microsecond: cython.longlong, units: cython.longlong) -> cython.longlong:
    """Digits that the unit can't hold are cut off, towards the past."""
    if units <= 1_000_000:
        return seconds * units + microsecond // (1_000_000 // units)
    return seconds * units + microsecond * 1_000


@cython.cfunc
@cython.inline
def is_nat(value: object) -> cython.bint:
    """pandas.NaT is a datetime; numpy has its own."""
    if type(value) is datetime or type(value) is date:
        return False
    return (isinstance(value, datetime) or is_datetime64(value)) and value != value


@cython.cfunc
@cython.inline
def is_datetime64(value: object) -> cython.bint:
    return type(value).__name__ == "datetime64" and type(value).__module__ == "numpy"


@cython.cfunc
@cython.inline
@cython.cdivision(True)
def _datetime(microseconds: cython.longlong, zone: object) -> object:
    """The time so many microseconds after 1970-01-01."""
    if cython.compiled:
        # Counted from 0000-03-01, as in `epoch_days`: all operands are positive.
        since: cython.longlong = microseconds + _MARCH_0_US
        seconds: cython.longlong = since // 1_000_000
        days: cython.int = seconds // 86_400
        second: cython.int = seconds % 86_400
        day_of_era: cython.int = days % 146_097
        year: cython.int = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
        day_of_year: cython.int = day_of_era - (365 * year + year // 4 - year // 100)
        month: cython.int = (5 * day_of_year + 2) // 153
        year += 400 * (days // 146_097) + (1 if month >= 10 else 0)
        return datetime_new(
            year,
            month - 9 if month >= 10 else month + 3,
            day_of_year - (153 * month + 2) // 5 + 1,
            second // 3600,
            second // 60 % 60,
            second % 60,
            since % 1_000_000,
            zone,
        )
    else:
        return (EPOCH if zone is None else EPOCH_UTC) + timedelta(0, 0, microseconds)


def datetimes_of(values: list[Any], units: int, zone: Any) -> list[Any]:
    """Times of a zone, UTC or None, from numbers since 1970-01-01 with `units` in a second; nanoseconds are cut off."""
    number: cython.longlong
    divisor: cython.longlong = units // 1_000_000 if units > 1_000_000 else 1
    factor: cython.longlong = 1_000_000 // units if units < 1_000_000 else 1
    low: cython.longlong = _DATETIME_US_MIN // factor
    high: cython.longlong = _DATETIME_US_MAX // factor
    result: list = []
    for value in values:
        if value is None:
            result.append(None)
            continue
        number = floor_div(value, divisor)
        if number < low or number > high:
            raise OverflowError("date value out of range")
        result.append(_datetime(number * factor, zone))
    return result
