"""What is staged, in memory: which requests of which batches, since when, and how much it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.storage.staging.files import StagedFile, StagedKey

REQUESTS_MAX: Final = 200_000  # staged at once; each takes a file, and some memory


@dataclass(slots=True)
class StagedBatch:
    """Sizes of requests by task, attempt and sequence."""

    since_ms: int
    staged_ms: int = 0
    requests: dict[tuple[int, int, int], int] = field(default_factory=dict)


class StagedIndex:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: dict[tuple[int, str], dict[int, StagedBatch]] = {}  # by table and query, by batch id
        self.size_bytes = 0  # of what is staged or about to be
        self._request_count = 0

    def queries(self) -> list[tuple[int, str]]:
        """Tables and queries with something staged."""
        return list(self._batches)

    def batches(self, table_id: int, query: str) -> dict[int, StagedBatch]:
        """What a query has staged, by batch id."""
        return self._batches.get((table_id, query), {})

    def check_room(self, size_bytes: int) -> None:
        """Code 13 when so much more is too much."""
        if self.size_bytes + size_bytes > self._bytes_max or self._request_count >= REQUESTS_MAX:
            raise InvalidRequestError(
                f"{self.size_bytes} bytes in {self._request_count} requests are staged, {size_bytes} more are too "
                f"many: staging.bytes-max is {self._bytes_max}, and there may be {REQUESTS_MAX} requests. Commit "
                "smaller batches, or raise staging.bytes-max.",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )

    def take(self, size_bytes: int) -> None:
        """A request is about to be written, or was."""
        self.size_bytes += size_bytes
        self._request_count += 1

    def release(self, size_bytes: int) -> None:
        """A request is gone, or was counted for a time."""
        self.size_bytes -= size_bytes
        self._request_count -= 1

    def add(self, file: StagedFile) -> None:
        """A file is there, in the place of one with the same key."""
        key, size_bytes, staged_ms = file
        batch = self._batches.setdefault((key.table_id, key.query), {}).setdefault(key.batch_id, StagedBatch(staged_ms))
        request = (key.task, key.attempt, key.sequence)
        if request in batch.requests:
            self.release(batch.requests[request])
        self.take(size_bytes)
        batch.requests[request] = size_bytes
        batch.since_ms = min(batch.since_ms, staged_ms)
        batch.staged_ms = max(batch.staged_ms, staged_ms)

    def pop(self, table_id: int, query: str, batch_id_min: int, batch_id_max: int) -> Iterator[StagedKey]:
        """Forget some batches of a query: the keys of their requests."""
        batches = self.batches(table_id, query)
        for batch_id in [batch_id for batch_id in batches if batch_id_min <= batch_id <= batch_id_max]:
            for request, size_bytes in batches.pop(batch_id).requests.items():
                self.release(size_bytes)
                yield StagedKey(table_id, query, batch_id, *request)
        if not batches:
            self._batches.pop((table_id, query), None)

    def pop_table(self, table_id: int) -> None:
        """Forget all of a table."""
        for key in [key for key in self._batches if key[0] == table_id]:
            for batch in self._batches.pop(key).values():
                for size_bytes in batch.requests.values():
                    self.release(size_bytes)
