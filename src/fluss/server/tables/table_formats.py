"""What a table's stored JSON says about its bytes, read once per table and schema."""

from __future__ import annotations

import json
from typing import NamedTuple

from fluss.formats.arrow.layout import ArrowLayout
from fluss.model.descriptor import LogFormat, TableDescriptor
from fluss.model.schema import Schema
from fluss.model.tables import options
from fluss.model.types import DataType
from fluss.storage.catalog.view import DefinitionCache

_KEYS_BY_LAKE = "1"  # the first version of key encodings, which all clients know


class SchemaColumns(NamedTuple):
    """The columns of one schema."""

    types: tuple[DataType, ...]
    layout: ArrowLayout
    positions: dict[int, int]  # by field id, which stays the same in all schemas of a table


class TableFormat(NamedTuple):
    """How a table keeps its rows."""

    log_format: LogFormat
    has_primary_key: bool
    needs_new_keys: bool  # keys are encoded in a way that clients of version 0 do not know


@DefinitionCache
def schema_columns(schema_json: bytes) -> SchemaColumns:
    """The columns of a schema."""
    value = json.loads(schema_json)
    types = tuple(column.data_type for column in Schema.from_json(value).columns)
    ids = [item.get("id", position) for position, item in enumerate(value["columns"])]
    return SchemaColumns(types, ArrowLayout(types), {field_id: position for position, field_id in enumerate(ids)})


@DefinitionCache
def table_format(table_json: bytes) -> TableFormat:
    """The formats of a table."""
    table = TableDescriptor.from_json(table_json, foreign_properties=True)
    properties = table.properties
    return TableFormat(
        LogFormat(properties.get(options.LOG_FORMAT, LogFormat.ARROW).upper()),
        table.has_primary_key,
        table.has_primary_key
        and options.DATALAKE_FORMAT in properties
        and properties.get(options.KV_FORMAT_VERSION, _KEYS_BY_LAKE) != _KEYS_BY_LAKE
        and table.bucket_keys != table.physical_primary_keys,
    )
