"""Log segments that a cluster has moved to its remote storage.

They are read in ranges, several ahead of the reader and in parallel, and cut into batches as they come: there are no
temporary files, and what is in memory is bounded. Segments have all columns, whatever the scan asked for.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

import pyarrow as pa

from fluss.client.cluster.cluster import Cluster
from fluss.client.scan.batch_reader import RawBatch
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.remote import RemoteFiles
from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES_MAX, parse_header, walk
from fluss.model.errors import CorruptDataError
from fluss.protocol import messages_pb2 as pb

RANGE_BYTES = 4 << 20
# A UUID, and nothing that leads elsewhere.
_SEGMENT_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")


class _Range(NamedTuple):
    """A piece of a segment's file."""

    segment: int
    position: int
    size_bytes: int


class RemoteLog:
    """Reads remote segments for one scanner. Runs on the I/O loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._files = RemoteFiles(cluster)
        config = cluster.config
        self.segments_ahead_max: int = config.scanner_remote_log_prefetch_num
        self.ranges_per_segment_max: int = config.scanner_remote_log_read_concurrency
        self.buffer_bytes_max: int = config.scanner_log_fetch_max_bytes
        self._reads = 0

    @property
    def ahead_bytes_max(self) -> int:
        """What one bucket may read ahead: those that are read share the buffer."""
        return max(self.buffer_bytes_max // max(self._reads, 1), RANGE_BYTES)

    async def read(self, cursor: Cursor, info: pb.PbRemoteLogFetchInfo) -> AsyncGenerator[list[RawBatch]]:
        """The batches of the segments in `info` from the cursor's offset on, which moves behind them."""
        await self._files.check_directory(info.remote_log_tablet_dir, cursor.bucket.table_id)
        read = _SegmentsRead(self, self._files, cursor, info)
        self._reads += 1
        try:
            async for batches in read.run():
                yield batches
        finally:
            self._reads -= 1
            read.close()

    def close(self) -> None:
        """Stop reading."""
        self._files.close()


class _SegmentsRead:
    """One pass over the segments of an answer."""

    def __init__(self, limits: RemoteLog, files: RemoteFiles, cursor: Cursor, info: pb.PbRemoteLogFetchInfo) -> None:
        self._limits = limits
        self._files = files
        self._cursor = cursor
        self._segments = list(info.remote_log_segments)
        self._directory = info.remote_log_tablet_dir
        self._ranges = _ranges(self._segments, info.first_start_pos)
        self._held: _Range | None = None
        self._window: deque[tuple[_Range, asyncio.Task[bytes]]] = deque()
        self._opened: dict[int, asyncio.Task[pa.NativeFile]] = {}

    async def run(self) -> AsyncGenerator[list[RawBatch]]:
        """Batches in the order of their offsets, a few at a time."""
        rest = memoryview(b"")
        self._fill(0)
        while self._window and not self._cursor.fetched:
            part, reading = self._window[0]
            data = memoryview(await reading)
            self._window.popleft()
            self._fill(part.segment)
            if rest:
                data = memoryview(b"".join((rest, data)))
            batches, rest = self._cut(data, part)
            if batches:
                yield batches
        expected = self._segments[-1].remote_log_end_offset if self._segments else self._cursor.fetch_offset + 1
        if not self._cursor.fetched and self._cursor.fetch_offset < expected:
            raise CorruptDataError(f"the remote segments end before offset {expected}, which they should reach")

    def close(self) -> None:
        """Stop reads under way and let go of the files."""
        for _, reading in self._window:
            if not reading.cancel() and not reading.cancelled():
                reading.exception()  # looked at, so that nobody complains that it was not
        for segment in list(self._opened):
            self._close_file(segment)

    def _fill(self, current_segment: int) -> None:
        """Have as many ranges under way as the limits allow."""
        while (following := self._held or next(self._ranges, None)) is not None:
            self._held = following
            segments = [part.segment for part, _ in self._window]
            ahead_bytes = sum(part.size_bytes for part, _ in self._window)
            if self._window and (
                following.segment >= current_segment + self._limits.segments_ahead_max
                or segments.count(following.segment) >= self._limits.ranges_per_segment_max
                or ahead_bytes + following.size_bytes > self._limits.ahead_bytes_max
            ):
                return
            self._window.append((following, asyncio.ensure_future(self._read(following))))
            self._held = None

    async def _read(self, part: _Range) -> bytes:
        uri = self._uri(part.segment)
        if part.segment not in self._opened:
            self._opened[part.segment] = asyncio.ensure_future(self._files.open(uri))
        file = await asyncio.shield(self._opened[part.segment])
        return await self._files.read(file, uri, part.position, part.size_bytes)

    def _uri(self, segment: int) -> str:
        item = self._segments[segment]
        if not _SEGMENT_ID.fullmatch(item.remote_log_segment_id):
            raise CorruptDataError(f"{item.remote_log_segment_id[:100]!r} is not the id of a remote segment")
        name = f"{item.remote_log_segment_id}/{item.remote_log_start_offset:020d}.log"
        return f"{self._directory.rstrip('/')}/{name}"

    def _close_file(self, segment: int) -> None:
        opening = self._opened.pop(segment)
        if not opening.done():
            opening.cancel()
        elif not opening.cancelled() and opening.exception() is None:
            opening.result().close()

    def _cut(self, data: memoryview, part: _Range) -> tuple[list[RawBatch], memoryview]:
        """Whole batches of a piece, and the beginning of one that goes on in the next."""
        batches: list[RawBatch] = []
        cursor = self._cursor
        position = 0
        for position, header in walk(data):
            if header.next_offset > cursor.fetch_offset and not cursor.fetched:
                if header.base_offset > cursor.fetch_offset >= 0:
                    raise CorruptDataError(
                        f"{self._uri(part.segment)} has no offsets {cursor.fetch_offset} to {header.base_offset - 1}"
                    )
                batches.append(RawBatch(cursor, data, position, header, projected=False))
                cursor.fetch_offset = header.next_offset
            position += header.size_bytes
        rest = data[position:]
        left_bytes = self._segments[part.segment].segment_size_in_bytes - part.position - part.size_bytes
        if left_bytes == 0:
            self._close_file(part.segment)
        needed_bytes = parse_header(rest).size_bytes if len(rest) >= HEADER_SIZE_BYTES_MAX else len(rest)
        if rest and (left_bytes == 0 or needed_bytes > len(rest) + left_bytes):
            raise CorruptDataError(f"{self._uri(part.segment)} ends inside a batch")
        return batches, rest


def _ranges(segments: list[pb.PbRemoteLogSegment], first_position: int) -> Iterator[_Range]:
    for number, segment in enumerate(segments):
        size_bytes = segment.segment_size_in_bytes
        for position in range(0 if number else first_position, size_bytes, RANGE_BYTES):
            yield _Range(number, position, min(RANGE_BYTES, size_bytes - position))
