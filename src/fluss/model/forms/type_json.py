"""Data types as the protocol's JSON, both ways, with a bound on how deep JSON is nested.

The bound holds for all JSON that somebody else wrote. Python reads, writes and compares nested values by recursion:
what is nested a thousand deep is an error of the interpreter somewhere later, far from the text that was wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.types import NESTING_DEPTH_MAX, WITH_LENGTH, WITH_PRECISION, DataField, DataType, TypeRoot, too_deep

# A type that is nested as deep as types may be takes three levels of JSON for each of its own.
DEPTH_MAX: Final = 128


def parse_json(text: str | bytes) -> Any:
    """The value that a text spells; ValueError says why it can't be read."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """ValueError for a value that is nested too deep."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {DEPTH_MAX} levels")


def type_to_json(data_type: DataType, field_ids: Iterator[int] | None = None) -> dict[str, Any]:
    """The JSON object of a type. `field_ids` numbers nested ROW fields depth first, from the schema's own counter."""
    result: dict[str, Any] = {"type": data_type.root.value}
    if not data_type.nullable:
        result["nullable"] = False
    if data_type.root in WITH_LENGTH:
        result["length"] = data_type.length
    elif data_type.root in WITH_PRECISION:
        result["precision"] = data_type.precision
    elif data_type.root is TypeRoot.DECIMAL:
        result["precision"] = data_type.precision
        result["scale"] = data_type.scale
    elif data_type.root is TypeRoot.ARRAY and data_type.element:
        result["element_type"] = type_to_json(data_type.element, field_ids)
    elif data_type.root is TypeRoot.MAP and data_type.key and data_type.value:
        result["key_type"] = type_to_json(data_type.key, field_ids)
        result["value_type"] = type_to_json(data_type.value, field_ids)
    elif data_type.root is TypeRoot.ROW:
        result["fields"] = [_field_to_json(field, field_ids) for field in data_type.fields]
    return result


def _field_to_json(field: DataField, field_ids: Iterator[int] | None) -> dict[str, Any]:
    result: dict[str, Any] = {"name": field.name}
    field_id = None if field_ids is None else next(field_ids)
    result["field_type"] = type_to_json(field.data_type, field_ids)
    if field.description is not None:
        result["description"] = field.description
    if field_id is not None:
        result["field_id"] = field_id
    return result


def type_from_json(value: Any, depth: int = 0) -> DataType:
    """The type that a JSON object describes; InvalidRequestError (code 15) says what is wrong with it."""
    if depth > NESTING_DEPTH_MAX:
        raise too_deep()
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise _bad("A data type must be a JSON object with a 'type'")
    try:
        root = TypeRoot(value["type"])
    except ValueError:
        raise _bad(f"Unknown data type {value['type']!r}") from None
    return DataType(
        root,
        nullable=value.get("nullable", True) is not False,
        length=_int(value, "length") if root in WITH_LENGTH else 0,
        precision=_int(value, "precision") if root in (*WITH_PRECISION, TypeRoot.DECIMAL) else 0,
        scale=_int(value, "scale") if root is TypeRoot.DECIMAL else 0,
        element=type_from_json(value.get("element_type"), depth + 1) if root is TypeRoot.ARRAY else None,
        key=type_from_json(value.get("key_type"), depth + 1).not_null() if root is TypeRoot.MAP else None,
        value=type_from_json(value.get("value_type"), depth + 1) if root is TypeRoot.MAP else None,
        fields=_fields_from_json(value.get("fields"), depth) if root is TypeRoot.ROW else (),
    )


def _fields_from_json(value: Any, depth: int) -> tuple[DataField, ...]:
    if not isinstance(value, list):
        raise _bad("A ROW type needs a list of 'fields'")
    fields = []
    for item in value:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise _bad("A field of a ROW type must be a JSON object with a 'name'")
        fields.append(
            DataField(
                item["name"], type_from_json(item.get("field_type"), depth + 1), optional_text(item, "description")
            )
        )
    return tuple(fields)


def optional_text(value: dict[str, Any], key: str) -> str | None:
    """The string under a key of a JSON object, None without one."""
    text = value.get(key)
    if text is not None and not isinstance(text, str):
        raise _bad(f"{key!r} must be a string, not {text!r}")
    return text


def text_list(value: dict[str, Any], key: str) -> list[str]:
    """The strings under a key of a JSON object, none without it."""
    items = value.get(key)
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise _bad(f"{key!r} must be a list of column names, not {items!r}")
    return items


def _int(value: dict[str, Any], key: str) -> int:
    number = value.get(key)
    if not isinstance(number, int) or isinstance(number, bool):
        raise _bad(f"{value['type']} needs an integer {key!r}")
    return number


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_TABLE_EXCEPTION)
