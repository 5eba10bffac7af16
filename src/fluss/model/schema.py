"""A table's columns and primary key."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluss.model.aggregation import AggFunction
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.types import DataType, TypeRoot, optional_text, text_list, type_from_json, type_to_json

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN_COUNT_MAX = 4096
# The lake tiering and changelog readers add columns of these names.
RESERVED_COLUMNS = frozenset(
    {"__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"}
)


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column."""

    name: str
    data_type: DataType
    comment: str | None = None
    agg_function: AggFunction | None = None  # of tables with the merge engine AGGREGATION


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """The columns that identify a row."""

    column_names: tuple[str, ...]


class Schema:
    """Columns and primary key, from a PyArrow schema or from `Schema.builder()`."""

    __slots__ = ("_auto_increment", "_columns", "_field_ids", "_primary_keys")

    def __init__(
        self,
        schema: pa.Schema,
        primary_keys: list[str] | None = None,
        auto_increment_column: str | None = None,
        agg_functions: Mapping[str, AggFunction | str] | None = None,
    ) -> None:
        from fluss.model.forms.arrow_types import from_arrow

        functions = {name: AggFunction.of(function) for name, function in (agg_functions or {}).items()}
        columns = [
            Column(field.name, from_arrow(field.type, field.nullable), agg_function=functions.pop(field.name, None))
            for field in schema
        ]
        if functions:
            raise _bad(f"The aggregate functions of {list(functions)} have no column; there are {schema.names}")
        self._set(columns, primary_keys or [], auto_increment_column)

    @classmethod
    def of(
        cls, columns: Iterable[Column], primary_keys: Iterable[str] = (), auto_increment_column: str | None = None
    ) -> Schema:
        """A schema from columns."""
        schema = cls.__new__(cls)
        schema._set(list(columns), list(primary_keys), auto_increment_column)
        return schema

    @staticmethod
    def builder() -> SchemaBuilder:
        """Start building a schema column by column."""
        return SchemaBuilder()

    def _set(self, columns: list[Column], primary_keys: list[str], auto_increment: str | None) -> None:
        _check_columns(columns)
        names = [column.name for column in columns]
        for key in primary_keys:
            if key not in names:
                raise _bad(f"The primary key column {key!r} is not among the columns {names}")
        if len(set(primary_keys)) != len(primary_keys):
            raise _bad(f"The primary key {primary_keys} names a column twice")
        for column in columns:
            if column.name in primary_keys and column.agg_function is not None:
                raise _bad(f"The key column {column.name!r} can't have an aggregate function")
        if auto_increment is not None:
            _check_auto_increment(columns, primary_keys, auto_increment)
        # A key column can't be null, whatever its declaration says.
        self._columns = tuple(
            replace(column, data_type=column.data_type.not_null()) if column.name in primary_keys else column
            for column in columns
        )
        self._primary_keys = tuple(primary_keys)
        self._auto_increment = auto_increment
        self._field_ids: tuple[int, ...] | None = None

    @property
    def columns(self) -> list[Column]:
        return list(self._columns)

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self._columns]

    @property
    def primary_key(self) -> PrimaryKey | None:
        return PrimaryKey(self._primary_keys) if self._primary_keys else None

    @property
    def primary_key_indexes(self) -> list[int]:
        names = self.column_names
        return [names.index(key) for key in self._primary_keys]

    @property
    def field_ids(self) -> list[int]:
        """The number of each column that stays the same when the schema changes."""
        if self._field_ids is None:
            self._field_ids = tuple(item["id"] for item in self.to_json()["columns"])
        return list(self._field_ids)

    def get_column_names(self) -> list[str]:
        """Names in order."""
        return self.column_names

    def get_column_types(self) -> list[str]:
        """Type names in order, such as `int NOT NULL`."""
        return [str(column.data_type) for column in self._columns]

    def get_columns(self) -> list[tuple[str, str]]:
        """(name, type name) pairs in order."""
        return [(column.name, str(column.data_type)) for column in self._columns]

    def get_primary_keys(self) -> list[str]:
        """Primary key column names; empty for a log table."""
        return list(self._primary_keys)

    def get_auto_increment_columns(self) -> list[str]:
        """The column the server numbers, if any, as a list."""
        return [self._auto_increment] if self._auto_increment else []

    def to_json(self) -> dict[str, Any]:
        """The protocol's JSON object."""
        ids = itertools.count()
        columns = []
        for column in self._columns:
            item: dict[str, Any] = {"name": column.name}
            column_id = next(ids)
            item["data_type"] = type_to_json(column.data_type, ids)
            if column.comment is not None:
                item["comment"] = column.comment
            if column.agg_function is not None:
                item["agg_function"] = column.agg_function.to_json()
            item["id"] = column_id
            columns.append(item)
        result: dict[str, Any] = {"version": 1, "columns": columns}
        if self._primary_keys:
            result["primary_key"] = list(self._primary_keys)
        if self._auto_increment:
            result["auto_increment_column"] = [self._auto_increment]
        result["highest_field_id"] = next(ids) - 1
        return result

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        """The schema that a JSON object describes."""
        if not isinstance(value, dict) or not isinstance(value.get("columns"), list):
            raise _bad("A schema must be a JSON object with 'columns'")
        columns = []
        for item in value["columns"]:
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                raise _bad("A column must be a JSON object with a 'name'")
            function = item.get("agg_function")
            columns.append(
                Column(
                    item["name"],
                    type_from_json(item.get("data_type")),
                    optional_text(item, "comment"),
                    None if function is None else AggFunction.from_json(function),
                )
            )
        auto_increment = text_list(value, "auto_increment_column")
        if len(auto_increment) > 1:
            raise _bad(f"A table has at most one auto-increment column, not {auto_increment}")
        schema = cls.of(columns, text_list(value, "primary_key"), auto_increment[0] if auto_increment else None)
        ids = tuple(item.get("id") for item in value["columns"])
        if all(isinstance(number, int) for number in ids):
            schema._field_ids = ids
        return schema

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return (self._columns, self._primary_keys, self._auto_increment) == (
            other._columns,
            other._primary_keys,
            other._auto_increment,
        )

    def __hash__(self) -> int:
        return hash((self._columns, self._primary_keys))

    def __str__(self) -> str:
        columns = ", ".join(f'("{name}", "{type_name}")' for name, type_name in self.get_columns())
        return f"Schema: columns=[{columns}]"

    def __repr__(self) -> str:
        keys = f", primary_keys={list(self._primary_keys)}" if self._primary_keys else ""
        return f"Schema({self.get_columns()}{keys})"


class SchemaBuilder:
    """Builds a schema column by column."""

    def __init__(self) -> None:
        self._columns: list[Column] = []
        self._primary_keys: list[str] = []
        self._auto_increment: str | None = None

    def column(
        self,
        name: str,
        data_type: DataType,
        comment: str | None = None,
        agg_function: AggFunction | str | None = None,
    ) -> SchemaBuilder:
        """Add a column; a table with the merge engine AGGREGATION combines its values by a function."""
        function = None if agg_function is None else AggFunction.of(agg_function)
        self._columns.append(Column(name, data_type, comment, function))
        return self

    def primary_key(self, keys: list[str]) -> SchemaBuilder:
        """Set the primary key columns."""
        self._primary_keys = list(keys)
        return self

    def enable_auto_increment(self, column_name: str) -> SchemaBuilder:
        """Let the server number new rows in this column."""
        self._auto_increment = column_name
        return self

    def build(self) -> Schema:
        """The schema, checked."""
        return Schema.of(self._columns, self._primary_keys, self._auto_increment)


def _check_auto_increment(columns: list[Column], primary_keys: list[str], name: str) -> None:
    if not primary_keys:
        raise _bad(f"The auto-increment column {name!r} needs a table with a primary key")
    if name in primary_keys:
        raise _bad(f"The auto-increment column {name!r} can't be part of the primary key")
    for column in columns:
        if column.name == name:
            if column.data_type.root in (TypeRoot.INTEGER, TypeRoot.BIGINT):
                return
            raise _bad(f"The auto-increment column {name!r} must be INT or BIGINT, not {column.data_type}")
    raise _bad(f"The auto-increment column {name!r} is not among the columns {[column.name for column in columns]}")


def _check_columns(columns: list[Column]) -> None:
    if not columns:
        raise _bad("A table needs at least one column")
    if len(columns) > COLUMN_COUNT_MAX:
        raise _bad(f"A table has at most {COLUMN_COUNT_MAX} columns, not {len(columns)}")
    seen: set[str] = set()
    for column in columns:
        if not column.name:
            raise _bad("A column name must not be empty")
        if column.name in seen:
            raise _bad(f"The column name {column.name!r} occurs twice")
        if column.name in RESERVED_COLUMNS:
            raise _bad(f"The column name {column.name!r} is reserved; choose another")
        seen.add(column.name)


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_TABLE_EXCEPTION)
