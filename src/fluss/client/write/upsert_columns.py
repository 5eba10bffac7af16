"""Which columns an upsert writer writes, and the checks of rows and keys against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss.formats.rows.python_rows import RowBuilder
from fluss.model.errors import ErrorCode, InvalidRequestError, SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.rows import GenericRow
from fluss.model.schema import Schema


class UpsertColumns:
    """The columns of a writer: all of the table, or the targets of a partial update.

    A table with an auto-increment column is written by updates of all other columns: the server numbers new rows and
    keeps the number of those that are there.
    """

    def __init__(self, info: TableInfo, targets: Sequence[int] | None = None) -> None:
        self._info = info
        self.table_names = info.schema.column_names
        columns = info.schema.columns
        self._numbered = info.schema.get_auto_increment_columns()
        if targets is None and self._numbered:
            targets = [index for index, column in enumerate(columns) if column.name not in self._numbered]
        self.targets = () if targets is None else tuple(targets)
        """Indexes in the order in which rows have them; empty: whole rows."""
        keys = info.primary_keys
        if targets is not None:
            self._check_targets(targets, keys)
        self.schema = Schema.of([columns[index] for index in self.targets] if self.targets else columns, keys)
        """The columns of rows, in their order."""
        by_name = {column.name: column for column in columns}
        self.key_schema = Schema.of([by_name[name] for name in keys], keys)
        """The key columns in the order of the primary key."""

    @classmethod
    def named(cls, info: TableInfo, names: Iterable[str]) -> UpsertColumns:
        """A partial update of columns by name."""
        known = info.schema.column_names
        targets = []
        for name in _listed(names, "column names"):
            if name not in known:
                raise _bad_target(
                    f"Table {info.table_path} has no column {name!r}; its columns are {', '.join(known)}."
                )
            targets.append(known.index(name))
        return cls(info, targets)

    @classmethod
    def numbered(cls, info: TableInfo, indexes: Iterable[int]) -> UpsertColumns:
        """A partial update of columns by index."""
        count = len(info.schema.columns)
        targets = _listed(indexes, "column indexes")
        for index in targets:
            if not isinstance(index, int) or not 0 <= index < count:
                raise _bad_target(f"Column index {index!r} is not in the range 0 to {count - 1} of {info.table_path}.")
        return cls(info, targets)

    def _check_targets(self, targets: Sequence[int], keys: list[str]) -> None:
        names = [self.table_names[index] for index in targets]
        missing = [key for key in keys if key not in names]
        if missing:
            raise _bad_target(
                f"A partial update of table {self._info.table_path} needs all columns of the primary key; "
                f"{missing[0]!r} is not among {', '.join(names) or 'none'}."
            )
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise _bad_target(f"The partial update names column {twice[0]!r} twice.")
        for column in self._info.schema.columns:
            if column.name in self._numbered:
                if column.name in names:
                    raise _bad_target(f"Column {column.name!r} is numbered by the server and can't be written.")
            elif column.name not in keys and not column.data_type.nullable:
                why = f", which the auto-increment column {self._numbered[0]!r} calls for," if self._numbered else ""
                raise _bad_target(
                    f"A partial update of table {self._info.table_path}{why} needs all columns but those of the "
                    f"primary key to be nullable; {column.name!r} is {column.data_type}."
                )

    def row_builder(self) -> RowBuilder:
        """For rows as a user gives them."""
        return TargetRowBuilder(self) if self.targets else RowBuilder(self.schema)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise for a column that the table has and the writer does not write."""
        for name in names:
            if name in self._numbered:
                raise SchemaMismatchError(f"Column {name!r} is numbered by the server; leave it out.")
            if name in self.table_names and name not in self.schema.column_names:
                raise SchemaMismatchError(
                    f"Column {name!r} is not among those of the partial update: {', '.join(self.schema.column_names)}."
                )

    def key_names(self, names: Iterable[str]) -> list[str]:
        """The key columns among these; a key may come with other columns of the table, but not with unknown ones."""
        found = list(names)
        unknown = [name for name in found if name not in self.table_names]
        keys = self.key_schema.column_names
        if unknown:
            raise SchemaMismatchError(f"The table has no column {unknown[0]!r}; its key columns are {', '.join(keys)}.")
        return [name for name in found if name in keys]

    def widen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with all columns of the table: those not written are null, a number the server will set is 0."""
        if not self.targets:
            return rows
        target = arrow_schema(self._info.schema)
        columns = []
        for index, column in enumerate(self._info.schema.columns):
            if index in self.targets:
                columns.append(rows.column(self.targets.index(index)))
            elif column.data_type.nullable:
                columns.append(pa.nulls(rows.num_rows, target.types[index]))
            else:
                columns.append(pa.repeat(pa.scalar(0, target.types[index]), rows.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=target)


class TargetRowBuilder(RowBuilder):
    """Rows of a partial update: only the targets, in the order named, or whole rows with None everywhere else.

    Where both have as many values, a GenericRow is a whole row, a list or tuple has the targets.
    """

    __slots__ = ("_columns", "_whole_width", "_width")

    def __init__(self, columns: UpsertColumns) -> None:
        super().__init__(columns.schema)
        self._columns = columns
        self._width = len(columns.targets)
        self._whole_width = len(columns.table_names)

    def append(self, row: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> int:
        if isinstance(row, Mapping):
            try:
                return super().append(row)
            except SchemaMismatchError:
                self._columns.check_names(row)
                raise
        if is_whole(row, self._whole_width, self._width):
            names = self._columns.table_names
            targets = self._columns.targets
            self._columns.check_names(
                name for index, name in enumerate(names) if index not in targets and row[index] is not None
            )
            row = [row[index] for index in targets]
        return super().append(row)


class KeyBuilder(RowBuilder):
    """Keys: key columns by name, their values in the order of the primary key, or whole rows.

    Where both have as many values, a GenericRow is a whole row, a list or tuple a key.
    """

    __slots__ = ("_columns", "_indexes", "_whole_width")

    def __init__(self, columns: UpsertColumns) -> None:
        super().__init__(columns.key_schema)
        self._columns = columns
        self._indexes = [columns.table_names.index(name) for name in columns.key_schema.column_names]
        self._whole_width = len(columns.table_names)

    def append(self, row: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> int:
        if isinstance(row, Mapping):
            if len(row) != len(self._indexes):
                row = {name: row[name] for name in self._columns.key_names(row)}
        elif is_whole(row, self._whole_width, len(self._indexes)):
            row = [row[index] for index in self._indexes]
        return super().append(row)


def is_whole(row: object, whole_width: int, width: int) -> bool:
    """Whether a list or tuple has a value for each column of the table, rather than for `width` chosen ones."""
    if not isinstance(row, list | tuple) or len(row) != whole_width:
        return False
    return whole_width != width or isinstance(row, GenericRow)


def _listed(items: Iterable[Any], what: str) -> list[Any]:
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InvalidRequestError(f"A partial update takes a list of {what}, not {items!r}.")
    return list(items)


def _bad_target(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, ErrorCode.INVALID_TARGET_COLUMN)
