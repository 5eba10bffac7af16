"""Which bucket a key belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.compacted import CompactedFormat
from fluss.model.schema import Column


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
