"""What a fetch with a filter or a projection gets of the batches that were read."""

from __future__ import annotations

from typing import Final, NamedTuple

from fluss.formats.batches.log_batch import BatchHeader, walk
from fluss.model.errors import FlussError
from fluss.protocol.protobuf import Part
from fluss.server.read.filtering import BatchFilter
from fluss.server.read.projection import Projection

# One fetch looks at so many batches, fewer with a large filter; the rest is for the next one, so that nobody holds the
# loop for long.
BATCHES_PER_FETCH_MAX: Final = 1_000

# Parts smaller than this on average are put together.
_PART_SIZE_MIN_BYTES: Final = 16 << 10


class Picked(NamedTuple):
    parts: list[Part]
    size_bytes: int
    filtered_end_offset: int | None  # where to go on, if batches at the end were left out
    cost: int  # in batches


class BatchPicker:
    """A filter, a projection, or both."""

    def __init__(self, batch_filter: BatchFilter | None, projection: Projection | None) -> None:
        self._filter = batch_filter
        self._cost = 1 if batch_filter is None else batch_filter.cost
        self._projection = projection

    @property
    def filters(self) -> bool:
        """Whether batches may be left out."""
        return self._filter is not None

    def pick(self, data: bytes, bytes_max: int, batches_max: int, kept_end_offset: int) -> Picked:
        """The batches to send, at least one if there is any; they end where a limit is reached.

        The batch that ends at `kept_end_offset` is never filtered out.
        """
        parts: list[Part] = []
        size_bytes = cost = 0
        filtered_end_offset: int | None = None
        for position, header in walk(data):
            if cost >= batches_max:
                break
            cost += self._cost
            if header.next_offset != kept_end_offset and not self._may_match(data, position, header):
                filtered_end_offset = header.next_offset
                continue
            try:
                pieces, piece_bytes = self._project(data, position, header)
            except FlussError:
                if not parts and filtered_end_offset is None:
                    raise
                # What is good comes first, the error next time.
                break
            if parts and size_bytes + piece_bytes > bytes_max:
                break
            # Parts keep all of `data` in memory, and sending them has its price: only large ones are worth it.
            parts += pieces if piece_bytes >= len(pieces) * _PART_SIZE_MIN_BYTES else [b"".join(pieces)]
            size_bytes += piece_bytes
            filtered_end_offset = None
        if 2 * size_bytes < len(data) or size_bytes < len(parts) * _PART_SIZE_MIN_BYTES:
            parts = [b"".join(parts)] if parts else []
        return Picked(parts, size_bytes, filtered_end_offset, cost)

    def _may_match(self, data: bytes, position: int, header: BatchHeader) -> bool:
        return self._filter is None or self._filter.may_match(data, position, header)

    def _project(self, data: bytes, position: int, header: BatchHeader) -> tuple[list[Part], int]:
        if self._projection is None:
            return [memoryview(data)[position : position + header.size_bytes]], header.size_bytes
        return self._projection.apply(data, position, header)
