"""Leaving out batches that a reader's filter can't match, by the statistics of their columns.

Whatever is not known keeps a batch: no statistics, a column that the batch does not have, a bound that is missing or is
NaN. Readers filter rows themselves. Columns are named by field id, which is the same in all schemas of a table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import BatchHeader, statistics_of
from fluss.formats.batches.statistics import ColumnStatistics
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.predicates import DEPTH_MAX
from fluss.model.types import DataType, TypeRoot
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import unreadable
from fluss.server.tables.rules import SchemaColumns, schema_columns
from fluss.storage.catalog.catalog import Catalog

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


# From field ids to statistics, and the number of rows, to whether any row may match.
_Test: TypeAlias = Callable[[dict[int, ColumnStatistics], int], bool]

_LEAF, _COMPOUND = 0, 1
_AND, _OR = 0, 1
_LEAVES_PER_COST = 16


class _BatchColumns(NamedTuple):
    types: tuple[DataType, ...]
    field_ids: dict[int, int]  # by index, those that the filter names


class BatchFilter:
    """The filter of one table of a fetch."""

    def __init__(self, catalog: Catalog, table: pb.PbFetchLogTableRequest) -> None:
        """Raises when the filter makes no sense: reading without it would hide the mistake."""
        self._catalog = catalog
        self._table_id = table.table_id
        self._field_ids: set[int] = set()
        self._leaves = self._terms = 0
        self._batch_columns: dict[int, _BatchColumns] = {}
        if not table.HasField("filter_schema_id"):
            raise bad_filter("it has no filter_schema_id")
        try:
            schema_json = catalog.schema_json(table.table_id, table.filter_schema_id)
        except FlussError:
            raise bad_filter(f"the table has no schema {table.filter_schema_id}") from None
        self._test = self._compile(table.filter_predicate, schema_columns(schema_json))

    @property
    def cost(self) -> int:
        """How much work a batch is, with 1 for a small filter."""
        return 1 + self._leaves // _LEAVES_PER_COST

    def may_match(self, data: bytes, position: int, header: BatchHeader) -> bool:
        """False when no row of the batch at `position` can match."""
        if not header.statistics_size_bytes or not header.record_count:
            return True
        try:
            columns = self._columns(header.schema_id)
            found = statistics.decode(statistics_of(data, position, header), columns.types, columns.field_ids)
        except FlussError:
            return True
        by_field_id = {columns.field_ids[index]: column for index, column in found.items()}
        return self._test(by_field_id, header.record_count)

    def _columns(self, schema_id: int) -> _BatchColumns:
        columns = self._batch_columns.get(schema_id)
        if columns is None:
            schema = schema_columns(self._catalog.schema_json(self._table_id, schema_id))
            named = {
                position: field_id for field_id, position in schema.positions.items() if field_id in self._field_ids
            }
            columns = self._batch_columns[schema_id] = _BatchColumns(schema.types, named)
        return columns

    def _compile(self, predicate: pb.PbPredicate, schema: SchemaColumns, depth: int = 1) -> _Test:
        if depth > DEPTH_MAX:
            raise bad_filter(f"it is nested deeper than {DEPTH_MAX} levels")
        if predicate.type == _LEAF and predicate.HasField("leaf"):
            return self._compile_leaf(predicate.leaf, schema)
        if predicate.type != _COMPOUND or not predicate.HasField("compound"):
            raise bad_filter(f"a predicate of type {predicate.type} lacks its leaf or compound, or is of no known type")
        function = predicate.compound.function
        tests = [self._compile(child, schema, depth + 1) for child in predicate.compound.children]
        if function not in (_AND, _OR) or not tests:
            raise bad_filter(f"a compound of function {function} and {len(tests)} children")
        if function == _AND:
            return lambda found, row_count: all(test(found, row_count) for test in tests)
        return lambda found, row_count: any(test(found, row_count) for test in tests)

    def _compile_leaf(self, leaf: pb.PbLeafPredicate, schema: SchemaColumns) -> _Test:
        self._leaves += 1
        self._terms += 1 + len(leaf.literals)
        if self._terms > FILTER_TERMS_MAX:
            raise bad_filter(f"it has more than {FILTER_TERMS_MAX} predicates and literals")
        field_id = leaf.field_id
        position = schema.positions.get(field_id)
        if position is None:
            raise bad_filter(f"its schema has no field {field_id}")
        test = leaf_test(leaf, schema.types[position])
        self._field_ids.add(field_id)

        def may_match(found: dict[int, ColumnStatistics], row_count: int) -> bool:
            column = found.get(field_id)
            return column is None or test(column, row_count)

        return may_match
