"""Records of puts, stored values, keys in the order in which a store is asked for them, and single compacted rows."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from fluss.kernels._cyshim import cython
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
    LAYOUT_KEY,
    as_int32,
    bytes_behind,
    check_size,
    content_of,
    copy_bytes,
    floor_div,
    from_second,
    is_equal,
    is_set,
    load,
    pointer,
    put_varint,
    resize,
    save,
    signed,
    unsigned,
    varint_size,
)
from fluss.kernels.row_decoding import EncodedRows, rows_behind_each_other, take_timestamps
from fluss.model.errors import CorruptDataError, SchemaMismatchError

_LENGTH_SIZE = cython.declare(cython.int, 4)
SCHEMA_ID_SIZE = cython.declare(cython.int, 2)
_KV_RECORD_MIN = cython.declare(cython.int, 5)  # bytes of a length and of an empty key's length

_ORDER_SIZE = cython.declare(cython.int, 8)  # bytes of keys that are compared


def join_kv_records(
    keys: tuple[Any, Any], rows: tuple[Any, Any], validity: Any, validity_start: int, row_count: int
) -> bytearray:
    """Records of keys and rows, each (data, int32 offsets); a row whose bit is not set is a delete."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    key_size: cython.longlong
    row_size: cython.longlong
    total: cython.longlong = 0
    key_rows: EncodedRows = rows_behind_each_other(keys[0], keys[1], row_count, LAYOUT_KEY, 0, 0)
    new_rows: EncodedRows = rows_behind_each_other(rows[0], rows[1], row_count, LAYOUT_KEY, 0, 0)
    has_deletes: cython.bint = validity is not None
    first_bit: cython.Py_ssize_t = validity_start
    bits_bytes = b"" if validity is None else validity
    if has_deletes:
        check_size("rows", bits_bytes, (validity_start + row_count + 7) // 8)
    bits: cython.p_uchar = pointer(bits_bytes)
    for i in range(key_rows.count):
        key_size = key_rows.ends[i] - key_rows.starts[i]
        row_size = new_rows.ends[i] - new_rows.starts[i]
        if has_deletes and not is_set(bits, first_bit + i):
            row_size = 0
        elif row_size == 0:
            raise SchemaMismatchError(f"Row {i} has no bytes, which would delete it; a delete is a null.")
        total += _LENGTH_SIZE + varint_size(key_size) + key_size + row_size
        if total > I32_MAX:
            raise SchemaMismatchError(f"The rows take more than {I32_MAX} bytes; write fewer at a time.")
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(key_rows.count):
        key_size = key_rows.ends[i] - key_rows.starts[i]
        row_size = new_rows.ends[i] - new_rows.starts[i]
        if has_deletes and not is_set(bits, first_bit + i):
            row_size = 0
        save(out, at, 4, varint_size(key_size) + key_size + row_size)
        at = put_varint(out, at + _LENGTH_SIZE, key_size)
        copy_bytes(out, at, key_rows.data, key_rows.starts[i], key_size)
        copy_bytes(out, at + key_size, new_rows.data, new_rows.starts[i], row_size)
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
    source: cython.p_uchar = pointer(records)
    keys: list = []
    values: list = []
    for i in range(count):
        size = load(source, at, 4) if end - at >= _KV_RECORD_MIN else -1
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
                raise CorruptDataError(f"kv batch: the key length of record {i} is not a 32-bit number")
            key_size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        if key_size > stop - at:
            raise CorruptDataError(f"kv batch: the key of record {i} has {key_size} bytes, {stop - at} are left")
        keys.append(bytes_behind(b"", source, at, at + key_size))
        at += key_size
        values.append(bytes_behind(head, source, at, stop) if at < stop else None)
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
    if total > I32_MAX:
        raise SchemaMismatchError(f"The rows take more than {I32_MAX} bytes; read fewer at a time.")
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(len(listed)):
        value = listed[i]
        source = value
        save(out, at, 4, len(value))
        copy_bytes(out, at + _LENGTH_SIZE, source, 0, len(value))
        at += _LENGTH_SIZE + len(value)
    return out_bytes


def split_values(records: Any, row_count: int) -> list[bytes]:
    """The values, each of which lies behind its length."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(records)
    size: cython.longlong
    if row_count < 0 or row_count * (_LENGTH_SIZE + SCHEMA_ID_SIZE) > end:
        raise CorruptDataError(f"value batch: {row_count} values announced in {end} bytes")
    count: cython.Py_ssize_t = row_count
    source: cython.p_uchar = pointer(records)
    values: list = []
    for i in range(count):
        size = load(source, at, 4) if end - at >= _LENGTH_SIZE else -1
        if size < SCHEMA_ID_SIZE or size > end - at - _LENGTH_SIZE:
            raise CorruptDataError(f"value batch: value {i} at byte {at} has a wrong length")
        at += _LENGTH_SIZE
        values.append(bytes_behind(b"", source, at, at + size))
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
    rows: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_KEY, 0, 0)
    listed: list = [prefix] * row_count if places is None else places
    if len(listed) - listed.count(None) != row_count:
        raise ValueError(f"{row_count} rows for {len(listed) - listed.count(None)} places")
    values: list = []
    for i in range(len(listed)):
        if listed[i] is None:
            values.append(None)
        else:
            values.append(bytes_behind(head, rows.data, rows.starts[row], rows.ends[row]))
            row += 1
    return values


@cython.cfunc
@cython.inline
@cython.exceptval(-77777, check=True)
def schema_id_of(value: bytes, row: cython.Py_ssize_t) -> cython.int:
    if len(value) < SCHEMA_ID_SIZE:
        raise CorruptDataError(f"value {row}: {len(value)} bytes have no room for a schema id")
    source: cython.p_uchar = value
    pattern: cython.int = source[0]
    pattern |= source[1] << 8
    return pattern - 0x10000 if pattern >= 0x8000 else pattern


def schema_ids_of(values: list[bytes | None]) -> list[int]:
    """The schema ids that occur, in order of appearance; a value of None has no schema."""
    i: cython.Py_ssize_t
    number: cython.int
    last: cython.int = -0x10000
    listed: list = values
    seen: dict = {}
    for i in range(len(listed)):
        if listed[i] is None:
            continue
        number = schema_id_of(listed[i], i)
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
    places: cython.p_int = as_int32(pointer(places_bytes))
    offsets_bytes = bytearray(4 * (len(listed) + 1))
    offsets: cython.p_int = as_int32(pointer(offsets_bytes))
    for i in range(len(listed)):
        value = listed[i]
        if schema_id_of(value, i) == wanted:
            total += len(value) - SCHEMA_ID_SIZE
            if total > I32_MAX:
                raise SchemaMismatchError(f"The rows take more than {I32_MAX} bytes; read fewer at a time.")
            places[count] = cython.cast(cython.int, i) if cython.compiled else i
            count += 1
            offsets[count] = cython.cast(cython.int, total) if cython.compiled else total
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(count):
        value = listed[places[i]]
        source = value
        size = offsets[i + 1] - offsets[i]
        copy_bytes(out, offsets[i], source, SCHEMA_ID_SIZE, size)
    return out_bytes, offsets_bytes[: 4 * (count + 1)], places_bytes[: 4 * count]


def keys_in_order(keys: list[bytes]) -> list[bytes]:
    """Keys in the order of the eight bytes behind what all of them begin with."""
    listed: list = keys
    order_bytes: bytearray = _order_of(listed, _common_size(listed))
    order: cython.p_int = as_int32(pointer(order_bytes))
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
    order: cython.p_int = as_int32(pointer(order_bytes))
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
        if not is_equal(first_at, 0, source, 0, size):
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
    window: cython.p_uchar = content_of(window_bytes)
    order_bytes = bytearray(4 * count)
    next_bytes = bytearray(4 * count)
    order: cython.p_int = as_int32(pointer(order_bytes))
    next_order: cython.p_int = as_int32(pointer(next_bytes))
    places_bytes = bytearray(4 * 256)
    places: cython.p_int = as_int32(pointer(places_bytes))
    total: cython.int
    for i in range(count):
        key = keys[i]
        source = key
        copy_bytes(window, i * _ORDER_SIZE, source, start, min(len(key) - start, _ORDER_SIZE))
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
