"""Columns by their Fluss type names, the one spelling that every peer understands."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

_PLAIN: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
}
_TIME = {0: pa.time32("s"), 3: pa.time32("ms"), 6: pa.time64("us"), 9: pa.time64("ns")}
_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_PARAMETRISED = re.compile(r"(\w+)\((\d+)(?:,\s*(\d+))?\)")


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a Fluss type, for the precisions that Arrow has a unit for."""
    if name in _PLAIN:
        return _PLAIN[name]
    if name.endswith(">"):
        return _nested_type(name)
    match = _PARAMETRISED.fullmatch(name)
    if match is None:
        raise ValueError(f"not a Fluss type: {name}")
    root, first, second = match[1], int(match[2]), int(match[3] or 0)
    if root == "DECIMAL":
        return pa.decimal128(first, second)
    if root == "BINARY":
        return pa.binary(first)
    if root == "TIME":
        return _TIME[first]
    if root == "TIMESTAMP":
        return pa.timestamp(_UNITS[first])
    if root == "TIMESTAMP_LTZ":
        return pa.timestamp(_UNITS[first], tz="UTC")
    raise ValueError(f"not a Fluss type: {name}")


def _nested_type(name: str) -> pa.DataType:
    root, _, rest = name.partition("<")
    parts = _split(rest[:-1])
    if root == "ARRAY":
        # What the elements are called is the clients' convention; Arrow compares types by it.
        return pa.list_(pa.field("element", arrow_type(parts[0])))
    if root == "MAP":
        return pa.map_(arrow_type(parts[0]), arrow_type(parts[1]))
    if root == "ROW":
        return pa.struct([pa.field(*_field(part)) for part in parts])
    raise ValueError(f"not a Fluss type: {name}")


def _field(text: str) -> tuple[str, pa.DataType]:
    name, _, kind = text.partition(" ")
    return name, arrow_type(kind)


def _split(text: str) -> list[str]:
    """Cut at the commas that are inside no bracket."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(type_name)) for name, type_name in columns.items()])
