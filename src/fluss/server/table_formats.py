"""What a table's stored JSON says about the bytes of its batches, read once per table and schema."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

from fluss.formats.arrow_layout import ArrowLayout
from fluss.model.descriptor import LogFormat
from fluss.model.schema import Schema
from fluss.model.table_options import LOG_FORMAT
from fluss.model.types import DataType


class SchemaColumns(NamedTuple):
    """The columns of one schema."""

    types: tuple[DataType, ...]
    layout: ArrowLayout
    positions: dict[int, int]  # by field id, which stays the same in all schemas of a table


@lru_cache(maxsize=4096)
def schema_columns(schema_json: bytes) -> SchemaColumns:
    """The columns of a schema."""
    value = json.loads(schema_json)
    types = tuple(column.data_type for column in Schema.from_json(value).columns)
    ids = [item.get("id", position) for position, item in enumerate(value["columns"])]
    return SchemaColumns(types, ArrowLayout(types), {field_id: position for position, field_id in enumerate(ids)})


@lru_cache(maxsize=4096)
def log_format(table_json: bytes) -> LogFormat:
    """How a table's batches hold their rows."""
    return LogFormat(json.loads(table_json)["properties"].get(LOG_FORMAT, LogFormat.ARROW).upper())
