"""Recovery of a bucket's log: opening its files after whatever happened; a torn tail is cut off.

Two things say how far a log was safe: its mark (`marks`) and its last checkpoint, an index file that is written only
after the bytes it speaks for were synced. All before the later of the two was acknowledged or could have been. If
anything there is missing or bad, the log is damaged: its files stay as they are, it is read-only, and its end is where
it was, so that no offset is used twice and whoever reads as far as the damage is told of it. What lies before the
checkpoint is not walked again; damage there is reported when it is read.

What lies behind was being written when the process or the system ended, and reaches the disk in any order. It is
walked batch by batch and cut at the first bad one; the bytes that are cut off are kept in a file beside the segment.
What survives is synced before it is served, because a kill leaves good bytes that are only in the page cache.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.log.index import Checkpoint, CorruptBatchError, WrongHeadsError, scan
from fluss.storage.log.marks import UNKNOWN_HEADS, Mark
from fluss.storage.log.segment import (
    LOG_SUFFIX,
    WRITERS_SUFFIX,
    Segment,
    list_base_offsets,
    remove_unnamed,
    segment_path,
)
from fluss.storage.log.writer_state import KeepsWriter, WriterTable

_log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    segments: list[Segment]
    writers: WriterTable
    # Set when the log is damaged, or its writers' state can't be known for damage: reads go on, appends must not.
    problem: CorruptBatchError | None

    def release(self) -> None:
        """Close the files: nobody wants them."""
        for segment in self.segments:
            segment.release()


class SafeEnd(NamedTuple):
    """Up to where the last segment was safe."""

    position: int
    end_offset: int
    is_exact: bool
    is_located: bool = True  # the end offset lies at the position
    heads_checksum: int = UNKNOWN_HEADS


def lineage(directory: Path, root: Path) -> list[Path]:
    """`directory`, its parents, and `root`: every directory whose entry leads to the bucket's files."""
    return [directory, *(parent for parent in directory.parents if parent.is_relative_to(root))]


def make_lineage(directory: Path, root: Path, site: Site) -> None:
    """Make those of the directories that lead to a bucket's files that are not there; none is synced."""
    missing = list(takewhile(lambda path: not path.exists(), lineage(directory, root)))
    for path in reversed(missing):
        files.make_directory(path, site)


def recover(
    directory: Path,
    root: Path,
    writer_expiry_ms: int,
    keeps: KeepsWriter,
    mark: Mark | None = None,
    end_offset_min: int = 0,
) -> Recovered:
    """Open the segments of a bucket; the last one ends at its last good batch, and that is durable.

    `end_offset_min` is what others know of the log: it reached as far as that.
    """
    remove_unnamed(directory)
    bases = list_base_offsets(directory)
    if mark is not None and not mark.is_certain:
        mark = None
    if mark is not None and last_is_missing(bases, mark):
        return _without_last(directory, bases, mark, writer_expiry_ms)
    if not bases:
        return Recovered([], WriterTable(writer_expiry_ms, keeps), None)
    segments = [*_missing_first(directory, bases, mark), *_sealed(directory, bases)]
    last, file_size_bytes, checkpoint = Segment.open_last(directory, bases[-1])
    segments.append(last)
    try:
        safe = safe_end(last.base_offset, checkpoint, mark, end_offset_min)
        writers, problem = _writers_at_end(segments, writer_expiry_ms, keeps)
        damage = _walk_tail(last, file_size_bytes, writers, safe)
        if damage is not None:
            return _damaged(segments, safe, damage, writer_expiry_ms)
        if checkpoint is None or last.size_bytes > checkpoint.size_bytes or not last.size_bytes:
            last.unsynced_directories = tuple((path, Site.SEGMENT_RECOVER) for path in lineage(directory, root))
            last.sync(Site.SEGMENT_RECOVER)
        if last.timestamp_ms_max < 0 and len(segments) > 1:
            with suppress(FileNotFoundError):
                segments[-2].ensure_open()
                last.timestamp_ms_max = segments[-2].timestamp_ms_max
    except BaseException:
        for segment in segments:
            segment.release()
        raise
    return Recovered(segments, writers, problem)


def _sealed(directory: Path, bases: list[int]) -> list[Segment]:
    return [Segment.sealed(directory, base, end) for base, end in pairwise(bases)]


def _missing_first(directory: Path, bases: list[int], mark: Mark | None) -> list[Segment]:
    """A segment without a file, for offsets that were not removed by retention; its readers get an error."""
    if mark is None or mark.start_offset >= bases[0]:
        return []
    _log.error("%s: the log begins at %d and began at %d", directory, bases[0], mark.start_offset)
    return [Segment.sealed(directory, mark.start_offset, bases[0])]


def last_is_missing(bases: list[int], mark: Mark) -> bool:
    """Whether the segment that the mark speaks of, or all of a log, is gone."""
    if not bases:
        return mark.end_offset > 0
    return mark.position > 0 and bases[-1] < mark.segment_base_offset


def _without_last(directory: Path, bases: list[int], mark: Mark, writer_expiry_ms: int) -> Recovered:
    """A log whose last segment, or all of it, is gone."""
    last_base_offset = max(mark.segment_base_offset, mark.start_offset)
    bases = sorted({*bases, mark.start_offset, last_base_offset})
    path = segment_path(directory, last_base_offset, LOG_SUFFIX)
    problem = CorruptBatchError(path, 0, "the file is missing")
    _log.error("%s: %s; the bucket is read-only", directory, problem)
    segments = [*_sealed(directory, bases), Segment.sealed(directory, bases[-1], mark.end_offset)]
    return Recovered(segments, WriterTable(writer_expiry_ms), problem)


def safe_end(base_offset: int, checkpoint: Checkpoint | None, mark: Mark | None, end_offset_min: int) -> SafeEnd:
    """Up to where the last segment, which begins at `base_offset`, was safe."""
    safe = SafeEnd(0, base_offset, mark is not None and mark.is_exact)
    if checkpoint is not None:
        safe = safe._replace(position=checkpoint.size_bytes, end_offset=checkpoint.end_offset)
    if mark is not None and mark.segment_base_offset == base_offset and mark.position >= safe.position:
        safe = safe._replace(position=mark.position, end_offset=mark.end_offset, heads_checksum=mark.heads_checksum)
    end_offset_min = max(end_offset_min, mark.end_offset if mark is not None else 0)
    if end_offset_min > safe.end_offset:
        safe = safe._replace(end_offset=end_offset_min, is_located=False)
    return safe


def _damaged(segments: list[Segment], safe: SafeEnd, problem: CorruptBatchError, writer_expiry_ms: int) -> Recovered:
    """The log as it was, up to the damage and behind it as far as that can be read; nothing is changed on disk."""
    _log.error("%s: %s; the bucket is read-only", segments[-1].directory, problem)
    for segment in segments:
        segment.release()
    last = Segment.sealed(segments[-1].directory, segments[-1].base_offset, safe.end_offset)
    last.is_damaged = True
    last.limit_bytes = safe.position if safe.is_located else None
    last.wrong_heads = problem if isinstance(problem, WrongHeadsError) else None
    return Recovered([*segments[:-1], last], WriterTable(writer_expiry_ms), problem)


def _walk_tail(last: Segment, file_size_bytes: int, writers: WriterTable, safe: SafeEnd) -> CorruptBatchError | None:
    """Accept the good batches behind the checkpoint and cut what follows them; damage of what was safe is returned."""
    if file_size_bytes < safe.position:
        return CorruptBatchError(
            last.path, file_size_bytes, f"the file has {file_size_bytes} bytes and had {safe.position}"
        )
    walked_from = last.size_bytes
    try:
        for _, header in scan(last.fd, last.path, last.size_bytes, file_size_bytes, last.end_offset, verify=True):
            last.accept(header, header.base_offset, header.commit_timestamp_ms)
            writers.fold(header)
            if last.size_bytes == safe.position:
                _check_heads(last, walked_from, safe)
    except CorruptBatchError as error:
        if last.end_offset < safe.end_offset or error.position < safe.position:
            return error
        _cut_tail(last, file_size_bytes, error, safe)
    if last.end_offset < safe.end_offset:
        reason = f"the file ends at offset {last.end_offset}, the log reached {safe.end_offset}"
        return CorruptBatchError(last.path, last.size_bytes, reason)
    return None


def _check_heads(last: Segment, walked_from: int, safe: SafeEnd) -> None:
    """Raise when what the checksums of batches leave out is not what was written up to the mark."""
    if safe.heads_checksum not in (UNKNOWN_HEADS, last.index.heads_checksum):
        raise WrongHeadsError(last.path, walked_from)


def _cut_tail(last: Segment, file_size_bytes: int, error: CorruptBatchError, safe: SafeEnd) -> None:
    try:
        aside = last.keep_aside(last.size_bytes, file_size_bytes).name
    except OSError as refusal:
        if not safe.is_exact:
            raise
        aside = f"no file ({files.reason(refusal)})"
    told = "nothing of it was acknowledged" if safe.is_exact else "what was acknowledged last may be among it"
    torn_bytes = file_size_bytes - last.size_bytes
    _log.warning("%s: %s; %d bytes are cut off and kept in %s: %s", last.directory, error, torn_bytes, aside, told)
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
            offset = _fold_writers(segment, offset, writers)
        except CorruptBatchError as error:
            _log.error("%s: %s; the writers' state is unknown, the bucket is read-only", segment.directory, error)
            return writers, error
    return writers, None


def _fold_writers(segment: Segment, offset: int, writers: WriterTable) -> int:
    try:
        segment.ensure_open()
    except FileNotFoundError:
        raise CorruptBatchError(segment.path, 0, "the file is missing") from None
    # With checksums: a writer's number that rotted would make its next batch look like a repeated one.
    for _, header in segment.headers_from(offset, verify=True):
        writers.fold(header)
        offset = header.next_offset
    if offset != segment.end_offset:
        raise CorruptBatchError(segment.path, segment.size_bytes, f"the file ends before offset {offset}")
    return offset


def _load_snapshot(segment: Segment, expiry_ms: int, keeps: KeepsWriter) -> tuple[WriterTable, int] | None:
    try:
        data = segment_path(segment.directory, segment.base_offset, WRITERS_SUFFIX).read_bytes()
    except OSError as error:
        if files.lacks_descriptor(error):
            raise  # It may well be there, and know writers whose batches were removed.
        return None
    return WriterTable.decode(data, expiry_ms, keeps)


def write_disposable(path: Path, data: bytes, site: Site) -> None:
    """Put an index or writers file in place; without it the next start only takes longer."""
    try:
        files.replace(path, data, site, durable=False)
    except OSError as error:
        _log.warning("%s could not be written: %s", path, error)
