"""Reading all of a bucket's log from disk, without changing anything and without a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from fluss.storage import files
from fluss.storage.index import Checkpoint, OffsetIndex
from fluss.storage.scan import CorruptBatchError, scan
from fluss.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, WRITERS_SUFFIX, list_base_offsets, segment_path
from fluss.storage.writers import WriterTable

_PROGRESS_BYTES: Final = 4 << 20


class LogCheck(NamedTuple):
    """What a log has; from the first damage on nothing more is known of it."""

    start_offset: int = 0
    end_offset: int = 0
    batch_count: int = 0
    size_bytes: int = 0
    damage: CorruptBatchError | None = None
    # A tail behind the last checkpoint that is no whole batch: of a write that was under way, and never acknowledged.
    torn: CorruptBatchError | None = None
    torn_bytes: int = 0
    stale: tuple[Path, ...] = ()  # index and writers files that can't be used; they are rebuilt


def log_size_bytes(directory: Path) -> int:
    """Of all segments."""
    return sum(_size(segment_path(directory, base, LOG_SUFFIX)) for base in list_base_offsets(directory))


def check_log(directory: Path, on_bytes: Callable[[int], None] = lambda _: None) -> LogCheck:
    """Read every batch and compare its checksum; files that vanish meanwhile are not missed."""
    bases = list_base_offsets(directory)
    if not bases:
        return LogCheck()
    batch_count = size_bytes = 0
    offset = bases[0]
    stale: list[Path] = []
    for base, next_base in [*pairwise(bases), (bases[-1], None)]:
        segment = _Segment(directory, base)
        if not segment.path.exists():
            offset = base if next_base is None else next_base
            continue
        stale += segment.stale()
        try:
            for batch_bytes, next_offset in segment.batches(on_bytes):
                batch_count += 1
                size_bytes += batch_bytes
                offset = next_offset
            if next_base is not None and offset != next_base:
                reason = f"the file ends before offset {next_base}, where the next one begins"
                raise CorruptBatchError(segment.path, segment.size_bytes, reason)
        except CorruptBatchError as error:
            found = LogCheck(bases[0], offset, batch_count, size_bytes, stale=tuple(stale))
            if next_base is None and error.position >= segment.known_bytes and not segment.goes_on(error, offset):
                return found._replace(torn=error, torn_bytes=segment.size_bytes - error.position)
            return found._replace(damage=error)
    return LogCheck(bases[0], offset, batch_count, size_bytes, stale=tuple(stale))


class _Segment:
    def __init__(self, directory: Path, base_offset: int) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self.path = segment_path(directory, base_offset, LOG_SUFFIX)
        self.size_bytes = _size(self.path)
        self._checkpoint = self._read_checkpoint()
        # Up to here it was durable once.
        self.known_bytes = 0 if self._checkpoint is None else self._checkpoint.size_bytes

    def _read_checkpoint(self) -> Checkpoint | None:
        data = _read(segment_path(self._directory, self._base_offset, INDEX_SUFFIX))
        loaded = None if data is None else OffsetIndex.decode(data, self._base_offset)
        return None if loaded is None else loaded[1]

    def stale(self) -> Iterator[Path]:
        """Its index and writers files, if they are there and can't be used."""
        index = segment_path(self._directory, self._base_offset, INDEX_SUFFIX)
        if index.exists() and (self._checkpoint is None or self._checkpoint.size_bytes > self.size_bytes):
            yield index
        writers = segment_path(self._directory, self._base_offset, WRITERS_SUFFIX)
        data = _read(writers)
        if data is not None and WriterTable.decode(data) is None:
            yield writers

    def goes_on(self, bad: CorruptBatchError, offset: int) -> bool:
        """Whether a whole batch follows the bad one: then that is no interrupted write."""
        fd = files.open_existing(self.path, writable=False)
        try:
            position, header = next(scan(fd, self.path, bad.position, self.size_bytes, offset, verify=False))
            position += header.size_bytes
            return any(scan(fd, self.path, position, self.size_bytes, header.next_offset, verify=True))
        except CorruptBatchError:
            return False
        finally:
            files.close(fd)

    def batches(self, on_bytes: Callable[[int], None]) -> Iterator[tuple[int, int]]:
        """The size of each batch and the offset behind it."""
        fd = files.open_existing(self.path, writable=False)
        unseen_bytes = 0
        try:
            if self.known_bytes > self.size_bytes:
                reason = f"the file has {self.size_bytes} bytes but once had {self.known_bytes}"
                raise CorruptBatchError(self.path, self.size_bytes, reason)
            for _, header in scan(fd, self.path, 0, self.size_bytes, self._base_offset, verify=True):
                yield header.size_bytes, header.next_offset
                unseen_bytes += header.size_bytes
                if unseen_bytes >= _PROGRESS_BYTES:
                    on_bytes(unseen_bytes)
                    unseen_bytes = 0
        finally:
            files.close(fd)
            on_bytes(unseen_bytes)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
