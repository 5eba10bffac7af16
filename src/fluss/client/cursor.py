"""How far a bucket has been read."""

from __future__ import annotations

from fluss.model.errors import FlussError
from fluss.model.offsets import EARLIEST_OFFSET
from fluss.model.paths import TableBucket


class Cursor:
    """One subscribed bucket. A new subscription is a new cursor: what was fetched for the old one is dropped."""

    __slots__ = (
        "bucket",
        "error",
        "fetch_offset",
        "position",
        "start_offset",
        "stop_offset",
        "trouble",
        "trouble_since",
    )

    def __init__(self, bucket: TableBucket, start_offset: int, stop_offset: int | None = None) -> None:
        self.bucket = bucket
        self.start_offset = start_offset
        self.stop_offset = stop_offset
        self.fetch_offset = start_offset
        """What the next request asks for."""
        self.position = start_offset
        """What the reader gets next."""
        self.error: FlussError | None = None
        """Why reading can't go on."""
        self.trouble: FlussError | None = None
        """A failure that may pass."""
        self.trouble_since = 0.0

    @property
    def key(self) -> tuple[int | None, int]:
        return self.bucket.partition_id, self.bucket.bucket

    @property
    def finished(self) -> bool:
        """Whether a bounded read has reached its end."""
        if self.stop_offset is None:
            return False
        return self.fetch_offset >= self.stop_offset or (self.fetch_offset == EARLIEST_OFFSET and self.stop_offset == 0)

    def in_trouble(self, error: FlussError, now: float) -> None:
        """A fetch failed; remember since when."""
        if self.trouble is None:
            self.trouble_since = now
        self.trouble = error
