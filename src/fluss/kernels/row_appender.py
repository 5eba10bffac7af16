"""Python rows into columns: one builder, and the gate through which threads give it rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import MISSING
from fluss.kernels.row_columns import ColumnBuilder
from fluss.model.errors import SchemaMismatchError


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
        self._columns = [ColumnBuilder(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
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
        column: ColumnBuilder
        values: list = []
        fields: tuple = self._fields(row)
        for i in range(self._width):
            column = self._columns[i]
            values.append(column.physical(fields[i]))
        return values

    def take(self) -> tuple[int, list[Any]]:
        """The number of rows and their columns, see `ColumnBuilder.take`; the appender starts anew."""
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
        column: ColumnBuilder
        size: cython.Py_ssize_t = 0
        for i in range(self._width):
            column = self._columns[i]
            size += column.store(self._row_count, fields[i])
        return size

    @cython.cfunc
    @cython.exceptval(-1)
    def _store_dict(self, row: dict) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        column: ColumnBuilder
        size: cython.Py_ssize_t = 0
        found: cython.Py_ssize_t = 0
        for i in range(self._width):
            column = self._columns[i]
            value = row.get(column.name, MISSING)
            if value is MISSING:
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
        column: ColumnBuilder
        for column in self._columns:
            value = row.get(column.name, MISSING)
            if value is MISSING:
                self._check_absence(column)
                value = None
            else:
                found += 1
            fields.append(value)
        self._check_names(row, found)
        return tuple(fields)

    @cython.cfunc
    def _check_absence(self, column: ColumnBuilder) -> cython.int:
        if not column.nullable:
            raise SchemaMismatchError(f"The row lacks the non-nullable field {column.name!r} ({column.type_text}).")
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
        """Take no more rows. With the lock held no row is being taken."""
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
