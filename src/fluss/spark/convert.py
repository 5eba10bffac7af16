"""Arrow batches between the table's layout and Spark's, column by column, without touching what already fits.

Nested columns keep their offsets and null bitmaps; only leaves of another type are made anew.
"""

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
    arrays = [_column(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_table(batch: pa.RecordBatch, schema: pa.Schema, table_path: TablePath) -> pa.RecordBatch:
    """A batch from Spark in the table's column order and types; times are cut off at the column's precision."""
    arrays = [_column(batch.column(field.name), field) for field in schema]
    for field, array in zip(schema, arrays, strict=True):
        _check_nulls(array, field, f"column {field.name!r} of {table_path}")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _cast(array, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(f"The column {field.name!r} can't be converted to {field.type}: {error}") from None


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted):
        return array
    if pt.is_list(wanted) or pt.is_map(wanted):
        # A map is a list of structs to Arrow. `values` has all of them, those before a slice's beginning, too.
        entries = pa.struct([wanted.key_field, wanted.item_field]) if pt.is_map(wanted) else wanted.value_type
        values = _cast(array.values, entries)
        return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], offset=array.offset, children=[values])
    if pt.is_struct(wanted):
        # By position: Spark may spell the names of inner fields in its own case.
        fields = [_cast(array.field(i), field.type) for i, field in enumerate(wanted)]
        return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=array.is_null())
    if pt.is_timestamp(wanted):
        return _cast_timestamp(array, wanted)
    if pt.is_time(wanted):
        # Unsafe means that digits are cut off: always downwards, because times of day are never negative.
        return array.cast(wanted, safe=False)
    return array.cast(wanted)


def _cast_timestamp(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Without what a coarser unit can't hold. Rounds down, so that times before 1970 are cut alike."""
    if _COARSE_TO_FINE.index(wanted.unit) < _COARSE_TO_FINE.index(array.type.unit):
        # Without its zone, in which Arrow would look each value up.
        array = pc.floor_temporal(array.view(pa.timestamp(array.type.unit)), unit=_UNITS[wanted.unit])
        array = array.cast(pa.timestamp(wanted.unit)).view(wanted)
    return array.cast(wanted)


def _check_nulls(array: pa.Array, field: pa.Field, where: str) -> None:
    """Raise if something is null that can't be, here or further inside."""
    if not field.nullable and array.null_count:
        raise SchemaMismatchError(f"The {where} can't be null; {array.null_count} of {len(array)} in a batch are.")
    if _nullable_inside(field.type):
        return
    present = array.drop_null()
    if not len(present):
        return
    if pt.is_list(field.type):
        _check_nulls(_entries(present), field.type.value_field, f"elements of {where}")
    elif pt.is_map(field.type):
        _check_nulls(_entries(present).field(1), field.type.item_field, f"values of {where}")
    elif pt.is_struct(field.type):
        for i, inner in enumerate(field.type):
            _check_nulls(present.field(i), inner, f"field {inner.name!r} of {where}")


def _entries(lists: pa.Array) -> pa.Array:
    """The elements of lists or maps none of which is null."""
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return lists.values.slice(start, end - start)


def _nullable_inside(arrow_type: pa.DataType) -> bool:
    """Whether everything inside a type may be null, map keys aside, which never are."""
    if pt.is_list(arrow_type):
        inner = [arrow_type.value_field]
    elif pt.is_map(arrow_type):
        inner = [arrow_type.item_field]
    elif pt.is_struct(arrow_type):
        inner = list(arrow_type)
    else:
        return True
    return all(field.nullable and _nullable_inside(field.type) for field in inner)
