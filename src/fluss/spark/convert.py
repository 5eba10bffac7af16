"""Arrow batches between the table's layout and Spark's, column by column, without touching what already fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from fluss.model.errors import SchemaMismatchError

if TYPE_CHECKING:
    from fluss.model.paths import TablePath

_UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
_COARSE_TO_FINE = list(_UNITS)


def to_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A table's batch as Spark takes it; nanoseconds are cut off at microseconds."""
    if batch.schema.equals(schema):
        return batch
    arrays = [_cast(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_table(batch: pa.RecordBatch, schema: pa.Schema, table_path: TablePath) -> pa.RecordBatch:
    """A batch from Spark in the table's column order and types; times are cut off at the column's precision."""
    arrays = [_cast(batch.column(field.name), field) for field in schema]
    for field, array in zip(schema, arrays, strict=True):
        if not field.nullable and array.null_count:
            raise SchemaMismatchError(
                f"The column {field.name!r} of {table_path} can't be null; {array.null_count} of {len(array)} rows "
                "of a batch have no value there."
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type.equals(field.type):
        return array
    if pt.is_timestamp(array.type) and pt.is_timestamp(field.type):
        array = _cut(array, field.type.unit)
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(f"The column {field.name!r} can't be converted to {field.type}: {error}") from None


def _cut(array: pa.Array, unit: str) -> pa.Array:
    """Timestamps without what a coarser unit can't hold. Rounds down, so that times before 1970 are cut alike."""
    if _COARSE_TO_FINE.index(unit) >= _COARSE_TO_FINE.index(array.type.unit):
        return array
    return pc.floor_temporal(array, unit=_UNITS[unit])
