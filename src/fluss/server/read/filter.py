"""One comparison of a filter against the statistics of a column."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fluss.formats.batches.statistics import ColumnStatistics
from fluss.model.errors import CorruptDataError
from fluss.model.types import DataType, TypeRoot
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import unreadable

# Predicates and literals of one filter.
FILTER_TERMS_MAX: Final = 10_000

LeafTest: TypeAlias = Callable[[ColumnStatistics, int], bool]
_BoundsTest: TypeAlias = Callable[[Any, Any], bool]

_EQUAL, _NOT_EQUAL, _LESS, _LESS_OR_EQUAL, _GREATER, _GREATER_OR_EQUAL = range(6)
_IS_NULL, _NOT_NULL, _STARTS_WITH, _CONTAINS, _ENDS_WITH, _IN, _NOT_IN = range(6, 13)
_TEXT: Final = (TypeRoot.CHAR, TypeRoot.STRING)
_BYTES: Final = (TypeRoot.BINARY, TypeRoot.BYTES)
_MS_PRECISION: Final = 3
_NS_PER_MS: Final = 1_000_000

# By the protocol's number of a literal's type.
_LITERAL_ROOTS: Final = (
    TypeRoot.BOOLEAN,
    TypeRoot.TINYINT,
    TypeRoot.SMALLINT,
    TypeRoot.INTEGER,
    TypeRoot.BIGINT,
    TypeRoot.FLOAT,
    TypeRoot.DOUBLE,
    TypeRoot.CHAR,
    TypeRoot.STRING,
    TypeRoot.DECIMAL,
    TypeRoot.DATE,
    TypeRoot.TIME,
    TypeRoot.TIMESTAMP,
    TypeRoot.TIMESTAMP_LTZ,
    TypeRoot.BINARY,
    TypeRoot.BYTES,
)
_LITERAL_FIELDS: Final = {
    TypeRoot.BOOLEAN: "boolean_value",
    TypeRoot.TINYINT: "int_value",
    TypeRoot.SMALLINT: "int_value",
    TypeRoot.INTEGER: "int_value",
    TypeRoot.BIGINT: "bigint_value",
    TypeRoot.FLOAT: "float_value",
    TypeRoot.DOUBLE: "double_value",
    TypeRoot.CHAR: "string_value",
    TypeRoot.STRING: "string_value",
    TypeRoot.DATE: "bigint_value",
    TypeRoot.TIME: "int_value",
    TypeRoot.TIMESTAMP: "timestamp_millis_value",
    TypeRoot.TIMESTAMP_LTZ: "timestamp_millis_value",
    TypeRoot.BINARY: "binary_value",
    TypeRoot.BYTES: "binary_value",
}


def bad_filter(reason: str) -> CorruptDataError:
    """The error for a filter that makes no sense."""
    return unreadable("FetchLog", f"its filter is wrong, {reason}")


def leaf_test(leaf: pb.PbLeafPredicate, data_type: DataType) -> LeafTest:
    """Whether any row may match, from a column's statistics and the number of rows."""
    function = leaf.function
    literals = [_literal(literal, data_type) for literal in leaf.literals]
    if function in (_IS_NULL, _NOT_NULL):
        if literals:
            raise bad_filter(f"function {function} takes no literals, not {len(literals)}")
        return _has_nulls if function == _IS_NULL else _has_values
    test = _bounds_test(function, literals, data_type)
    # A reader compares at the column's full precision, statistics have whole milliseconds.
    slack_ms = 1 if data_type.root is TypeRoot.TIME and data_type.precision > _MS_PRECISION else 0

    def may_match(column: ColumnStatistics, row_count: int) -> bool:
        if not _has_values(column, row_count):
            return False
        low, high = column.minimum, column.maximum
        # NaN is not equal to itself.
        if low is None or high is None or low != low or high != high:
            return True
        return test(low, high + slack_ms if slack_ms and isinstance(high, int) else high)

    return may_match


def _has_nulls(column: ColumnStatistics, row_count: int) -> bool:
    return column.null_count != 0


def _has_values(column: ColumnStatistics, row_count: int) -> bool:
    return column.null_count != row_count


def _bounds_test(function: int, literals: list[Any], data_type: DataType) -> _BoundsTest:
    given = [literal for literal in literals if literal is not None]
    known = sorted(literal for literal in given if literal == literal)
    all_known = len(known) == len(given)
    if function == _IN:
        return lambda low, high: not all_known or _any_between(known, low, high)
    if function == _NOT_IN:
        return lambda low, high: low != high or low not in known
    if function > _NOT_IN or function < 0:
        raise bad_filter(f"function {function} is not known")
    if len(literals) != 1:
        raise bad_filter(f"function {function} takes one literal, not {len(literals)}")
    if function in (_STARTS_WITH, _CONTAINS, _ENDS_WITH) and data_type.root not in _TEXT:
        raise bad_filter(f"function {function} needs text, not {data_type}")
    if not known or function in (_CONTAINS, _ENDS_WITH):
        return lambda low, high: True
    return _comparison(function, known[0])


def _comparison(function: int, value: Any) -> _BoundsTest:
    if function == _EQUAL:
        return lambda low, high: low <= value <= high
    if function == _NOT_EQUAL:
        return lambda low, high: low != value or high != value
    if function == _LESS:
        return lambda low, high: low < value
    if function == _LESS_OR_EQUAL:
        return lambda low, high: low <= value
    if function == _GREATER:
        return lambda low, high: high > value
    if function == _GREATER_OR_EQUAL:
        return lambda low, high: high >= value
    return lambda low, high: low[: len(value)] <= value <= high[: len(value)]


def _any_between(ascending: list[Any], low: Any, high: Any) -> bool:
    at = bisect_left(ascending, low)
    return at < len(ascending) and ascending[at] <= high


def _literal(literal: pb.PbLiteralValue, data_type: DataType) -> Any:
    """The value as statistics have it, None for null."""
    if literal.is_null:
        return None
    root = data_type.root
    number = literal.literal_type
    given = _LITERAL_ROOTS[number] if 0 <= number < len(_LITERAL_ROOTS) else None
    alike = next((group for group in (_TEXT, _BYTES) if root in group), (root,))
    if given not in alike:
        raise bad_filter(f"a literal of type {number} does not fit a column of type {data_type}")
    if root is TypeRoot.DECIMAL:
        if literal.HasField("decimal_bytes"):
            return int.from_bytes(literal.decimal_bytes, "big", signed=True)
        return literal.decimal_value
    field = _LITERAL_FIELDS[root]
    if not literal.HasField(field):
        raise bad_filter(f"a literal of type {number} has no {field}")
    value = getattr(literal, field)
    if root in _TEXT:
        return value.encode()
    if root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        return value * _NS_PER_MS + literal.timestamp_nano_of_millis_value
    return value
