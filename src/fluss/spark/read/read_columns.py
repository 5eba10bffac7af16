"""Columns that a read gives: the table's, and with `changelog=true` what happened to each row in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import types as st

from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.infos import TableInfo
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET
from fluss.model.schema import Column
from fluss.model.types import DataTypes
from fluss.spark.columns import check_read_schema
from fluss.spark.types import spark_schema, spark_type

CHANGELOG_COLUMNS = {
    CHANGE_TYPE: Column(CHANGE_TYPE, DataTypes.string().not_null()),
    LOG_OFFSET: Column(LOG_OFFSET, DataTypes.bigint().not_null()),
    COMMIT_TIMESTAMP: Column(COMMIT_TIMESTAMP, DataTypes.timestamp_ltz(3)),
}


def read_schema(info: TableInfo, names: Sequence[str] | None, changelog: bool) -> Any:
    """The Spark schema of a read of these columns; all if there are no names.

    With `changelog` the three columns of changes come first, unless some of them are among the names.
    """
    first = list(CHANGELOG_COLUMNS) if changelog else []
    own = [name for name in names or () if name not in first]
    found = {field.name: field for field in spark_schema(info.schema, own if names is not None else None).fields}
    found |= {name: _field(CHANGELOG_COLUMNS[name]) for name in first}
    if names is None or len(own) == len(names):
        names = [*first, *(name for name in found if name not in first)]
    return st.StructType([found[name] for name in names])


def read_columns(info: TableInfo, requested: Any, changelog: bool) -> list[Column]:
    """The columns for a schema given with `.schema(...)`, which must state their own types."""
    own = [field for field in requested.fields if field.name not in CHANGELOG_COLUMNS]
    found: dict[str, Column] = {}
    if own or not requested.fields:
        found = {column.name: column for column in check_read_schema(info.table_path, info.schema, st.StructType(own))}
    for field in requested.fields:
        if field.name in CHANGELOG_COLUMNS:
            found[field.name] = _changelog_column(field, changelog)
    return [found[name] for name in requested.fieldNames()]


def check_chosen_once(names: Sequence[str] | None, requested: Any) -> None:
    """Raise when the option `columns` says other columns than the schema of a read."""
    if names is not None and _own(names) != _own(requested.fieldNames()):
        raise InvalidRequestError("Choose columns by .option('columns', ...) or by .schema(...), not by both.")


def _own(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in CHANGELOG_COLUMNS]


def _changelog_column(field: Any, changelog: bool) -> Column:
    if not changelog:
        raise InvalidRequestError(f"The column {field.name!r} is of changes: add .option('changelog', 'true').")
    expected = _field(CHANGELOG_COLUMNS[field.name])
    if expected.dataType != field.dataType:
        raise SchemaMismatchError(
            f"The column {field.name!r} is {expected.dataType.simpleString()} in Spark; the schema says "
            f"{field.dataType.simpleString()}."
        )
    return CHANGELOG_COLUMNS[field.name]


def _field(column: Column) -> Any:
    return st.StructField(column.name, spark_type(column.data_type), column.data_type.nullable)
