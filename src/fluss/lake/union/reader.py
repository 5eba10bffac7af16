"""A union read as a scan hands it over: planned when it is asked for, read in Arrow or by DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from fluss.api.lake import blocking_shells
from fluss.lake.options import LakeOptions, is_lake_named
from fluss.lake.union.plan import (
    ATTEMPTS_MAX,
    OvertakenError,
    UnionPlan,
    check_mode,
    named_options,
    plan_union,
)
from fluss.lake.union.rows import UnionReader
from fluss.model.errors import ErrorCode, FlussError, NotFoundError
from fluss.model.predicates import Predicate

if TYPE_CHECKING:
    from fluss.client.table import TableCore

T = TypeVar("T")


class UnionRead:
    """A union read of a table: plans, and reads what it has planned. Its calls block."""

    def __init__(
        self,
        core: TableCore,
        projection: Sequence[int] | None,
        predicate: Predicate | None,
        warehouse: str | None,
        catalog: Mapping[str, str] | None,
        mode: str,
    ) -> None:
        self._connection, self.table = blocking_shells(core)
        self._has_filter = predicate is not None
        self.reader = UnionReader(self.table, projection, predicate)
        self._named = warehouse, catalog
        if is_lake_named(warehouse, catalog):
            LakeOptions.of(None, warehouse, catalog)  # a mistake is told at once
        self._mode = check_mode(mode)

    def plan(self) -> UnionPlan:
        """What is read, as of now."""
        options = named_options(self._connection, self.table.table_path, *self._named)
        return plan_union(self._connection, self.table, options=options, mode=self._mode)

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return self.at_once(lambda plan: pa.Table.from_batches(self.reader.batches(plan), self.reader.schema))

    def batch_reader(self) -> pa.RecordBatchReader:
        """All rows, batch by batch."""
        return pa.RecordBatchReader.from_batches(self.reader.schema, self.reader.batches(self.plan()))

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows, as a relation of `connection`, or of DuckDB's default one; fresh rows are held in memory."""
        from fluss.lake.union.duck import LakeRelation, load_duckdb

        duck = load_duckdb() if connection is None else connection
        names = {name.lower() for name in self.reader.needed.names}
        # DuckDB does not tell columns apart by case, and this module's filters have no other form than Arrow's.
        if self._has_filter or len(names) < len(self.reader.needed):
            return duck.from_arrow(self.to_arrow())
        return self.at_once(lambda plan: LakeRelation(duck, self.reader, plan).build())

    def at_once(self, read: Callable[[UnionPlan], T]) -> T:
        """What `read` makes of a plan; if that is overtaken before it is read, of the next one."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return read(self.plan())
            except OvertakenError:
                raise  # planning has done what can be done
            except (FlussError, FileNotFoundError) as error:
                if not _is_overtaken(error):
                    raise
        return read(self.plan())


def _is_overtaken(error: FlussError | FileNotFoundError) -> bool:
    if isinstance(error, FileNotFoundError | NotFoundError):
        return True  # a file that was cleaned up, or a partition that was dropped; a dropped table fails the next plan
    return error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
