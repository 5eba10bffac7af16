"""The cursor of a bucket: how far it has been read."""

from __future__ import annotations

from fluss.client.cluster.retry import Failures
from fluss.model.errors import FlussError
from fluss.model.offsets import EARLIEST_OFFSET
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb


class Cursor:
    """One subscribed bucket. A new subscription is a new cursor: what was fetched for the old one is dropped."""

    __slots__ = (
        "bucket",
        "error",
        "fetch_offset",
        "position",
        "remote",
        "remote_failures",
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
        self.remote: pb.PbRemoteLogFetchInfo | None = None
        """Files of the remote storage that are being read; the leader is not asked meanwhile."""
        self.remote_failures = Failures()
        self.error: FlussError | None = None
        """Why reading can't go on."""
        self.trouble: FlussError | None = None
        """A failure that may pass."""
        self.trouble_since = 0.0

    @property
    def key(self) -> tuple[int | None, int]:
        return self.bucket.partition_id, self.bucket.bucket

    @property
    def wanted(self) -> bool:
        """Whether the leader is to be asked for more."""
        return self.error is None and self.remote is None and not self.fetched

    @property
    def fetched(self) -> bool:
        """Whether a bounded read has asked for all it wants."""
        return self._is_end(self.fetch_offset)

    @property
    def finished(self) -> bool:
        """Whether the reader of a bounded read has got all it wants."""
        return self._is_end(self.position)

    def _is_end(self, offset: int) -> bool:
        if self.stop_offset is None:
            return False
        return offset >= self.stop_offset or (offset == EARLIEST_OFFSET and self.stop_offset == 0)

    def in_trouble(self, error: FlussError, now: float) -> None:
        """A fetch failed; remember since when."""
        if self.trouble is None:
            self.trouble_since = now
        self.trouble = error

    def failed(self, error: FlussError, now: float) -> None:
        """Reading failed, for now or for good."""
        if error.is_retriable:
            self.in_trouble(error, now)
        else:
            self.error = error
