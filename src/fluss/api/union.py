"""The seam between a scan and the reader of lake and log, which stands above this folder."""

# Small on purpose: the only place of `api` that names something of `lake`.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from fluss.client.client import ClientCore
from fluss.client.table import TableCore
from fluss.model.errors import FlussError
from fluss.model.predicates import Predicate

if TYPE_CHECKING:
    import pyarrow as pa

# A name and no import: a union read needs the packages of the extra `lake`, and `lake` is built on `api`.
READER_MODULE: Final = "fluss.lake.union.reader"
READER: Final = "UnionRead"
SQL_MODULE: Final = "fluss.lake.union.sql"
SQL: Final = "run_sql"


class UnionRows(Protocol):
    """The rows of lake and log, as their reader offers them to a scan: as of each call, which blocks."""

    def to_arrow(self) -> pa.Table:
        """All rows."""

    def batch_reader(self) -> pa.RecordBatchReader:
        """All rows, batch by batch."""

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows, as a DuckDB relation."""


def union_read(
    core: TableCore,
    projection: Sequence[int] | None,
    predicate: Predicate | None,
    warehouse: str | None,
    catalog: Mapping[str, str] | None,
    mode: str,
) -> UnionRows:
    """The reader of a table's lake and log, for these columns and rows."""
    read: UnionRows = _loaded(READER_MODULE, READER)(core, projection, predicate, warehouse, catalog, mode)
    return read


def run_sql(core: ClientCore, query: str, database: str) -> pa.Table:
    """What the last statement of a text answers; blocks."""
    answer: pa.Table = _loaded(SQL_MODULE, SQL)(core, query, database)
    return answer


def _loaded(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise FlussError(f"{error.name} is not installed; install flussbett[lake].") from error
