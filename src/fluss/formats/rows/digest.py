"""Digests of rows: 64 bits that tell whether two sets of rows are the same, however they are ordered and cut.

A row is hashed value by value, each with the number of its column; the digest of many rows is the sum of their hashes.
Values are hashed, not buffers: what lies behind a null, padding and slices do not count. A null adds nothing, so rows
keep their digest when a column is added to their table. All NaNs are one; 0.0 and -0.0 are two. The entries of a map
count in their order.

It tells mistakes apart, not forgeries: nothing in it is secret.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from fluss.formats import kernel
from fluss.formats.rows.codecs import view_of
from fluss.kernels.codes import CODE_BOOL, CODE_FIXED_BYTES, CODE_FIXED_FLOAT

DIGEST_BITS: Final = 64
_HASH_BYTES: Final = 8
# So that the hashes of a slice stay in a core's cache.
_SLICE_ROWS: Final = 32_768
_ITEMS_SEED: Final = 1


class RowDigest:
    """Adds up the digests of rows with the same columns of a table, and counts them.

    `columns` are their indexes in the table; `kind` tells rows apart that mean different things, such as deletes.
    """

    __slots__ = ("_columns", "_seed", "row_count", "value")

    def __init__(self, columns: Sequence[int], kind: str = "") -> None:
        # By number, so that it does not matter in which order rows have them.
        self._columns = sorted((number, place) for place, number in enumerate(columns))
        self._seed = zlib.crc32(f"rows {kind}".encode())  # not 0, or a row of nulls would add nothing
        self.row_count = 0
        self.value = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows that have the columns, in their order."""
        for start in range(0, rows.num_rows, _SLICE_ROWS):
            self._add(rows.slice(start, _SLICE_ROWS))
        self.row_count += rows.num_rows

    def _add(self, rows: pa.RecordBatch) -> None:
        hashes = bytearray(_HASH_BYTES * rows.num_rows)
        for number, place in self._columns:
            _add_column(hashes, number, rows.column(place))
        self.value = sum_of((self.value, kernel.sum_hashes(hashes, self._seed)))


def sum_of(digests: Iterable[int]) -> int:
    """The digest of the rows of all."""
    return sum(digests) % (1 << DIGEST_BITS)


def _add_column(hashes: bytearray, seed: int, array: pa.Array) -> None:
    if not len(array):
        return
    buffers = array.buffers()
    validity = view_of(buffers[0]) if buffers[0] is not None and array.null_count else None
    arrow_type, offset = array.type, array.offset
    if pt.is_struct(arrow_type):
        # Its fields come without the struct's offset, and so do their hashes; its validity does not.
        fields = _hashes_of([array.field(number) for number in range(arrow_type.num_fields)], len(array))
        if validity is not None:
            validity = _validity_from_0(array)
        kernel.add_hashes(hashes, seed, CODE_FIXED_BYTES, _HASH_BYTES, (validity, fields), 0)
    elif pt.is_list(arrow_type) or pt.is_map(arrow_type):
        offsets = view_of(buffers[1])
        ends = offsets.cast("i")
        first, last = ends[offset], ends[offset + len(array)]
        items = array.values.slice(first, last - first)
        inner = _hashes_of([items], len(items))
        kernel.add_hashes_of_bytes(hashes, seed, _HASH_BYTES, (validity, offsets, inner), offset, first)
    elif len(buffers) == 3:
        views = validity, view_of(buffers[1]), view_of(buffers[2])
        kernel.add_hashes_of_bytes(hashes, seed, 1, views, offset, 0)
    else:
        code, width_bytes = _fixed(arrow_type)
        kernel.add_hashes(hashes, seed, code, width_bytes, (validity, view_of(buffers[1])), offset)


def _hashes_of(arrays: Sequence[pa.Array], count: int) -> bytearray:
    hashes = bytearray(_HASH_BYTES * count)
    for number, array in enumerate(arrays):
        _add_column(hashes, _ITEMS_SEED + number, array)
    return hashes


def _validity_from_0(array: pa.Array) -> memoryview:
    bits = array.is_valid()
    return view_of((bits if bits.offset == 0 else pa.concat_arrays([bits])).buffers()[1])


def _fixed(arrow_type: pa.DataType) -> tuple[int, int]:
    if pt.is_boolean(arrow_type):
        return CODE_BOOL, 1
    return CODE_FIXED_FLOAT if pt.is_floating(arrow_type) else CODE_FIXED_BYTES, arrow_type.bit_width // 8
