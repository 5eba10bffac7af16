"""Rows of logs: records of a batch, and what readers get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import I32_MAX, LAYOUT_KEY, as_int32, check_size, copy_bytes, load, pointer, save
from fluss.kernels.row_decoding import EncodedRows, rows_behind_each_other
from fluss.model.errors import CorruptDataError

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_FromStringAndSize


_RECORD_HEAD = cython.declare(cython.int, 5)  # bytes of length and change type before a row in a log batch
_CHANGE_TYPE_MAX = cython.declare(cython.int, 4)


def join_records(data: Any, offsets: Any, row_count: int, change_types: Any) -> bytearray:
    """Each row behind its length and change type."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    rows: EncodedRows = rows_behind_each_other(data, offsets, row_count, LAYOUT_KEY, 0, 0)
    check_size("change type", change_types, row_count)
    changes: cython.p_uchar = pointer(change_types)
    used: cython.Py_ssize_t = rows.ends[rows.count - 1] - rows.starts[0] if rows.count else 0
    out_bytes = bytearray(used + _RECORD_HEAD * row_count)
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(rows.count):
        size = rows.ends[i] - rows.starts[i]
        save(out, at, 4, size + 1)
        out[at + 4] = changes[i]
        copy_bytes(out, at + _RECORD_HEAD, rows.data, rows.starts[i], size)
        at += _RECORD_HEAD + size
    return out_bytes


def split_records(records: Any, row_count: int) -> tuple[bytearray, bytearray, bytearray]:
    """Change types, row bytes one behind the other, and their int32 offsets."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    size: cython.longlong
    end: cython.Py_ssize_t = len(records)
    if row_count < 0 or row_count * _RECORD_HEAD > end or end > I32_MAX:
        raise CorruptDataError(f"log batch: {row_count} records announced in {end} bytes")
    count: cython.Py_ssize_t = row_count
    source: cython.p_uchar = pointer(records)
    changes_bytes = bytearray(row_count)
    offsets_bytes = bytearray(4 * (row_count + 1))
    out_bytes = bytearray(end - _RECORD_HEAD * row_count)
    changes: cython.p_uchar = pointer(changes_bytes)
    offsets: cython.p_int = as_int32(pointer(offsets_bytes))
    out: cython.p_uchar = pointer(out_bytes)
    for i in range(count):
        size = load(source, at, 4) - 1 if end - at >= _RECORD_HEAD else -1
        if size < 0 or size > end - at - _RECORD_HEAD or size > len(out_bytes) - offsets[i]:
            raise CorruptDataError(f"log batch: record {i} at byte {at} has a wrong length")
        changes[i] = source[at + 4]
        if changes[i] > _CHANGE_TYPE_MAX:
            raise CorruptDataError(f"log batch: record {i} has the unknown change type {changes[i]}")
        copy_bytes(out, offsets[i], source, at + _RECORD_HEAD, size)
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
    content: cython.p_uchar = pointer(data)
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
