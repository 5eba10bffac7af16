"""Table definitions as files, TOML or JSON, both ways.

    comment = "orders of the shop"
    columns = [
        { name = "id", type = "bigint not null", comment = "..." },
        { name = "total", type = "decimal(10,2)", aggregate = "sum" },
    ]
    primary_key = ["id"]
    partition_keys = []
    bucket_keys = ["id"]
    buckets = 4
    auto_increment = "number"

    [properties]
    "table.log.ttl" = "7 d"

    [custom_properties]
    owner = "shop"

`columns` may also be a table, `id = "bigint not null"`. Everything but the columns may be left out.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fluss.model.aggregation import AggFunction
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.forms.type_text import parse_type, type_text
from fluss.model.infos import TableInfo
from fluss.model.schema import Column, Schema
from fluss.model.types import check_depth, parse_json

SIZE_BYTES_MAX: Final = 4 << 20
_KEYS: Final[dict[str, type | tuple[type, ...]]] = {
    "columns": (list, dict),
    "primary_key": list,
    "partition_keys": list,
    "bucket_keys": list,
    "buckets": int,
    "auto_increment": str,
    "comment": str,
    "properties": dict,
    "custom_properties": dict,
}
_COLUMN_KEYS: Final = ("name", "type", "comment", "aggregate")
_TABLE_PREFIX: Final = "table."


def read_definition(path: Path) -> TableDescriptor:
    """The table that a file defines."""
    try:
        if path.stat().st_size > SIZE_BYTES_MAX:
            raise FlussError(f"{path} is larger than {SIZE_BYTES_MAX} bytes, too large for the definition of a table.")
        text = path.read_text(encoding="utf-8")
        content = parse_json(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
        check_depth(content)
    except OSError as error:
        raise FlussError(f"{path} can't be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise FlussError(f"{path} is not {kind}: {error}.") from error
    try:
        return descriptor_of(content)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path}: {error.message}", error.error_code) from error


def descriptor_of(content: Any) -> TableDescriptor:
    """The table that the content of a file defines."""
    if not isinstance(content, dict):
        raise InvalidRequestError("A table's definition is a table of keys.")
    for key, value in content.items():
        if key not in _KEYS:
            raise InvalidRequestError(f"Unknown key {key!r}; known are {', '.join(_KEYS)}.")
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
            raise InvalidRequestError(f"{key} can't be {value!r}; see 'fluss table define' for an example.")
    columns = content.get("columns")
    if not columns:
        raise InvalidRequestError("A table's definition needs 'columns'.")
    items = columns if isinstance(columns, list) else [{"name": name, "type": kind} for name, kind in columns.items()]
    schema = Schema.of(
        [_column(item) for item in items], content.get("primary_key", []), content.get("auto_increment") or None
    )
    return TableDescriptor(
        schema,
        partition_keys=content.get("partition_keys"),
        bucket_count=content.get("buckets"),
        bucket_keys=content.get("bucket_keys"),
        comment=content.get("comment"),
        properties=content.get("properties"),
        custom_properties=content.get("custom_properties"),
    )


def _column(item: Any) -> Column:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not isinstance(item.get("type"), str):
        raise InvalidRequestError(f"A column is like {{ name = 'id', type = 'bigint' }}, not {item!r}.")
    for key in item:
        if key not in _COLUMN_KEYS:
            raise InvalidRequestError(
                f"Column {item['name']!r} has the unknown key {key!r}; known are {', '.join(_COLUMN_KEYS)}."
            )
    aggregate = item.get("aggregate")
    try:
        function = None if aggregate is None else _function(aggregate)
        return Column(item["name"], parse_type(item["type"]), item.get("comment"), function)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"Column {item['name']!r}: {error.message}", error.error_code) from error


def _function(value: Any) -> AggFunction:
    """`"sum"`, or with parameters `{ function = "listagg", delimiter = "|" }`."""
    if isinstance(value, dict) and isinstance(value.get("function"), str):
        return AggFunction(value["function"], {key: text for key, text in value.items() if key != "function"})
    return AggFunction.of(value)


def definition_of(info: TableInfo) -> dict[str, Any]:
    """What a file that defines a table like this one contains."""
    found: dict[str, Any] = {} if info.comment is None else {"comment": info.comment}
    found["columns"] = [_column_item(column) for column in info.schema.columns]
    more = {
        "primary_key": info.primary_keys,
        "partition_keys": info.partition_keys,
        "bucket_keys": info.get_bucket_keys(),
        "buckets": info.num_buckets,
        "auto_increment": "".join(info.schema.get_auto_increment_columns()),
        "properties": info.properties,
        "custom_properties": info.custom_properties,
    }
    return found | {key: value for key, value in more.items() if value}


def _column_item(column: Column) -> dict[str, Any]:
    item: dict[str, Any] = {"name": column.name, "type": type_text(column.data_type)}
    if column.comment is not None:
        item["comment"] = column.comment
    if column.agg_function is not None:
        function = column.agg_function
        parameters = dict(function.parameters)
        item["aggregate"] = {"function": str(function.type), **parameters} if parameters else str(function.type)
    return item


def to_toml(definition: Mapping[str, Any]) -> str:
    """A definition as TOML, a column per line."""
    lines, tables = [], []
    for key, value in definition.items():
        if key == "columns":
            lines += ["columns = [", *(f"    {_toml(column)}," for column in value), "]"]
        elif isinstance(value, Mapping):
            tables += ["", f"[{key}]", *(f"{_toml(name)} = {_toml(text)}" for name, text in value.items())]
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, *tables])


def _toml(value: Any) -> str:
    """TOML's texts, numbers and lists are JSON's, but for one control character."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def split_properties(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Properties of tables, which begin with `table.`, and those of the table's owner."""
    own = {key: value for key, value in given.items() if not key.startswith(_TABLE_PREFIX)}
    return {key: value for key, value in given.items() if key not in own}, own
