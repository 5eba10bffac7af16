"""Leaving out batches that a reader's filter can't match, by their statistics.

Whatever is not known keeps a batch: no statistics, a column that the batch does not have, a bound that is missing or is
NaN. Readers filter rows themselves. Columns are named by field id, which is the same in all schemas of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import BatchHeader, statistics_of
from fluss.formats.batches.statistics import ColumnStatistics
from fluss.model.errors import FlussError
from fluss.model.predicates import DEPTH_MAX
from fluss.model.types import DataType
from fluss.protocol import messages_pb2 as pb
from fluss.server.read.filter import FILTER_TERMS_MAX, bad_filter, leaf_test
from fluss.server.tables.table_formats import SchemaColumns, schema_columns
from fluss.storage.catalog.catalog import Catalog

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
