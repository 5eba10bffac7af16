"""Offsets for nested arrays without elements.

Java leaves out the offsets of an array of length 0, as the Arrow format allows. pyarrow takes such an array for valid,
and reads beyond its end when it counts bytes or joins arrays.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows; arrays of length 0 inside of them are made anew, all others keep their buffers."""
    return pa.RecordBatch.from_arrays([_complete(column) for column in batch.columns], schema=batch.schema)


def _complete(array: pa.Array) -> pa.Array:
    if len(array) == 0:
        return pa.nulls(0, array.type)
    if pt.is_struct(array.type):
        children = [_complete(array.field(index)) for index in range(array.type.num_fields)]
        buffers = array.buffers()[:1]
    elif pt.is_list(array.type) or pt.is_map(array.type):
        children = [_complete(array.values)]  # those of a map are structs
        buffers = array.buffers()[:2]
    else:
        return array
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, children=children)
