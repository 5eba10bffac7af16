"""Opening a bucket's files after whatever happened.

Checkpoints (an index file together with its segment) are written only after the bytes they speak for were synced. So
what lies before the last segment's checkpoint is known to have been durable: it is not walked again, and anything
wrong there is corruption, reported when read. What lies behind it may be torn: it is walked batch by batch and cut at
the first bad one. What survives is synced before it is served, because a kill leaves good bytes that are only in the
page cache.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.scan import CorruptBatchError, scan
from fluss.storage.segment import WRITERS_SUFFIX, Segment, list_base_offsets, segment_path
from fluss.storage.writers import KeepsWriter, WriterTable

_log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    segments: list[Segment]
    writers: WriterTable
    # Set when the writers' state can't be known because the log is corrupt: reads go on, appends must not.
    problem: CorruptBatchError | None

    def release(self) -> None:
        """Close the files: nobody wants them."""
        for segment in self.segments:
            segment.release()


def lineage(directory: Path, root: Path) -> list[Path]:
    """`directory`, its parents, and `root`: every directory whose entry leads to the bucket's files."""
    return [directory, *(parent for parent in directory.parents if parent.is_relative_to(root))]


def recover(directory: Path, root: Path, writer_expiry_ms: int, keeps: KeepsWriter) -> Recovered:
    """Open the segments of a bucket; the last one ends at its last good batch, and that is durable."""
    bases = list_base_offsets(directory)
    if not bases:
        return Recovered([], WriterTable(writer_expiry_ms, keeps), None)
    segments = [Segment.sealed(directory, base, end) for base, end in pairwise(bases)]
    last, file_size_bytes = Segment.open_last(directory, bases[-1])
    segments.append(last)
    try:
        writers, problem = _writers_at_end(segments, writer_expiry_ms, keeps)
        if last.size_bytes < file_size_bytes or not last.size_bytes:
            _walk_tail(last, file_size_bytes, writers)
            last.unsynced_directories = tuple((path, Site.SEGMENT_RECOVER) for path in lineage(directory, root))
            last.sync(Site.SEGMENT_RECOVER)
        if last.timestamp_ms_max < 0 and len(segments) > 1:
            segments[-2].ensure_open()
            last.timestamp_ms_max = segments[-2].timestamp_ms_max
    except BaseException:
        for segment in segments:
            segment.release()
        raise
    return Recovered(segments, writers, problem)


def _walk_tail(last: Segment, file_size_bytes: int, writers: WriterTable) -> None:
    """Accept the good batches behind the checkpoint, cut what follows them."""
    batches = scan(last.fd, last.path, last.size_bytes, file_size_bytes, last.end_offset, verify=True)
    try:
        for position, header in batches:
            last.accept(position, header.size_bytes, header.base_offset, header.next_offset, header.commit_timestamp_ms)
            writers.fold(header)
    except CorruptBatchError as error:
        torn_bytes = file_size_bytes - last.size_bytes
        _log.warning("%s: %s; cutting %d bytes of torn tail", last.directory, error, torn_bytes)
        last.cut(last.size_bytes, last.end_offset)


def _writers_at_end(
    segments: list[Segment], expiry_ms: int, keeps: KeepsWriter
) -> tuple[WriterTable, CorruptBatchError | None]:
    """The writers' state at the end of what the segments cover now: a snapshot, and the headers behind it."""
    end_offset = segments[-1].end_offset
    writers, offset = WriterTable(expiry_ms, keeps), segments[0].base_offset
    for segment in reversed(segments):
        snapshot = _load_snapshot(segment, expiry_ms, keeps)
        if snapshot is not None and segment.base_offset <= snapshot[1] <= end_offset:
            writers, offset = snapshot
            break
    for segment in segments:
        if segment.end_offset <= offset:
            continue
        try:
            segment.ensure_open()
            for _, header in segment.headers_from(offset):
                writers.fold(header)
                offset = header.next_offset
            if offset != segment.end_offset:
                raise CorruptBatchError(segment.path, segment.size_bytes, f"the file ends before offset {offset}")
        except CorruptBatchError as error:
            _log.error("%s: %s; the writers' state is unknown, the bucket is read-only", segment.directory, error)
            return writers, error
    return writers, None


def _load_snapshot(segment: Segment, expiry_ms: int, keeps: KeepsWriter) -> tuple[WriterTable, int] | None:
    try:
        data = segment_path(segment.directory, segment.base_offset, WRITERS_SUFFIX).read_bytes()
    except OSError:
        return None
    return WriterTable.decode(data, expiry_ms, keeps)


def write_disposable(path: Path, data: bytes, site: Site) -> None:
    """Put an index or writers file in place; without it the next start only takes longer."""
    try:
        files.replace(path, data, site, durable=False)
    except OSError as error:
        _log.warning("%s could not be written: %s", path, error)
