# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=False
"""Hot loops over rows, in Cython's pure-Python mode: `_kernel_c` is this file compiled, and this file is the fallback.

Rules that keep one source for both: a variable typed as a pointer is, uncompiled, a memoryview or bytearray, so only
`base[index]` is used, never pointer arithmetic. The few things that C and Python do differently are in the small
helpers of the first section. Every range and type check is explicit, because C would wrap where Python would not.
Columns are processed one at a time: a size pass, a prefix sum, a write pass.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from numbers import Real
from operator import index as to_index
from typing import Any

from fluss.kernels import codes as _kinds
from fluss.model.errors import CorruptDataError, ErrorCode, SchemaMismatchError

try:
    import cython
except ImportError:
    from fluss.formats import _cyshim as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
        PyByteArray_Resize,
    )
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
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
        time_hour,
        time_microsecond,
        time_minute,
        time_second,
    )
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcmp, memcpy

    import_datetime()

COMPILED = bool(cython.compiled)

_I64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_I32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_FLOAT_MAX = cython.declare(cython.double, struct.unpack("<f", b"\xff\xff\x7f\x7f")[0])

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
_ARRAY = cython.declare(cython.int, _kinds.KIND_ARRAY)
_MAP = cython.declare(cython.int, _kinds.KIND_MAP)
_ROW = cython.declare(cython.int, _kinds.KIND_ROW)

_CODE_BOOL = cython.declare(cython.int, _kinds.CODE_BOOL)
_CODE_FIXED_INT = cython.declare(cython.int, _kinds.CODE_FIXED_INT)
_CODE_FIXED_FLOAT = cython.declare(cython.int, _kinds.CODE_FIXED_FLOAT)
_CODE_VARINT = cython.declare(cython.int, _kinds.CODE_VARINT)
_CODE_BYTES = cython.declare(cython.int, _kinds.CODE_BYTES)
_CODE_FIXED_BYTES = cython.declare(cython.int, _kinds.CODE_FIXED_BYTES)
_CODE_BIG_DECIMAL = cython.declare(cython.int, _kinds.CODE_BIG_DECIMAL)
_CODE_TIMESTAMP = cython.declare(cython.int, _kinds.CODE_TIMESTAMP)
_CODE_CHAR = cython.declare(cython.int, _kinds.CODE_CHAR)
_CODE_NESTED = cython.declare(cython.int, _kinds.CODE_NESTED)

_KEY = cython.declare(cython.int, _kinds.LAYOUT_KEY)
_COMPACTED = cython.declare(cython.int, _kinds.LAYOUT_COMPACTED)
_INDEXED = cython.declare(cython.int, _kinds.LAYOUT_INDEXED)
# Values in the slots of binary arrays and aligned rows; no layout of rows by itself.
_SLOTS = cython.declare(cython.int, 3)
_INLINE_MAX = cython.declare(cython.int, 7)  # bytes that a slot itself can hold
_RECORD_HEAD = cython.declare(cython.int, 5)  # bytes of length and change type before a row in a log batch
_CHANGE_TYPE_MAX = cython.declare(cython.int, 4)

# Seconds beyond these do not fit 64-bit nanoseconds.
_NANOSECOND_RANGE_SECONDS = cython.declare(cython.longlong, 9_223_372_035)
_SECONDS_TO_MS_MAX = cython.declare(cython.longlong, 9_223_372_036_854_775)

# Rows, or bytes of a column of variable size, that a builder first makes room for; a multiple of 8.
_FIRST_CAPACITY = cython.declare(cython.Py_ssize_t, 64)

_MISSING = object()
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = cython.declare(cython.longlong, date(1970, 1, 1).toordinal())
_MARCH_0_US = cython.declare(cython.longlong, 719_468 * 86_400_000_000)  # from 0000-03-01 to 1970-01-01
_DATETIME_US_MIN = cython.declare(cython.longlong, (datetime.min - _EPOCH) // timedelta(microseconds=1))
_DATETIME_US_MAX = cython.declare(cython.longlong, (datetime.max - _EPOCH) // timedelta(microseconds=1))
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
def _is_equal(
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
def _load(base: cython.p_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t) -> cython.longlong:
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
def _save(
    base: cython.p_uchar, at: cython.Py_ssize_t, width: cython.Py_ssize_t, number: cython.longlong
) -> cython.void:
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
def _from_second(base: cython.p_int) -> cython.p_int:
    if cython.compiled:
        return cython.address(base[1])
    else:
        return base[1:]


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
@cython.cdivision(True)
def _datetime(microseconds: cython.longlong, zone: object) -> object:
    """The time so many microseconds after 1970-01-01."""
    if cython.compiled:
        # Counted from 0000-03-01, as in `_epoch_days`: all operands are positive.
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
        return (_EPOCH if zone is None else _EPOCH_UTC) + timedelta(0, 0, microseconds)


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


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add64(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return left + right
    else:
        return (left + right) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _mul64(left: cython.ulonglong, right: cython.ulonglong) -> cython.ulonglong:
    if cython.compiled:
        return left * right
    else:
        return (left * right) & 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _wrapped(pattern: cython.ulonglong, bits: cython.int) -> cython.longlong:
    """The number that the lowest 8, 16, 32 or 64 bits of a pattern mean."""
    if cython.compiled:
        if bits == 8:
            return cython.cast(cython.schar, cython.cast(cython.uchar, pattern))
        if bits == 16:
            return cython.cast(cython.short, cython.cast(cython.ushort, pattern))
        return _signed(pattern, bits)
    else:
        return _signed(pattern & ((1 << bits) - 1), bits)


@cython.cfunc
@cython.inline
def _as_double(base: cython.p_uchar) -> cython.p_double:
    if cython.compiled:
        return cython.cast(cython.p_double, base)
    else:
        return base[: len(base) // 8 * 8].cast("d")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _to_single(number: cython.double) -> cython.double:
    """The nearest number of 32 bits."""
    if cython.compiled:
        return cython.cast(cython.float, number)
    else:
        try:
            return struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            return math.copysign(math.inf, number)


# --- Rows of Python values into columns -----------------------------------------------------------------------------


@cython.cclass
class _Column:
    """Checks the Python values of one column and keeps them as Arrow buffers that grow.

    A value is written behind the last row and counts only once its row is counted, so that a row which is refused
    halfway needs no undoing. A nested column has children: elements, keys and values, or fields.
    """

    name: str
    parent: object
    children: list
    position: cython.Py_ssize_t  # of the element, and key of the value, that is being stored, for errors
    key: object
    kind: cython.int
    limit: cython.longlong
    decimal_limit: object
    scale: object
    nullable: cython.bint
    type_text: str
    fixed_bytes: cython.Py_ssize_t
    width: cython.Py_ssize_t
    variable: cython.bint
    capacity: cython.Py_ssize_t
    data_capacity: cython.Py_ssize_t
    validity: bytearray
    values: bytearray
    data: bytearray
    validity_at: cython.p_uchar
    values_at: cython.p_uchar
    data_at: cython.p_uchar

    def __init__(self, name: str, kind: Any, parent: Any) -> None:
        self.name = name
        self.parent = parent
        self.children = [_Column(child_name, child, self) for child_name, child in kind.children]
        self.kind = kind.kind
        self.limit = kind.limit if kind.limit <= _I64_MAX else 0
        self.decimal_limit = kind.limit
        self.scale = kind.scale
        self.nullable = kind.nullable
        self.type_text = kind.type_text
        self.fixed_bytes = kind.fixed_size_bytes
        self.width = 0 if kind.kind == _ROW else kind.fixed_size_bytes
        self.variable = kind.kind in (_STRING, _BYTES, _ARRAY, _MAP)
        self._start_anew()

    @cython.cfunc
    def _start_anew(self) -> object:
        self.capacity = 0
        self.data_capacity = 0
        self.validity = None
        self.values = bytearray()
        self.data = None
        if self.kind == _STRING or self.kind == _BYTES:
            self.data = bytearray()
            self.data_at = _bytes_of(self.data)
        return None

    def take(self, rows: cython.Py_ssize_t) -> Any:
        """Validity (None when nothing is null), values or their offsets, data of variable size or list of children."""
        validity: bytearray = self.validity
        values: bytearray = self.values
        data: bytearray = self.data
        inner: cython.Py_ssize_t = rows
        if rows > 0:
            if validity is not None:
                _resize(validity, (rows + 7) // 8)
                _clear_behind(validity, rows)
            if self.variable:
                inner = _int32_at(_bytes_of(values), rows)
            if data is not None:
                _resize(data, inner)
            _resize(values, self._values_size(rows))
            if self.kind == _BOOL:
                _clear_behind(values, rows)
        else:
            validity = None
            values = bytearray(self._values_size(0))
            data = None if data is None else bytearray()
        self._start_anew()
        if self.kind < _ARRAY:
            return validity, values, data
        return validity, values, [child.take(inner) for child in self.children]

    @cython.cfunc
    def store(self, row: cython.Py_ssize_t, value: object) -> cython.Py_ssize_t:
        """Write the value of a row; returns the bytes it takes beyond the column's fixed width."""
        kind: cython.int = self.kind
        if value is None or (_DATE <= kind <= _TIMESTAMP_LTZ and _is_nat(value)):
            self._check_nullable()
            return self._put_null(row)
        if kind == _INT:
            return self._put_integer(row, self._integer(value))
        if kind == _STRING:
            return self._put_text(row, self._text(value))
        if kind in (_DOUBLE, _FLOAT):
            return self._put_floating(row, self._floating(value))
        if kind in (_TIMESTAMP, _TIMESTAMP_LTZ):
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
        if kind == _ARRAY:
            return self._put_list(row, self._items(value))
        if kind == _MAP:
            return self._put_map(row, self._pairs(value))
        return self._put_fields(row, self._fields(value))

    @cython.cfunc
    def physical(self, value: object) -> object:
        """The value as the plain one that is stored; only for scalars."""
        kind: cython.int = self.kind
        if value is None or (_DATE <= kind <= _TIMESTAMP_LTZ and _is_nat(value)):
            self._check_nullable()
            return None
        if kind == _INT:
            return self._integer(value)
        if kind == _STRING:
            return self._encodable(self._text(value))
        if kind in (_DOUBLE, _FLOAT):
            return self._floating(value)
        if kind in (_TIMESTAMP, _TIMESTAMP_LTZ):
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
        raise self._mismatch(value)

    # Checks

    @cython.cfunc
    def _check_nullable(self) -> cython.int:
        if not self.nullable:
            raise SchemaMismatchError(f"Column {self.path()!r} expects {self.type_text}, not null.")
        return 0

    @cython.cfunc
    def _boolean(self, value: object) -> cython.bint:
        if value is True:
            return True
        if value is False:
            return False
        if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
            return bool(value)
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
            if isinstance(value, bool) or not isinstance(value, (Real, Decimal)):
                raise self._mismatch(value)
            try:
                value = float(value)
            except (OverflowError, ValueError):
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
        if type(value) is not date:
            if _is_datetime64(value) and type(value.item()) is date:
                return _epoch_days(value.item())
            if not isinstance(value, date) or isinstance(value, datetime):
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
            return self._timestamp_of_numpy(value)
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
    def _timestamp_of_numpy(self, value: object) -> cython.longlong:
        if not _is_datetime64(value):
            raise self._mismatch(value)
        moment = value.astype("datetime64[us]").item()
        if type(moment) is not datetime:
            raise self._out_of_range(value)
        number: cython.longlong = self._timestamp(moment)
        if self.limit > 1_000_000 and str(value.dtype) == "datetime64[ns]":
            number += int(value.astype("int64")) % 1_000
        return number

    @cython.cfunc
    def _mismatch(self, value: object) -> object:
        given = type(value).__name__
        if getattr(value, "tzinfo", None) is not None:
            given += " with a time zone"
        return SchemaMismatchError(f"Column {self.path()!r} expects {self.type_text}, not {given} ({_shown(value)}).")

    @cython.cfunc
    def _out_of_range(self, value: object) -> object:
        return SchemaMismatchError(
            f"Column {self.path()!r} expects {self.type_text} ({self._room()}); "
            f"{type(value).__name__} {_shown(value)} does not fit."
        )

    @cython.cfunc
    def _room(self) -> str:
        """Which values fit."""
        if self.kind == _INT:
            high: cython.longlong = _I64_MAX >> (64 - self.limit)
            return f"{-high - 1} to {high}"
        if self.kind == _STRING:
            return f"up to {self.limit} characters" if self.limit else "valid Unicode"
        if self.kind == _BINARY:
            return f"{self.limit} bytes"
        if self.kind == _DECIMAL:
            return f"{len(str(self.decimal_limit)) - 1 - self.scale} digits before the point, {self.scale} behind it"
        if self.kind == _FLOAT or self.kind == _DOUBLE:
            return f"up to {'3.4e38' if self.width == 4 else '1.8e308'}"
        return "from 1677-09-22 to 2262-04-11" if self.limit > 1_000_000 else "from year 1 to 9999"

    @cython.cfunc
    def path(self) -> str:
        """The column's name, or the way from it to the nested value at hand: `tags[2]`, `attrs{'k'}`, `profile.age`."""
        parent: _Column = self.parent
        if parent is None:
            return self.name
        if parent.kind == _ARRAY:
            return f"{parent.path()}[{parent.position}]"
        if parent.kind == _MAP and self is not parent.children[0]:
            return f"{parent.path()}{{{_shown(parent.key)}}}"
        return f"{parent.path()}.{self.name}"

    # Nested values

    @cython.cfunc
    def _items(self, value: object) -> tuple:
        if not isinstance(value, (list, tuple)):
            if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
                value = value.tolist()  # a numpy array is no sequence by its own word
            elif isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, Sequence):
                raise self._mismatch(value)
        return tuple(value)

    @cython.cfunc
    def _pairs(self, value: object) -> tuple:
        if isinstance(value, Mapping):
            return tuple(value.items())
        pairs: tuple = self._items(value)
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise SchemaMismatchError(
                    f"Column {self.path()!r} expects {self.type_text}: a dict or (key, value) pairs, "
                    f"not {type(pair).__name__} ({_shown(pair)})."
                )
        return pairs

    @cython.cfunc
    def _fields(self, value: object) -> tuple:
        if isinstance(value, Mapping):
            return self._fields_of_mapping(value)
        if not isinstance(value, (list, tuple)):
            raise self._mismatch(value)
        if len(value) != len(self.children):
            raise SchemaMismatchError(
                f"Column {self.path()!r} expects {self.type_text}: {len(self.children)} fields, not {len(value)}."
            )
        return tuple(value)

    @cython.cfunc
    def _fields_of_mapping(self, row: object) -> tuple:
        found: cython.Py_ssize_t = 0
        fields: list = []
        child: _Column
        for child in self.children:
            value = row.get(child.name, _MISSING)
            if value is not _MISSING:
                found += 1
            elif child.nullable:
                value = None
            else:
                raise SchemaMismatchError(
                    f"Column {child.path()!r} expects {child.type_text}, the row does not have it."
                )
            fields.append(value)
        if found != len(row):
            names = [child.name for child in self.children]
            unknown = [key for key in row if key not in names]
            raise SchemaMismatchError(
                f"Column {self.path()!r} has no field {_shown(unknown[0])}; its fields are {', '.join(names)}."
            )
        return tuple(fields)

    @cython.cfunc
    def _put_list(self, row: cython.Py_ssize_t, items: tuple) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        child: _Column = self.children[0]
        start: cython.Py_ssize_t = self._open_list(row, len(items))
        size: cython.Py_ssize_t = len(items) * child.fixed_bytes
        for i in range(len(items)):
            self.position = i
            size += child.store(start + i, items[i])
        self._close_list(row, start + len(items))
        return size

    @cython.cfunc
    def _put_map(self, row: cython.Py_ssize_t, pairs: tuple) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        keys: _Column = self.children[0]
        values: _Column = self.children[1]
        start: cython.Py_ssize_t = self._open_list(row, len(pairs))
        size: cython.Py_ssize_t = len(pairs) * (keys.fixed_bytes + values.fixed_bytes)
        for i in range(len(pairs)):
            key, value = pairs[i]
            size += keys.store(start + i, key)
            self.key = key
            size += values.store(start + i, value)
        self.key = None
        self._close_list(row, start + len(pairs))
        return size

    @cython.cfunc
    def _put_fields(self, row: cython.Py_ssize_t, fields: tuple) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        child: _Column
        size: cython.Py_ssize_t = 0
        self._place(row)
        for i in range(len(fields)):
            child = self.children[i]
            size += child.store(row, fields[i])
        return size

    @cython.cfunc
    def _open_list(self, row: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The place of a row's first element."""
        self._place(row)
        start: cython.Py_ssize_t = _int32_at(self.values_at, row)
        if count > _I32_MAX - start:
            raise SchemaMismatchError(
                f"Column {self.path()!r}: the rows have more than {_I32_MAX} elements; write fewer at a time."
            )
        return start

    @cython.cfunc
    def _close_list(self, row: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        _put_int(self.values_at, row + 1, 4, end)
        return 0

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
        child: _Column
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
        elif self.kind == _ROW:
            for child in self.children:
                child._put_null(row)
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
                f"Column {self.path()!r}: the rows take more than {_I32_MAX} bytes; write fewer at a time."
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


@cython.cclass
class RowAppender:
    """Checks Python rows against column kinds and collects them as Arrow buffers."""

    _names: tuple
    _columns: list
    _width: cython.Py_ssize_t
    _row_count: cython.Py_ssize_t
    _size_bytes: cython.Py_ssize_t
    _fixed_bytes: cython.Py_ssize_t
    _busy: cython.bint

    def __init__(self, names: Sequence[str], kinds: Sequence[Any]) -> None:
        self._names = tuple(names)
        self._columns = [_Column(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
        self._width = len(self._names)
        self._row_count = 0
        self._size_bytes = 0
        self._fixed_bytes = sum(kind.fixed_size_bytes for kind in kinds) + (len(self._names) + 7) // 8
        self._busy = False

    @property
    def row_count(self) -> int:
        return self._row_count

    @property
    def size_bytes(self) -> int:
        """What the rows take, about."""
        return self._size_bytes

    def append(self, row: object) -> int:
        """Take a row; returns the bytes it adds, about. A row that does not fit raises and changes nothing."""
        return self._append(row)

    @cython.cfunc
    @cython.exceptval(-1)
    def _append(self, row: object) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t = self._fixed_bytes
        self._enter()
        try:
            size += self._store_dict(row) if type(row) is dict else self._store(self._fields(row))
            self._row_count += 1
            self._size_bytes += size
        finally:
            self._busy = False
        return size

    def convert(self, row: object) -> list[Any]:
        """The physical values of a row, without taking it."""
        i: cython.Py_ssize_t
        column: _Column
        values: list = []
        fields: tuple = self._fields(row)
        for i in range(self._width):
            column = self._columns[i]
            values.append(column.physical(fields[i]))
        return values

    def take(self) -> tuple[int, list[Any]]:
        """The number of rows and their columns, see `_Column.take`; the appender starts anew."""
        self._enter()
        rows: cython.Py_ssize_t = self._row_count
        self._row_count = 0
        self._size_bytes = 0
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
    @cython.exceptval(-1)
    def _store(self, fields: tuple) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        column: _Column
        size: cython.Py_ssize_t = 0
        for i in range(self._width):
            column = self._columns[i]
            size += column.store(self._row_count, fields[i])
        return size

    @cython.cfunc
    @cython.exceptval(-1)
    def _store_dict(self, row: dict) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        column: _Column
        size: cython.Py_ssize_t = 0
        found: cython.Py_ssize_t = 0
        for i in range(self._width):
            column = self._columns[i]
            value = row.get(column.name, _MISSING)
            if value is _MISSING:
                self._check_absence(column)
                value = None
            else:
                found += 1
            size += column.store(self._row_count, value)
        self._check_names(row, found)
        return size

    @cython.cfunc
    def _fields(self, row: object) -> tuple:
        """The values of a row in column order."""
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
    def _fields_of_dict(self, row: dict) -> tuple:
        found: cython.Py_ssize_t = 0
        fields: list = []
        column: _Column
        for column in self._columns:
            value = row.get(column.name, _MISSING)
            if value is _MISSING:
                self._check_absence(column)
                value = None
            else:
                found += 1
            fields.append(value)
        self._check_names(row, found)
        return tuple(fields)

    @cython.cfunc
    def _check_absence(self, column: _Column) -> cython.int:
        if not column.nullable:
            raise SchemaMismatchError(f"Column {column.name!r} expects {column.type_text}, the row does not have it.")
        return 0

    @cython.cfunc
    def _check_names(self, row: dict, found: cython.Py_ssize_t) -> cython.int:
        if found != len(row):
            unknown = [key for key in row if key not in self._names]
            raise SchemaMismatchError(
                f"The table has no column {unknown[0]!r}; its columns are {', '.join(self._names)}."
            )
        return 0


@cython.cclass
class RowGate:
    """Lets rows of any thread into an appender until that has enough; closed, it takes none.

    The lock is shared with the one who opens it, and who is told, as `filled()`, with the lock held.
    """

    _acquire: object
    _release: object
    _appender: RowAppender
    _size_bytes_max: cython.Py_ssize_t
    _answer: object
    _filled: object

    def __init__(self, lock: Any) -> None:
        self._acquire = lock.acquire
        self._release = lock.release
        self.close()

    def open(self, appender: RowAppender, size_bytes_max: int, answer: object, filled: object) -> None:
        """Take rows until the appender holds so many bytes; call with the lock held."""
        self._appender = appender
        self._size_bytes_max = size_bytes_max
        self._answer = answer
        self._filled = filled

    def close(self) -> None:
        """Take no more rows; with the lock held, none is being taken either."""
        self._appender = None
        self._answer = None
        self._filled = None

    def take(self, row: object) -> Any:
        """The answer that it was opened with; None when it is closed and the row was not taken."""
        # Without the lock, for that of a forked process may never be free again.
        if self._appender is None:
            return None
        self._acquire()
        try:
            appender: RowAppender = self._appender
            if appender is None:
                return None
            answer = self._answer
            appender._append(row)
            if appender._size_bytes >= self._size_bytes_max:
                self._filled()
            return answer
        finally:
            self._release()


@cython.cfunc
def _clear_behind(bits: bytearray, count: cython.Py_ssize_t) -> cython.int:
    """Zero the unused bits of the last byte, which have held nothing or a row that was refused."""
    if count & 7:
        _bytes_of(bits)[count >> 3] &= (1 << (count & 7)) - 1
    return 0


@cython.cfunc
@cython.inline
def _is_nat(value: object) -> cython.bint:
    """pandas.NaT is a datetime; numpy has its own."""
    if type(value) is datetime or type(value) is date:
        return False
    return (isinstance(value, datetime) or _is_datetime64(value)) and value != value


@cython.cfunc
@cython.inline
def _is_datetime64(value: object) -> cython.bint:
    return type(value).__name__ == "datetime64" and type(value).__module__ == "numpy"


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


# --- Columns into compacted rows and keys, and into indexed rows ----------------------------------------------------


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
    @cython.inline
    @cython.exceptval(check=False)
    def start_of(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where the bytes of a value lie, whether their number varies or not."""
        if self.code == _CODE_FIXED_BYTES:
            return (self.offset + row) * self.width
        return self.offsets[self.offset + row]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def size_of(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if self.code == _CODE_FIXED_BYTES:
            return self.width
        return self.offsets[self.offset + row + 1] - self.offsets[self.offset + row]


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


def encode_columns(columns: Sequence[Any], row_count: int, layout: int) -> tuple[bytearray, bytearray]:
    """Rows or keys, and the int32 offsets of where each begins and ends.

    A column is (name, spec, (validity, value offsets, values), offset).
    """
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    rows: cython.Py_ssize_t = row_count
    null_bits: cython.bint = layout != _KEY
    indexed: cython.bint = layout == _INDEXED
    head: cython.int = (len(columns) + 7) // 8 if null_bits else 0
    sources: list = [_Source(name, spec, buffers, offset, row_count) for name, spec, buffers, offset in columns]
    lengths_size: cython.int = _lengths_size([column[1][0] for column in columns]) if indexed else 0
    offsets_bytes = bytearray(4 * (row_count + 1))
    cursor_bytes = bytearray(4 * (row_count + 1))
    lengths_bytes = bytearray(4 * row_count if indexed else 0)
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    cursor: cython.p_int = _as_int32(_pointer(cursor_bytes))
    lengths: cython.p_int = _as_int32(_pointer(lengths_bytes))
    for i in range(rows):
        cursor[i] = head + lengths_size
    for c in range(len(sources)):
        if indexed:
            _add_indexed_sizes(sources[c], cursor, rows)
        else:
            _add_sizes(sources[c], cursor, rows, null_bits)
    total: cython.longlong = _sum_up(cursor, offsets, rows)
    for i in range(rows):
        cursor[i] = offsets[i] + head + lengths_size
    if indexed:
        for i in range(rows):
            lengths[i] = offsets[i] + head
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for c in range(len(sources)):
        if null_bits:
            _put_null_bits(sources[c], out, offsets, rows, c)
        if indexed:
            _put_indexed_column(sources[c], out, cursor, lengths, rows)
        else:
            _put_column(sources[c], out, cursor, rows)
    return out_bytes, offsets_bytes


@cython.cfunc
def _lengths_size(codes: object) -> cython.int:
    """Bytes that the lengths of variable columns take in an indexed row."""
    return 4 * sum(code in (_CODE_BYTES, _CODE_NESTED, _CODE_BIG_DECIMAL) for code in codes)


@cython.cfunc
def _sum_up(sizes: cython.p_int, offsets: cython.p_int, rows: cython.Py_ssize_t) -> cython.longlong:
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    for i in range(rows):
        total += sizes[i]
        if total > _I32_MAX:
            raise SchemaMismatchError(f"The rows take more than {_I32_MAX} bytes; write fewer at a time.")
        offsets[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    return total


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
        elif source.code == _CODE_BYTES or source.code == _CODE_NESTED:
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
        elif source.code == _CODE_BYTES or source.code == _CODE_FIXED_BYTES or source.code == _CODE_NESTED:
            if source.code == _CODE_FIXED_BYTES:
                start = (source.offset + i) * source.width
                size = source.width
            else:
                start = source.offsets[source.offset + i]
                size = source.offsets[source.offset + i + 1] - start
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
    out[at] = _decimal_size(values, source_at)
    return _put_big_endian(out, at + 1, values, source_at, out[at])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_big_endian(
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
def _add_indexed_sizes(source: _Source, sizes: cython.p_int, rows: cython.Py_ssize_t) -> object:
    i: cython.Py_ssize_t
    length: cython.longlong
    for i in range(rows):
        if source.is_null(i):
            continue
        if source.code == _CODE_VARINT:
            _stored_varint(source, i)
            sizes[i] += source.bits // 8
        elif source.code == _CODE_BOOL:
            sizes[i] += 1
        elif source.code == _CODE_BIG_DECIMAL:
            sizes[i] += _decimal_size(source.values, 16 * (source.offset + i))
        elif source.code == _CODE_TIMESTAMP:
            sizes[i] += 12
        elif source.code == _CODE_BYTES or source.code == _CODE_NESTED:
            _grow(source, sizes, i, _checked_length(source, i))
        else:
            if source.code == _CODE_CHAR:
                length = _checked_length(source, i)
                if length > source.width:
                    raise SchemaMismatchError(
                        f"Column {source.name!r}: {length} bytes of text in row {i}; "
                        f"an INDEXED row has {source.width} for a CHAR({source.width})."
                    )
            _grow(source, sizes, i, source.width)
    return None


@cython.cfunc
def _put_indexed_column(
    source: _Source, out: cython.p_uchar, cursor: cython.p_int, lengths: cython.p_int, rows: cython.Py_ssize_t
) -> object:
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    for i in range(rows):
        if source.is_null(i):
            continue
        at = cursor[i]
        if source.code == _CODE_VARINT:
            size = source.bits // 8
            _save(out, at, size, _stored_varint(source, i))
        elif source.code == _CODE_BOOL:
            size = 1
            out[at] = 1 if _is_set(source.values, source.offset + i) else 0
        elif source.code == _CODE_FIXED_INT or source.code == _CODE_FIXED_FLOAT:
            size = source.width
            _copy(out, at, source.values, (source.offset + i) * size, size)
        elif source.code == _CODE_TIMESTAMP:
            size = 12
            _save(out, at, 8, _millis(source, i))
            _save(out, at + 8, 4, _nanos(source, i))
        elif source.code == _CODE_BIG_DECIMAL:
            size = _decimal_size(source.values, 16 * (source.offset + i))
            _put_big_endian(out, at, source.values, 16 * (source.offset + i), size)
            _put_length(out, lengths, i, size)
        else:
            size = source.size_of(i)
            _copy(out, at, source.values, source.start_of(i), size)
            if source.code == _CODE_CHAR:
                size = source.width  # what is not filled stays 0
            elif source.code != _CODE_FIXED_BYTES:
                _put_length(out, lengths, i, size)
        cursor[i] += cython.cast(cython.int, size) if cython.compiled else size
    return None


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_length(
    out: cython.p_uchar, lengths: cython.p_int, row: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.void:
    _save(out, lengths[row], 4, size)
    lengths[row] += 4


# --- Columns into binary arrays and aligned rows --------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _slot_width(code: cython.int, width: cython.Py_ssize_t, bits: cython.int) -> cython.int:
    """Bytes of an element of a binary array, apart from its variable part."""
    if code == _CODE_VARINT:
        return bits // 8
    if code in (_CODE_BOOL, _CODE_FIXED_INT, _CODE_FIXED_FLOAT):
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
def _tail_size(source: _Source, row: cython.Py_ssize_t) -> cython.longlong:
    """Bytes that a value takes behind the slots."""
    if source.code == _CODE_TIMESTAMP:
        return 8
    if source.code == _CODE_BIG_DECIMAL:
        return 16
    if source.code == _CODE_NESTED:
        return _padded(_checked_length(source, row))
    if source.code == _CODE_BYTES:
        size: cython.longlong = _checked_length(source, row)
        return _padded(size) if size > _INLINE_MAX else 0
    if source.code == _CODE_FIXED_BYTES:
        return _padded(source.width) if source.width > _INLINE_MAX else 0
    if source.code == _CODE_VARINT:
        _stored_varint(source, row)
    return 0


@cython.cfunc
def _put_slot(
    source: _Source,
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
    if source.code == _CODE_VARINT:
        _save(out, slot, source.bits // 8, _stored_varint(source, row))
    elif source.code == _CODE_BOOL:
        out[slot] = 1 if _is_set(source.values, at) else 0
    elif source.code == _CODE_FIXED_INT or source.code == _CODE_FIXED_FLOAT:
        _copy(out, slot, source.values, at * source.width, source.width)
    elif source.code == _CODE_TIMESTAMP:
        _save(out, slot, 8, reference | _nanos(source, row))
        _save(out, tail, 8, _millis(source, row))
        tail += 8
    elif source.code == _CODE_BIG_DECIMAL:
        size = _decimal_size(source.values, 16 * at)
        _save(out, slot, 8, reference | size)
        _put_big_endian(out, tail, source.values, 16 * at, size)
        tail += 16
    else:
        size = source.size_of(row)
        if size <= _INLINE_MAX and source.code != _CODE_NESTED:
            _copy(out, slot, source.values, source.start_of(row), size)
            out[slot + 7] = 0x80 | size
        else:
            _save(out, slot, 8, reference | size)
            _copy(out, tail, source.values, source.start_of(row), size)
            tail += _padded(size)
    return tail


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
    source: _Source = _Source(name, spec, buffers, offset, element_count)
    lists: _Lists = _Lists(list_offsets, validity, row_count, element_count)
    width: cython.Py_ssize_t = _slot_width(source.code, source.width, source.bits)
    offsets_bytes = bytearray(4 * (row_count + 1))
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    for i in range(rows):
        if not lists.is_null(i):
            start = lists.ends[i]
            size = _padded(_array_head(lists.size(i)) + lists.size(i) * width)
            for k in range(start, start + lists.size(i)):
                if not source.is_null(k):
                    size += _tail_size(source, k)
            total += size
            if total > _I32_MAX:
                raise SchemaMismatchError(f"The rows take more than {_I32_MAX} bytes; write fewer at a time.")
        offsets[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(rows):
        if lists.is_null(i):
            continue
        base = offsets[i]
        start = lists.ends[i]
        _save(out, base, 4, lists.size(i))
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
        _need("list", offsets, 4 * (count + 1))
        self.ends = _as_int32(_pointer(offsets))
        self.has_nulls = validity is not None
        if validity is not None:
            _need("list", validity, (count + 7) // 8)
            self.validity = _pointer(validity)
        for i in range(rows):
            if self.ends[i] < 0 or self.ends[i + 1] < self.ends[i] or self.ends[i + 1] > element_count:
                raise SchemaMismatchError(f"The offsets of list {i} are wrong.")

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t) -> cython.bint:
        return self.has_nulls and not _is_set(self.validity, row)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def size(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.ends[row + 1] - self.ends[row]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _aligned_head(column_count: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Bytes of an aligned row's null bits, of which the first eight mean something else."""
    return (column_count + 63 + 8) // 64 * 8


def encode_aligned(columns: Sequence[Any], row_count: int) -> tuple[bytearray, bytearray]:
    """Aligned rows, as `encode_columns` returns them."""
    i: cython.Py_ssize_t
    c: cython.Py_ssize_t
    rows: cython.Py_ssize_t = row_count
    source: _Source
    sources: list = [_Source(name, spec, buffers, offset, row_count) for name, spec, buffers, offset in columns]
    head: cython.Py_ssize_t = _aligned_head(len(sources))
    fixed: cython.int = head + 8 * len(sources)
    offsets_bytes = bytearray(4 * (row_count + 1))
    tail_bytes = bytearray(4 * (row_count + 1))
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    tail: cython.p_int = _as_int32(_pointer(tail_bytes))
    for i in range(rows):
        tail[i] = fixed
    for c in range(len(sources)):
        source = sources[c]
        for i in range(rows):
            if not source.is_null(i):
                _grow(source, tail, i, _tail_size(source, i))
    out_bytes = bytearray(_sum_up(tail, offsets, rows))
    out: cython.p_uchar = _pointer(out_bytes)
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


# --- Single rows ----------------------------------------------------------------------------------------------------


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
    at: cython.Py_ssize_t = len(out)
    _resize(out, at + _varint_size(pattern))
    _put_varint(_bytes_of(out), at, pattern)
    return None


# --- Rows and binary arrays back into columns -----------------------------------------------------------------------


@cython.cclass
class _Rows:
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
        return self.layout != _KEY and self.data[self.starts[row] + (column >> 3)] & (1 << (column & 7)) != 0

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
        if self.layout <= _COMPACTED:
            return _signed(self.take_varint(row, bits), bits)
        return _load(self.data, self.take(row, bits // 8), bits // 8)

    @cython.cfunc
    @cython.inline
    def take_span(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The position of the next bytes, whose number is `span` then."""
        if self.layout <= _COMPACTED:
            self.span = self.take_varint(row, 32)
            return self.take(row, self.span)
        return self.take_other_span(row)

    @cython.cfunc
    def take_other_span(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if self.layout == _INDEXED:
            self.span = _load(self.data, self.lengths[row], 4)
            self.lengths[row] += 4
            if self.span < 0:
                raise CorruptDataError(f"row {row}: a length of {self.span} bytes")
            return self.take(row, self.span)
        slot: cython.Py_ssize_t = self.take(row, 8)
        last: cython.int = self.data[slot + 7]
        if last >= 0x80:
            self.span = last - 0x80
            if self.span > _INLINE_MAX:
                raise CorruptDataError(f"element {row}: {self.span} bytes in a slot")
            return slot
        reference: cython.longlong = _load(self.data, slot, 8)
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
def _rows_behind_each_other(
    data: object, offsets: object, count: object, layout: cython.int, head: cython.int, lengths_size: cython.int
) -> _Rows:
    i: cython.Py_ssize_t
    rows: _Rows = _Rows()
    cursor_bytes = bytearray(4 * (count + 1))
    lengths_bytes = bytearray(4 * (count + 1) if layout == _INDEXED else 0)
    rows.keep = (data, offsets, cursor_bytes, lengths_bytes)
    if len(offsets) < 4 * (count + 1):
        raise CorruptDataError(f"rows: {len(offsets)} bytes of offsets for {count} rows")
    rows.data = _pointer(data)
    rows.data_size = len(data)
    rows.starts = _as_int32(_pointer(offsets))
    rows.ends = _from_second(rows.starts)
    rows.cursor = _as_int32(_pointer(cursor_bytes))
    rows.lengths = _as_int32(_pointer(lengths_bytes))
    rows.count = count
    rows.layout = layout
    for i in range(rows.count):
        if rows.starts[i] < 0 or rows.ends[i] < rows.starts[i] or rows.ends[i] > rows.data_size:
            raise CorruptDataError(f"rows: the offsets of row {i} are wrong")
        if rows.ends[i] - rows.starts[i] < head + lengths_size:
            raise CorruptDataError(f"row {i}: too short for its null bits")
        rows.cursor[i] = rows.starts[i] + head + lengths_size
    if layout == _INDEXED:
        for i in range(rows.count):
            rows.lengths[i] = rows.starts[i] + head
    return rows


def decode_columns(
    data: Any, offsets: Any, row_count: int, specs: Sequence[Any], layout: int
) -> list[tuple[bytearray | None, int, bytearray | None, bytearray]]:
    """Per column: validity (None when nothing is null), null count, value offsets (None when fixed), values."""
    i: cython.Py_ssize_t
    lengths_size: cython.int = _lengths_size([spec[0] for spec in specs]) if layout == _INDEXED else 0
    head: cython.int = 0 if layout == _KEY else (len(specs) + 7) // 8
    rows: _Rows = _rows_behind_each_other(data, offsets, row_count, layout, head, lengths_size)
    columns: list = [_take_column(rows, c, specs[c]) for c in range(len(specs))]
    for i in range(rows.count):
        if rows.cursor[i] != rows.ends[i]:
            raise CorruptDataError(f"row {i}: {rows.ends[i] - rows.cursor[i]} bytes left over")
    return columns


def decode_values(values: list[bytes | None], schemas: Mapping[int, Any]) -> list[dict[str, Any] | None]:
    """A row of each stored value: a schema id and a compacted row without nested columns; None stays None.

    A schema is its columns and a row of nulls. A column is its name (None to leave it out), spec, whether it may be
    null, whether it is text, and what makes a Python value of the physical one (None where it is one already).
    """
    i: cython.Py_ssize_t
    number: cython.int
    last: cython.int = -0x10000
    value: bytes
    columns: tuple = ()
    nulls: dict = {}
    listed: list = values
    found: list = []
    rows: _Rows = _single_row()
    for i in range(len(listed)):
        if listed[i] is None:
            found.append(None)
            continue
        value = listed[i]
        number = _schema_id_of(value, i)
        if number != last:
            if number not in schemas:
                raise CorruptDataError(f"value {i}: its schema {number} is not known")
            columns, nulls = schemas[number]
            last = number
        _begin_row(rows, value, (len(columns) + 7) // 8)
        found.append(_fill_row(rows, value, columns, nulls.copy()))
    return found


@cython.cfunc
def _single_row() -> _Rows:
    """Place for one row at a time."""
    rows: _Rows = _Rows()
    starts_bytes, cursor_bytes = bytearray(8), bytearray(4)
    rows.keep = (starts_bytes, cursor_bytes)
    rows.starts = _as_int32(_pointer(starts_bytes))
    rows.ends = _from_second(rows.starts)
    rows.cursor = _as_int32(_pointer(cursor_bytes))
    rows.count = 1
    rows.layout = _COMPACTED
    return rows


@cython.cfunc
def _begin_row(rows: _Rows, value: bytes, head: cython.int) -> cython.int:
    """Read the row of a stored value, which has to outlive that."""
    size: cython.Py_ssize_t = len(value)
    if size > _I32_MAX or size < _SCHEMA_ID_SIZE + head:
        raise CorruptDataError("row: too short for its null bits, or too long")
    rows.data = value
    rows.data_size = size
    rows.starts[0] = _SCHEMA_ID_SIZE
    rows.ends[0] = cython.cast(cython.int, size) if cython.compiled else size
    rows.cursor[0] = _SCHEMA_ID_SIZE + head
    return 0


@cython.cfunc
def _fill_row(rows: _Rows, value: bytes, columns: tuple, row: dict) -> dict:
    i: cython.Py_ssize_t
    column: tuple
    for i in range(len(columns)):
        column = columns[i]
        if rows.is_null(0, i):
            if not column[2]:
                raise CorruptDataError(f"rows: column {column[0]!r} is NOT NULL and null")
            continue
        field = _take_text(rows) if column[3] else _take_value(rows, value, column[1])
        if column[0] is not None:
            row[column[0]] = field if column[4] is None else column[4](field)
    if rows.cursor[0] != rows.ends[0]:
        raise CorruptDataError(f"row: {rows.ends[0] - rows.cursor[0]} bytes left over")
    return row


@cython.cfunc
def _take_text(rows: _Rows) -> str:
    at: cython.Py_ssize_t = rows.take_span(0)
    if cython.compiled:
        return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, cython.address(rows.data[at])), rows.span, cython.NULL)
    else:
        return bytes(rows.data[at : at + rows.span]).decode()


@cython.cfunc
def _take_value(rows: _Rows, value: bytes, spec: tuple) -> object:
    """The next physical value of the only row."""
    code: cython.int = spec[0]
    at: cython.Py_ssize_t
    number: cython.longlong
    low: cython.longlong
    high: cython.longlong
    multiplier: cython.longlong
    divisor: cython.longlong
    if code == _CODE_VARINT:
        number = _signed(rows.take_varint(0, spec[4]), spec[4])
        multiplier, divisor, low, high = spec[2], spec[3], spec[5], spec[6]
        if number < low or number > high:
            raise CorruptDataError(f"row: {number} is outside {low} to {high}")
        return number // multiplier * divisor
    if code == _CODE_BOOL:
        return rows.data[rows.take(0, 1)] != 0
    if code == _CODE_FIXED_INT:
        at = rows.take(0, spec[1])
        return int.from_bytes(value[at : at + spec[1]], "little", signed=True)
    if code == _CODE_FIXED_FLOAT:
        return struct.unpack_from("<f" if spec[1] == 4 else "<d", value, rows.take(0, spec[1]))[0]
    if code == _CODE_TIMESTAMP:
        valid: cython.p_uchar = _pointer(b"\x01")
        return struct.unpack("<q", _take_timestamps(rows, valid, spec[2]))[0]
    at = rows.take_span(0)
    if code == _CODE_BIG_DECIMAL:
        if rows.span < 1 or rows.span > 16:
            raise CorruptDataError(f"row: a decimal of {rows.span} bytes")
        return int.from_bytes(value[at : at + rows.span], "big", signed=True)
    if code == _CODE_FIXED_BYTES and rows.span != spec[1]:
        raise CorruptDataError(f"row: {rows.span} bytes in a column of {spec[1]}")
    return value[at : at + rows.span]


def decode_aligned(
    data: Any, offsets: Any, row_count: int, specs: Sequence[Any]
) -> list[tuple[bytearray | None, int, bytearray | None, bytearray]]:
    """Columns of aligned rows, as `decode_columns` returns them."""
    i: cython.Py_ssize_t
    c: cython.int
    head: cython.int = _aligned_head(len(specs))
    rows: _Rows = _rows_behind_each_other(data, offsets, row_count, _SLOTS, head + 8 * len(specs), 0)
    columns: list = []
    for c in range(len(specs)):
        for i in range(rows.count):
            rows.cursor[i] = rows.starts[i] + head + 8 * c
        columns.append(_take_column(rows, c + 8, specs[c]))
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
    arrays: _Rows = _rows_behind_each_other(data, offsets, row_count, _SLOTS, 0, 0)
    present_bytes = _all_set(row_count) if validity is None else validity
    present: cython.p_uchar = _pointer(present_bytes)
    width: cython.Py_ssize_t = _slot_width(spec[0], spec[1], spec[4])
    ends_bytes = bytearray(4 * (row_count + 1))
    ends: cython.p_int = _as_int32(_pointer(ends_bytes))
    for i in range(arrays.count):
        if _is_set(present, i):
            size = arrays.ends[i] - arrays.starts[i]
            count = _load(arrays.data, arrays.starts[i], 4) if size >= 4 else -1
            if count < 0 or _array_head(count) + count * width > size:
                raise CorruptDataError(f"row {i}: no array of {count} elements in {size} bytes")
            total += count
        ends[i + 1] = cython.cast(cython.int, total) if cython.compiled else total
    places = [bytearray(4 * total) for _ in range(3)]
    elements: _Rows = _Rows()
    elements.keep = (arrays, places)
    elements.data = arrays.data
    elements.data_size = arrays.data_size
    elements.starts = _as_int32(_pointer(places[0]))
    elements.ends = _as_int32(_pointer(places[1]))
    elements.cursor = _as_int32(_pointer(places[2]))
    elements.count = total
    elements.layout = _SLOTS
    valid_bytes = bytearray((total + 7) // 8)
    valid: cython.p_uchar = _pointer(valid_bytes)
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
    value_offsets, values = _take_values(elements, valid, spec)
    return ends_bytes, total, (valid_bytes if null_count else None, null_count, value_offsets, values)


@cython.cfunc
def _all_set(count: object) -> bytearray:
    return bytearray(b"\xff") * ((count + 7) // 8)


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
    value_offsets, values = _take_values(rows, valid, spec)
    return validity if null_count else None, null_count, value_offsets, values


@cython.cfunc
def _take_values(rows: _Rows, valid: cython.p_uchar, spec: object) -> tuple:
    """Value offsets (None when fixed) and values."""
    code: cython.int = spec[0]
    if code in (_CODE_BYTES, _CODE_NESTED, _CODE_CHAR):
        return _take_bytes(rows, valid, spec[1])
    if code == _CODE_VARINT:
        return None, _take_varints(rows, valid, spec)
    if code == _CODE_BOOL:
        return None, _take_bools(rows, valid)
    if code == _CODE_BIG_DECIMAL:
        return None, _take_big_decimals(rows, valid)
    if code == _CODE_TIMESTAMP:
        return None, _take_timestamps(rows, valid, spec[2])
    return None, _take_fixed(rows, valid, spec[1], code == _CODE_FIXED_BYTES and rows.layout != _INDEXED)


@cython.cfunc
def _take_bytes(rows: _Rows, valid: cython.p_uchar, padded_to: cython.Py_ssize_t) -> tuple:
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    starts_bytes = bytearray(4 * (rows.count + 1))
    offsets_bytes = bytearray(4 * (rows.count + 1))
    starts: cython.p_int = _as_int32(_pointer(starts_bytes))
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    for i in range(rows.count):
        if _is_set(valid, i):
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
    compacted: cython.bint = rows.layout <= _COMPACTED
    out_bytes = bytearray(width * rows.count)
    out32: cython.p_int = _as_int32(_pointer(out_bytes))
    out64: cython.p_longlong = _as_int64(_pointer(out_bytes))
    for i in range(rows.count):
        if not _is_set(valid, i):
            continue
        value = _signed(rows.take_varint(i, bits), bits) if compacted else rows.take_number(i, bits)
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
def _take_fixed(rows: _Rows, valid: cython.p_uchar, width: cython.Py_ssize_t, with_length: cython.bint) -> bytearray:
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    out_bytes = bytearray(width * rows.count)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(rows.count):
        if not _is_set(valid, i):
            continue
        if with_length:
            start = rows.take_span(i)
            if rows.span != width:
                raise CorruptDataError(f"row {i}: {rows.span} bytes in a column of {width}")
        else:
            start = rows.take(i, width)
        _copy(out, i * width, rows.data, start, width)
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
        at = rows.take_span(i)
        size = rows.span
        if size < 1 or size > 16:
            raise CorruptDataError(f"row {i}: a decimal of {size} bytes")
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
        if rows.layout == _SLOTS:
            nanos = _load(rows.data, rows.take(i, 8), 8)
            millis = _load(rows.data, rows.at_reference(i, nanos, 8), 8)
            nanos &= 0xFFFFFFFF
        else:
            millis = rows.take_number(i, 64)
            nanos = rows.take_number(i, 32)
        if millis > limit or millis < -limit or nanos < 0 or nanos > 999_999:
            raise CorruptDataError(f"row {i}: {millis} ms and {nanos} ns are no timestamp")
        out[i] = millis * units + nanos // (1_000_000 // units)
    return out_bytes


def split_maps(
    data: Any, offsets: Any, validity: Any, row_count: int
) -> tuple[tuple[bytearray, bytearray], tuple[bytearray, bytearray]]:
    """The key arrays and the value arrays of binary maps, each as data and int32 offsets."""
    i: cython.Py_ssize_t
    size: cython.longlong
    key_size: cython.longlong
    maps: _Rows = _rows_behind_each_other(data, offsets, row_count, _SLOTS, 0, 0)
    present_bytes = _all_set(row_count) if validity is None else validity
    present: cython.p_uchar = _pointer(present_bytes)
    key_ends_bytes = bytearray(4 * (row_count + 1))
    value_ends_bytes = bytearray(4 * (row_count + 1))
    key_ends: cython.p_int = _as_int32(_pointer(key_ends_bytes))
    value_ends: cython.p_int = _as_int32(_pointer(value_ends_bytes))
    for i in range(maps.count):
        key_size = 0
        size = 4
        if _is_set(present, i):
            size = maps.ends[i] - maps.starts[i]
            key_size = _load(maps.data, maps.starts[i], 4) if size >= 4 else -1
            if key_size < 0 or key_size > size - 4:
                raise CorruptDataError(f"row {i}: no map with {key_size} bytes of keys in {size} bytes")
        key_ends[i + 1] = key_ends[i] + key_size
        value_ends[i + 1] = value_ends[i] + size - 4 - key_size
    keys_bytes = bytearray(key_ends[row_count])
    values_bytes = bytearray(value_ends[row_count])
    keys: cython.p_uchar = _pointer(keys_bytes)
    values: cython.p_uchar = _pointer(values_bytes)
    for i in range(maps.count):
        key_size = key_ends[i + 1] - key_ends[i]
        _copy(keys, key_ends[i], maps.data, maps.starts[i] + 4, key_size)
        size = value_ends[i + 1] - value_ends[i]
        _copy(values, value_ends[i], maps.data, maps.starts[i] + 4 + key_size, size)
    return (keys_bytes, key_ends_bytes), (values_bytes, value_ends_bytes)


# --- Rows in log batches --------------------------------------------------------------------------------------------


def join_records(data: Any, offsets: Any, row_count: int, change_types: Any) -> bytearray:
    """Each row behind its length and change type."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    rows: _Rows = _rows_behind_each_other(data, offsets, row_count, _KEY, 0, 0)
    _need("change type", change_types, row_count)
    changes: cython.p_uchar = _pointer(change_types)
    used: cython.Py_ssize_t = rows.ends[rows.count - 1] - rows.starts[0] if rows.count else 0
    out_bytes = bytearray(used + _RECORD_HEAD * row_count)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(rows.count):
        size = rows.ends[i] - rows.starts[i]
        _save(out, at, 4, size + 1)
        out[at + 4] = changes[i]
        _copy(out, at + _RECORD_HEAD, rows.data, rows.starts[i], size)
        at += _RECORD_HEAD + size
    return out_bytes


def split_records(records: Any, row_count: int) -> tuple[bytearray, bytearray, bytearray]:
    """Change types, row bytes one behind the other, and their int32 offsets."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    size: cython.longlong
    end: cython.Py_ssize_t = len(records)
    if row_count < 0 or row_count * _RECORD_HEAD > end or end > _I32_MAX:
        raise CorruptDataError(f"log batch: {row_count} records announced in {end} bytes")
    count: cython.Py_ssize_t = row_count
    source: cython.p_uchar = _pointer(records)
    changes_bytes = bytearray(row_count)
    offsets_bytes = bytearray(4 * (row_count + 1))
    out_bytes = bytearray(end - _RECORD_HEAD * row_count)
    changes: cython.p_uchar = _pointer(changes_bytes)
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(count):
        size = _load(source, at, 4) - 1 if end - at >= _RECORD_HEAD else -1
        if size < 0 or size > end - at - _RECORD_HEAD or size > len(out_bytes) - offsets[i]:
            raise CorruptDataError(f"log batch: record {i} at byte {at} has a wrong length")
        changes[i] = source[at + 4]
        if changes[i] > _CHANGE_TYPE_MAX:
            raise CorruptDataError(f"log batch: record {i} has the unknown change type {changes[i]}")
        _copy(out, offsets[i], source, at + _RECORD_HEAD, size)
        offsets[i + 1] = offsets[i] + (cython.cast(cython.int, size) if cython.compiled else size)
        at += _RECORD_HEAD + size
    if at != end:
        raise CorruptDataError(f"log batch: {end - at} bytes left over behind {row_count} records")
    return changes_bytes, out_bytes, offsets_bytes


def are_records_sound(data: Any, record_count: int) -> bool:
    """Whether `data` is just so many appended records: a length each, a change type of 0, and a row."""
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = len(data)
    left: cython.Py_ssize_t = record_count
    length: cython.Py_ssize_t
    if left < 0 or left > size // 6:
        return False
    content: cython.p_uchar = _pointer(data)
    while left > 0:
        if size - at < 6 or content[at + 3] >= 0x80:
            return False
        length = content[at] | content[at + 1] << 8 | content[at + 2] << 16 | content[at + 3] << 24
        # A row has a byte of null bits at least.
        if length < 2 or length > size - at - 4 or content[at + 4] != 0:
            return False
        at += 4 + length
        left -= 1
    return at == size


def unset_bytes(size: int) -> bytearray:
    """So many bytes of any content, for those who will set all of them: clearing a large buffer takes time."""
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    else:
        return bytearray(size)


# --- Python rows of columns -----------------------------------------------------------------------------------------


def rows_of_columns(names: list[str], columns: list[list[Any]], row_count: int) -> list[dict[str, Any]]:
    """One dict per row of columns of Python values."""
    row: cython.Py_ssize_t
    column: cython.Py_ssize_t
    column_count: cython.Py_ssize_t = len(columns)
    values: list
    fields: dict
    for values in columns:
        if len(values) != row_count:
            raise ValueError(f"a column of {len(values)} values among rows of {row_count}")
    # A copy has room for all fields from the start.
    template: dict = dict.fromkeys(names)
    rows: list = []
    for row in range(row_count):
        fields = template.copy()
        for column in range(column_count):
            values = columns[column]
            fields[names[column]] = values[row]
        rows.append(fields)
    return rows


# What it refers to never refers to it, so the garbage collector, which took a tenth of a poll, need not know it.
@cython.no_gc
@cython.freelist(512)
@cython.final
@cython.cclass
class ScanRecord:
    """One row with its place in the log."""

    __match_args__ = ("offset", "timestamp", "change_type", "row")
    _offset: cython.longlong
    _timestamp: cython.longlong
    _change_type: object
    _row: object

    def __init__(self, offset: int, timestamp: int, change_type: Any, row: dict[str, Any]) -> None:
        self._offset = offset
        self._timestamp = timestamp
        self._change_type = change_type
        self._row = row

    @property
    def offset(self) -> int:
        """Its place among the rows of its bucket."""
        return self._offset

    @property
    def timestamp(self) -> int:
        """When the server stored it, in milliseconds since 1970."""
        return self._timestamp

    @property
    def change_type(self) -> Any:
        """What happened to the row, a `ChangeType`."""
        return self._change_type

    @property
    def row(self) -> Any:
        """The values by column name."""
        return self._row

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, ScanRecord):
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __repr__(self) -> str:
        fields = zip(self.__match_args__, self.__reduce__()[1], strict=True)
        return f"ScanRecord({', '.join(f'{name}={value!r}' for name, value in fields)})"

    def __reduce__(self) -> Any:
        return ScanRecord, (self._offset, self._timestamp, self._change_type, self._row)


def records_of_rows(
    rows: list[dict[str, Any]],
    base_offset: int,
    offsets: list[int] | None,
    timestamp_ms: int,
    change_types: Sequence[Any],
    changes: bytes | None,
) -> list[ScanRecord]:
    """Rows with their places in the log: offsets from the base on where none are given, the first change type too."""
    i: cython.Py_ssize_t
    kinds: tuple = tuple(change_types)
    offset: cython.longlong = base_offset
    timestamp: cython.longlong = timestamp_ms
    record: ScanRecord
    records: list = []
    for i in range(len(rows)):
        record = ScanRecord.__new__(ScanRecord)
        record._offset = offset + i if offsets is None else offsets[i]
        record._timestamp = timestamp
        record._change_type = kinds[0 if changes is None else changes[i]]
        record._row = rows[i]
        records.append(record)
    return records


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
        number = _floor_div(value, divisor)
        if number < low or number > high:
            raise OverflowError("date value out of range")
        result.append(_datetime(number * factor, zone))
    return result


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
    rows: _Rows = _rows_behind_each_other(data, offsets, row_count, _KEY, 0, 0)
    out_bytes = bytearray(4 * row_count)
    out: cython.p_int = _as_int32(_pointer(out_bytes))
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
        state ^= _mul32(_rotl32(_mul32(word, _C1), 15), _C2)
    length: cython.uint = end - start
    return _finish(state ^ length)


def lake_buckets(data: Any, offsets: Any, row_count: int, bucket_count: int, iceberg: bool) -> bytearray:
    """The buckets of encoded keys as Iceberg, or else Paimon, chooses them, int32 each."""
    i: cython.Py_ssize_t
    hashed: cython.uint
    count: cython.uint = _check_bucket_count(bucket_count)
    is_iceberg: cython.bint = iceberg
    rows: _Rows = _rows_behind_each_other(data, offsets, row_count, _KEY, 0, 0)
    out_bytes = bytearray(4 * row_count)
    out: cython.p_int = _as_int32(_pointer(out_bytes))
    for i in range(rows.count):
        if is_iceberg:
            hashed = _published_hash(rows.data, rows.starts[i], rows.ends[i]) & 0x7FFFFFFF
        else:
            # The amount of Java's remainder, which has the sign of the hash.
            hashed = _hash(rows.data, rows.starts[i], rows.ends[i], True)
            if hashed > _INT_MIN_PATTERN:
                hashed = _add32(~hashed if cython.compiled else hashed ^ 0xFFFFFFFF, 1)
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
    state = _mul64(state ^ word, factor)
    return state ^ (state >> 32)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _same_nan(word: cython.ulonglong, width: cython.Py_ssize_t) -> cython.ulonglong:
    """The bits of a float; those of a NaN depend on how it came about, so all are taken for one."""
    if width == 4:
        return _INFINITY_32 + 1 if (word & 0x7FFFFFFF) > _INFINITY_32 else word
    return _INFINITY_64 + 1 if (word & _I64_MAX) > _INFINITY_64 else word


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
    hashes[row] = _signed(_stirred(_add64(_unsigned(hashes[row], 64), seed), word, _FACTOR_1), 64)


def add_hashes(hashes: bytearray, seed: int, code: int, width: int, buffers: Sequence[Any], offset: int) -> None:
    """Add a column's values to the hashes of their rows, 8 bytes each; a null adds nothing.

    `buffers` are validity or None and values, both from row `offset` on. `width` is that of a value in bytes.
    """
    i: cython.Py_ssize_t
    rows: cython.Py_ssize_t = len(hashes) // 8
    step: cython.Py_ssize_t = width
    first: cython.Py_ssize_t = offset
    is_bool: cython.bint = code == _CODE_BOOL
    is_float: cython.bint = code == _CODE_FIXED_FLOAT
    validity_view, values_view = buffers
    has_nulls: cython.bint = validity_view is not None
    if has_nulls:
        _need("", validity_view, (first + rows + 7) // 8)
    _need("", values_view, (first + rows + 7) // 8 if is_bool else (first + rows) * step)
    validity: cython.p_uchar = _pointer(validity_view if has_nulls else b"")
    values: cython.p_uchar = _pointer(values_view)
    out: cython.p_longlong = _as_int64(_pointer(hashes))
    start: cython.ulonglong = _stirred(seed, _FACTOR_1, _FACTOR_3)
    word: cython.ulonglong
    if step == 8 and not (has_nulls or is_float):
        for i in range(rows):
            _add_to_row(out, i, start, _word_at(values, (first + i) * 8, 8))
        return
    for i in range(rows):
        if has_nulls and not _is_set(validity, first + i):
            continue
        if is_bool:
            word = 1 if _is_set(values, first + i) else 0
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
        _need("", validity_view, (first + rows + 7) // 8)
    _need("", offsets_view, 4 * (first + rows + 1))
    validity: cython.p_uchar = _pointer(validity_view if has_nulls else b"")
    offsets: cython.p_int = _as_int32(_pointer(offsets_view))
    values: cython.p_uchar = _pointer(values_view)
    values_size: cython.longlong = len(values_view)
    out: cython.p_longlong = _as_int64(_pointer(hashes))
    start: cython.ulonglong = _stirred(seed, _FACTOR_1, _FACTOR_3)
    for i in range(rows):
        if has_nulls and not _is_set(validity, first + i):
            continue
        at = (offsets[first + i] - skipped) * step
        end = (offsets[first + i + 1] - skipped) * step
        if at < 0 or end < at or end > values_size:
            raise SchemaMismatchError(f"An Arrow column has a value at bytes {at} to {end} of {values_size}.")
        _add_to_row(out, i, start, _hash_of_bytes(start, values, at, end - at))


def sum_hashes(hashes: bytearray, seed: int) -> int:
    """The sum of the hashes of rows, in 64 bits: the same in whatever order they come."""
    i: cython.Py_ssize_t
    of_rows: cython.p_longlong = _as_int64(_pointer(hashes))
    start: cython.ulonglong = seed
    total: cython.ulonglong = 0
    for i in range(len(hashes) // 8):
        total = _add64(total, _stirred(_stirred(start, _unsigned(of_rows[i], 64), _FACTOR_1), 0, _FACTOR_3))
    return total


# --- Kv batches and stored values -----------------------------------------------------------------------------------

_LENGTH_SIZE = cython.declare(cython.int, 4)
_SCHEMA_ID_SIZE = cython.declare(cython.int, 2)
_KV_RECORD_MIN = cython.declare(cython.int, 5)  # bytes of a length and of an empty key's length


@cython.cfunc
def _bytes_behind(prefix: bytes, base: cython.p_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> bytes:
    """A new byte string: the prefix, then what lies from `start` to `end`."""
    if cython.compiled:
        head: cython.Py_ssize_t = len(prefix)
        joined: bytes = PyBytes_FromStringAndSize(cython.NULL, head + end - start)
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(joined))
        _copy(out, 0, cython.cast(cython.p_uchar, PyBytes_AS_STRING(prefix)), 0, head)
        _copy(out, head, base, start, end - start)
        return joined
    else:
        return prefix + bytes(base[start:end])


def join_kv_records(
    keys: tuple[Any, Any], rows: tuple[Any, Any], validity: Any, validity_start: int, row_count: int
) -> bytearray:
    """Records of keys and rows, each (data, int32 offsets); a row whose bit is not set is a delete."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    key_size: cython.longlong
    row_size: cython.longlong
    total: cython.longlong = 0
    key_rows: _Rows = _rows_behind_each_other(keys[0], keys[1], row_count, _KEY, 0, 0)
    new_rows: _Rows = _rows_behind_each_other(rows[0], rows[1], row_count, _KEY, 0, 0)
    has_deletes: cython.bint = validity is not None
    first_bit: cython.Py_ssize_t = validity_start
    bits_bytes = b"" if validity is None else validity
    if has_deletes:
        _need("rows", bits_bytes, (validity_start + row_count + 7) // 8)
    bits: cython.p_uchar = _pointer(bits_bytes)
    for i in range(key_rows.count):
        key_size = key_rows.ends[i] - key_rows.starts[i]
        row_size = new_rows.ends[i] - new_rows.starts[i]
        if has_deletes and not _is_set(bits, first_bit + i):
            row_size = 0
        elif row_size == 0:
            raise SchemaMismatchError(f"Row {i} has no bytes, which would delete it; a delete is a null.")
        total += _LENGTH_SIZE + _varint_size(key_size) + key_size + row_size
        if total > _I32_MAX:
            raise SchemaMismatchError(f"The rows take more than {_I32_MAX} bytes; write fewer at a time.")
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(key_rows.count):
        key_size = key_rows.ends[i] - key_rows.starts[i]
        row_size = new_rows.ends[i] - new_rows.starts[i]
        if has_deletes and not _is_set(bits, first_bit + i):
            row_size = 0
        _save(out, at, 4, _varint_size(key_size) + key_size + row_size)
        at = _put_varint(out, at + _LENGTH_SIZE, key_size)
        _copy(out, at, key_rows.data, key_rows.starts[i], key_size)
        _copy(out, at + key_size, new_rows.data, new_rows.starts[i], row_size)
        at += key_size + row_size
    return out_bytes


def split_kv_records(records: Any, row_count: int, prefix: bytes) -> tuple[list[bytes], list[bytes | None]]:
    """Keys, and rows behind `prefix`; None for a record without a row, a delete."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    stop: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(records)
    size: cython.longlong
    key_size: cython.longlong
    byte: cython.longlong
    shift: cython.int
    head: bytes = prefix
    if row_count < 0 or row_count * _KV_RECORD_MIN > end:
        raise CorruptDataError(f"kv batch: {row_count} records announced in {end} bytes")
    count: cython.Py_ssize_t = row_count
    source: cython.p_uchar = _pointer(records)
    keys: list = []
    values: list = []
    for i in range(count):
        size = _load(source, at, 4) if end - at >= _KV_RECORD_MIN else -1
        if size < 1 or size > end - at - _LENGTH_SIZE:
            raise CorruptDataError(f"kv batch: record {i} at byte {at} has a wrong length")
        at += _LENGTH_SIZE
        stop = at + size
        key_size = 0
        shift = 0
        byte = 0x80
        while byte >= 0x80:
            byte = source[at] if at < stop else 0xFF
            # A fifth byte has four bits to add, and none may follow.
            if at >= stop or (shift == 28 and byte > 0x0F):
                raise CorruptDataError(f"kv batch: the key length of record {i} is no number of 32 bits")
            key_size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        if key_size > stop - at:
            raise CorruptDataError(f"kv batch: the key of record {i} has {key_size} bytes, {stop - at} are left")
        keys.append(_bytes_behind(b"", source, at, at + key_size))
        at += key_size
        values.append(_bytes_behind(head, source, at, stop) if at < stop else None)
        at = stop
    if at != end:
        raise CorruptDataError(f"kv batch: {end - at} bytes left over behind {row_count} records")
    return keys, values


def join_values(values: list[bytes]) -> bytearray:
    """Each value behind its length."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    value: bytes
    source: cython.p_uchar
    listed: list = values
    total: cython.longlong = _LENGTH_SIZE * len(listed)
    for i in range(len(listed)):
        value = listed[i]
        total += len(value)
    if total > _I32_MAX:
        raise SchemaMismatchError(f"The rows take more than {_I32_MAX} bytes; read fewer at a time.")
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(len(listed)):
        value = listed[i]
        source = value
        _save(out, at, 4, len(value))
        _copy(out, at + _LENGTH_SIZE, source, 0, len(value))
        at += _LENGTH_SIZE + len(value)
    return out_bytes


def split_values(records: Any, row_count: int) -> list[bytes]:
    """The values, each of which lies behind its length."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(records)
    size: cython.longlong
    if row_count < 0 or row_count * (_LENGTH_SIZE + _SCHEMA_ID_SIZE) > end:
        raise CorruptDataError(f"value batch: {row_count} values announced in {end} bytes")
    count: cython.Py_ssize_t = row_count
    source: cython.p_uchar = _pointer(records)
    values: list = []
    for i in range(count):
        size = _load(source, at, 4) if end - at >= _LENGTH_SIZE else -1
        if size < _SCHEMA_ID_SIZE or size > end - at - _LENGTH_SIZE:
            raise CorruptDataError(f"value batch: value {i} at byte {at} has a wrong length")
        at += _LENGTH_SIZE
        values.append(_bytes_behind(b"", source, at, at + size))
        at += size
    if at != end:
        raise CorruptDataError(f"value batch: {end - at} bytes left over behind {row_count} values")
    return values


def values_of_rows(
    data: Any, offsets: Any, row_count: int, prefix: bytes, places: list[bytes | None] | None
) -> list[bytes | None]:
    """Each row behind `prefix`; with `places`, only where those are not None, and None elsewhere."""
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    head: bytes = prefix
    rows: _Rows = _rows_behind_each_other(data, offsets, row_count, _KEY, 0, 0)
    listed: list = [prefix] * row_count if places is None else places
    if len(listed) - listed.count(None) != row_count:
        raise ValueError(f"{row_count} rows for {len(listed) - listed.count(None)} places")
    values: list = []
    for i in range(len(listed)):
        if listed[i] is None:
            values.append(None)
        else:
            values.append(_bytes_behind(head, rows.data, rows.starts[row], rows.ends[row]))
            row += 1
    return values


@cython.cfunc
@cython.inline
@cython.exceptval(-77777, check=True)
def _schema_id_of(value: bytes, row: cython.Py_ssize_t) -> cython.int:
    if len(value) < _SCHEMA_ID_SIZE:
        raise CorruptDataError(f"value {row}: {len(value)} bytes have no room for a schema id")
    source: cython.p_uchar = value
    pattern: cython.int = source[0]
    pattern |= source[1] << 8
    return pattern - 0x10000 if pattern >= 0x8000 else pattern


def schema_ids_of(values: list[bytes | None]) -> list[int]:
    """The schema ids that occur, in order of appearance; of None there is none."""
    i: cython.Py_ssize_t
    number: cython.int
    last: cython.int = -0x10000
    listed: list = values
    seen: dict = {}
    for i in range(len(listed)):
        if listed[i] is None:
            continue
        number = _schema_id_of(listed[i], i)
        if number != last:
            seen[number] = None
            last = number
    return list(seen)


def rows_of_schema(values: list[bytes], schema_id: int) -> tuple[bytearray, bytearray, bytearray]:
    """The rows of the values with one schema id: data, int32 offsets, and int32 places in `values`."""
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    size: cython.longlong
    total: cython.longlong = 0
    value: bytes
    source: cython.p_uchar
    wanted: cython.int = schema_id
    listed: list = values
    places_bytes = bytearray(4 * len(listed))
    places: cython.p_int = _as_int32(_pointer(places_bytes))
    offsets_bytes = bytearray(4 * (len(listed) + 1))
    offsets: cython.p_int = _as_int32(_pointer(offsets_bytes))
    for i in range(len(listed)):
        value = listed[i]
        if _schema_id_of(value, i) == wanted:
            total += len(value) - _SCHEMA_ID_SIZE
            if total > _I32_MAX:
                raise SchemaMismatchError(f"The rows take more than {_I32_MAX} bytes; read fewer at a time.")
            places[count] = cython.cast(cython.int, i) if cython.compiled else i
            count += 1
            offsets[count] = cython.cast(cython.int, total) if cython.compiled else total
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(count):
        value = listed[places[i]]
        source = value
        size = offsets[i + 1] - offsets[i]
        _copy(out, offsets[i], source, _SCHEMA_ID_SIZE, size)
    return out_bytes, offsets_bytes[: 4 * (count + 1)], places_bytes[: 4 * count]


_ORDER_SIZE = cython.declare(cython.int, 8)  # bytes of keys that are compared


def keys_in_order(keys: list[bytes]) -> list[bytes]:
    """Keys in the order of the eight bytes behind what all of them begin with."""
    listed: list = keys
    order_bytes: bytearray = _order_of(listed, _common_size(listed))
    order: cython.p_int = _as_int32(_pointer(order_bytes))
    return [listed[order[i]] for i in range(len(listed))]


def rows_in_order(rows: dict[bytes, bytes | None]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Keys and values, and keys with None, in the order of the eight bytes behind what all keys begin with."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    keys: list = list(rows)
    values: list = list(rows.values())
    put_keys: list = []
    put_values: list = []
    deletes: list = []
    order_bytes: bytearray = _order_of(keys, _common_size(keys))
    order: cython.p_int = _as_int32(_pointer(order_bytes))
    for i in range(len(keys)):
        at = order[i]
        if values[at] is None:
            deletes.append(keys[at])
        else:
            put_keys.append(keys[at])
            put_values.append(values[at])
    return put_keys, put_values, deletes


@cython.cfunc
def _common_size(keys: list) -> cython.Py_ssize_t:
    """How many bytes all keys begin with alike."""
    i: cython.Py_ssize_t
    first: bytes = keys[0] if keys else b""
    first_at: cython.p_uchar = first
    key: bytes
    source: cython.p_uchar
    size: cython.Py_ssize_t = len(first)
    for i in range(1, len(keys)):
        key = keys[i]
        source = key
        size = min(size, len(key))
        if not _is_equal(first_at, 0, source, 0, size):
            size = 0
            while first_at[size] == source[size]:
                size += 1
    return size


@cython.cfunc
def _order_of(keys: list, start: cython.Py_ssize_t) -> bytearray:
    """Places of the keys, int32, sorted by eight bytes from `start` on, zeros where there are fewer."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    byte: cython.int
    count: cython.Py_ssize_t = len(keys)
    key: bytes
    source: cython.p_uchar
    window_bytes = bytearray(_ORDER_SIZE * count)
    window: cython.p_uchar = _bytes_of(window_bytes)
    order_bytes = bytearray(4 * count)
    next_bytes = bytearray(4 * count)
    order: cython.p_int = _as_int32(_pointer(order_bytes))
    next_order: cython.p_int = _as_int32(_pointer(next_bytes))
    places_bytes = bytearray(4 * 256)
    places: cython.p_int = _as_int32(_pointer(places_bytes))
    total: cython.int
    for i in range(count):
        key = keys[i]
        source = key
        _copy(window, i * _ORDER_SIZE, source, start, min(len(key) - start, _ORDER_SIZE))
        order[i] = cython.cast(cython.int, i) if cython.compiled else i
    # By the last byte first: what was in order before stays so among equals.
    for k in range(_ORDER_SIZE - 1, -1, -1):
        for i in range(256):
            places[i] = 0
        for i in range(count):
            places[window[i * _ORDER_SIZE + k]] += 1
        if count == 0 or places[window[k]] == count:
            continue
        total = 0
        for i in range(256):
            byte = places[i]
            places[i] = total
            total += byte
        for i in range(count):
            byte = window[order[i] * _ORDER_SIZE + k]
            next_order[places[byte]] = order[i]
            places[byte] += 1
        order, next_order = next_order, order
        order_bytes, next_bytes = next_bytes, order_bytes
    return order_bytes


# A row of `RecentRows`: bytes of its place, store, hash, bytes of the key and of the value (-1: there is no row).
_RECENT_HEAD = cython.declare(cython.int, 24)
_RECENT_SEGMENTS = cython.declare(cython.int, 16)
_RECENT_BYTES_PER_SLOT = cython.declare(cython.int, 64)
_RECENT_ROWS_PER_SEGMENT_MIN = cython.declare(cython.int, 64)
_SLOT_SIZE = cython.declare(cython.int, 8)  # low bits of a hash, and where the row is, from 1 on
_GROUP_SLOTS = cython.declare(cython.int, 8)  # where the row of a hash may be
_LINE_SIZE = cython.declare(cython.int, 64)  # of the processor's cache, and of a group
_WARM_ROWS = cython.declare(cython.int, 64)
_STORE_STEP = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)


@cython.cclass
class RecentRows:
    """The rows that were put last into several stores, as many as a number of bytes holds. For one thread at a time.

    They lie one behind another in segments, which are filled in turn; what a segment held before is forgotten then.
    """

    _data_bytes: object
    _slots_bytes: object
    _ends_bytes: bytearray
    _data: cython.p_uchar
    _slots: cython.p_uchar
    _ends: cython.p_uchar  # of what is in each segment
    _segment_size: cython.Py_ssize_t
    _segment: cython.Py_ssize_t  # being filled
    _at: cython.Py_ssize_t
    _group_mask: cython.ulonglong
    _touched: cython.int

    def __init__(self, size_bytes: int) -> None:
        segments: cython.Py_ssize_t = _RECENT_SEGMENTS
        self._segment_size = min(size_bytes, _I32_MAX) // segments
        groups = 1 << (segments * self._segment_size // (_GROUP_SLOTS * _RECENT_BYTES_PER_SLOT)).bit_length()
        self._group_mask = groups - 1
        # Zeros that take no memory before they are touched. Behind the last row, `_warm` may touch two lines more.
        self._data_bytes = mmap(-1, segments * self._segment_size + 2 * _LINE_SIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self._slots_bytes = mmap(-1, groups * _LINE_SIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self._ends_bytes = bytearray(8 * segments)
        self._data = _pointer(self._data_bytes)
        self._slots = _pointer(self._slots_bytes)
        self._ends = _bytes_of(self._ends_bytes)
        for i in range(segments):
            _save(self._ends, 8 * i, 8, i * self._segment_size)
        self._segment = 0
        self._at = 0

    def find(
        self, store: int, keys: list[bytes], newer: list[dict[bytes, bytes | None]]
    ) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        """What is at keys, and the keys of which nothing is known, each once; those have None.

        The rows in `newer` are not in the store yet; later ones count before those before them.
        """
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        at: cython.Py_ssize_t
        key: bytes
        number: cython.Py_ssize_t = store
        listed: list = keys
        overlay: list = newer[::-1]
        layer: dict
        value: object
        rows: dict = {}
        unknown: list = []
        for i in range(len(listed)):
            if i % _WARM_ROWS == 0:
                self._warm(number, listed, i)
            key = listed[i]
            if key in rows:
                continue
            value = _MISSING
            for layer in overlay:
                value = layer.get(key, _MISSING)
                if value is not _MISSING:
                    break
            if value is not _MISSING:
                rows[key] = value
                continue
            slot = self._slot_of(self._hash(number, key), number, key)
            if slot < 0:
                rows[key] = None
                unknown.append(key)
                continue
            at = _load(self._slots, slot + 4, 4) - 1
            rows[key] = self._value_at(at)
        return rows, unknown

    def put(self, store: int, keys: list[bytes], values: list[bytes]) -> None:
        """Rows were put into a store."""
        i: cython.Py_ssize_t
        number: cython.Py_ssize_t = store
        listed: list = keys
        new: list = values
        for i in range(len(listed)):
            if i % _WARM_ROWS == 0:
                self._warm(number, listed, i)
            self._put(number, listed[i], new[i])

    def remove(self, store: int, keys: list[bytes]) -> None:
        """Rows were removed from a store."""
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        number: cython.Py_ssize_t = store
        listed: list = keys
        for i in range(len(listed)):
            slot = self._slot_of(self._hash(number, listed[i]), number, listed[i])
            if slot >= 0:
                _save(self._data, _load(self._slots, slot + 4, 4) - 1 + 20, 4, -1)

    @cython.cfunc
    @cython.inline
    def _hash(self, store: cython.Py_ssize_t, key: bytes) -> cython.ulonglong:
        return _add64(_unsigned(hash(key), 64), _mul64(_unsigned(store, 64), _STORE_STEP))

    @cython.cfunc
    @cython.inline
    def _group_at(self, hashed: cython.ulonglong) -> cython.Py_ssize_t:
        return ((hashed >> 31) & self._group_mask) * _LINE_SIZE

    @cython.cfunc
    def _warm(self, store: cython.Py_ssize_t, keys: list, start: cython.Py_ssize_t) -> cython.int:
        """Touch what the next keys need: the processor would wait for memory key by key, and fetches many at once."""
        if cython.compiled:
            i: cython.Py_ssize_t
            k: cython.Py_ssize_t
            at: cython.Py_ssize_t
            slot: cython.Py_ssize_t
            hashed: cython.ulonglong
            touched: cython.int = 0
            stop: cython.Py_ssize_t = min(start + _WARM_ROWS, len(keys))
            for i in range(start, stop):
                touched ^= self._slots[self._group_at(self._hash(store, keys[i]))]
            for i in range(start, stop):
                hashed = self._hash(store, keys[i])
                at = 0
                for k in range(_GROUP_SLOTS):
                    slot = self._group_at(hashed) + k * _SLOT_SIZE
                    if _load(self._slots, slot, 4) == cython.cast(cython.longlong, hashed & 0x7FFFFFFF):
                        at = _load(self._slots, slot + 4, 4)
                touched ^= self._data[at] ^ self._data[at + _LINE_SIZE] ^ self._data[at + 2 * _LINE_SIZE - 1]
            self._touched = touched  # or the compiler would leave all that out
        return 0

    @cython.cfunc
    def _slot_of(self, hashed: cython.ulonglong, store: cython.Py_ssize_t, key: bytes) -> cython.Py_ssize_t:
        """The place of the slot of a row, -1 if it is not here."""
        k: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t = len(key)
        source: cython.p_uchar = key
        low: cython.longlong = hashed & 0x7FFFFFFF
        for k in range(_GROUP_SLOTS):
            slot = self._group_at(hashed) + k * _SLOT_SIZE
            at = _load(self._slots, slot + 4, 4) - 1
            if (
                at >= 0
                and _load(self._slots, slot, 4) == low
                and _load(self._data, at + 4, 4) == store
                and _load(self._data, at + 16, 4) == size
                and _is_equal(self._data, at + _RECENT_HEAD, source, 0, size)
            ):
                return slot
        return -1

    @cython.cfunc
    def _value_at(self, at: cython.Py_ssize_t) -> object:
        size: cython.Py_ssize_t = _load(self._data, at + 20, 4)
        if size < 0:
            return None
        start: cython.Py_ssize_t = at + _RECENT_HEAD + _load(self._data, at + 16, 4)
        return _bytes_behind(b"", self._data, start, start + size)

    @cython.cfunc
    def _put(self, store: cython.Py_ssize_t, key: bytes, value: bytes) -> cython.int:
        size: cython.Py_ssize_t = _RECENT_HEAD + len(key) + len(value)
        hashed: cython.ulonglong = self._hash(store, key)
        slot: cython.Py_ssize_t = self._slot_of(hashed, store, key)
        at: cython.Py_ssize_t
        room: cython.Py_ssize_t = size
        if slot >= 0:
            at = _load(self._slots, slot + 4, 4) - 1
            room = _load(self._data, at, 4)
            if size > room:
                _save(self._slots, slot + 4, 4, 0)
                slot = -1
        if slot < 0:
            if size > self._segment_size // _RECENT_ROWS_PER_SEGMENT_MIN:
                return 0
            room = size
            at = self._place(size)
            slot = self._free_slot(hashed)
            _save(self._slots, slot, 4, hashed & 0x7FFFFFFF)
            _save(self._slots, slot + 4, 4, at + 1)
        _save(self._data, at, 4, room)
        _save(self._data, at + 4, 4, store)
        _save(self._data, at + 8, 8, _signed(hashed, 64))
        _save(self._data, at + 16, 4, len(key))
        _save(self._data, at + 20, 4, len(value))
        source: cython.p_uchar = key
        _copy(self._data, at + _RECENT_HEAD, source, 0, len(key))
        source = value
        _copy(self._data, at + _RECENT_HEAD + len(key), source, 0, len(value))
        return 0

    @cython.cfunc
    def _place(self, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where a new row goes."""
        at: cython.Py_ssize_t = self._at
        if at + size > (self._segment + 1) * self._segment_size:
            self._segment = (self._segment + 1) % _RECENT_SEGMENTS
            at = self._segment * self._segment_size
            self._forget(at, _load(self._ends, 8 * self._segment, 8))
        self._at = at + size
        _save(self._ends, 8 * self._segment, 8, self._at)
        return at

    @cython.cfunc
    def _forget(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        k: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        group: cython.Py_ssize_t
        while at < end:
            group = self._group_at(_unsigned(_load(self._data, at + 8, 8), 64))
            for k in range(_GROUP_SLOTS):
                slot = group + k * _SLOT_SIZE
                if _load(self._slots, slot + 4, 4) == at + 1:
                    _save(self._slots, slot + 4, 4, 0)
            at += _load(self._data, at, 4)
        return 0

    @cython.cfunc
    def _free_slot(self, hashed: cython.ulonglong) -> cython.Py_ssize_t:
        """A slot for a new row; where all are taken, the row of one of them can't be found any more."""
        k: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        group: cython.Py_ssize_t = self._group_at(hashed)
        for k in range(_GROUP_SLOTS):
            slot = group + k * _SLOT_SIZE
            if _load(self._slots, slot + 4, 4) == 0:
                return slot
        return group + hashed % _GROUP_SLOTS * _SLOT_SIZE


# --- Answers of lookups, in protobuf ---------------------------------------------------------------------------------
#
# An answer: 1 bucket*
# A bucket: 1 partition_id:int64  2 bucket_id:int32!  3 error_code:int32  4 error_message:string  5 entry*
# An entry: 1 value:bytes, of a key none or one, of a prefix any number

_TAG_BITS = cython.declare(cython.int, 3)
_WIRE_VARINT = cython.declare(cython.int, 0)
_WIRE_FIXED64 = cython.declare(cython.int, 1)
_WIRE_BYTES = cython.declare(cython.int, 2)
_WIRE_FIXED32 = cython.declare(cython.int, 5)
_VALUE_TAG = cython.declare(cython.int, 0x0A)
_ENTRY_TAG = cython.declare(cython.int, 0x2A)
_FOUND_BUCKET = cython.declare(cython.int, 1)
_FOUND_PARTITION_ID = cython.declare(cython.int, 1)
_FOUND_BUCKET_ID = cython.declare(cython.int, 2)
_FOUND_ERROR_CODE = cython.declare(cython.int, 3)
_FOUND_ERROR_TEXT = cython.declare(cython.int, 4)
_FOUND_ENTRY = cython.declare(cython.int, 5)


def join_entries(values: list[bytes | None]) -> bytearray:
    """The entries of keys: each with its value, or without one."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    size: cython.longlong
    total: cython.longlong = 0
    value: bytes
    source: cython.p_uchar
    listed: list = values
    for i in range(len(listed)):
        size = _field_size(listed[i])
        total += 1 + _varint_size(size) + size
    _check_entries_size(total)
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(len(listed)):
        out[at] = _ENTRY_TAG
        at = _put_varint(out, at + 1, _field_size(listed[i]))
        if listed[i] is not None:
            value = listed[i]
            source = value
            at = _put_field(out, at, source, len(value))
    return out_bytes


def join_entry_lists(lists: list[list[bytes]]) -> bytearray:
    """The entries of prefixes: each with all its values."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    total: cython.longlong = 0
    value: bytes
    values: list
    source: cython.p_uchar
    sizes: list = []
    for values in lists:
        size: cython.longlong = 0
        for k in range(len(values)):
            size += _field_size(values[k])
        sizes.append(size)
        total += 1 + _varint_size(size) + size
    _check_entries_size(total)
    out_bytes = bytearray(total)
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(len(sizes)):
        values = lists[i]
        out[at] = _ENTRY_TAG
        at = _put_varint(out, at + 1, sizes[i])
        for k in range(len(values)):
            value = values[k]
            source = value
            at = _put_field(out, at, source, len(value))
    return out_bytes


@cython.cfunc
def _check_entries_size(total: cython.longlong) -> cython.int:
    if total > _I32_MAX:
        raise SchemaMismatchError(f"The rows take more than {_I32_MAX} bytes; read fewer at a time.")
    return 0


@cython.cfunc
@cython.exceptval(-77, check=True)
def _field_size(value: object) -> cython.longlong:
    """What a value takes in its entry."""
    if value is None:
        return 0
    content: bytes = value
    return 1 + _varint_size(len(content)) + len(content)


@cython.cfunc
@cython.exceptval(check=False)
def _put_field(
    out: cython.p_uchar, at: cython.Py_ssize_t, source: cython.p_uchar, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    out[at] = _VALUE_TAG
    at = _put_varint(out, at + 1, size)
    _copy(out, at, source, 0, size)
    return at + size


@cython.cclass
class _Fields:
    """The fields of a message, one after another."""

    data: cython.p_uchar
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    number: cython.longlong  # of the field
    is_bytes: cython.bint
    pattern: cython.ulonglong  # of a field that is a number
    start: cython.Py_ssize_t  # of a field that is bytes
    keep: object

    @cython.cfunc
    def next(self) -> cython.bint:
        """Read the next field of a kind that these messages have; False at the end."""
        wire: cython.int
        while self.at < self.end:
            self.pattern = self.varint()
            wire = self.pattern & 7
            self.number = self.pattern >> _TAG_BITS
            self.is_bytes = wire == _WIRE_BYTES
            if wire == _WIRE_VARINT:
                self.pattern = self.varint()
                return True
            if self.is_bytes:
                self.pattern = self.varint()
                self.start = self.skip(self.pattern)
                return True
            if wire != _WIRE_FIXED64 and wire != _WIRE_FIXED32:
                raise CorruptDataError(f"message: a field of kind {wire}")
            self.skip(8 if wire == _WIRE_FIXED64 else 4)
        return False

    @cython.cfunc
    def skip(self, size: cython.ulonglong) -> cython.Py_ssize_t:
        """Where the next `size` bytes begin."""
        start: cython.Py_ssize_t = self.at
        left: cython.ulonglong = self.end - start
        if size > left:
            raise CorruptDataError(f"message: {size} bytes announced, {left} are left")
        self.at = start + size
        return start

    @cython.cfunc
    @cython.exceptval(77, check=True)
    def varint(self) -> cython.ulonglong:
        pattern: cython.ulonglong = 0
        byte: cython.ulonglong
        shift: cython.int = 0
        while self.at < self.end:
            byte = self.data[self.at]
            self.at += 1
            if shift == 63 and byte > 1:
                raise CorruptDataError("message: a number has more than 64 bits")
            pattern |= (byte & 0x7F) << shift
            if byte < 0x80:
                return pattern
            shift += 7
        raise CorruptDataError("message: ends inside a number")


@cython.cfunc
def _fields_of(outer: _Fields) -> _Fields:
    """The fields of the message that was just read as bytes."""
    inner: _Fields = _Fields()
    inner.data = outer.data
    inner.at = outer.start
    inner.end = outer.at
    inner.keep = outer.keep
    return inner


def split_found(body: Any, with_lists: bool) -> list[tuple[int | None, int, int, bytes, list[Any]]]:
    """The buckets of an answer: partition id, bucket id, error code, error text, and what there is for each key.

    That is a value or None, or with `with_lists` a list of values.
    """
    fields: _Fields = _Fields()
    fields.data = _pointer(body)
    fields.at = 0
    fields.end = len(body)
    fields.keep = body
    buckets: list = []
    while fields.next():
        if fields.number == _FOUND_BUCKET and fields.is_bytes:
            buckets.append(_found_bucket(_fields_of(fields), with_lists))
    return buckets


@cython.cfunc
def _found_bucket(fields: _Fields, with_lists: cython.bint) -> tuple:
    partition_id: object = None
    bucket_id: object = None
    error_code: object = 0
    text: bytes = b""
    entries: list = []
    while fields.next():
        if fields.is_bytes:
            if fields.number == _FOUND_ENTRY:
                entries.append(_entry_list(_fields_of(fields)) if with_lists else _entry(fields))
            elif fields.number == _FOUND_ERROR_TEXT:
                text = _bytes_behind(b"", fields.data, fields.start, fields.at)
        elif fields.number == _FOUND_PARTITION_ID:
            partition_id = _wrapped(fields.pattern, 64)
        elif fields.number == _FOUND_BUCKET_ID:
            bucket_id = _wrapped(fields.pattern, 32)
        elif fields.number == _FOUND_ERROR_CODE:
            error_code = _wrapped(fields.pattern, 32)
    if bucket_id is None:
        raise CorruptDataError("message: a bucket without its number")
    return partition_id, bucket_id, error_code, text, entries


@cython.cfunc
def _entry(outer: _Fields) -> object:
    """The value of the entry that was just read; None without one, or with an empty one, which no row has."""
    end: cython.Py_ssize_t = outer.at
    value: object = None
    # In the message around it: a new reader for each entry would take as long as all the rest.
    outer.at = outer.start
    whole: cython.Py_ssize_t = outer.end
    outer.end = end
    while outer.next():
        if outer.number == 1 and outer.is_bytes:
            value = _bytes_behind(b"", outer.data, outer.start, outer.at) if outer.at > outer.start else None
    outer.end = whole
    return value


@cython.cfunc
def _entry_list(fields: _Fields) -> list:
    values: list = []
    while fields.next():
        if fields.number == 1 and fields.is_bytes:
            values.append(_bytes_behind(b"", fields.data, fields.start, fields.at))
    return values


# --- Write requests, in protobuf --------------------------------------------------------------------------------------
#
# A bucket: 1 partition_id:int64  2 bucket_id:int32!  3 records:bytes!

_WRITE_PARTITION_ID = cython.declare(cython.int, 1)
_WRITE_BUCKET_ID = cython.declare(cython.int, 2)
_WRITE_RECORDS = cython.declare(cython.int, 3)
_WRITE_TARGETS_MAX = cython.declare(cython.Py_ssize_t, 1 << 16)
_WRITE_FIELD_MAX = cython.declare(cython.int, 63)  # no request has a number in a field beyond


def split_write(
    body: memoryview, buckets_field: int, targets_field: int, text_field: int, items_max: int
) -> tuple[dict[int, int], memoryview | None, list[int], list[tuple[int | None, int, memoryview]]]:
    """A request to write: its numbers by field, its text, its target columns, its buckets.

    A bucket is partition id, bucket id, and a view of its records. Targets may be packed or not; 0 names no field.
    More than `items_max` buckets, or far too many targets, are refused before they take more memory than the request.
    """
    fields: _Fields = _Fields()
    fields.data = _pointer(body)
    fields.at = 0
    fields.end = len(body)
    fields.keep = body
    buckets_number: cython.longlong = buckets_field
    targets_number: cython.longlong = targets_field
    text_number: cython.longlong = text_field
    limit: cython.Py_ssize_t = items_max
    numbers: dict = {}
    text: object = None
    targets: list = []
    found: list = []
    while fields.next():
        if targets_number and fields.number == targets_number:
            _add_targets(fields, targets)
        elif not fields.is_bytes:
            if fields.number <= _WRITE_FIELD_MAX:
                numbers[fields.number] = _wrapped(fields.pattern, 64)
        elif fields.number == buckets_number:
            _check_room(found, limit, "buckets")
            found.append(_written_bucket(fields))
        elif fields.number == text_number:
            text = body[fields.start : fields.at]
    return numbers, text, targets, found


@cython.cfunc
def _check_room(items: list, limit: cython.Py_ssize_t, what: str) -> object:
    if len(items) >= limit:
        raise CorruptDataError(
            f"One request may name {limit} {what}, not more; send several.", ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        )
    return None


@cython.cfunc
def _add_targets(fields: _Fields, targets: list) -> object:
    packed: _Fields
    if not fields.is_bytes:
        _check_room(targets, _WRITE_TARGETS_MAX, "target columns")
        targets.append(_wrapped(fields.pattern, 32))
        return None
    packed = _fields_of(fields)
    while packed.at < packed.end:
        _check_room(targets, _WRITE_TARGETS_MAX, "target columns")
        targets.append(_wrapped(packed.varint(), 32))
    return None


@cython.cfunc
def _written_bucket(outer: _Fields) -> tuple:
    partition_id: object = None
    bucket_id: object = None
    records: object = None
    fields: _Fields = _fields_of(outer)
    while fields.next():
        if fields.is_bytes:
            if fields.number == _WRITE_RECORDS:
                records = fields.keep[fields.start : fields.at]
        elif fields.number == _WRITE_PARTITION_ID:
            partition_id = _wrapped(fields.pattern, 64)
        elif fields.number == _WRITE_BUCKET_ID:
            bucket_id = _wrapped(fields.pattern, 32)
    if bucket_id is None or records is None:
        raise CorruptDataError("message: a bucket lacks bucket_id or records")
    return partition_id, bucket_id, records


# --- Arrow record batch messages --------------------------------------------------------------------------------------
#
# A marker and the size of the metadata, the metadata as flatbuffers, the body. Numbers are little-endian.

_CONTINUATION = cython.declare(cython.longlong, 0xFFFFFFFF)
_ARROW_PREFIX_BYTES = cython.declare(cython.Py_ssize_t, 8)
_HEADER_TYPE_RECORD_BATCH = cython.declare(cython.int, 3)
_STORED_RAW = cython.declare(cython.longlong, -1)
_ARROW_CODEC_MAX = cython.declare(cython.int, 1)  # 0 is LZ4_FRAME, 1 is ZSTD
# A batch is a few MiB; this leaves room for very compressible ones and stops a made-up size.
_DECODED_SIZE_BYTES_MAX = cython.declare(cython.longlong, 1 << 30)
_ARROW_PAIRS_MAX = cython.declare(cython.longlong, 1 << 16)

# Slots of the flatbuffers tables of Arrow's Message.fbs.
_MESSAGE_HEADER_TYPE = cython.declare(cython.int, 1)
_MESSAGE_HEADER = cython.declare(cython.int, 2)
_MESSAGE_BODY_LENGTH = cython.declare(cython.int, 3)
_BATCH_LENGTH = cython.declare(cython.int, 0)
_BATCH_NODES = cython.declare(cython.int, 1)
_BATCH_BUFFERS = cython.declare(cython.int, 2)
_BATCH_COMPRESSION = cython.declare(cython.int, 3)
_COMPRESSION_CODEC = cython.declare(cython.int, 0)


@cython.cclass
class _Metadata:
    """The metadata of a message; every read says where, and is refused outside."""

    data: cython.p_uchar
    start: cython.Py_ssize_t
    size: cython.longlong

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def number(self, at: cython.longlong, width: cython.int) -> cython.longlong:
        """Signed in 4 or 8 bytes, unsigned in 1 or 2."""
        place: cython.Py_ssize_t
        if at < 0 or at > self.size - width:
            raise CorruptDataError("Arrow message: the metadata points outside the message")
        place = self.start + at
        if width >= 4:
            return _load(self.data, place, width)
        if width == 2:
            return self.data[place] | self.data[place + 1] << 8
        return self.data[place]

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def field(self, table: cython.longlong, slot: cython.int) -> cython.longlong:
        """Position of a table's field, 0 when the table does not have it."""
        vtable: cython.longlong = table - self.number(table, 4)
        if vtable < 0:
            raise CorruptDataError(f"Arrow message: a field table lies at {vtable}")
        at: cython.longlong = 4 + 2 * slot
        if at >= self.number(vtable, 2):
            return 0
        relative: cython.longlong = self.number(vtable + at, 2)
        return table + relative if relative else 0

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def target(self, at: cython.longlong) -> cython.longlong:
        """Where the field at a position points."""
        if not at:
            raise CorruptDataError("Arrow message: a required field is missing")
        return at + (self.number(at, 4) & _CONTINUATION)

    @cython.cfunc
    @cython.exceptval(-77, check=True)
    def int64(self, at: cython.longlong) -> cython.longlong:
        return self.number(at, 8) if at else 0

    @cython.cfunc
    def pairs(self, table: cython.longlong, slot: cython.int) -> tuple:
        """The numbers of a vector of nodes or buffers, which have two each."""
        at: cython.longlong = self.field(table, slot)
        if not at:
            return ()
        at = self.target(at)
        count: cython.longlong = self.number(at, 4) & _CONTINUATION
        if count > _ARROW_PAIRS_MAX:
            raise CorruptDataError(f"Arrow message: {count} nodes or buffers, more than {_ARROW_PAIRS_MAX}")
        return tuple([self.number(at + 4 + 8 * i, 8) for i in range(2 * count)])

    @cython.cfunc
    def codec(self, batch: cython.longlong) -> object:
        at: cython.longlong = self.field(batch, _BATCH_COMPRESSION)
        if not at:
            return None
        at = self.field(self.target(at), _COMPRESSION_CODEC)
        codec: cython.longlong = self.number(at, 1) if at else 0
        if codec > _ARROW_CODEC_MAX:
            raise CorruptDataError(f"Arrow message: codec {codec} is not known")
        return codec


@cython.ccall
def read_message(view: memoryview) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], int | None]:
    """Rows, start and size of the body, nodes, buffers and codec of the message at the start of `view`."""
    size: cython.longlong = len(view)
    metadata: _Metadata = _Metadata()
    metadata.data = _pointer(view)
    metadata.start = 0
    metadata.size = size
    marker: cython.longlong = metadata.number(0, 4) & _CONTINUATION
    if marker != _CONTINUATION:
        raise CorruptDataError(f"Arrow message: starts with {marker:08x}, not with {_CONTINUATION:08x}")
    metadata_size: cython.longlong = metadata.number(4, 4)
    body_start: cython.longlong = _ARROW_PREFIX_BYTES + metadata_size
    if metadata_size <= 0 or body_start > size:
        raise CorruptDataError(f"Arrow message: metadata of {metadata_size} bytes in {size} bytes")
    metadata.start = _ARROW_PREFIX_BYTES
    metadata.size = metadata_size
    message: cython.longlong = metadata.number(0, 4) & _CONTINUATION
    at: cython.longlong = metadata.field(message, _MESSAGE_HEADER_TYPE)
    if not at or metadata.number(at, 1) != _HEADER_TYPE_RECORD_BATCH:
        raise CorruptDataError("Arrow message: not a record batch")
    batch: cython.longlong = metadata.target(metadata.field(message, _MESSAGE_HEADER))
    body_size: cython.longlong = metadata.int64(metadata.field(message, _MESSAGE_BODY_LENGTH))
    if body_size < 0 or body_size > size - body_start:
        raise CorruptDataError(f"Arrow message: body of {body_size} bytes, {size - body_start} are there")
    row_count: cython.longlong = metadata.int64(metadata.field(batch, _BATCH_LENGTH))
    if row_count < 0:
        raise CorruptDataError(f"Arrow message: {row_count} rows")
    nodes: tuple = metadata.pairs(batch, _BATCH_NODES)
    buffers: tuple = metadata.pairs(batch, _BATCH_BUFFERS)
    _check_in_body(buffers, body_size)
    return row_count, body_start, body_size, nodes, buffers, metadata.codec(batch)


@cython.cfunc
def _check_in_body(buffers: tuple, body_size: cython.longlong) -> object:
    i: cython.Py_ssize_t
    start: cython.longlong
    length: cython.longlong
    total: cython.longlong = 0
    for i in range(0, len(buffers), 2):
        start = buffers[i]
        length = buffers[i + 1]
        if start < 0 or length < 0 or length > body_size or start > body_size - length:
            raise CorruptDataError(f"Arrow message: buffers outside of the body of {body_size} bytes")
        total += length
    if total > body_size:
        # Else a batch could hold the same bytes many times, and a projection of it would be larger than all of it.
        raise CorruptDataError(f"Arrow message: buffers of {total} bytes in a body of {body_size}")
    return None


@cython.ccall
def decoded_sizes(
    view: memoryview, body_start: int, buffers: tuple[int, ...], compressed: bool
) -> tuple[list[int], int, bool]:
    """The sizes of the buffers of a message that was read once decoded, their sum, and if any is used where it lies."""
    i: cython.Py_ssize_t
    start: cython.longlong
    size: cython.longlong
    announced: cython.longlong
    total: cython.longlong = 0
    has_raw: cython.bint = False
    has_codec: cython.bint = compressed
    base: cython.longlong = body_start
    end: cython.longlong = len(view)
    data: cython.p_uchar = _pointer(view)
    numbers: tuple = buffers
    sizes: list = []
    for i in range(0, len(numbers), 2):
        start = base + numbers[i]
        size = numbers[i + 1]
        if size and has_codec:
            if size < 8 or start < 0 or start > end - 8:
                raise CorruptDataError(f"Arrow message: compressed buffer of {size} bytes has no room for its size")
            announced = _load(data, start, 8)
            if announced < _STORED_RAW:
                raise CorruptDataError(f"Arrow message: compressed buffer announces {announced} bytes")
            if announced == _STORED_RAW:
                has_raw = True
                size -= 8
            else:
                size = announced
        elif size:
            has_raw = True
        if size > _DECODED_SIZE_BYTES_MAX - total:
            raise CorruptDataError(f"Arrow message: would take more than {_DECODED_SIZE_BYTES_MAX} bytes")
        total += size
        sizes.append(size)
    return sizes, total, has_raw


# Numbers of a node in a layout: how many buffers it has, bits of a value, values beyond the rows, parent.
_NODE_NUMBERS = cython.declare(cython.Py_ssize_t, 4)
_TOP = cython.declare(cython.longlong, _kinds.NODE_TOP)
_LIST_CHILD = cython.declare(cython.longlong, _kinds.NODE_LIST_CHILD)


def check_message(layout: tuple[int, ...], view: memoryview, record_count: int) -> None:
    """Refuse a message at the start of `view` that does not fit, or has not so many rows."""
    message: tuple = read_message(view)
    if message[0] != record_count:
        raise CorruptDataError(f"the batch announces {record_count} records, its Arrow payload has {message[0]}")
    sizes: tuple = decoded_sizes(view, message[1], message[4], message[5] is not None)
    check_layout(layout, record_count, message[3], sizes[0])


@cython.ccall
def check_layout(layout: tuple[int, ...], row_count: int, nodes: Sequence[int], sizes: Sequence[int]) -> None:
    """Refuse a message whose nodes and decoded buffers are not as many, or not so large, as they must be."""
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    expected: cython.longlong
    length: cython.longlong
    nulls: cython.longlong
    parent: cython.longlong
    bits: cython.longlong
    beyond: cython.longlong
    size: cython.longlong
    rows: cython.longlong = row_count
    shape: tuple = layout
    lengths: tuple = tuple(nodes)
    bytes_of: tuple = tuple(sizes)
    node_count: cython.Py_ssize_t = len(shape) // _NODE_NUMBERS
    buffer_count: cython.Py_ssize_t = 0
    for number in range(node_count):
        buffer_count += shape[_NODE_NUMBERS * number]
    if len(lengths) != 2 * node_count or len(bytes_of) != buffer_count:
        raise CorruptDataError(
            f"Arrow message: {len(lengths) // 2} nodes and {len(bytes_of)} buffers, "
            f"the schema makes {node_count} and {buffer_count}"
        )
    if rows > _I32_MAX:
        raise CorruptDataError(f"Arrow message: {rows} rows, more than {_I32_MAX}")
    for number in range(node_count):
        bits = shape[_NODE_NUMBERS * number + 1]
        beyond = shape[_NODE_NUMBERS * number + 2]
        parent = shape[_NODE_NUMBERS * number + 3]
        length = lengths[2 * number]
        nulls = lengths[2 * number + 1]
        if parent != _LIST_CHILD:
            expected = rows if parent == _TOP else lengths[2 * parent]
            if length != expected:
                raise CorruptDataError(f"Arrow message: node {number} has {length} rows, not {expected}")
        if nulls < 0 or nulls > length or length > _I32_MAX:
            raise CorruptDataError(f"Arrow message: node {number} has {nulls} nulls in {length} rows")
        size = bytes_of[at]
        # Without nulls there need be no validity.
        if size < (length + 7) >> 3 and (nulls or size):
            raise CorruptDataError(
                f"Arrow message: node {number} has {size} bytes of validity, not {(length + 7) >> 3}"
            )
        if bits and length:
            size = bytes_of[at + 1]
            if length + beyond > 8 * size // bits:
                raise CorruptDataError(
                    f"Arrow message: node {number} has {size} bytes of values or offsets for {length} rows"
                )
        at += shape[_NODE_NUMBERS * number]


# --- Changes of a table ---------------------------------------------------------------------------------------------

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
        current = state.get(key, _MISSING)
        if current is _MISSING:
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
    flags: cython.p_uchar = _pointer(flags_bytes)
    new_stays: cython.bint = kept_new
    before: cython.bint = with_before
    keep: cython.bint = keep_present
    if len(listed) != len(listed_keys) or (keeps_rows and len(flags_bytes) != count):
        raise ValueError(f"{len(listed_keys)} keys, {len(listed)} values and {count} rows do not belong together")
    merged_bytes = bytearray(4 * len(listed))
    merged: cython.p_int = _as_int32(_pointer(merged_bytes))
    origins_bytes = bytearray(4 * len(listed))
    origins: cython.p_int = _as_int32(_pointer(origins_bytes))
    changes = bytearray()
    changed_keys: list = []
    rows_bytes = bytearray(8 * len(listed))
    rows: cython.p_int = _as_int32(_pointer(rows_bytes))
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


# --- Aggregates -----------------------------------------------------------------------------------------------------
# Values of stored rows come first, then those of records. `merged` has what every record is merged with, see
# `chain_changes`; a record comes after what it is merged with, so one pass in order is enough. A value that is null is
# as if it were not there.

_SUM = cython.declare(cython.int, _kinds.AGGREGATE_SUM)
_MAX = cython.declare(cython.int, _kinds.AGGREGATE_MAX)
_MIN = cython.declare(cython.int, _kinds.AGGREGATE_MIN)
_FIRST = cython.declare(cython.int, _kinds.AGGREGATE_FIRST)


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
        self.merged = _as_int32(_pointer(merged))
        self.bits = _pointer(validity)
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
        return -1 if at < 0 or not _is_set(self.bits, at) else at


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
    numbers: cython.p_longlong = _as_int64(_pointer(values))
    for i in range(rows.records):
        row = rows.stored + i
        other = rows.other(i)
        if other < 0:
            continue
        if not _is_set(rows.bits, row):
            _set_bit(rows.bits, row)
            numbers[row] = numbers[other]
        elif summed:
            numbers[row] = _wrapped(_add64(_unsigned(numbers[other], 64), _unsigned(numbers[row], 64)), width)
        else:
            numbers[row] = _wrapped(_mul64(_unsigned(numbers[other], 64), _unsigned(numbers[row], 64)), width)


def merge_floats(values: bytearray, validity: bytearray, merged: Any, single: bool, function: int) -> None:
    """Sums or products of doubles, rounded to 32 bits each time when `single`, in place."""
    i: cython.Py_ssize_t
    other: cython.Py_ssize_t
    row: cython.Py_ssize_t
    rounded: cython.bint = single
    summed: cython.bint = function == _SUM
    rows: _Merges = _Merges(merged, validity, len(values) // 8)
    numbers: cython.p_double = _as_double(_pointer(values))
    for i in range(rows.records):
        row = rows.stored + i
        other = rows.other(i)
        if other < 0:
            continue
        if not _is_set(rows.bits, row):
            _set_bit(rows.bits, row)
            numbers[row] = numbers[other]
            continue
        numbers[row] = numbers[other] + numbers[row] if summed else numbers[other] * numbers[row]
        if rounded:
            numbers[row] = _to_single(numbers[row])


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
        if not _is_set(rows.bits, row):
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
    order: cython.p_longlong = _as_int64(_pointer(ranks_bytes))
    out_bytes = bytearray(4 * rows.records)
    out: cython.p_int = _as_int32(_pointer(out_bytes))
    for i in range(rows.records):
        own = rows.stored + i
        if not _is_set(rows.bits, own):
            own = none
        other = rows.merged[i]
        if other >= rows.stored:
            other = out[other - rows.stored]
        elif other < 0 or not _is_set(rows.bits, other):
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
    limit: cython.longlong = min(size_max, _I32_MAX)
    row_count: cython.Py_ssize_t = len(offsets) // 4 - 1
    rows: _Merges = _Merges(merged, validity, row_count)
    texts: _Rows = _rows_behind_each_other(data, offsets, row_count, _KEY, 0, 0)
    between: cython.p_uchar = delimiter
    gap: cython.longlong = len(delimiter)
    ends_bytes = bytearray(4 * (rows.records + 1))
    ends: cython.p_int = _as_int32(_pointer(ends_bytes))
    joined = bytearray(rows.records)  # 1: with the other text in front
    for i in range(rows.records):
        row = rows.stored + i
        other = rows.other(i)
        size = texts.ends[row] - texts.starts[row] if _is_set(rows.bits, row) else 0
        if other >= 0:
            size += gap if _is_set(rows.bits, row) else 0
            joined[i] = 1 if not _is_set(rows.bits, row) else 2
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
    out: cython.p_uchar = _pointer(out_bytes)
    for i in range(rows.records):
        row = rows.stored + i
        at = ends[i]
        if joined[i]:
            other = rows.merged[i]
            if other < rows.stored:
                size = texts.ends[other] - texts.starts[other]
                _copy(out, at, texts.data, texts.starts[other], size)
            else:
                other -= rows.stored
                size = ends[other + 1] - ends[other]
                _copy(out, at, out, ends[other], size)
            at += size
            if joined[i] == 1:
                continue
            _copy(out, at, between, 0, gap)
            at += gap
        if _is_set(rows.bits, row):
            _copy(out, at, texts.data, texts.starts[row], texts.ends[row] - texts.starts[row])
    return out_bytes, ends_bytes
