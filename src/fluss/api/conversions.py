"""Arguments in all the spellings that the facades accept, and results in the forms of optional libraries."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fluss.client.admin import AdminCore
from fluss.client.runtime import run
from fluss.model.errors import FlussError, InvalidRequestError, SchemaMismatchError
from fluss.model.infos import html_facts, html_table
from fluss.model.offsets import OffsetSpec

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def offset_spec(spec: OffsetSpec | str | None, offset_type: str | None, timestamp: int | None) -> OffsetSpec:
    """`OffsetSpec.latest()`, or the older spelling `offset_type="latest"` (or "earliest", or "timestamp")."""
    kind = spec if spec is not None else offset_type
    if isinstance(kind, OffsetSpec):
        return kind
    if kind == "earliest":
        return OffsetSpec.earliest()
    if kind == "latest":
        return OffsetSpec.latest()
    if kind == "timestamp":
        if timestamp is None:
            raise InvalidRequestError("offset_type='timestamp' needs timestamp=<milliseconds since 1970>.")
        return OffsetSpec.timestamp(timestamp)
    raise InvalidRequestError(f"Pass offset_spec=OffsetSpec.earliest(), .latest() or .timestamp(ms), not {kind!r}.")


def bucket_offsets(offsets: Mapping[int, int]) -> dict[tuple[int | None, int], int]:
    """`{bucket: offset}` as the scanner's core takes it."""
    return {(None, bucket): offset for bucket, offset in offsets.items()}


def partition_bucket_offsets(offsets: Mapping[tuple[int, int], int]) -> dict[tuple[int | None, int], int]:
    """`{(partition id, bucket): offset}` as the scanner's core takes it."""
    return {(partition, bucket): offset for (partition, bucket), offset in offsets.items()}


def arrow_table(data: Any) -> pa.Table:
    """A PyArrow table from anything that speaks Arrow's C stream interface (a PyArrow or Polars table, a reader)."""
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all()
    raise InvalidRequestError(
        f"write_arrow takes a PyArrow Table or anything with __arrow_c_stream__, not {type(data).__name__}."
    )


def pandas_table(frame: Any, schema: pa.Schema) -> pa.Table:
    """A PyArrow table from a pandas DataFrame; of its index only levels that are named as a column of `schema`."""
    import pyarrow as pa

    if not hasattr(frame, "columns") or not hasattr(frame, "index"):
        raise InvalidRequestError(f"write_pandas takes a pandas DataFrame, not {type(frame).__name__}.")
    series = {str(name): frame[name] for name in frame.columns}
    for name in frame.index.names:
        if name in schema.names and name not in series:
            series[name] = frame.index.get_level_values(name).to_series()
    return pa.table({name: _pandas_column(name, values, schema) for name, values in series.items()})


def _pandas_column(name: str, values: Any, schema: pa.Schema) -> pa.Array:
    """Missing values become null. Numbers, truth values and Python objects are taken for what is wanted."""
    import pyarrow as pa

    wanted = schema.field(name).type if name in schema.names else None
    is_number = wanted is not None and _is_number(wanted) and values.dtype.kind in "biuf"
    try:
        array = pa.array(values, wanted if is_number or values.dtype == object else None, from_pandas=True)
        if is_number and pa.types.is_float32(wanted):
            _check_overflow(array, values)
        return array
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        text = str(error).splitlines()[0]
        raise SchemaMismatchError(f"Column {name!r} expects {wanted}; {values.dtype} does not fit: {text}") from error


def _is_number(arrow_type: pa.DataType) -> bool:
    import pyarrow.types as pt

    return bool(pt.is_integer(arrow_type) or pt.is_floating(arrow_type) or pt.is_boolean(arrow_type))


def _check_overflow(narrow: pa.Array, values: Any) -> None:
    """Raise where a number became infinite. That it has fewer digits now is what pandas users expect of FLOAT."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = pa.array(values, from_pandas=True)
    if pa.types.is_floating(wide.type):
        lost = pc.and_(pc.is_inf(narrow), pc.is_finite(wide))
        if pc.any(lost).as_py():
            raise OverflowError("a number is too large for a 32-bit float")


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
