"""Arrow arrays made of buffers.

For the first Python or numpy value that it converts pyarrow imports pandas, if it is there, and that takes a second
and 45 MB. What everyday work needs is made here instead.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

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
