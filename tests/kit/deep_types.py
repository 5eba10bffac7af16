"""Texts of types that are nested as deep as a test likes."""

from __future__ import annotations


def json_text(opening: str, leaf: str, closing: str, levels: int) -> bytes:
    """Made without `json`, which could not write it."""
    return (opening * levels + leaf + closing * levels).encode()


TYPE_TEXTS = {
    "array": ('{"type":"ARRAY","element_type":', "}"),
    "map": ('{"type":"MAP","key_type":{"type":"INTEGER"},"value_type":', "}"),
    "row": ('{"type":"ROW","fields":[{"name":"a","field_type":', "}]}"),
}


def schema_json(kind: str, levels: int) -> bytes:
    opening, closing = TYPE_TEXTS[kind]
    data_type = json_text(opening, '{"type":"INTEGER"}', closing, levels)
    return b'{"version":1,"columns":[{"name":"a","data_type":' + data_type + b',"id":0}],"highest_field_id":0}'


def table_json(kind: str, levels: int) -> bytes:
    return b'{"version":1,"schema":' + schema_json(kind, levels) + b',"partition_key":[],"properties":{}}'
