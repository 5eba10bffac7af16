"""Primary keys and bucket keys as bytes, buckets of keys, and names of partitions, as Java writes them.

Tables that are tiered to Paimon or Iceberg have bucket keys of their own, because those formats hash other bytes than a
compacted key's. A Paimon key is an aligned row, an Iceberg key the plain value of its one column. Nulls are refused: a
key has none.

Partition columns have few distinct values, so each is rendered once: rows are dictionary-encoded and never looked at
one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.rows.codecs import AlignedFormat, CompactedFormat
from fluss.formats.rows.python_rows import RowBuilder
from fluss.formats.rows.specs import units_per_second
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.forms.arrow_types import to_arrow
from fluss.model.partitions import SEPARATOR
from fluss.model.schema import Column, Schema
from fluss.model.tables.options import DATALAKE_FORMAT, KV_FORMAT_VERSION, choice
from fluss.model.types import DataType, TypeRoot

# From this version on a key that is not the bucket key is compacted whatever the lake format.
_COMPACTED_SINCE_VERSION = 2


class PrimaryKeyEncoder(Protocol):
    """Encodes the primary keys of one table. `encode_row` is for one thread at a time."""

    def encode_row(self, row: Mapping[str, Any] | Sequence[Any]) -> bytes: ...

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray: ...

    def decode(self, keys: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch: ...


def primary_key_encoder(descriptor: TableDescriptor) -> PrimaryKeyEncoder:
    """How a table's keys are stored: without the partition columns, by its lake format and version."""
    by_name = {column.name: column for column in descriptor.schema.columns}
    names = descriptor.physical_primary_keys
    columns = [by_name[name] for name in names]
    lake_format = choice(descriptor.properties, DATALAKE_FORMAT)
    version = int(descriptor.properties.get(KV_FORMAT_VERSION, "1"))
    is_bucket_key = (descriptor.bucket_keys or names) == names
    if lake_format in (PAIMON, ICEBERG) and (version < _COMPACTED_SINCE_VERSION or is_bucket_key):
        return LakeKeyEncoder(columns, lake_format)
    return KeyEncoder(columns)


class KeyEncoder:
    """Encodes keys of given columns, in the order given."""

    __slots__ = ("_format", "_names")

    def __init__(self, columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        self._format = CompactedFormat(columns, with_null_bits=False)

    def encode_row(self, row: Mapping[str, Any] | Sequence[Any]) -> bytes:
        """The key of a row: a mapping that has the key columns and maybe others, or just the key's values in order."""
        if isinstance(row, Mapping):
            row = {name: row[name] for name in self._names if name in row}
        return self._format.encode_row(row)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The keys of all rows of a batch that has the key columns and maybe others."""
        return self._format.encode(batch.select(self._names))

    def decode(self, keys: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch:
        """The key columns of encoded keys."""
        return self._format.decode(keys)


class LakeKeyEncoder:
    """Encodes keys as Paimon or Iceberg does; they are not decoded."""

    __slots__ = ("_builder", "_keys", "_lake_format", "_names")

    def __init__(self, columns: Sequence[Column], lake_format: str) -> None:
        self._names = [column.name for column in columns]
        self._lake_format = lake_format
        self._keys = lake_keys(lake_format, columns)
        self._builder = RowBuilder(Schema.of(columns))

    def encode_row(self, row: Mapping[str, Any] | Sequence[Any]) -> bytes:
        """The key of a row: a mapping that has the key columns and maybe others, or just the key's values in order."""
        if isinstance(row, Mapping):
            row = {name: row[name] for name in self._names if name in row}
        self._builder.append(row)  # type: ignore[arg-type]
        key: bytes = self._keys.encode(self._builder.build())[0].as_py()
        return key

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The keys of all rows of a batch that has the key columns and maybe others."""
        return self._keys.encode(batch.select(self._names))

    def decode(self, keys: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch:
        raise InvalidRequestError(f"Keys of a table with the lake format {self._lake_format} can't be decoded.")


PAIMON: Final = "PAIMON"
ICEBERG: Final = "ICEBERG"

_MILLIS_PER_SECOND: Final = 1_000
_MICROS_PER_SECOND: Final = 1_000_000

_TEXT: Final = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES, TypeRoot.BINARY)
_FLOATS: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)

Words = npt.NDArray[np.int64]


class LakeKeys(Protocol):
    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray: ...


def lake_keys(lake_format: str, columns: Sequence[Column]) -> LakeKeys:
    """The encoder of a lake format."""
    return IcebergKeys(columns) if lake_format == ICEBERG else PaimonKeys(columns)


class IcebergKeys:
    """Keys of one column."""

    def __init__(self, columns: Sequence[Column]) -> None:
        if len(columns) != 1:
            names = ", ".join(column.name for column in columns)
            raise InvalidRequestError(f"A table tiered to Iceberg has one bucket key column, not {names}.")
        self._column = columns[0]
        root = self._column.data_type.root
        scalar = (TypeRoot.INTEGER, TypeRoot.DATE, TypeRoot.BIGINT, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.DECIMAL)
        if root not in (*scalar, *_FLOATS, *_TEXT):
            raise InvalidRequestError(
                f"Iceberg has no bucket function for the bucket key {self._column.name!r} of type "
                f"{self._column.data_type}."
            )

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        values = _checked(self._column, batch)
        root = self._column.data_type.root
        if root in _TEXT:
            return values.cast(pa.binary())
        if root is TypeRoot.DECIMAL:
            return _unscaled_keys(values)
        if root in _FLOATS:
            return _fixed(values.to_numpy())
        if root is TypeRoot.TIME:
            return _fixed(_times(self._column, values, _MILLIS_PER_SECOND) * _MILLIS_PER_SECOND)
        if root is TypeRoot.TIMESTAMP:
            return _fixed(_times(self._column, values, _MICROS_PER_SECOND))
        return _fixed(_numbers(values))


class PaimonKeys:
    """Keys of any number of columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = list(columns)
        self._format = AlignedFormat(columns)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        for column in self._columns:
            _checked(column, batch)
        return self._format.encode(batch.select([column.name for column in self._columns]))


def _checked(column: Column, batch: pa.RecordBatch) -> pa.Array:
    values = batch.column(column.name)
    if values.null_count:
        raise SchemaMismatchError(f"Bucket key column {column.name!r} expects {column.data_type}, not null.")
    return values


def _fixed(values: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """Keys of one width: the rows of an array."""
    rows = len(values)
    width = values.nbytes // rows if rows else 0
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)


def _unscaled_keys(values: pa.Array) -> pa.BinaryArray:
    """Keys of decimals; of every distinct one once."""
    encoded = values.dictionary_encode()
    return pa.array(map(_unscaled, encoded.dictionary.to_pylist()), pa.binary()).take(encoded.indices)


def _numbers(values: pa.Array) -> Words:
    if pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    return np.asarray(values.to_numpy(), np.int64)


def _times(column: Column, values: pa.Array, per_second: int) -> Words:
    """A time of day or timestamp in another unit; digits that it has no room for are cut off."""
    units = units_per_second(column.data_type.precision)
    counts = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).to_numpy().astype(np.int64)
    scaled: Words = counts * (per_second // units) if per_second >= units else counts // (units // per_second)
    return scaled


def _unscaled(value: object) -> bytes:
    """The digits of a decimal without its point, as the fewest bytes, big-endian."""
    number = int(value.scaleb(-value.as_tuple().exponent))  # type: ignore[attr-defined]
    bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


# A table that is tiered to Lance has the buckets of one that is not tiered.
_PLAIN_FORMATS = (None, "LANCE")


class BucketHash(StrEnum):
    """pyfluss 1.0.0 treats key bytes above 0x7f differently, so it picks other buckets for most keys than Java does."""

    JAVA = "java"
    PYFLUSS = "pyfluss"


def bucket_of(key: bytes, bucket_count: int, variant: BucketHash = BucketHash.JAVA) -> int:
    """The bucket of an encoded key."""
    return kernel.bucket_of(key, bucket_count, variant is BucketHash.JAVA)


def buckets_for(
    batch: pa.RecordBatch,
    key_columns: Sequence[Column],
    bucket_count: int,
    variant: BucketHash = BucketHash.JAVA,
) -> pa.Array:
    """The bucket of every row, int32."""
    return BucketAssigner(key_columns, bucket_count, variant).assign(batch)


class BucketAssigner:
    """Assigns rows of one table; make it once, it holds the plan for the key columns."""

    __slots__ = ("_bucket_count", "_format", "_names", "_sign_extend")

    def __init__(self, key_columns: Sequence[Column], bucket_count: int, variant: BucketHash = BucketHash.JAVA) -> None:
        self._names = [column.name for column in key_columns]
        self._format = CompactedFormat(key_columns, with_null_bits=False)
        self._bucket_count = bucket_count
        self._sign_extend = variant is BucketHash.JAVA

    def assign(self, batch: pa.RecordBatch) -> pa.Array:
        """The bucket of every row of a batch that has the key columns, int32."""
        return self._format.buckets(batch.select(self._names), self._bucket_count, self._sign_extend)

    def assign_key(self, key: bytes) -> int:
        """The bucket of an encoded key."""
        return kernel.bucket_of(key, self._bucket_count, self._sign_extend)


class LakeBucketAssigner:
    """Assigns rows of a table that is tiered to a lake format with a bucket function of its own."""

    __slots__ = ("_bucket_count", "_iceberg", "_keys")

    def __init__(self, key_columns: Sequence[Column], bucket_count: int, lake_format: str) -> None:
        self._keys = lake_keys(lake_format, key_columns)
        self._bucket_count = bucket_count
        self._iceberg = lake_format == ICEBERG

    def assign(self, batch: pa.RecordBatch) -> pa.Array:
        """The bucket of every row of a batch that has the key columns, int32."""
        keys = self._keys.encode(batch)
        _, offsets, data = keys.buffers()
        starts = memoryview(offsets).cast("B")[4 * keys.offset :] if len(keys) else memoryview(bytes(4))
        content = memoryview(b"" if data is None else data).cast("B")
        result = kernel.lake_buckets(content, starts, len(keys), self._bucket_count, self._iceberg)
        return pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(result)], null_count=0)


def assigner_for(
    key_columns: Sequence[Column], bucket_count: int, lake_format: str | None, variant: BucketHash
) -> BucketAssigner | LakeBucketAssigner:
    """How a table's rows are assigned; `lake_format` is its property `table.datalake.format`."""
    if lake_format in _PLAIN_FORMATS:
        return BucketAssigner(key_columns, bucket_count, variant)
    if lake_format in (PAIMON, ICEBERG):
        return LakeBucketAssigner(key_columns, bucket_count, lake_format)
    raise InvalidRequestError(
        f"The bucket function of the lake format {lake_format} is not known here; known are {PAIMON}, {ICEBERG}, LANCE."
    )


_AS_TEXT: Final = frozenset({TypeRoot.BOOLEAN, TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT})
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Java writes numbers from 10^-3 to 10^7 without an exponent.
_PLAIN_EXPONENTS: Final = range(-3, 7)
_YEAR_DIGITS: Final = 4


def partition_names(batch: pa.RecordBatch, columns: Sequence[Column]) -> tuple[pa.Array, list[str]]:
    """The names of the batch's partitions, and for every row an index into them; values must not be null."""
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
