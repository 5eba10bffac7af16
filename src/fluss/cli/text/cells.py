"""Arrow columns as plain values for JSON and as text for people: times, decimals, bytes and nested values readable."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NO_FRACTION: Final = re.compile(r"\.0+(?=Z?$)")


def plain(column: pa.Array) -> list[Any]:
    """Values that JSON knows. Bytes are hexadecimal, decimals and times text, a map with text keys is an object."""
    column = _simple(column)
    kind = column.type
    if pt.is_float16(kind) or pt.is_float32(kind):
        # By its shortest text, or 0.1 would be 0.10000000149011612.
        return [_finite(None if text is None else float(text)) for text in column.cast(pa.string()).to_pylist()]
    if pt.is_float64(kind):
        return [_finite(value) for value in column.to_pylist()]
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_string(kind) or pt.is_null(kind):
        values: list[Any] = column.to_pylist()
        return values
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return [None if value is None else value.hex() for value in column.to_pylist()]
    if (pt.is_temporal(kind) and not pt.is_duration(kind) and not pt.is_interval(kind)) or pt.is_decimal(kind):
        values = column.cast(pa.string()).to_pylist()
        return values
    if pt.is_map(kind) or pt.is_list(kind):
        return _lists(column)
    if pt.is_struct(kind):
        return _structs(column)
    return [None if value is None else str(value) for value in column.to_pylist()]


def texts(column: pa.Array) -> list[str | None]:
    """Text for people, without control characters; None is null."""
    kind = column.type
    if pt.is_nested(kind):
        return [None if value is None else json.dumps(value, ensure_ascii=False) for value in plain(column)]
    found = [_text(value) for value in plain(column)]
    if pt.is_timestamp(kind) and all(text is None or _NO_FRACTION.search(text) for text in found):
        return [None if text is None else _NO_FRACTION.sub("", text) for text in found]
    return found


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are aligned to the right."""
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def visible(text: str) -> str:
    """A text without characters that would move the cursor or colour the terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else visible(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _finite(value: float | None) -> float | str | None:
    """JSON has no word for what is not a number, nor for infinity."""
    return (
        value
        if value is None or math.isfinite(value)
        else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
    )


def _simple(column: pa.Array) -> pa.Array:
    """The same values in a type that has one spelling."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pt.is_dictionary(kind):
        return column.dictionary_decode()
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return column.cast(pa.string())
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return column.cast(pa.binary())
    if pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return column.cast(pa.list_(kind.value_field))
    return column


def _lists(column: pa.Array) -> list[Any]:
    is_map = pt.is_map(column.type)
    offsets, valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
    items = list(zip(plain(column.keys), plain(column.items), strict=True)) if is_map else plain(column.values)
    found: list[Any] = []
    for index, there in enumerate(valid):
        part = items[offsets[index] : offsets[index + 1]]
        if not there:
            found.append(None)
        elif is_map:
            found.append(dict(part) if all(isinstance(key, str) for key, _ in part) else [list(pair) for pair in part])
        else:
            found.append(part)
    return found


def _structs(column: pa.Array) -> list[Any]:
    names = [field.name for field in column.type]
    children = [plain(child) for child in column.flatten()]
    valid = column.is_valid().to_pylist()
    rows = zip(*children, strict=True) if children else [()] * len(column)
    return [dict(zip(names, row, strict=True)) if there else None for there, row in zip(valid, rows, strict=True)]
