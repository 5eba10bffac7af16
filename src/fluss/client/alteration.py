"""What alter_table changes, as a request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fluss.client.cluster.views import set_path
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.forms.type_json import type_to_json
from fluss.model.paths import TablePath
from fluss.model.schema import Column
from fluss.model.types import DataType
from fluss.protocol import messages_pb2 as pb

SET, DELETE = 0, 1
POSITION_LAST = 0

ColumnLike: TypeAlias = Column | tuple[Any, ...] | Any
"""A Column, (name, type), (name, type, comment) with a Fluss or PyArrow type, or a PyArrow field."""


def alter_request(
    path: TablePath,
    add_columns: Iterable[ColumnLike] | None,
    set_properties: Mapping[str, str] | None,
    reset_properties: Sequence[str] | None,
    ignore_if_not_exists: bool,
) -> pb.AlterTableRequest:
    """The request; code 56 when there is nothing to change or what can't be changed together."""
    columns = [column_of(item) for item in add_columns or ()]
    if isinstance(reset_properties, str):
        raise _bad("reset_properties takes a list of keys, not one string")
    both = set(set_properties or ()) & set(reset_properties or ())
    if both:
        raise _bad(f"The property {min(both)!r} can't be set and reset at once")
    if columns and (set_properties or reset_properties):
        raise _bad("Columns and properties can't be altered in one call; make two")
    if not columns and not set_properties and not reset_properties:
        raise _bad("Nothing to alter: pass add_columns, set_properties or reset_properties")
    request = pb.AlterTableRequest(ignore_if_not_exists=ignore_if_not_exists)
    set_path(request.table_path, path)
    for column in columns:
        item = request.add_columns.add(
            column_name=column.name,
            data_type_json=json.dumps(type_to_json(column.data_type)).encode(),
            comment=column.comment,
            column_position_type=POSITION_LAST,
        )
        if column.agg_function is not None:
            item.agg_function_type = column.agg_function.type
            for name, parameter in column.agg_function.parameters.items():
                item.agg_function_params.add(key=name, value=parameter)
    for key, value in (set_properties or {}).items():
        request.config_changes.add(config_key=key, config_value=_text(key, value), op_type=SET)
    for key in reset_properties or ():
        request.config_changes.add(config_key=key, op_type=DELETE)
    return request


def column_of(item: ColumnLike) -> Column:
    """A column in any of the spellings."""
    if isinstance(item, Column):
        column = item
    elif isinstance(item, tuple) and len(item) in (2, 3) and isinstance(item[0], str):
        column = Column(item[0], _data_type(item[0], item[1]), item[2] if len(item) == 3 else None)
    elif hasattr(item, "name") and hasattr(item, "type") and hasattr(item, "nullable"):
        data_type = _data_type(item.name, item.type)
        column = Column(item.name, data_type if item.nullable else data_type.not_null())
    else:
        raise _bad(f"A column is (name, type), (name, type, comment) or a PyArrow field, not {item!r:.80}")
    if not column.data_type.nullable:
        raise _bad(f"The new column {column.name!r} must be nullable: rows that are there already have no value for it")
    return column


def _data_type(name: str, data_type: Any) -> DataType:
    if isinstance(data_type, DataType):
        return data_type
    import pyarrow as pa

    from fluss.model.forms.arrow_types import from_arrow

    if not isinstance(data_type, pa.DataType):
        raise _bad(f"The type of column {name!r} must be of DataTypes or PyArrow, not {data_type!r:.80}")
    return from_arrow(data_type)


def _text(key: str, value: object) -> str:
    if not isinstance(key, str) or not isinstance(value, str):
        raise _bad(f"Properties map strings to strings, not {key!r} to {value!r:.80}")
    return value


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)
