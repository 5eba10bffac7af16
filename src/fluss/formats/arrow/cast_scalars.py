"""Arrow arrays of scalars to another width, unit or layout, without losing anything on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def plain_layout(array: pa.Array) -> pa.Array:
    """Without extension types and dictionaries."""
    if isinstance(array, pa.ExtensionArray):
        return plain_layout(array.storage)
    if pt.is_dictionary(array.type):
        return plain_layout(array.dictionary_decode())
    if pt.is_run_end_encoded(array.type):
        return plain_layout(pc.run_end_decode(array))
    return array


_IS_BINARY = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
_IS_STRING = (pt.is_string, pt.is_large_string, pt.is_string_view)
_IS_NUMBER = (pt.is_floating, pt.is_integer)
# Target check and the checks of which one must hold for the given type.
_FAMILIES: tuple[tuple[Callable[[Any], bool], tuple[Callable[[Any], bool], ...]], ...] = (
    (pt.is_integer, (pt.is_integer,)),
    (pt.is_floating, _IS_NUMBER),
    (pt.is_fixed_size_binary, _IS_BINARY),
    (pt.is_decimal, (pt.is_decimal, pt.is_integer)),
    (pt.is_timestamp, (pt.is_timestamp,)),
    (pt.is_string, _IS_STRING),
    (pt.is_binary, _IS_BINARY),
    (pt.is_date, (pt.is_date,)),
    (pt.is_time, (pt.is_time,)),
)


def same_family(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type mean the same as values of the other, width and layout aside."""
    if pt.is_timestamp(given) and pt.is_timestamp(target) and given.tz is not None and target.tz is None:
        return False  # an instant has no wall-clock time without a zone to show it in
    return any(is_target(target) and any(check(given) for check in checks) for is_target, checks in _FAMILIES)


def lossless(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The array as `target`, a type of the same family; `ArrowException` or `ValueError` when values do not fit."""
    given = array.type
    if pt.is_timestamp(target):
        # Zones are labels of the same count since 1970, so only the unit is converted.
        return array.view(pa.timestamp(given.unit)).cast(pa.timestamp(target.unit)).view(target)
    if pt.is_decimal(target) and pt.is_integer(given):
        # pyarrow asks for room for any integer; the values decide whether they fit.
        return array.cast(pa.decimal256(60, target.scale)).cast(target)
    if pt.is_float32(target) and pt.is_floating(given):
        narrow = array.cast(target)
        same = pc.or_(pc.equal(narrow.cast(given), array), pc.is_nan(array))
        if not pc.all(same, min_count=0).as_py():
            raise ValueError("a number needs more digits than a 32-bit float has")
        return narrow
    if pt.is_fixed_size_binary(target):
        return _fixed_size_binary(array, target)
    return array.cast(target)


def _fixed_size_binary(array: pa.Array, target: pa.DataType) -> pa.Array:
    content = array.cast(pa.binary())
    wrong = pc.not_equal(pc.binary_length(content), target.byte_width)
    if pc.any(wrong, min_count=0).as_py():
        raise ValueError(f"a value is not {target.byte_width} bytes long")
    if len(content) == 0:
        return pa.nulls(0, target)
    # Without nulls the values lie one behind the other, as they must.
    filled = pc.fill_null(content, pa.scalar(bytes(target.byte_width), pa.binary()))
    _, offsets, data = filled.buffers()
    start = int.from_bytes(memoryview(offsets).cast("B")[4 * filled.offset :][:4], "little")
    validity = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(target, len(array), [validity, data.slice(start)], array.null_count)
