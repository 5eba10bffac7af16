"""Tables for libraries that are optional: loaded when asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fluss.model.errors import FlussError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


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
