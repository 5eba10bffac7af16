"""Values of partition columns as the text that partition names are made of, written as Java writes it.

A column has few distinct values, so each is rendered once: rows are dictionary-encoded and never looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.model.errors import SchemaMismatchError
from fluss.model.forms.arrow_types import to_arrow
from fluss.model.partitions import SEPARATOR
from fluss.model.schema import Column
from fluss.model.types import DataType, TypeRoot

_AS_TEXT: Final = frozenset({TypeRoot.BOOLEAN, TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT})
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Java writes numbers from 10^-3 to 10^7 without an exponent.
_PLAIN_EXPONENTS: Final = range(-3, 7)
_YEAR_DIGITS: Final = 4


def partition_names(batch: pa.RecordBatch, columns: Sequence[Column]) -> tuple[pa.Array, list[str]]:
    """For every row an index into the names of the batch's partitions, and those names; values must not be null."""
    encoded = [_texts(column, batch.column(column.name)) for column in columns]
    if len(encoded) == 1:
        names = encoded[0]
    else:
        texts = [item.dictionary.take(item.indices) for item in encoded]
        names = pc.binary_join_element_wise(*texts, SEPARATOR).dictionary_encode()
    return names.indices, names.dictionary.to_pylist()


def value_text(data_type: DataType, value: object) -> str:
    """The text of one Python value of a partition column."""
    text: str = _render(data_type, pa.array([value], to_arrow(data_type)))[0].as_py()
    return text


def _texts(column: Column, values: pa.Array) -> pa.DictionaryArray:
    if values.null_count:
        raise SchemaMismatchError(f"Partition column {column.name!r} expects {column.data_type}, not null.")
    encoded = values.dictionary_encode()
    # Values that differ may have one text: times are cut to milliseconds.
    texts = _render(column.data_type, encoded.dictionary).dictionary_encode()
    return pa.DictionaryArray.from_arrays(texts.indices.take(encoded.indices), texts.dictionary)


def _render(data_type: DataType, values: pa.Array) -> pa.Array:
    root = data_type.root
    if root in (TypeRoot.STRING, TypeRoot.CHAR):
        return values
    if root in _AS_TEXT:
        return values.cast(pa.string())
    if root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
        texts = [_float_text(text) for text in values.cast(pa.string()).to_pylist()]
    elif root in (TypeRoot.BYTES, TypeRoot.BINARY):
        texts = [value.hex() for value in values.to_pylist()]
    elif root is TypeRoot.DATE:
        texts = np.datetime_as_string(values.view(pa.int32()).to_numpy().astype("datetime64[D]")).tolist()
    elif root is TypeRoot.TIME:
        texts = [_time_text(value, _PER_SECOND[values.type.unit]) for value in _counts(values)]
    elif root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        texts = [_timestamp_text(value, _PER_SECOND[values.type.unit]) for value in _counts(values)]
    else:
        raise SchemaMismatchError(
            f"A column of type {data_type} can't be a partition column; use a string or a number."
        )
    return pa.array(texts, pa.string())


def _counts(values: pa.Array) -> list[int]:
    """Times as counts of their unit."""
    counts: list[int] = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).to_pylist()
    return counts


def _float_text(shortest: str) -> str:
    """Java's text of a float from Arrow's shortest one: at least one digit behind the point, and '_' for it."""
    if shortest in ("nan", "-nan"):
        return "NaN"
    if shortest in ("inf", "-inf"):
        return shortest.replace("inf", "Inf")
    sign = "-" if shortest.startswith("-") else ""
    mantissa, _, exponent = shortest.removeprefix("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return f"{sign}0_0"
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if point - 1 not in _PLAIN_EXPONENTS:
        return f"{sign}{digits[0]}_{digits[1:] or '0'}E{point - 1}"
    if point <= 0:
        return f"{sign}0_{'0' * -point}{digits}"
    digits = digits.ljust(point, "0")
    return f"{sign}{digits[:point]}_{digits[point:] or '0'}"


def _time_text(count: int, per_second: int) -> str:
    second, part = divmod(count, per_second)
    minute, second = divmod(second, 60)
    return f"{minute // 60:02}-{minute % 60:02}-{second:02}_{part * 1_000 // per_second:03}"


def _timestamp_text(count: int, per_second: int) -> str:
    """The fraction has as many digits as it needs, none for a whole second."""
    second, part = divmod(count, per_second)
    text = str(np.datetime64(second, "s")).replace("T", "-").replace(":", "-")
    fraction = f"{part:0{len(str(per_second)) - 1}}".rstrip("0") if part else ""
    sign = "+" if text.index("-", 1) > _YEAR_DIGITS and text[0] != "-" else ""
    return f"{sign}{text}_{fraction}"
