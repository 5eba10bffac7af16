"""Records of a poll for rows, by bucket."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import overload

from fluss.formats.kernel import ScanRecord
from fluss.model.paths import TableBucket

__all__ = ["ScanRecord", "ScanRecords"]


class ScanRecords:
    """Records grouped by bucket: a sequence of records and a mapping from bucket to records in one."""

    __slots__ = ("_by_bucket", "_count", "_flat")

    def __init__(self, by_bucket: dict[TableBucket, list[ScanRecord]] | None = None) -> None:
        self._by_bucket = by_bucket or {}
        self._count = sum(map(len, self._by_bucket.values()))
        self._flat: list[ScanRecord] | None = None

    def buckets(self) -> list[TableBucket]:
        """Buckets that have records."""
        return list(self._by_bucket)

    def records(self, bucket: TableBucket) -> list[ScanRecord]:
        """A bucket's records; empty if it has none."""
        return self._by_bucket.get(bucket, [])

    def records_by_buckets(self) -> dict[TableBucket, list[ScanRecord]]:
        """All records by bucket."""
        return dict(self._by_bucket)

    def count(self) -> int:
        """How many records there are."""
        return self._count

    def is_empty(self) -> bool:
        """Whether there are no records."""
        return self._count == 0

    def keys(self) -> list[TableBucket]:
        """Same as `buckets()`."""
        return self.buckets()

    def values(self) -> Iterator[list[ScanRecord]]:
        """The record lists, one per bucket."""
        return iter(self._by_bucket.values())

    def items(self) -> Iterator[tuple[TableBucket, list[ScanRecord]]]:
        """(bucket, records) pairs."""
        return iter(self._by_bucket.items())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ScanRecord]:
        return chain.from_iterable(self._by_bucket.values())

    def __contains__(self, bucket: object) -> bool:
        return bucket in self._by_bucket

    @overload
    def __getitem__(self, key: int) -> ScanRecord: ...
    @overload
    def __getitem__(self, key: slice) -> list[ScanRecord]: ...
    @overload
    def __getitem__(self, key: TableBucket) -> list[ScanRecord]: ...
    def __getitem__(self, key: int | slice | TableBucket) -> ScanRecord | list[ScanRecord]:
        if isinstance(key, TableBucket):
            return self.records(key)
        if self._flat is None:
            self._flat = list(self)
        return self._flat[key]

    def __repr__(self) -> str:
        return f"ScanRecords(count={self._count}, buckets={len(self._by_bucket)})"
