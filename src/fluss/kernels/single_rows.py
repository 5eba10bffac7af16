"""Single compacted rows: from values, and into dicts."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.kv_records import SCHEMA_ID_SIZE, schema_id_of
from fluss.kernels.primitives import (
    CODE_BIG_DECIMAL,
    CODE_BOOL,
    CODE_BYTES,
    CODE_FIXED_BYTES,
    CODE_FIXED_FLOAT,
    CODE_FIXED_INT,
    CODE_TIMESTAMP,
    CODE_VARINT,
    I32_MAX,
    LAYOUT_COMPACTED,
    as_int32,
    content_of,
    floor_div,
    from_second,
    pointer,
    put_varint,
    resize,
    signed,
    unsigned,
    varint_size,
)
from fluss.kernels.row_decoding import EncodedRows, take_timestamps
from fluss.model.errors import CorruptDataError, SchemaMismatchError

if cython.compiled:
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8


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
    if code == CODE_VARINT:
        number: cython.longlong = value
        multiplier: cython.longlong = spec[2]
        divisor: cython.longlong = spec[3]
        bits: cython.int = spec[4]
        _append_varint(out, unsigned(number * multiplier // divisor, bits))
    elif code == CODE_BOOL:
        out.append(1 if value else 0)
    elif code == CODE_FIXED_INT:
        out += value.to_bytes(spec[1], "little", signed=True)
    elif code == CODE_FIXED_FLOAT:
        out += struct.pack("<f" if spec[1] == 4 else "<d", value)
    elif code in (CODE_BYTES, CODE_FIXED_BYTES):
        content: bytes = value.encode() if isinstance(value, str) else value
        _append_varint(out, len(content))
        out += content
    elif code == CODE_BIG_DECIMAL:
        magnitude = value if value >= 0 else ~value
        size = magnitude.bit_length() // 8 + 1
        out.append(size)
        out += value.to_bytes(size, "big", signed=True)
    else:
        units: cython.longlong = spec[2]
        stamp: cython.longlong = value
        millis: cython.longlong = floor_div(stamp, units)
        _append_varint(out, unsigned(millis, 64))
        _append_varint(out, (stamp - millis * units) * (1_000_000 // units))
    return None


@cython.cfunc
def _append_varint(out: bytearray, pattern: cython.ulonglong) -> object:
    at: cython.Py_ssize_t = len(out)
    resize(out, at + varint_size(pattern))
    put_varint(content_of(out), at, pattern)
    return None


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
    rows: EncodedRows = _single_row()
    for i in range(len(listed)):
        if listed[i] is None:
            found.append(None)
            continue
        value = listed[i]
        number = schema_id_of(value, i)
        if number != last:
            if number not in schemas:
                raise CorruptDataError(f"value {i}: its schema {number} is not known")
            columns, nulls = schemas[number]
            last = number
        _begin_row(rows, value, (len(columns) + 7) // 8)
        found.append(_fill_row(rows, value, columns, nulls.copy()))
    return found


@cython.cfunc
def _single_row() -> EncodedRows:
    """Place for one row at a time."""
    rows: EncodedRows = EncodedRows()
    starts_bytes, cursor_bytes = bytearray(8), bytearray(4)
    rows.keep = (starts_bytes, cursor_bytes)
    rows.starts = as_int32(pointer(starts_bytes))
    rows.ends = from_second(rows.starts)
    rows.cursor = as_int32(pointer(cursor_bytes))
    rows.count = 1
    rows.layout = LAYOUT_COMPACTED
    return rows


@cython.cfunc
def _begin_row(rows: EncodedRows, value: bytes, head: cython.int) -> cython.int:
    """Read the row of a stored value, which has to outlive that."""
    size: cython.Py_ssize_t = len(value)
    if size > I32_MAX or size < SCHEMA_ID_SIZE + head:
        raise CorruptDataError("row: too short for its null bits, or too long")
    rows.data = value
    rows.data_size = size
    rows.starts[0] = SCHEMA_ID_SIZE
    rows.ends[0] = cython.cast(cython.int, size) if cython.compiled else size
    rows.cursor[0] = SCHEMA_ID_SIZE + head
    return 0


@cython.cfunc
def _fill_row(rows: EncodedRows, value: bytes, columns: tuple, row: dict) -> dict:
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
def _take_text(rows: EncodedRows) -> str:
    at: cython.Py_ssize_t = rows.take_span(0)
    if cython.compiled:
        return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, cython.address(rows.data[at])), rows.span, cython.NULL)
    else:
        return bytes(rows.data[at : at + rows.span]).decode()


@cython.cfunc
def _take_value(rows: EncodedRows, value: bytes, spec: tuple) -> object:
    """The next physical value of the only row."""
    code: cython.int = spec[0]
    at: cython.Py_ssize_t
    number: cython.longlong
    low: cython.longlong
    high: cython.longlong
    multiplier: cython.longlong
    divisor: cython.longlong
    if code == CODE_VARINT:
        number = signed(rows.take_varint(0, spec[4]), spec[4])
        multiplier, divisor, low, high = spec[2], spec[3], spec[5], spec[6]
        if number < low or number > high:
            raise CorruptDataError(f"row: {number} is outside {low} to {high}")
        return number // multiplier * divisor
    if code == CODE_BOOL:
        return rows.data[rows.take(0, 1)] != 0
    if code == CODE_FIXED_INT:
        at = rows.take(0, spec[1])
        return int.from_bytes(value[at : at + spec[1]], "little", signed=True)
    if code == CODE_FIXED_FLOAT:
        return struct.unpack_from("<f" if spec[1] == 4 else "<d", value, rows.take(0, spec[1]))[0]
    if code == CODE_TIMESTAMP:
        valid: cython.p_uchar = pointer(b"\x01")
        return struct.unpack("<q", take_timestamps(rows, valid, spec[2]))[0]
    at = rows.take_span(0)
    if code == CODE_BIG_DECIMAL:
        if rows.span < 1 or rows.span > 16:
            raise CorruptDataError(f"row: a decimal of {rows.span} bytes")
        return int.from_bytes(value[at : at + rows.span], "big", signed=True)
    if code == CODE_FIXED_BYTES and rows.span != spec[1]:
        raise CorruptDataError(f"row: {rows.span} bytes in a column of {spec[1]}")
    return value[at : at + rows.span]
