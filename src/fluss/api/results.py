"""Results in other forms: for libraries that are optional and loaded when asked for, and for notebooks."""

# Small on purpose: what readers and admins of all facades need, and nothing else.

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from fluss.client.admin import AdminCore
from fluss.client.runtime import run
from fluss.model.errors import FlussError
from fluss.model.forms.html import html_facts, html_table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DATABASES_MAX: Final = 50


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """A pandas DataFrame."""
    _load("pandas")
    return table.to_pandas()


def to_polars(table: pa.Table) -> Any:
    """A Polars DataFrame."""
    return _load("polars").from_arrow(table)


def to_duckdb(table: pa.Table, connection: Any = None) -> Any:
    """A DuckDB relation, of `connection` or of DuckDB's default one."""
    return (_load("duckdb") if connection is None else connection).from_arrow(table)


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FlussError(f"{name} is not installed; install flussbett[{name}].") from error


def html_of_catalog(admin: AdminCore) -> str:
    """All databases and the names of their tables. It asks the server; a notebook shows what went wrong, if it did."""
    try:
        databases = sorted(run(admin.list_databases()))
        rows = [(name, ", ".join(sorted(run(admin.list_tables(name))))) for name in databases[:DATABASES_MAX]]
    except FlussError as error:
        return html_facts({"FlussAdmin": error.message})
    left = len(databases) - len(rows)
    return html_table("Catalog", ("database", "tables"), [*rows, *([("…", f"{left:,} more")] if left else [])])
