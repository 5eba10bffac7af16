"""Merging columns of rows one after the other, as the columns' aggregate functions say.

A column has the values of stored rows first and then one for every record of a batch; `Merges` says which row every
record is merged with. Each function turns the records' values into what they leave, in one pass over the column.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.rows.codecs import rows_of, view_of
from fluss.kernels.codes import (
    AGGREGATE_FIRST,
    AGGREGATE_LAST,
    AGGREGATE_MAX,
    AGGREGATE_MIN,
    AGGREGATE_PRODUCT,
    AGGREGATE_SUM,
)
from fluss.model.aggregation import DEFAULT_AGG_FUNCTION, AggFunctionType
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Column

# What the changes of one batch may take: an aggregate can grow with every record, and each of them is written down.
CHANGES_SIZE_MAX_BYTES: Final = 1 << 28
# Sums up to here are 64-bit numbers in Apache Fluss, and too many digits are an error; behind, they are null.
_COMPACT_PRECISION_MAX: Final = 18

Merge: TypeAlias = Callable[[pa.Array, Column, "Merges"], pa.Array]


class Merges(NamedTuple):
    """Which row every record is merged with, int32 each; -1: with none."""

    stored_count: int
    merged: bytearray

    @property
    def row_count(self) -> int:
        return self.stored_count + len(self.merged) // 4


def aggregated(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    """What the records leave in one column, by its function."""
    return _MERGES[AggFunctionType((column.agg_function or DEFAULT_AGG_FUNCTION).type)](values, column, merges)


def taken(values: pa.Array, rows: pa.Array) -> pa.Array:
    """The values of some rows, each as often as it is named, within a limit of what they take."""
    sizes = _sizes(values)
    if not isinstance(sizes, int):
        total = pc.sum(sizes.take(rows)).as_py() or 0
        if total > CHANGES_SIZE_MAX_BYTES:
            raise too_large(f"{total} bytes")
    return values.take(rows)


def too_large(size: str, limit_bytes: int | None = None) -> InvalidRequestError:
    allowed = limit_bytes or CHANGES_SIZE_MAX_BYTES
    return InvalidRequestError(
        f"The changes of this batch take {size}, and {allowed} are allowed; write fewer rows at a time.",
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
    )


def _sizes(values: pa.Array) -> pa.Array | int:
    """Bytes of every value, int64, or what each takes if that is always the same."""
    arrow_type = values.type
    if pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type):
        return pc.binary_length(values).fill_null(0).cast(pa.int64())
    if pa.types.is_struct(arrow_type):
        return _added([_sizes(child) for child in values.flatten()])
    if pa.types.is_map(arrow_type):
        return _list_sizes(values.offsets, _added([_sizes(values.keys), _sizes(values.items)]))
    if pa.types.is_list(arrow_type):
        return _list_sizes(values.offsets, _sizes(values.values))
    return int(arrow_type.byte_width) if arrow_type.bit_width >= 8 else 1


def _added(sizes: list[pa.Array | int]) -> pa.Array | int:
    return reduce(
        lambda left, right: left + right if isinstance(left, int) and isinstance(right, int) else pc.add(left, right),
        sizes,
    )


def _list_sizes(offsets: pa.Array, sizes: pa.Array | int) -> pa.Array:
    """Of lists that begin at offsets, the last of which is the end."""
    starts = offsets.cast(pa.int64())
    if isinstance(sizes, int):
        ends = pc.multiply(starts, sizes)
    else:
        ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)]).take(starts)
    return pc.subtract(ends.slice(1), ends.slice(0, len(ends) - 1))


def _sum(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    return _numbers(values, column, merges, AGGREGATE_SUM)


def _product(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    return _numbers(values, column, merges, AGGREGATE_PRODUCT)


def _numbers(values: pa.Array, column: Column, merges: Merges, function: int) -> pa.Array:
    arrow_type = values.type
    validity = _validity(values)
    if pa.types.is_decimal(arrow_type):
        buffer = _content(values, 16)
        precision, scale = arrow_type.precision, arrow_type.scale
        lost = kernel.merge_decimals(buffer, validity, merges.merged, precision, scale, function)
        if lost and function == AGGREGATE_SUM and precision <= _COMPACT_PRECISION_MAX:
            raise InvalidRequestError(
                f"A sum in {column.name!r} has more digits than its type {column.data_type} holds.",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        return _records(arrow_type, buffer, validity, merges)
    if pa.types.is_floating(arrow_type):
        buffer = _content(values.cast(pa.float64()), 8)
        kernel.merge_floats(buffer, validity, merges.merged, arrow_type == pa.float32(), function)
        return _records(pa.float64(), buffer, validity, merges).cast(arrow_type)
    buffer = _content(values.cast(pa.int64()), 8)
    kernel.merge_ints(buffer, validity, merges.merged, arrow_type.bit_width, function)
    return _records(pa.int64(), buffer, validity, merges).cast(arrow_type)


def _max(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    return _chosen(values, merges, AGGREGATE_MAX, _ranks(values))


def _min(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    return _chosen(values, merges, AGGREGATE_MIN, _ranks(values))


def _first(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    return _chosen(values, merges, AGGREGATE_FIRST)


def _last(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    return values.slice(merges.stored_count)


def _last_present(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    return _chosen(values, merges, AGGREGATE_LAST) if values.null_count else _last(values, column, merges)


def _chosen(values: pa.Array, merges: Merges, function: int, ranks: pa.Array | None = None) -> pa.Array:
    rank_bytes = None if ranks is None else view_of(ranks.buffers()[1])[8 * ranks.offset :]
    rows = kernel.merge_choices(rank_bytes, _validity(values), merges.merged, merges.row_count, function)
    places = pa.Array.from_buffers(pa.int32(), len(rows) // 4, [None, pa.py_buffer(rows)], null_count=0)
    # The row behind all others is null.
    with_null = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return with_null.take(places)


def _ranks(values: pa.Array) -> pa.Array:
    """Numbers in the order of the values."""
    arrow_type = values.type
    if pa.types.is_floating(arrow_type):
        return _float_ranks(values.cast(pa.float64()))
    if pa.types.is_boolean(arrow_type) or pa.types.is_integer(arrow_type):
        return values.cast(pa.int64())
    if pa.types.is_temporal(arrow_type):
        return values.view(pa.int32() if arrow_type.bit_width == 32 else pa.int64()).cast(pa.int64())
    if pa.types.is_string(arrow_type):
        values = values.cast(pa.binary())
    return pc.rank(values, sort_keys="ascending", tiebreaker="dense").cast(pa.int64())


def _float_ranks(values: pa.Array) -> pa.Array:
    """Java's order: -0.0 is less than 0.0, and all NaN are equal and greater than anything else."""
    canonical_nan = pa.scalar(math.nan, pa.float64())  # not at import: pyarrow then loads pandas
    patterns = pc.if_else(pc.is_nan(values), canonical_nan, values).view(pa.int64())
    return pc.if_else(pc.less(patterns, 0), pc.bit_wise_xor(patterns, (1 << 63) - 1), patterns)


def _joined(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    validity = _validity(values)
    assert column.agg_function is not None
    delimiter = column.agg_function.delimiter.encode()
    data, offsets = rows_of(values)
    used = offsets[: 4 * (len(values) + 1)]
    texts = kernel.merge_texts(data, used, validity, merges.merged, delimiter, CHANGES_SIZE_MAX_BYTES)
    if texts is None:
        raise too_large(f"more than {CHANGES_SIZE_MAX_BYTES} bytes")
    buffers = [_records_validity(validity, merges), *(pa.py_buffer(part) for part in reversed(texts))]
    return pa.Array.from_buffers(values.type, len(merges.merged) // 4, buffers)


def _bitmaps(values: pa.Array, column: Column, merges: Merges) -> pa.Array:
    """Unions of sets of 32-bit numbers; their bytes are the same for all libraries of Roaring bitmaps."""
    from pyroaring import BitMap

    items: list[bytes | None] = values.to_pylist()
    size_bytes = 0
    others = memoryview(merges.merged).cast("i")
    for row, other in enumerate(others, merges.stored_count):
        left, right = None if other < 0 else items[other], items[row]
        if left is None or right is None:
            merged = left if right is None else right
        else:
            try:
                union = BitMap.deserialize(left) | BitMap.deserialize(right)
            except ValueError as error:
                raise InvalidRequestError(
                    f"A value of {column.name!r} is no 32-bit Roaring bitmap: {error}.", ErrorCode.UNSUPPORTED_VERSION
                ) from None
            union.run_optimize()
            merged = union.serialize()
        items[row] = merged
        size_bytes += len(merged or b"")
        if size_bytes > CHANGES_SIZE_MAX_BYTES:
            raise too_large(f"{size_bytes} bytes")
    return pa.array(items[merges.stored_count :], values.type)


_MERGES: Final[dict[AggFunctionType, Merge]] = {
    AggFunctionType.SUM: _sum,
    AggFunctionType.PRODUCT: _product,
    AggFunctionType.MAX: _max,
    AggFunctionType.MIN: _min,
    AggFunctionType.LAST_VALUE: _last,
    AggFunctionType.LAST_VALUE_IGNORE_NULLS: _last_present,
    # As Apache Fluss has it: null is no first value either.
    AggFunctionType.FIRST_VALUE: _first,
    AggFunctionType.FIRST_VALUE_IGNORE_NULLS: _first,
    AggFunctionType.LISTAGG: _joined,
    AggFunctionType.STRING_AGG: _joined,
    AggFunctionType.BOOL_AND: _min,
    AggFunctionType.BOOL_OR: _max,
    AggFunctionType.RBM32: _bitmaps,
}


def _content(values: pa.Array, width: int) -> bytearray:
    """A copy of the values of an array of fixed width."""
    return bytearray(view_of(values.buffers()[1])[width * values.offset : width * (values.offset + len(values))])


def _validity(values: pa.Array) -> bytearray:
    if not values.null_count:
        return bytearray(b"\xff" * ((len(values) + 7) // 8))
    return bytearray(view_of(values.is_valid().buffers()[1]))


def _records_validity(validity: bytearray, merges: Merges) -> pa.Buffer:
    """The bits of the records alone, from the first of a byte on."""
    bits = pa.Array.from_buffers(pa.bool_(), merges.row_count, [None, pa.py_buffer(validity)], null_count=0)
    records = pa.concat_arrays([bits.slice(merges.stored_count), pa.array([], pa.bool_())])
    return records.buffers()[1]


def _records(arrow_type: pa.DataType, content: bytearray, validity: bytearray, merges: Merges) -> pa.Array:
    buffers = [pa.py_buffer(validity), pa.py_buffer(content)]
    return pa.Array.from_buffers(arrow_type, merges.row_count, buffers).slice(merges.stored_count)
