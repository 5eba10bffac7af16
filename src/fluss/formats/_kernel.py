# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=False
"""Hot loops over rows, in Cython's pure-Python mode: `_kernel_c` is this file compiled, and this file is the fallback.

Rules that keep one source for both: a variable typed as a pointer is, uncompiled, a memoryview or bytearray, so only
`base[index]` is used, never pointer arithmetic. The few things that C and Python do differently are in the small
helpers of the first section. Every range and type check is explicit, because C would wrap where Python would not.
Columns are processed one at a time: a size pass, a prefix sum, a write pass.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from numbers import Real
from operator import index as to_index
from typing import Any

from fluss.formats import kinds as _kinds
from fluss.model.errors import CorruptDataError, SchemaMismatchError

try:
    import cython
except ImportError:
    from fluss.formats import _cyshim as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.datetime import (
        date_day,
        date_month,
        date_year,
        datetime_hour,
        datetime_microsecond,
        datetime_minute,
        datetime_second,
        datetime_tzinfo,
        import_datetime,
        time_hour,
        time_microsecond,
        time_minute,
        time_second,
    )
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcpy

    import_datetime()

COMPILED = bool(cython.compiled)

_I64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_I32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_FLOAT_MAX = cython.declare(cython.double, struct.unpack("<f", b"\xff\xff\x7f\x7f")[0])

_NESTED = cython.declare(cython.int, _kinds.KIND_NESTED)
_BOOL = cython.declare(cython.int, _kinds.KIND_BOOL)
_INT = cython.declare(cython.int, _kinds.KIND_INT)
_FLOAT = cython.declare(cython.int, _kinds.KIND_FLOAT)
_DOUBLE = cython.declare(cython.int, _kinds.KIND_DOUBLE)
_STRING = cython.declare(cython.int, _kinds.KIND_STRING)
_BYTES = cython.declare(cython.int, _kinds.KIND_BYTES)
_BINARY = cython.declare(cython.int, _kinds.KIND_BINARY)
_DECIMAL = cython.declare(cython.int, _kinds.KIND_DECIMAL)
_DATE = cython.declare(cython.int, _kinds.KIND_DATE)
_TIME = cython.declare(cython.int, _kinds.KIND_TIME)
_TIMESTAMP = cython.declare(cython.int, _kinds.KIND_TIMESTAMP)
_TIMESTAMP_LTZ = cython.declare(cython.int, _kinds.KIND_TIMESTAMP_LTZ)

_CODE_BOOL = cython.declare(cython.int, _kinds.CODE_BOOL)
_CODE_FIXED_INT = cython.declare(cython.int, _kinds.CODE_FIXED_INT)
_CODE_FIXED_FLOAT = cython.declare(cython.int, _kinds.CODE_FIXED_FLOAT)
_CODE_VARINT = cython.declare(cython.int, _kinds.CODE_VARINT)
_CODE_BYTES = cython.declare(cython.int, _kinds.CODE_BYTES)
_CODE_FIXED_BYTES = cython.declare(cython.int, _kinds.CODE_FIXED_BYTES)
_CODE_BIG_DECIMAL = cython.declare(cython.int, _kinds.CODE_BIG_DECIMAL)

# Seconds beyond these do not fit 64-bit nanoseconds.
_NANOSECOND_RANGE_SECONDS = cython.declare(cython.longlong, 9_223_372_035)
_SECONDS_TO_MS_MAX = cython.declare(cython.longlong, 9_223_372_036_854_775)

# Rows, or bytes of a column of variable size, that a builder first makes room for; a multiple of 8.
_FIRST_CAPACITY = cython.declare(cython.Py_ssize_t, 64)

_MISSING = object()
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = cython.declare(cython.longlong, date(1970, 1, 1).toordinal())
# 38 digits and any scale a table can have, exactly; rounding is an error.
_EXACT = Context(prec=120, traps=[Inexact, InvalidOperation])


# --- What C and Python do differently -------------------------------------------------------------------------------


@cython.cfunc
def _pointer(view: object) -> cython.p_uchar:
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
def _as_int32(base: cython.p_uchar) -> cython.p_int:
    if cython.compiled:
        return cython.cast(cython.p_int, base)
    else:
        return base[: len(base) // 4 * 4].cast("i")


@cython.cfunc
@cython.inline
def _as_int64(base: cython.p_uchar) -> cython.p_longlong:
    if cython.compiled:
        return cython.cast(cython.p_longlong, base)
    else:
        return base[: len(base) // 8 * 8].cast("q")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(
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
def _bytes_of(buffer: bytearray) -> cython.p_uchar:
    """Valid until the next `_resize`; uncompiled the buffer itself, as one with views could not grow."""
    if cython.compiled:
        return cython.cast(cython.p_uchar, PyByteArray_AS_STRING(buffer))
    else:
        return buffer


@cython.cfunc
def _resize(buffer: bytearray, size: cython.Py_ssize_t) -> cython.int:
    """Bytes that are added have no particular value."""
    if cython.compiled:
        PyByteArray_Resize(buffer, size)
    elif size > len(buffer):
        buffer.extend(bytes(size - len(buffer)))
    else:
        del buffer[size:]
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _int32_at(base: cython.p_uchar, at: cython.Py_ssize_t) -> cython.int:
    if cython.compiled:
        return cython.cast(cython.p_int, base)[at]
    else:
        return int.from_bytes(base[4 * at : 4 * at + 4], "little", signed=True)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_int(
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
def _put_float(
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
def _epoch_days(value: object) -> cython.longlong:
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
def _second_of_day(value: object) -> cython.longlong:
    if cython.compiled:
        return datetime_hour(value) * 3600 + datetime_minute(value) * 60 + datetime_second(value)
    else:
        return value.hour * 3600 + value.minute * 60 + value.second


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _microsecond(value: object) -> cython.longlong:
    if cython.compiled:
        return datetime_microsecond(value)
    else:
        return value.microsecond


@cython.cfunc
@cython.inline
def _zone(value: object) -> object:
    if cython.compiled:
        return datetime_tzinfo(value)
    else:
        return value.tzinfo


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _unsigned(value: cython.longlong, bits: cython.int) -> cython.ulonglong:
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
def _signed(pattern: cython.ulonglong, bits: cython.int) -> cython.longlong:
    if cython.compiled:
        if bits == 32:
            return cython.cast(cython.int, cython.cast(cython.uint, pattern))
        return cython.cast(cython.longlong, pattern)
    else:
        return pattern - (1 << bits) if pattern >> (bits - 1) else pattern


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _mul32(left: cython.uint, right: cython.uint) -> cython.uint:
    if cython.compiled:
        return left * right
    else:
        return (left * right) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _rotl32(value: cython.uint, shift: cython.int) -> cython.uint:
    if cython.compiled:
        return (value << shift) | (value >> (32 - shift))
    else:
        return ((value << shift) | (value >> (32 - shift))) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add32(left: cython.uint, right: cython.uint) -> cython.uint:
    if cython.compiled:
        return left + right
    else:
        return (left + right) & 0xFFFFFFFF


# --- Rows of Python values into columns -----------------------------------------------------------------------------


@cython.cclass
class _Column:
    """Checks the Python values of one column and keeps them as Arrow buffers that grow.

    A value is written behind the last row and counts only once its row is counted, so that a row which is refused
    halfway needs no undoing. Nested values are Arrow arrays of one row each.
    """

    name: str
    kind: cython.int
    limit: cython.longlong
    decimal_limit: object
    scale: object
    nullable: cython.bint
    type_text: str
    nested: object
    width: cython.Py_ssize_t
    variable: cython.bint
    capacity: cython.Py_ssize_t
    data_capacity: cython.Py_ssize_t
    validity: bytearray
    values: bytearray
    data: bytearray
    arrays: list
    validity_at: cython.p_uchar
    values_at: cython.p_uchar
    data_at: cython.p_uchar

    def __init__(self, name: str, kind: Any, nested: Any) -> None:
        self.name = name
        self.kind = kind.kind
        self.limit = kind.limit if kind.limit <= _I64_MAX else 0
        self.decimal_limit = kind.limit
        self.scale = kind.scale
        self.nullable = kind.nullable
        self.type_text = kind.type_text
        self.nested = nested
        self.width = kind.fixed_size_bytes
        self.variable = kind.kind in (_STRING, _BYTES)
        self._start_anew()

    @cython.cfunc
    def _start_anew(self) -> object:
        self.capacity = 0
        self.data_capacity = 0
        self.validity = None
        self.values = bytearray()
        self.data = None
        if self.variable:
            self.data = bytearray()
            self.data_at = _bytes_of(self.data)
        self.arrays = [] if self.kind == _NESTED else None
        return None

    def take(self, rows: cython.Py_ssize_t) -> Any:
        """Validity (None when nothing is null), values or their offsets, data of variable size; or a list of arrays."""
        validity: bytearray = self.validity
        values: bytearray = self.values
        data: bytearray = self.data
        arrays: list = self.arrays
        if arrays is None:
            if validity is not None:
                _resize(validity, (rows + 7) // 8)
            if rows > 0:
                if data is not None:
                    _resize(data, _int32_at(_bytes_of(values), rows))
                _resize(values, self._values_size(rows))
        else:
            del arrays[rows:]
        self._start_anew()
        return arrays if arrays is not None else (validity, values, data)

    @cython.cfunc
    def store(self, row: cython.Py_ssize_t, value: object) -> cython.Py_ssize_t:
        """Write the value of a row; returns the bytes it takes beyond the column's fixed width."""
        kind: cython.int = self.kind
        if value is None or (kind >= _TIMESTAMP and _is_nat(value)):
            self._check_nullable()
            return self._put_null(row)
        if kind == _INT:
            return self._put_integer(row, self._integer(value))
        if kind == _STRING:
            return self._put_text(row, self._text(value))
        if kind in (_DOUBLE, _FLOAT):
            return self._put_floating(row, self._floating(value))
        if kind >= _TIMESTAMP:
            return self._put_integer(row, self._timestamp(value))
        if kind == _BOOL:
            return self._put_bool(row, self._boolean(value))
        if kind == _BYTES:
            return self._put_bytes(row, self._binary(value))
        if kind == _BINARY:
            return self._put_fixed(row, self._binary(value))
        if kind == _DECIMAL:
            return self._put_decimal(row, self._decimal(value))
        if kind == _DATE:
            return self._put_integer(row, self._date(value))
        if kind == _TIME:
            return self._put_integer(row, self._time(value))
        return self._put_array(row, self.nested(value))

    @cython.cfunc
    def physical(self, value: object) -> object:
        """The value as the plain one that is stored."""
        kind: cython.int = self.kind
        if value is None or (kind >= _TIMESTAMP and _is_nat(value)):
            self._check_nullable()
            return None
        if kind == _INT:
            return self._integer(value)
        if kind == _STRING:
            return self._encodable(self._text(value))
        if kind in (_DOUBLE, _FLOAT):
            return self._floating(value)
        if kind >= _TIMESTAMP:
            return self._timestamp(value)
        if kind == _BOOL:
            return self._boolean(value)
        if kind in (_BYTES, _BINARY):
            return self._binary(value)
        if kind == _DECIMAL:
            return self._decimal(value)
        if kind == _DATE:
            return self._date(value)
        if kind == _TIME:
            return self._time(value)
        return self.nested(value)

    # Checks

    @cython.cfunc
    def _check_nullable(self) -> cython.int:
        if not self.nullable:
            raise SchemaMismatchError(f"Column {self.name!r} expects {self.type_text}, not null.")
        return 0

    @cython.cfunc
    def _boolean(self, value: object) -> cython.bint:
        if value is True:
            return True
        if value is False:
            return False
        raise self._mismatch(value)

    @cython.cfunc
    def _integer(self, value: object) -> cython.longlong:
        if type(value) is not int:
            if isinstance(value, (bool, bytes, str)):
                raise self._mismatch(value)
            try:
                value = int(to_index(value))
            except TypeError:
                raise self._mismatch(value) from None
        high: cython.longlong = _I64_MAX >> (64 - self.limit)
        try:
            number: cython.longlong = value
        except OverflowError:
            raise self._out_of_range(value) from None
        if number > high or number < -high - 1:
            raise self._out_of_range(value)
        return number

    @cython.cfunc
    def _text(self, value: object) -> str:
        if type(value) is not str:
            if not isinstance(value, str):
                raise self._mismatch(value)
            value = str.__str__(value)  # the characters, whatever a subclass shows
        if self.limit and len(value) > self.limit:
            raise self._out_of_range(value)
        return value

    @cython.cfunc
    def _encodable(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._out_of_range(text) from None
        return text

    @cython.cfunc
    def _floating(self, value: object) -> cython.double:
        if type(value) is not float:
            if isinstance(value, bool) or not isinstance(value, Real):
                raise self._mismatch(value)
            try:
                value = float(value)
            except OverflowError:
                raise self._out_of_range(value) from None
        number: cython.double = value
        # Infinities and NaN have a place in 32 bits; finite numbers beyond the range do not.
        if self.width == 4 and (number > _FLOAT_MAX or number < -_FLOAT_MAX) and number - number == 0:
            raise self._out_of_range(value)
        return number

    @cython.cfunc
    def _binary(self, value: object) -> bytes:
        if type(value) is not bytes:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise self._mismatch(value)
            value = bytes(value)
        if self.kind == _BINARY and len(value) != self.limit:
            raise self._out_of_range(value)
        return value

    @cython.cfunc
    def _decimal(self, value: object) -> object:
        if isinstance(value, Decimal):
            try:
                unscaled = int(_EXACT.to_integral_exact(_EXACT.scaleb(value, self.scale)))
            except (DecimalException, ValueError, OverflowError):
                raise self._out_of_range(value) from None
        elif isinstance(value, int) and not isinstance(value, bool):
            unscaled = value * 10**self.scale
        else:
            raise self._mismatch(value)
        if abs(unscaled) >= self.decimal_limit:
            raise self._out_of_range(value)
        return unscaled

    @cython.cfunc
    def _date(self, value: object) -> cython.longlong:
        if type(value) is not date and (not isinstance(value, date) or isinstance(value, datetime)):
            raise self._mismatch(value)
        return _epoch_days(value)

    @cython.cfunc
    def _time(self, value: object) -> cython.longlong:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise self._mismatch(value)
        if cython.compiled:
            second: cython.longlong = time_hour(value) * 3600 + time_minute(value) * 60 + time_second(value)
            return _in_units(second, time_microsecond(value), self.limit)
        else:
            return _in_units(value.hour * 3600 + value.minute * 60 + value.second, value.microsecond, self.limit)

    @cython.cfunc
    def _timestamp(self, value: object) -> cython.longlong:
        seconds: cython.longlong
        microsecond: cython.longlong
        nanosecond: cython.longlong = 0
        exact: cython.bint = type(value) is datetime
        if not exact and not isinstance(value, datetime):
            raise self._mismatch(value)
        zone = _zone(value) if exact else value.tzinfo
        offset = None
        if zone is not None:
            if self.kind != _TIMESTAMP_LTZ:
                raise self._mismatch(value)
            if zone is not UTC:
                offset = value.utcoffset()
                if offset is None:
                    raise self._mismatch(value)
        if exact:
            seconds = _epoch_days(value) * 86_400 + _second_of_day(value)
            microsecond = _microsecond(value)
            if offset is not None:
                seconds -= _whole_seconds(offset)
                microsecond -= offset.microseconds
                if microsecond < 0:
                    microsecond += 1_000_000
                    seconds -= 1
        else:
            # A subclass may hold more than the fields of a datetime, as pandas.Timestamp does.
            delta = value - (_EPOCH if zone is None else _EPOCH_UTC)
            seconds = _whole_seconds(delta)
            microsecond = delta.microseconds
            nanosecond = getattr(delta, "nanoseconds", 0)
        if self.limit <= 1_000_000:
            return _in_units(seconds, microsecond, self.limit)
        if seconds > _NANOSECOND_RANGE_SECONDS or seconds < -_NANOSECOND_RANGE_SECONDS:
            raise self._out_of_range(value)
        return _in_units(seconds, microsecond, self.limit) + nanosecond

    @cython.cfunc
    def _mismatch(self, value: object) -> object:
        given = type(value).__name__
        if getattr(value, "tzinfo", None) is not None:
            given += " with a time zone"
        return SchemaMismatchError(f"Column {self.name!r} expects {self.type_text}, not {given} ({_shown(value)}).")

    @cython.cfunc
    def _out_of_range(self, value: object) -> object:
        return SchemaMismatchError(
            f"Column {self.name!r} expects {self.type_text}; {type(value).__name__} {_shown(value)} does not fit."
        )

    # Buffers

    @cython.cfunc
    @cython.inline
    def _values_size(self, rows: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if self.kind == _BOOL:
            return (rows + 7) // 8
        return (rows + 1 if self.variable else rows) * self.width

    @cython.cfunc
    def _make_room(self, row: cython.Py_ssize_t) -> cython.int:
        first: cython.bint = self.capacity == 0
        capacity: cython.Py_ssize_t = _FIRST_CAPACITY if first else self.capacity * 2
        if capacity <= row:
            capacity = (row + 8) // 8 * 8
        _resize(self.values, self._values_size(capacity))
        self.values_at = _bytes_of(self.values)
        if first and self.variable:
            _put_int(self.values_at, 0, 4, 0)
        if self.validity is not None:
            _resize(self.validity, capacity // 8)
            self.validity_at = _bytes_of(self.validity)
        self.capacity = capacity
        return 0

    @cython.cfunc
    @cython.inline
    def _place(self, row: cython.Py_ssize_t) -> cython.int:
        """Make a row's place ready for a value that is not null."""
        if row >= self.capacity:
            self._make_room(row)
        if self.validity is not None:
            self.validity_at[row >> 3] |= 1 << (row & 7)
        return 0

    @cython.cfunc
    def _put_null(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        k: cython.Py_ssize_t
        if self.kind == _NESTED:
            return self._put_array(row, None)
        if self.validity is None:
            # Everything before was not null.
            self.validity = bytearray(b"\xff") * ((max(self.capacity, row + 1) + 7) // 8)
            self.validity_at = _bytes_of(self.validity)
        self._place(row)
        self.validity_at[row >> 3] &= 0xFF ^ (1 << (row & 7))
        if self.variable:
            _put_int(self.values_at, row + 1, 4, _int32_at(self.values_at, row))
        elif self.kind == _BOOL:
            self.values_at[row >> 3] &= 0xFF ^ (1 << (row & 7))
        else:
            for k in range(row * self.width, (row + 1) * self.width):
                self.values_at[k] = 0
        return 0

    @cython.cfunc
    def _put_integer(self, row: cython.Py_ssize_t, number: cython.longlong) -> cython.Py_ssize_t:
        self._place(row)
        _put_int(self.values_at, row, self.width, number)
        return 0

    @cython.cfunc
    def _put_floating(self, row: cython.Py_ssize_t, number: cython.double) -> cython.Py_ssize_t:
        self._place(row)
        _put_float(self.values_at, row, self.width, number)
        return 0

    @cython.cfunc
    def _put_bool(self, row: cython.Py_ssize_t, value: cython.bint) -> cython.Py_ssize_t:
        self._place(row)
        if value:
            self.values_at[row >> 3] |= 1 << (row & 7)
        else:
            self.values_at[row >> 3] &= 0xFF ^ (1 << (row & 7))
        return 0

    @cython.cfunc
    def _put_decimal(self, row: cython.Py_ssize_t, unscaled: object) -> cython.Py_ssize_t:
        if self.limit == 0:
            content: bytes = unscaled.to_bytes(16, "little", signed=True)
            return self._put_fixed(row, content)
        number: cython.longlong = unscaled
        self._place(row)
        _put_int(self.values_at, 2 * row, 8, number)
        _put_int(self.values_at, 2 * row + 1, 8, -1 if number < 0 else 0)
        return 0

    @cython.cfunc
    def _put_fixed(self, row: cython.Py_ssize_t, content: bytes) -> cython.Py_ssize_t:
        source: cython.p_uchar = content
        self._place(row)
        _copy(self.values_at, row * self.width, source, 0, self.width)
        return 0

    @cython.cfunc
    def _put_text(self, row: cython.Py_ssize_t, text: str) -> cython.Py_ssize_t:
        try:
            if cython.compiled:
                size: cython.Py_ssize_t = 0
                characters: cython.p_const_char = PyUnicode_AsUTF8AndSize(text, cython.address(size))
                return self._put_data(row, cython.cast(cython.p_uchar, characters), size)
            else:
                encoded = text.encode()
                return self._put_data(row, encoded, len(encoded))
        except UnicodeEncodeError:
            raise self._out_of_range(text) from None

    @cython.cfunc
    def _put_bytes(self, row: cython.Py_ssize_t, content: bytes) -> cython.Py_ssize_t:
        source: cython.p_uchar = content
        return self._put_data(row, source, len(content))

    @cython.cfunc
    def _put_data(self, row: cython.Py_ssize_t, source: cython.p_uchar, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        self._place(row)
        start: cython.Py_ssize_t = _int32_at(self.values_at, row)
        if size > _I32_MAX - start:
            raise SchemaMismatchError(
                f"Column {self.name!r}: the rows take more than {_I32_MAX} bytes; write fewer at a time."
            )
        end: cython.Py_ssize_t = start + size
        if end > self.data_capacity:
            capacity: cython.Py_ssize_t = max(end, 2 * self.data_capacity, _FIRST_CAPACITY)
            _resize(self.data, capacity)
            self.data_at = _bytes_of(self.data)
            self.data_capacity = capacity
        _copy(self.data_at, start, source, 0, size)
        _put_int(self.values_at, row + 1, 4, end)
        return size

    @cython.cfunc
    def _put_array(self, row: cython.Py_ssize_t, array: object) -> cython.Py_ssize_t:
        del self.arrays[row:]
        self.arrays.append(array)
        return 0 if array is None else array.nbytes


@cython.cclass
class RowAppender:
    """Checks Python rows against column kinds and collects them as Arrow buffers."""

    _names: tuple
    _columns: list
    _width: cython.Py_ssize_t
    _row_count: cython.Py_ssize_t
    _fixed_bytes: cython.Py_ssize_t
    _busy: cython.bint

    def __init__(self, names: Sequence[str], kinds: Sequence[Any], nested: Sequence[Any]) -> None:
        """`nested` has, for a nested column, a function that checks a value and returns an Arrow array of it."""
        self._names = tuple(names)
        self._columns = [_Column(name, kind, check) for name, kind, check in zip(names, kinds, nested, strict=True)]
        self._width = len(self._names)
        self._row_count = 0
        self._fixed_bytes = sum(kind.fixed_size_bytes for kind in kinds) + (len(self._names) + 7) // 8
        self._busy = False

    def append(self, row: object) -> int:
        """Take a row; returns the bytes it adds, about. A row that does not fit raises and changes nothing."""
        i: cython.Py_ssize_t
        column: _Column
        size: cython.Py_ssize_t = self._fixed_bytes
        self._enter()
        try:
            fields: object = self._fields(row)
            for i in range(self._width):
                column = self._columns[i]
                size += column.store(self._row_count, fields[i])
            self._row_count += 1
        finally:
            self._busy = False
        return size

    def convert(self, row: object) -> list[Any]:
        """The physical values of a row, without taking it."""
        i: cython.Py_ssize_t
        column: _Column
        values: list = []
        fields: object = self._fields(row)
        for i in range(self._width):
            column = self._columns[i]
            values.append(column.physical(fields[i]))
        return values

    def take(self) -> tuple[int, list[Any]]:
        """The number of rows and their columns, see `_Column.take`; the appender starts anew."""
        self._enter()
        rows: cython.Py_ssize_t = self._row_count
        self._row_count = 0
        self._busy = False
        return rows, [column.take(rows) for column in self._columns]

    @cython.cfunc
    def _enter(self) -> cython.int:
        # Values may run code of their own (__index__, a time zone), and buffers must not change under a row.
        if self._busy:
            raise RuntimeError("a row is being appended already; one thread at a time may use a builder")
        self._busy = True
        return 0

    @cython.cfunc
    def _fields(self, row: object) -> object:
        """The values of a row in column order, a list or tuple."""
        if isinstance(row, dict):
            return self._fields_of_dict(row)
        if isinstance(row, (list, tuple)):
            if len(row) != self._width:
                raise SchemaMismatchError(
                    f"A row of {len(row)} values for {self._width} columns ({', '.join(self._names)})."
                )
            return tuple(row)
        if isinstance(row, Mapping):
            return self._fields_of_dict(dict(row))
        raise SchemaMismatchError(f"A row must be a dict, list or tuple, not {type(row).__name__}.")

    @cython.cfunc
    def _fields_of_dict(self, row: dict) -> list:
        i: cython.Py_ssize_t
        found: cython.Py_ssize_t = 0
        fields: list = []
        column: _Column
        for i in range(self._width):
            column = self._columns[i]
            value = row.get(column.name, _MISSING)
            if value is not _MISSING:
                found += 1
            elif column.nullable:
                value = None
            else:
                raise SchemaMismatchError(
                    f"Column {column.name!r} expects {column.type_text}, the row does not have it."
                )
            fields.append(value)
        if found != len(row):
            unknown = [key for key in row if key not in self._names]
            raise SchemaMismatchError(
                f"The table has no column {unknown[0]!r}; its columns are {', '.join(self._names)}."
            )
        return fields


@cython.cfunc
@cython.inline
def _is_nat(value: object) -> cython.bint:
    """pandas.NaT is a datetime."""
    return type(value) is not datetime and isinstance(value, datetime) and value != value


@cython.cfunc
def _shown(value: object) -> str:
    # Not the whole value: it may be large, and an int of many digits refuses to become text.
    try:
        text: str = repr(value)
    except ValueError:
        return "too large to show"
    return text if len(text) <= 80 else text[:77] + "..."


@cython.cfunc
def _whole_seconds(delta: object) -> cython.longlong:
    days: cython.longlong = delta.days
    seconds: cython.longlong = delta.seconds
    return days * 86_400 + seconds


@cython.cfunc
@cython.inline
def _in_units(seconds: cython.longlong, microsecond: cython.longlong, units: cython.longlong) -> cython.longlong:
    """Digits that the unit can't hold are cut off, towards the past."""
    if units <= 1_000_000:
        return seconds * units + microsecond // (1_000_000 // units)
    return seconds * units + microsecond * 1_000


# --- Compacted rows and keys ----------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_size(pattern: cython.ulonglong) -> cython.int:
    size: cython.int = 1
    while pattern >= 0x80:
        pattern >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(out: cython.p_uchar, at: cython.Py_ssize_t, pattern: cython.ulonglong) -> cython.Py_ssize_t:
    while pattern >= 0x80:
        out[at] = (pattern & 0x7F) | 0x80
        pattern >>= 7
        at += 1
    out[at] = pattern
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_set(bits: cython.p_uchar, at: cython.Py_ssize_t) -> cython.bint:
    return (bits[at >> 3] >> (at & 7)) & 1 != 0


@cython.cclass
class _Source:
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
            _need(name, validity, (end + 7) // 8)
            self.validity = _pointer(validity)
        if value_offsets is not None:
            _need(name, value_offsets, (end + 1) * 4)
            self.offsets = _as_int32(_pointer(value_offsets))
        elif self.code == _CODE_BOOL:
            _need(name, values, (end + 7) // 8)
        else:
            _need(name, values, end * self.width)
        self.values = _pointer(values)
        self.values_size = len(values)
        if self.width == 4:
            self.values32 = _as_int32(self.values)
        elif self.width == 8 or self.width == 16:
            self.values64 = _as_int64(self.values)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t) -> cython.bint:
        return self.has_nulls and not _is_set(self.validity, self.offset + row)


@cython.cfunc
def _need(name: str, buffer: object, size: cython.Py_ssize_t) -> object:
    if len(buffer) < size:
        raise SchemaMismatchError(f"Column {name!r}: a buffer of {len(buffer)} bytes where {size} are needed.")
    return None


@cython.cfunc
def _stored_varint(source: _Source, row: cython.Py_ssize_t) -> cython.longlong:
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
def _does_not_fit(source: _Source, row: cython.Py_ssize_t, value: cython.longlong) -> object:
    return SchemaMismatchError(f"Column {source.name!r}: {value} in row {row} does not fit.")


def encode_columns(columns: Sequence[Any], row_count: int, null_bits: bool) -> tuple[bytearray, bytearray]:
    """Compacted rows, or keys when there are no null bits, and the int32 offsets of where each begins and ends.

    A column is (name, spec, (validity, value offsets, values), offset).
    """
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    rows: cython.Py_ssize_t = row_count
    with_null_bits: cython.bint = null_bits
    header: cython.int = (len(columns) + 7) // 8 if null_bits else 0
    sources: list = [_Source(name, spec, buffers, offset, row_count) for name, spec, buffers, offset in columns]
    offsets_bytes = bytearray(4 * (row_count + 1))
    cursor_bytes = bytearray(4 * (row_count + 1))
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    cursor: cython.p_int = _as_int32(_pointer(cursor_bytes))
    for i in range(rows):
        cursor[i] = header
    for c in range(len(sources)):
        _add_sizes(sources[c], cursor, rows, with_null_bits)
    total: cython.longlong = 0
    for i in range(rows):
        total += cursor[i]
        if total > _I32_MAX:
            raise SchemaMismatchError(f"The rows take more than {_I32_MAX} bytes; write fewer at a time.")
        offsets[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
        cursor[i] = offsets[i] + header
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for c in range(len(sources)):
        if with_null_bits:
            _put_null_bits(sources[c], out, offsets, rows, c)
        _put_column(sources[c], out, cursor, rows)
    return out_bytes, offsets_bytes


@cython.cfunc
def _add_sizes(source: _Source, sizes: cython.p_int, rows: cython.Py_ssize_t, nulls: cython.bint) -> object:
    i: cython.Py_ssize_t
    fixed: cython.int = 1 if source.code == _CODE_BOOL else source.width
    length: cython.longlong
    if source.has_nulls and not nulls:
        for i in range(rows):
            if source.is_null(i):
                raise SchemaMismatchError(f"Column {source.name!r} is part of a key and null in row {i}.")
    for i in range(rows):
        if source.is_null(i):
            continue
        if source.code == _CODE_VARINT:
            sizes[i] += _varint_size(_unsigned(_stored_varint(source, i), source.bits))
        elif source.code == _CODE_BOOL or source.code == _CODE_FIXED_INT or source.code == _CODE_FIXED_FLOAT:
            sizes[i] += fixed
        elif source.code == _CODE_BYTES:
            length = _checked_length(source, i)
            _grow(source, sizes, i, length + _varint_size(length))
        elif source.code == _CODE_FIXED_BYTES:
            _grow(source, sizes, i, source.width + _varint_size(source.width))
        elif source.code == _CODE_BIG_DECIMAL:
            sizes[i] += 1 + _decimal_size(source.values, 16 * (source.offset + i))
        else:
            sizes[i] += _varint_size(_unsigned(_millis(source, i), 64)) + _varint_size(_nanos(source, i))
    return None


@cython.cfunc
@cython.inline
def _checked_length(source: _Source, row: cython.Py_ssize_t) -> cython.longlong:
    start: cython.longlong = source.offsets[source.offset + row]
    end: cython.longlong = source.offsets[source.offset + row + 1]
    if start < 0 or end < start or end > source.values_size:
        raise SchemaMismatchError(f"Column {source.name!r}: offsets {start} and {end} of row {row} are wrong.")
    return end - start


@cython.cfunc
@cython.inline
def _grow(source: _Source, sizes: cython.p_int, row: cython.Py_ssize_t, added: cython.longlong) -> cython.int:
    if sizes[row] + added > _I32_MAX:
        raise SchemaMismatchError(f"Column {source.name!r}: row {row} takes more than {_I32_MAX} bytes.")
    sizes[row] += cython.cast(cython.int, added) if cython.compiled else added
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _decimal_size(values: cython.p_uchar, at: cython.Py_ssize_t) -> cython.int:
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
def _floor_div(value: cython.longlong, divisor: cython.longlong) -> cython.longlong:
    return value // divisor


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _millis(source: _Source, row: cython.Py_ssize_t) -> cython.longlong:
    return _floor_div(source.values64[source.offset + row], source.multiplier)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _nanos(source: _Source, row: cython.Py_ssize_t) -> cython.longlong:
    """Nanoseconds behind the millisecond."""
    value: cython.longlong = source.values64[source.offset + row]
    return (value - _millis(source, row) * source.multiplier) * (1_000_000 // source.multiplier)


@cython.cfunc
def _put_null_bits(
    source: _Source, out: cython.p_uchar, offsets: cython.p_int, rows: cython.Py_ssize_t, column: cython.Py_ssize_t
) -> object:
    i: cython.Py_ssize_t
    if source.has_nulls:
        for i in range(rows):
            if source.is_null(i):
                out[offsets[i] + (column >> 3)] |= 1 << (column & 7)
    return None


@cython.cfunc
def _put_column(source: _Source, out: cython.p_uchar, cursor: cython.p_int, rows: cython.Py_ssize_t) -> object:
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for i in range(rows):
        if source.is_null(i):
            continue
        at = cursor[i]
        if source.code == _CODE_VARINT:
            at = _put_varint(out, at, _unsigned(_stored_varint(source, i), source.bits))
        elif source.code == _CODE_BOOL:
            out[at] = 1 if _is_set(source.values, source.offset + i) else 0
            at += 1
        elif source.code == _CODE_FIXED_INT or source.code == _CODE_FIXED_FLOAT:
            _copy(out, at, source.values, (source.offset + i) * source.width, source.width)
            at += source.width
        elif source.code == _CODE_BYTES or source.code == _CODE_FIXED_BYTES:
            if source.code == _CODE_BYTES:
                start = source.offsets[source.offset + i]
                size = source.offsets[source.offset + i + 1] - start
            else:
                start = (source.offset + i) * source.width
                size = source.width
            at = _put_varint(out, at, size)
            _copy(out, at, source.values, start, size)
            at += size
        elif source.code == _CODE_BIG_DECIMAL:
            at = _put_big_decimal(out, at, source.values, 16 * (source.offset + i))
        else:
            at = _put_varint(out, at, _unsigned(_millis(source, i), 64))
            at = _put_varint(out, at, _nanos(source, i))
        cursor[i] = at
    return None


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_big_decimal(
    out: cython.p_uchar, at: cython.Py_ssize_t, values: cython.p_uchar, source_at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    k: cython.int
    size: cython.int = _decimal_size(values, source_at)
    out[at] = size
    for k in range(size):
        out[at + 1 + k] = values[source_at + size - 1 - k]
    return at + 1 + size


def encode_values(names: Sequence[str], specs: Sequence[Any], values: Sequence[Any], null_bits: bool) -> bytes:
    """One compacted row, or key, from physical values."""
    count: cython.Py_ssize_t = len(specs)
    i: cython.Py_ssize_t
    out: bytearray = bytearray((count + 7) // 8 if null_bits else 0)
    for i in range(count):
        value = values[i]
        if value is None:
            if not null_bits:
                raise SchemaMismatchError(f"Column {names[i]!r} is part of a key and null.")
            out[i >> 3] |= 1 << (i & 7)
            continue
        _append_value(out, specs[i], value)
    return bytes(out)


@cython.cfunc
def _append_value(out: bytearray, spec: object, value: object) -> object:
    code: cython.int = spec[0]
    if code == _CODE_VARINT:
        number: cython.longlong = value
        multiplier: cython.longlong = spec[2]
        divisor: cython.longlong = spec[3]
        bits: cython.int = spec[4]
        _append_varint(out, _unsigned(number * multiplier // divisor, bits))
    elif code == _CODE_BOOL:
        out.append(1 if value else 0)
    elif code == _CODE_FIXED_INT:
        out += value.to_bytes(spec[1], "little", signed=True)
    elif code == _CODE_FIXED_FLOAT:
        out += struct.pack("<f" if spec[1] == 4 else "<d", value)
    elif code in (_CODE_BYTES, _CODE_FIXED_BYTES):
        content: bytes = value.encode() if isinstance(value, str) else value
        _append_varint(out, len(content))
        out += content
    elif code == _CODE_BIG_DECIMAL:
        magnitude = value if value >= 0 else ~value
        size = magnitude.bit_length() // 8 + 1
        out.append(size)
        out += value.to_bytes(size, "big", signed=True)
    else:
        units: cython.longlong = spec[2]
        stamp: cython.longlong = value
        millis: cython.longlong = _floor_div(stamp, units)
        _append_varint(out, _unsigned(millis, 64))
        _append_varint(out, (stamp - millis * units) * (1_000_000 // units))
    return None


@cython.cfunc
def _append_varint(out: bytearray, pattern: cython.ulonglong) -> object:
    while pattern >= 0x80:
        out.append((pattern & 0x7F) | 0x80)
        pattern >>= 7
    out.append(pattern)
    return None


# --- Compacted rows back into columns -------------------------------------------------------------------------------


@cython.cclass
class _Rows:
    """Encoded rows and how far each has been read."""

    data: cython.p_uchar
    offsets: cython.p_int
    cursor: cython.p_int
    count: cython.Py_ssize_t
    with_null_bits: cython.bint
    _keep: object

    def __init__(self, data: Any, offsets: Any, count: int, header: int) -> None:
        i: cython.Py_ssize_t
        cursor_bytes = bytearray(4 * (count + 1))
        self._keep = (data, offsets, cursor_bytes)
        if len(offsets) < 4 * (count + 1):
            raise CorruptDataError(f"rows: {len(offsets)} bytes of offsets for {count} rows")
        self.data = _pointer(data)
        self.offsets = _as_int32(_pointer(offsets))
        self.cursor = _as_int32(_pointer(cursor_bytes))
        self.count = count
        self.with_null_bits = header > 0
        end: cython.Py_ssize_t = len(data)
        head: cython.Py_ssize_t = header
        for i in range(self.count):
            if self.offsets[i] < 0 or self.offsets[i + 1] < self.offsets[i] or self.offsets[i + 1] > end:
                raise CorruptDataError(f"rows: the offsets of row {i} are wrong")
            if self.offsets[i + 1] - self.offsets[i] < head:
                raise CorruptDataError(f"row {i}: too short for its null bits")
            self.cursor[i] = self.offsets[i] + (cython.cast(cython.int, head) if cython.compiled else head)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t, column: cython.Py_ssize_t) -> cython.bint:
        return self.with_null_bits and self.data[self.offsets[row] + (column >> 3)] & (1 << (column & 7)) != 0

    @cython.cfunc
    @cython.inline
    def take(self, row: cython.Py_ssize_t, size: cython.longlong) -> cython.Py_ssize_t:
        """The position of the next `size` bytes, which are now read."""
        at: cython.Py_ssize_t = self.cursor[row]
        if size > self.offsets[row + 1] - at:
            raise CorruptDataError(f"row {row}: {size} bytes announced, {self.offsets[row + 1] - at} are left")
        self.cursor[row] = cython.cast(cython.int, at + size) if cython.compiled else at + size
        return at

    @cython.cfunc
    @cython.inline
    @cython.exceptval(77, check=True)
    def take_varint(self, row: cython.Py_ssize_t, bits: cython.int) -> cython.ulonglong:
        at: cython.Py_ssize_t = self.cursor[row]
        end: cython.Py_ssize_t = self.offsets[row + 1]
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


def decode_columns(
    data: Any, offsets: Any, row_count: int, specs: Sequence[Any], null_bits: bool
) -> list[tuple[bytearray | None, int, bytearray | None, bytearray]]:
    """Per column: validity (None when nothing is null), null count, value offsets (None when fixed), values."""
    i: cython.Py_ssize_t
    rows: _Rows = _Rows(data, offsets, row_count, (len(specs) + 7) // 8 if null_bits else 0)
    columns: list = [_take_column(rows, c, specs[c]) for c in range(len(specs))]
    for i in range(rows.count):
        if rows.cursor[i] != rows.offsets[i + 1]:
            raise CorruptDataError(f"row {i}: {rows.offsets[i + 1] - rows.cursor[i]} bytes left over")
    return columns


@cython.cfunc
def _take_column(rows: _Rows, column: cython.Py_ssize_t, spec: object) -> tuple:
    i: cython.Py_ssize_t
    null_count: cython.Py_ssize_t = 0
    validity = bytearray((rows.count + 7) // 8)
    valid: cython.p_uchar = _pointer(validity)
    for i in range(rows.count):
        if rows.is_null(i, column):
            null_count += 1
        else:
            valid[i >> 3] |= 1 << (i & 7)
    code: cython.int = spec[0]
    value_offsets = None
    if code == _CODE_BYTES:
        value_offsets, values = _take_bytes(rows, valid)
    elif code == _CODE_VARINT:
        values = _take_varints(rows, valid, spec)
    elif code == _CODE_BOOL:
        values = _take_bools(rows, valid)
    elif code == _CODE_BIG_DECIMAL:
        values = _take_big_decimals(rows, valid)
    elif code in (_CODE_FIXED_INT, _CODE_FIXED_FLOAT, _CODE_FIXED_BYTES):
        values = _take_fixed(rows, valid, spec[1], code == _CODE_FIXED_BYTES)
    else:
        values = _take_timestamps(rows, valid, spec[2])
    return validity if null_count else None, null_count, value_offsets, values


@cython.cfunc
def _take_bytes(rows: _Rows, valid: cython.p_uchar) -> tuple:
    i: cython.Py_ssize_t
    length: cython.longlong
    total: cython.Py_ssize_t = 0
    starts_bytes = bytearray(4 * (rows.count + 1))
    offsets_bytes = bytearray(4 * (rows.count + 1))
    starts: cython.p_int = _as_int32(_pointer(starts_bytes))
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    for i in range(rows.count):
        if _is_set(valid, i):
            length = rows.take_varint(i, 32)
            starts[i] = rows.take(i, length)
            total += length
        offsets[i + 1] = total
    values_bytes = bytearray(total)
    values: cython.p_uchar = _pointer(values_bytes)
    for i in range(rows.count):
        _copy(values, offsets[i], rows.data, starts[i], offsets[i + 1] - offsets[i])
    return offsets_bytes, values_bytes


@cython.cfunc
def _take_varints(rows: _Rows, valid: cython.p_uchar, spec: object) -> bytearray:
    i: cython.Py_ssize_t
    value: cython.longlong
    width: cython.int = spec[1]
    multiplier: cython.longlong = spec[2]
    divisor: cython.longlong = spec[3]
    bits: cython.int = spec[4]
    low: cython.longlong = spec[5]
    high: cython.longlong = spec[6]
    out_bytes = bytearray(width * rows.count)
    out32: cython.p_int = _as_int32(_pointer(out_bytes))
    out64: cython.p_longlong = _as_int64(_pointer(out_bytes))
    for i in range(rows.count):
        if not _is_set(valid, i):
            continue
        value = _signed(rows.take_varint(i, bits), bits)
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
def _take_bools(rows: _Rows, valid: cython.p_uchar) -> bytearray:
    i: cython.Py_ssize_t
    out_bytes = bytearray((rows.count + 7) // 8)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(rows.count):
        if _is_set(valid, i) and rows.data[rows.take(i, 1)] != 0:
            out[i >> 3] |= 1 << (i & 7)
    return out_bytes


@cython.cfunc
def _take_fixed(rows: _Rows, valid: cython.p_uchar, width: cython.Py_ssize_t, prefixed: cython.bint) -> bytearray:
    i: cython.Py_ssize_t
    length: cython.longlong
    out_bytes = bytearray(width * rows.count)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(rows.count):
        if not _is_set(valid, i):
            continue
        if prefixed:
            length = rows.take_varint(i, 32)
            if length != width:
                raise CorruptDataError(f"row {i}: {length} bytes in a column of {width}")
        _copy(out, i * width, rows.data, rows.take(i, width), width)
    return out_bytes


@cython.cfunc
def _take_big_decimals(rows: _Rows, valid: cython.p_uchar) -> bytearray:
    i: cython.Py_ssize_t
    k: cython.int
    at: cython.Py_ssize_t
    size: cython.longlong
    fill: cython.int
    out_bytes = bytearray(16 * rows.count)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(rows.count):
        if not _is_set(valid, i):
            continue
        size = rows.take_varint(i, 32)
        if size < 1 or size > 16:
            raise CorruptDataError(f"row {i}: a decimal of {size} bytes")
        at = rows.take(i, size)
        fill = 0xFF if rows.data[at] & 0x80 else 0
        for k in range(16):
            out[16 * i + k] = rows.data[at + size - 1 - k] if k < size else fill
    return out_bytes


@cython.cfunc
def _take_timestamps(rows: _Rows, valid: cython.p_uchar, units: cython.longlong) -> bytearray:
    """`units` are those of the Arrow type in a millisecond."""
    i: cython.Py_ssize_t
    millis: cython.longlong
    nanos: cython.longlong
    limit: cython.longlong = _I64_MAX // units - 1
    out_bytes = bytearray(8 * rows.count)
    out: cython.p_longlong = _as_int64(_pointer(out_bytes))
    for i in range(rows.count):
        if not _is_set(valid, i):
            continue
        millis = _signed(rows.take_varint(i, 64), 64)
        nanos = rows.take_varint(i, 32)
        if millis > limit or millis < -limit or nanos > 999_999:
            raise CorruptDataError(f"row {i}: {millis} ms and {nanos} ns are no timestamp")
        out[i] = millis * units + nanos // (1_000_000 // units)
    return out_bytes


# --- Checks of Arrow columns ----------------------------------------------------------------------------------------


def are_strings_sound(offsets: Any, data: Any, start: int, count: int, text: bool) -> bool:
    """Whether `count` strings lie in `data` one behind the other, and in ASCII if they are `text`.

    `offsets` are int32, those from `start` on count. False is no verdict for text: it may be UTF-8 all the same.
    """
    i: cython.Py_ssize_t
    first: cython.Py_ssize_t = start
    last: cython.Py_ssize_t = first + count
    if first < 0 or last < first or len(offsets) // 4 <= last:
        return False
    ends: cython.p_int = _as_int32(_pointer(offsets))
    # No early end in these loops: C compilers then work on many values at a time.
    descents: cython.int = 0
    for i in range(first, last):
        descents |= ends[i + 1] < ends[i]
    if descents or ends[first] < 0 or ends[last] > len(data):
        return False
    seen: cython.uchar = 0
    if text and ends[last] > ends[first]:
        content: cython.p_uchar = _pointer(data)
        for i in range(ends[first], ends[last]):
            seen |= content[i]
    return seen < 0x80


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
    word = _mul32(_rotl32(_mul32(word, _C1), 15), _C2)
    return _add32(_mul32(_rotl32(state ^ word, 13), 5), _C3)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _finish(state: cython.uint) -> cython.uint:
    state = _mul32(state ^ (state >> 16), _C4)
    state = _mul32(state ^ (state >> 13), _C5)
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
        mixed = _add32(~mixed if cython.compiled else mixed ^ 0xFFFFFFFF, 1)
    return mixed % bucket_count


def hash_key(key: bytes, sign_extend: bool) -> int:
    """The signed 32-bit hash of an encoded key."""
    view: object = key
    pattern: cython.ulonglong = _hash(_pointer(view), 0, len(key), sign_extend)
    return _signed(pattern, 32)


def bucket_of(key: bytes, bucket_count: int, sign_extend: bool) -> int:
    """The bucket of an encoded key."""
    view: object = key
    _check_bucket_count(bucket_count)
    return _bucket(_hash(_pointer(view), 0, len(key), sign_extend), bucket_count)


def buckets(data: Any, offsets: Any, row_count: int, bucket_count: int, sign_extend: bool) -> bytearray:
    """The buckets of encoded keys, int32 each."""
    i: cython.Py_ssize_t
    count: cython.uint = _check_bucket_count(bucket_count)
    extend: cython.bint = sign_extend
    rows: _Rows = _Rows(data, offsets, row_count, 0)
    out_bytes = bytearray(4 * row_count)
    out: cython.p_int = _as_int32(_pointer(out_bytes))
    for i in range(rows.count):
        out[i] = _bucket(_hash(rows.data, rows.offsets[i], rows.offsets[i + 1], extend), count)
    return out_bytes


@cython.cfunc
def _check_bucket_count(bucket_count: object) -> object:
    if not 1 <= bucket_count <= 0x7FFFFFFF:
        raise ValueError(f"a table has at least one bucket, not {bucket_count}")
    return bucket_count
