"""Python values of one column, checked and kept as Arrow buffers."""

# Large on purpose: nearly all of it is one class, whose methods C calls directly.

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from numbers import Real
from operator import index as to_index
from typing import Any

from fluss.kernels import codes
from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import (
    EPOCH,
    EPOCH_UTC,
    I32_MAX,
    I64_MAX,
    MISSING,
    NANOSECOND_RANGE_SECONDS,
    content_of,
    copy_bytes,
    epoch_days,
    in_units,
    int32_at,
    is_datetime64,
    is_nat,
    microsecond_of,
    put_float,
    put_int,
    resize,
    second_of_day,
    whole_seconds,
    zone_of,
)
from fluss.model.errors import SchemaMismatchError

if cython.compiled:
    from cython.cimports.cpython.datetime import time_hour, time_microsecond, time_minute, time_second
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize


_FLOAT_MAX = cython.declare(cython.double, struct.unpack("<f", b"\xff\xff\x7f\x7f")[0])

_BOOL = cython.declare(cython.int, codes.KIND_BOOL)
_INT = cython.declare(cython.int, codes.KIND_INT)
_FLOAT = cython.declare(cython.int, codes.KIND_FLOAT)
_DOUBLE = cython.declare(cython.int, codes.KIND_DOUBLE)
_STRING = cython.declare(cython.int, codes.KIND_STRING)
_BYTES = cython.declare(cython.int, codes.KIND_BYTES)
_BINARY = cython.declare(cython.int, codes.KIND_BINARY)
_DECIMAL = cython.declare(cython.int, codes.KIND_DECIMAL)
_DATE = cython.declare(cython.int, codes.KIND_DATE)
_TIME = cython.declare(cython.int, codes.KIND_TIME)
_TIMESTAMP = cython.declare(cython.int, codes.KIND_TIMESTAMP)
_TIMESTAMP_LTZ = cython.declare(cython.int, codes.KIND_TIMESTAMP_LTZ)
_ARRAY = cython.declare(cython.int, codes.KIND_ARRAY)
_MAP = cython.declare(cython.int, codes.KIND_MAP)
_ROW = cython.declare(cython.int, codes.KIND_ROW)

# Rows, or bytes of a column of variable size, that a builder first makes room for; a multiple of 8.
_FIRST_CAPACITY = cython.declare(cython.Py_ssize_t, 64)
# 38 digits and any scale a table can have, exactly; rounding is an error.
_EXACT = Context(prec=120, traps=[Inexact, InvalidOperation])


@cython.cclass
class ColumnBuilder:
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
        self.children = [ColumnBuilder(child_name, child, self) for child_name, child in kind.children]
        self.kind = kind.kind
        self.limit = kind.limit if kind.limit <= I64_MAX else 0
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
            self.data_at = content_of(self.data)
        return None

    def take(self, rows: cython.Py_ssize_t) -> Any:
        """Validity (None when nothing is null), values or their offsets, data of variable size or list of children."""
        validity: bytearray = self.validity
        values: bytearray = self.values
        data: bytearray = self.data
        inner: cython.Py_ssize_t = rows
        if rows > 0:
            if validity is not None:
                resize(validity, (rows + 7) // 8)
                _clear_behind(validity, rows)
            if self.variable:
                inner = int32_at(content_of(values), rows)
            if data is not None:
                resize(data, inner)
            resize(values, self._values_size(rows))
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
        if value is None or (_DATE <= kind <= _TIMESTAMP_LTZ and is_nat(value)):
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
        if value is None or (_DATE <= kind <= _TIMESTAMP_LTZ and is_nat(value)):
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
        high: cython.longlong = I64_MAX >> (64 - self.limit)
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
            if is_datetime64(value) and type(value.item()) is date:
                return epoch_days(value.item())
            if not isinstance(value, date) or isinstance(value, datetime):
                raise self._mismatch(value)
        return epoch_days(value)

    @cython.cfunc
    def _time(self, value: object) -> cython.longlong:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise self._mismatch(value)
        if cython.compiled:
            second: cython.longlong = time_hour(value) * 3600 + time_minute(value) * 60 + time_second(value)
            return in_units(second, time_microsecond(value), self.limit)
        else:
            return in_units(value.hour * 3600 + value.minute * 60 + value.second, value.microsecond, self.limit)

    @cython.cfunc
    def _timestamp(self, value: object) -> cython.longlong:
        seconds: cython.longlong
        microsecond: cython.longlong
        nanosecond: cython.longlong = 0
        exact: cython.bint = type(value) is datetime
        if not exact and not isinstance(value, datetime):
            return self._timestamp_of_numpy(value)
        zone = zone_of(value) if exact else value.tzinfo
        offset = None
        if zone is not None:
            if self.kind != _TIMESTAMP_LTZ:
                raise self._mismatch(value)
            if zone is not UTC:
                offset = value.utcoffset()
                if offset is None:
                    raise self._mismatch(value)
        if exact:
            seconds = epoch_days(value) * 86_400 + second_of_day(value)
            microsecond = microsecond_of(value)
            if offset is not None:
                seconds -= whole_seconds(offset)
                microsecond -= offset.microseconds
                if microsecond < 0:
                    microsecond += 1_000_000
                    seconds -= 1
        else:
            # A subclass may hold more than the fields of a datetime, as pandas.Timestamp does.
            delta = value - (EPOCH if zone is None else EPOCH_UTC)
            seconds = whole_seconds(delta)
            microsecond = delta.microseconds
            nanosecond = getattr(delta, "nanoseconds", 0)
        if self.limit <= 1_000_000:
            return in_units(seconds, microsecond, self.limit)
        if seconds > NANOSECOND_RANGE_SECONDS or seconds < -NANOSECOND_RANGE_SECONDS:
            raise self._out_of_range(value)
        return in_units(seconds, microsecond, self.limit) + nanosecond

    @cython.cfunc
    def _timestamp_of_numpy(self, value: object) -> cython.longlong:
        if not is_datetime64(value):
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
        if self.kind == _ARRAY:  # the words that pyfluss's programs look for
            wanted = f"Expected sequence for Array column {self.path()!r} ({self.type_text})"
        else:
            wanted = f"Column {self.path()!r} expects {self.type_text}"
        return SchemaMismatchError(f"{wanted}, not {given} ({_shown(value)}).")

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
            high: cython.longlong = I64_MAX >> (64 - self.limit)
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
        parent: ColumnBuilder = self.parent
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
        child: ColumnBuilder
        for child in self.children:
            value = row.get(child.name, MISSING)
            if value is not MISSING:
                found += 1
            elif child.nullable:
                value = None
            else:
                raise SchemaMismatchError(
                    f"Column {self.path()!r} lacks the non-nullable row field {child.name!r} ({child.type_text})."
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
        child: ColumnBuilder = self.children[0]
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
        keys: ColumnBuilder = self.children[0]
        values: ColumnBuilder = self.children[1]
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
        child: ColumnBuilder
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
        start: cython.Py_ssize_t = int32_at(self.values_at, row)
        if count > I32_MAX - start:
            raise SchemaMismatchError(
                f"Column {self.path()!r}: the rows have more than {I32_MAX} elements; write fewer at a time."
            )
        return start

    @cython.cfunc
    def _close_list(self, row: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        put_int(self.values_at, row + 1, 4, end)
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
        resize(self.values, self._values_size(capacity))
        self.values_at = content_of(self.values)
        if first and self.variable:
            put_int(self.values_at, 0, 4, 0)
        if self.validity is not None:
            resize(self.validity, capacity // 8)
            self.validity_at = content_of(self.validity)
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
        child: ColumnBuilder
        if self.validity is None:
            # Everything before was not null.
            self.validity = bytearray(b"\xff") * ((max(self.capacity, row + 1) + 7) // 8)
            self.validity_at = content_of(self.validity)
        self._place(row)
        self.validity_at[row >> 3] &= 0xFF ^ (1 << (row & 7))
        if self.variable:
            put_int(self.values_at, row + 1, 4, int32_at(self.values_at, row))
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
        put_int(self.values_at, row, self.width, number)
        return 0

    @cython.cfunc
    def _put_floating(self, row: cython.Py_ssize_t, number: cython.double) -> cython.Py_ssize_t:
        self._place(row)
        put_float(self.values_at, row, self.width, number)
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
        put_int(self.values_at, 2 * row, 8, number)
        put_int(self.values_at, 2 * row + 1, 8, -1 if number < 0 else 0)
        return 0

    @cython.cfunc
    def _put_fixed(self, row: cython.Py_ssize_t, content: bytes) -> cython.Py_ssize_t:
        source: cython.p_uchar = content
        self._place(row)
        copy_bytes(self.values_at, row * self.width, source, 0, self.width)
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
        start: cython.Py_ssize_t = int32_at(self.values_at, row)
        if size > I32_MAX - start:
            raise SchemaMismatchError(
                f"Column {self.path()!r}: the rows take more than {I32_MAX} bytes; write fewer at a time."
            )
        end: cython.Py_ssize_t = start + size
        if end > self.data_capacity:
            capacity: cython.Py_ssize_t = max(end, 2 * self.data_capacity, _FIRST_CAPACITY)
            resize(self.data, capacity)
            self.data_at = content_of(self.data)
            self.data_capacity = capacity
        copy_bytes(self.data_at, start, source, 0, size)
        put_int(self.values_at, row + 1, 4, end)
        return size


@cython.cfunc
def _clear_behind(bits: bytearray, count: cython.Py_ssize_t) -> cython.int:
    """Zero the unused bits of the last byte, which have held nothing or a row that was refused."""
    if count & 7:
        content_of(bits)[count >> 3] &= (1 << (count & 7)) - 1
    return 0


@cython.cfunc
def _shown(value: object) -> str:
    # Not the whole value: it may be large, and an int of many digits refuses to become text.
    try:
        text: str = repr(value)
    except ValueError:
        return "too large to show"
    return text if len(text) <= 80 else text[:77] + "..."
