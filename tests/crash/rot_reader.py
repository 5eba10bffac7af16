"""Reading a storage as the server does for its clients: fetches with and without a projection, scans of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluss.formats.batches.log_batch import verify_crc, walk
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.paths import TableBucket
from fluss.server.read.fetch_plan import Allowance, BatchPicker, BucketFetch, Projection
from fluss.storage.store import Storage

FETCH_BYTES: Final = 1 << 20
ROWS_MAX: Final = 1_000


class ClientRefusalError(FlussError):
    """A client compares checksums, too. It does not know of files."""


class RotReader:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def fetch(self, bucket: TableBucket, offset: int) -> bytes:
        """One answer up to the first batch that a client would refuse; an error if that is the first of all."""
        data = self._fetch(BucketFetch(bucket, offset, FETCH_BYTES))
        good = 0
        try:
            for at, header in walk(data):
                verify_crc(data, at, header)
                good = at + header.size_bytes
        except CorruptDataError as error:
            if not good:
                raise ClientRefusalError(f"{bucket} at offset {offset}: {error.message}") from error
        return data[:good]

    def fetch_projected(self, bucket: TableBucket, offset: int) -> bytes:
        """The same with the first two columns."""
        entry = self._storage.catalog.table_by_id(bucket.table_id)
        assert entry is not None
        picker = BatchPicker(None, Projection(self._storage.catalog, entry, (0, 1)))
        return self._fetch(BucketFetch(bucket, offset, FETCH_BYTES, picker))

    def _fetch(self, fetch: BucketFetch) -> bytes:
        fetch.read(self._storage, Allowance(FETCH_BYTES))
        return b"".join(fetch.parts)

    def batches(self, bucket: TableBucket, start: int, end: int) -> dict[int, bytes]:
        """All batches by their base offsets."""
        return _all(self.fetch, bucket, start, end)

    def projected(self, bucket: TableBucket, start: int, end: int) -> dict[int, bytes]:
        return _all(self.fetch_projected, bucket, start, end)

    async def rows(self, bucket: TableBucket) -> list[bytes]:
        """The values of a primary-key table."""
        scan = await self._storage.kv.bucket(bucket).open_scan()
        try:
            found: list[bytes] = []
            while page := await scan.read(FETCH_BYTES, ROWS_MAX):
                found += page
        finally:
            scan.close()
        return found


def split(data: bytes) -> dict[int, bytes]:
    """The batches of an answer by their base offsets."""
    return {header.base_offset: data[at : at + header.size_bytes] for at, header in walk(data)}


def _all(fetch: Callable[[TableBucket, int], bytes], bucket: TableBucket, start: int, end: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while start < end:
        data = fetch(bucket, start)
        for at, header in walk(data):
            found[header.base_offset] = data[at : at + header.size_bytes]
            start = header.next_offset
    return found
