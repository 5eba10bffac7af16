"""Messages with many entries, in protobuf: answers of lookups, and requests to write."""

from __future__ import annotations

from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import I32_MAX, bytes_behind, copy_bytes, pointer, put_varint, varint_size, wrapped
from fluss.model.errors import CorruptDataError, ErrorCode, SchemaMismatchError

# --- Fields ---------------------------------------------------------------------------------------------------------

_TAG_BITS = cython.declare(cython.int, 3)
_WIRE_VARINT = cython.declare(cython.int, 0)
_WIRE_FIXED64 = cython.declare(cython.int, 1)
_WIRE_BYTES = cython.declare(cython.int, 2)
_WIRE_FIXED32 = cython.declare(cython.int, 5)


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


@cython.cfunc
@cython.exceptval(-77, check=True)
def _field_size(value: object) -> cython.longlong:
    """What a value takes in its entry."""
    if value is None:
        return 0
    content: bytes = value
    return 1 + varint_size(len(content)) + len(content)


@cython.cfunc
@cython.exceptval(check=False)
def _put_field(
    out: cython.p_uchar, at: cython.Py_ssize_t, source: cython.p_uchar, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    out[at] = _VALUE_TAG
    at = put_varint(out, at + 1, size)
    copy_bytes(out, at, source, 0, size)
    return at + size


# --- Answers of lookups ---------------------------------------------------------------------------------------------
#
# An answer: 1 bucket*
# A bucket: 1 partition_id:int64  2 bucket_id:int32!  3 error_code:int32  4 error_message:string  5 entry*
# An entry: 1 value:bytes, of a key none or one, of a prefix any number

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
        total += 1 + varint_size(size) + size
    _check_entries_size(total)
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(len(listed)):
        out[at] = _ENTRY_TAG
        at = put_varint(out, at + 1, _field_size(listed[i]))
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
        total += 1 + varint_size(size) + size
    _check_entries_size(total)
    out_bytes = bytearray(total)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(len(sizes)):
        values = lists[i]
        out[at] = _ENTRY_TAG
        at = put_varint(out, at + 1, sizes[i])
        for k in range(len(values)):
            value = values[k]
            source = value
            at = _put_field(out, at, source, len(value))
    return out_bytes


@cython.cfunc
def _check_entries_size(total: cython.longlong) -> cython.int:
    if total > I32_MAX:
        raise SchemaMismatchError(f"The rows take more than {I32_MAX} bytes; read fewer at a time.")
    return 0


def split_found(body: Any, with_lists: bool) -> list[tuple[int | None, int, int, bytes, list[Any]]]:
    """The buckets of an answer: partition id, bucket id, error code, error text, and what there is for each key.

    That is a value or None, or with `with_lists` a list of values.
    """
    fields: _Fields = _Fields()
    fields.data = pointer(body)
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
                text = bytes_behind(b"", fields.data, fields.start, fields.at)
        elif fields.number == _FOUND_PARTITION_ID:
            partition_id = wrapped(fields.pattern, 64)
        elif fields.number == _FOUND_BUCKET_ID:
            bucket_id = wrapped(fields.pattern, 32)
        elif fields.number == _FOUND_ERROR_CODE:
            error_code = wrapped(fields.pattern, 32)
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
            value = bytes_behind(b"", outer.data, outer.start, outer.at) if outer.at > outer.start else None
    outer.end = whole
    return value


@cython.cfunc
def _entry_list(fields: _Fields) -> list:
    values: list = []
    while fields.next():
        if fields.number == 1 and fields.is_bytes:
            values.append(bytes_behind(b"", fields.data, fields.start, fields.at))
    return values


# --- Write requests -------------------------------------------------------------------------------------------------
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
    fields.data = pointer(body)
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
                numbers[fields.number] = wrapped(fields.pattern, 64)
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
        targets.append(wrapped(fields.pattern, 32))
        return None
    packed = _fields_of(fields)
    while packed.at < packed.end:
        _check_room(targets, _WRITE_TARGETS_MAX, "target columns")
        targets.append(wrapped(packed.varint(), 32))
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
            partition_id = wrapped(fields.pattern, 64)
        elif fields.number == _WRITE_BUCKET_ID:
            bucket_id = wrapped(fields.pattern, 32)
    if bucket_id is None or records is None:
        raise CorruptDataError("message: a bucket lacks bucket_id or records")
    return partition_id, bucket_id, records
