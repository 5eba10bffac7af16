"""Arrays made of buffers, and offsets for nested arrays without elements.

Arrays are made here because pyarrow imports pandas, if it is there, for the first Python or numpy value that it
converts, and that takes a second and 45 MB.

Java leaves out the offsets of a nested array of length 0, as the Arrow format allows. pyarrow takes such an array for
valid, and reads beyond its end when it counts bytes or joins arrays; so offsets are made for it.
"""

# Small on purpose: layouts are loaded without pyarrow.

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def numbers_array(numbers: Numbers, arrow_type: pa.DataType | None = None) -> pa.Array:
    """Numbers as int64, or as another type of 64 bits; nothing is copied."""
    return pa.Array.from_buffers(arrow_type or pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def places_array(places: Numbers) -> pa.Array:
    """Places of rows to take; a negative one is null, and so is what is taken."""
    is_valid = np.packbits(places >= 0, bitorder="little")
    return pa.Array.from_buffers(pa.int64(), len(places), [pa.py_buffer(is_valid), pa.py_buffer(places)])


def texts_array(texts: Sequence[str]) -> pa.Array:
    """A few texts."""
    encoded = [text.encode() for text in texts]
    ends = array("i", accumulate(map(len, encoded), initial=0))
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


def numbers_of(numbers: pa.Array) -> Numbers:
    """The numbers of an int64 array without nulls; nothing is copied."""
    return np.frombuffer(numbers.buffers()[1], np.int64)[numbers.offset : numbers.offset + len(numbers)]


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
