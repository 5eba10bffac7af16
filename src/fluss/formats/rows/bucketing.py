"""Which bucket a key belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.rows.compacted import CompactedFormat
from fluss.formats.rows.lake_keys import ICEBERG, PAIMON, lake_keys
from fluss.model.errors import InvalidRequestError
from fluss.model.schema import Column

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
