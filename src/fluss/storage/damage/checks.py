"""Checks of a bucket's log and of RocksDB stores on disk, without changing anything and without a server.

A log should have all offsets from its start up to its safe end; recovery and this check take both from the same places.
What is bad or missing before the safe end is a hole; the good batches behind it are found, so that it is known what is
lost and what is left. What is bad behind the safe end was being written when the server ended.

RocksDB writes beside the files that it opens, even if it may only read. So a store, or a snapshot of one, is opened in
a directory of its own, with links to the large files, which RocksDB never writes to, and copies of the small ones.
There it opens as it would for the server.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from rocksdict import Rdict

from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES_MAX, BatchHeader, head_checksum, parse_header
from fluss.model.errors import CorruptDataError
from fluss.storage import files
from fluss.storage.kv.rocks import STATE_KEY, decode_state
from fluss.storage.kv.rocks_files import CURRENT_NAME, manifest_problem
from fluss.storage.kv.rocks_settings import META_FAMILY, Resources
from fluss.storage.kv.store import EMPTY, MEMORY_BYTES_MIN, DamagedKvStoreError, KvState
from fluss.storage.log.index import Checkpoint, CorruptBatchError, OffsetIndex, scan
from fluss.storage.log.marks import UNKNOWN_HEADS, Mark
from fluss.storage.log.recovery import SafeEnd, last_is_missing, safe_end
from fluss.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX, WRITERS_SUFFIX, list_base_offsets, segment_path
from fluss.storage.log.writer_state import WriterTable

OnBytes = Callable[[int], None]
_PROGRESS_BYTES: Final = 4 << 20


class Piece(NamedTuple):
    """Bytes of a segment: good batches in a row, or a hole where there should be some."""

    position: int
    end: int
    offset: int
    end_offset: int
    problem: CorruptBatchError | None = None  # of a hole
    batch_count: int = 0
    schema_id: int = 0  # of the last batch
    timestamp_ms: int = 0


class CheckedSegment(NamedTuple):
    """A segment that is there, or should be."""

    base_offset: int
    pieces: tuple[Piece, ...]  # without gaps between their offsets
    torn: CorruptBatchError | None = None
    torn_bytes: int = 0

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end_offset if self.pieces else self.base_offset

    @property
    def holes(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.problem is not None]


class LogCheck(NamedTuple):
    """What a log has."""

    segments: tuple[CheckedSegment, ...] = ()
    stale: tuple[Path, ...] = ()  # index and writers files that can't be used; they are rebuilt

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def end_offset(self) -> int:
        """Up to here the log has, or had, all offsets."""
        return self.segments[-1].end_offset if self.segments else 0

    @property
    def holes(self) -> list[Piece]:
        return [hole for segment in self.segments for hole in segment.holes]

    @property
    def damage(self) -> CorruptBatchError | None:
        """What is wrong with the first hole."""
        return next((hole.problem for hole in self.holes), None)

    @property
    def torn(self) -> CorruptBatchError | None:
        """A torn tail, not a whole batch: a write that was under way when the server ended."""
        return self.segments[-1].torn if self.segments else None

    @property
    def torn_bytes(self) -> int:
        return self.segments[-1].torn_bytes if self.segments else 0

    @property
    def batch_count(self) -> int:
        return sum(piece.batch_count for segment in self.segments for piece in segment.pieces)

    @property
    def size_bytes(self) -> int:
        """Size of the good batches."""
        return sum(piece.end - piece.position for segment in self.segments for piece in _good(segment.pieces))


def _good(pieces: tuple[Piece, ...]) -> Iterator[Piece]:
    return (piece for piece in pieces if piece.problem is None)


def log_size_bytes(directory: Path) -> int:
    """Size of all segments."""
    return sum(_size(segment_path(directory, base, LOG_SUFFIX)) for base in list_base_offsets(directory))


def check_log(
    directory: Path, on_bytes: OnBytes = lambda _: None, mark: Mark | None = None, end_offset_min: int = 0
) -> LogCheck:
    """Read every batch and compare its checksum; files that vanish meanwhile are not missed.

    `end_offset_min` is what others know of the log: it reached as far as that.
    """
    if mark is not None and not mark.is_certain:
        mark = None
    there = list_base_offsets(directory)
    bases = _with_missing(there, mark) or [0] * (end_offset_min > 0)
    segments: list[CheckedSegment] = []
    stale: list[Path] = []
    for base, next_base in [*pairwise(bases), *((base, None) for base in bases[-1:])]:
        segment = _SegmentFile(directory, base)
        if base in there and not segment.path.exists():
            continue  # Retention has just removed it.
        safe = safe_end(base, segment.checkpoint, mark, end_offset_min if next_base is None else 0)
        if next_base is None and base not in there:
            safe = safe._replace(end_offset=max(end_offset_min, 0 if mark is None else mark.end_offset))
        segments.append(_Walk(segment, next_base, safe, on_bytes).run())
        stale += segment.stale()
    return LogCheck(tuple(segments), tuple(stale))


def _with_missing(bases: list[int], mark: Mark | None) -> list[int]:
    """The segments, with those that the mark knows of; others that are missing show as holes in those before them."""
    if mark is None or (not bases and not mark.end_offset):
        return bases
    known = set(bases)
    if not bases or mark.start_offset < bases[0]:
        known.add(mark.start_offset)
    if last_is_missing(bases, mark):
        known.add(max(mark.segment_base_offset, mark.start_offset))
    return sorted(known)


class _SegmentFile:
    def __init__(self, directory: Path, base_offset: int) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, LOG_SUFFIX)
        self.size_bytes = _size(self.path)
        loaded = self._read_index()
        self.index = None if loaded is None else loaded[0]
        self.checkpoint = None if loaded is None else loaded[1]

    def _read_index(self) -> tuple[OffsetIndex | None, Checkpoint] | None:
        data = _read(segment_path(self._directory, self.base_offset, INDEX_SUFFIX))
        return None if data is None else OffsetIndex.decode(data, self.base_offset)

    def stale(self) -> Iterator[Path]:
        """Its index and writers files, if they are there and can't be used."""
        index = segment_path(self._directory, self.base_offset, INDEX_SUFFIX)
        if index.exists() and (self.checkpoint is None or self.checkpoint.size_bytes > self.size_bytes):
            yield index
        writers = segment_path(self._directory, self.base_offset, WRITERS_SUFFIX)
        data = _read(writers)
        if data is not None and WriterTable.decode(data) is None:
            yield writers


class _Walk:
    """One way through a segment. It is sealed if it has a next one, and then ends where that begins."""

    def __init__(self, segment: _SegmentFile, next_base: int | None, safe: SafeEnd, on_bytes: OnBytes) -> None:
        self._segment = segment
        self._is_sealed = next_base is not None
        self._safe = safe
        self._end_offset = safe.end_offset if next_base is None else next_base
        self._on_bytes = on_bytes
        self._unseen_bytes = 0
        self._pieces: list[Piece] = []
        self._position, self._offset = 0, segment.base_offset
        self._checkpoint_is_met = segment.checkpoint is None
        self._heads: int | None = 0  # None behind a hole
        self._wrong_heads_end: int | None = None  # a position up to which commit times are not what they were
        self._fd = -1

    def run(self) -> CheckedSegment:
        segment = self._segment
        torn: CorruptBatchError | None = None
        if not segment.path.exists():
            self._add_hole(0, self._end_offset, "the file is missing")
            return CheckedSegment(segment.base_offset, tuple(self._pieces))
        self._fd = files.open_existing(segment.path, writable=False)
        try:
            torn = self._walk()
        finally:
            files.close(self._fd)
            self._on_bytes(self._unseen_bytes)
        self._check_end()
        torn_bytes = 0 if torn is None else segment.size_bytes - torn.position
        return CheckedSegment(segment.base_offset, tuple(self._pieces), torn, torn_bytes)

    def _walk(self) -> CorruptBatchError | None:
        """Go to the end of the file, over holes; what is torn there is returned."""
        while True:
            try:
                self._go_on()
                return None
            except CorruptBatchError as error:
                if self._offset >= self._end_offset and not self._is_sealed:
                    return error
                found = self._next_good()
                if found is None:
                    self._pieces.append(self._hole(self._segment.size_bytes, self._end_offset, error))
                    return None
                position, header = found
                self._pieces.append(self._hole(position, header.base_offset, error))

    def _go_on(self) -> None:
        """Take good batches as far as they go."""
        first = self._position, self._offset
        header: BatchHeader | None = None
        count = 0
        size_bytes = self._segment.size_bytes
        try:
            for position, header in scan(
                self._fd, self._segment.path, self._position, size_bytes, self._offset, verify=True
            ):
                if self._is_sealed and header.next_offset > self._end_offset:
                    reason = f"the batch has offset {header.last_offset}, the next file begins at {self._end_offset}"
                    raise CorruptBatchError(self._segment.path, position, reason)
                count += 1
                self._position, self._offset = position + header.size_bytes, header.next_offset
                self._note(header)
        finally:
            if count and header is not None:
                position, offset = self._position, self._offset
                good = (count, header.schema_id, header.commit_timestamp_ms)
                self._pieces.append(Piece(first[0], position, first[1], offset, None, *good))

    def _note(self, header: BatchHeader) -> None:
        checkpoint = self._segment.checkpoint
        if checkpoint is not None and checkpoint[:2] == (self._position, self._offset):
            self._checkpoint_is_met = True
        if self._heads is not None:
            self._heads = head_checksum(header, header.base_offset, header.commit_timestamp_ms, self._heads)
            if self._wrong_heads_end is None and not self._heads_fit():
                self._wrong_heads_end = self._position
        self._unseen_bytes += header.size_bytes
        if self._unseen_bytes >= _PROGRESS_BYTES:
            self._on_bytes(self._unseen_bytes)
            self._unseen_bytes = 0

    def _heads_fit(self) -> bool:
        """Whether commit times and offsets so far are what index, checkpoint and mark say."""
        segment, safe = self._segment, self._safe
        known = [None if segment.index is None else segment.index.heads_at(self._position)]
        if segment.checkpoint is not None and segment.checkpoint.size_bytes == self._position:
            known.append(segment.checkpoint.heads_checksum)
        if safe.position == self._position and safe.heads_checksum != UNKNOWN_HEADS:
            known.append(safe.heads_checksum)
        return all(heads in (None, self._heads) for heads in known)

    def _next_good(self) -> tuple[int, BatchHeader] | None:
        """The first good batch behind a bad one: where that one ends by its own length, or at an entry of the index."""
        for position in self._places():
            header = self._good_at(position)
            if header is None or header.base_offset <= self._offset:
                continue
            # What was not acknowledged may follow the safe end, but nothing follows the end of a sealed segment.
            if (header.next_offset if self._is_sealed else header.base_offset) <= self._end_offset:
                return position, header
        return None

    def _places(self) -> Iterator[int]:
        try:
            yield self._position + parse_header(self._head(self._position)).size_bytes
        except CorruptDataError:
            pass
        if self._segment.index is not None:
            yield from self._segment.index.positions_behind(self._position)

    def _good_at(self, position: int) -> BatchHeader | None:
        size_bytes = self._segment.size_bytes
        try:
            offset = parse_header(self._head(position)).base_offset
            for _, header in scan(self._fd, self._segment.path, position, size_bytes, offset, verify=True):
                return header
        except CorruptDataError:
            pass
        return None

    def _head(self, position: int) -> bytes:
        return files.read_at(self._fd, HEADER_SIZE_BYTES_MAX, position)

    def _check_end(self) -> None:
        """Say what should be there and is not, and what recovery would stumble on though no offset is missing."""
        size_bytes, checkpoint = self._segment.size_bytes, self._segment.checkpoint
        if self._offset < self._end_offset:
            expected = "the next file begins at" if self._is_sealed else "the log reached"
            reason = f"the file ends at offset {self._offset}, {expected} {self._end_offset}"
            self._add_hole(size_bytes, self._end_offset, reason)
        elif any(piece.problem is not None for piece in self._pieces):
            return
        elif self._wrong_heads_end is not None:
            reason = f"the checksum of commit times up to byte {self._wrong_heads_end} is wrong"
            self._add_hole(size_bytes, self._offset, reason)
        elif self._is_sealed:
            return
        elif size_bytes < self._safe.position:
            self._add_hole(size_bytes, self._offset, f"the file has {size_bytes} bytes and had {self._safe.position}")
        elif checkpoint is not None and not self._checkpoint_is_met:
            reason = f"its index says that a batch ends at byte {checkpoint.size_bytes}, and none does"
            self._add_hole(size_bytes, self._offset, reason)

    def _add_hole(self, position: int, end_offset: int, reason: str) -> None:
        self._pieces.append(self._hole(position, end_offset, CorruptBatchError(self._segment.path, position, reason)))

    def _hole(self, end: int, end_offset: int, problem: CorruptBatchError) -> Piece:
        self._heads = None
        hole = Piece(self._position, end, self._offset, end_offset, problem)
        self._position, self._offset = end, end_offset
        return hole


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


_LARGE_SUFFIX: Final = ".sst"
_LEFT_OUT: Final = re.compile(r"LOCK|LOG(\..*)?")
_PAGE_ROWS: Final = 10_000


class StoreView:
    """A store that is only looked at. All that goes wrong is damage."""

    def __init__(self, path: Path, rows: Rdict) -> None:
        self._rows = rows
        self.state = self._read_state(path)

    def _read_state(self, path: Path) -> KvState:
        data: bytes | None = self._rows.get_column_family(META_FAMILY).get(STATE_KEY)
        if data is not None:
            return decode_state(data, path)
        if any(True for _ in self.values()):
            raise DamagedKvStoreError("it has rows but no offset")
        return EMPTY

    def values(self) -> Iterator[list[bytes]]:
        """All rows, a page at a time."""
        cursor = self._rows.iter()
        cursor.seek_to_first()
        page: list[bytes] = []
        while cursor.valid():
            page.append(cursor.value())
            if len(page) == _PAGE_ROWS:
                yield page
                page = []
            cursor.next()
        cursor.status()  # A damaged block ends an iteration as the last row does.
        if page:
            yield page


@contextmanager
def looked_at(path: Path) -> Iterator[StoreView]:
    """Open a store, to be read only; for one that is damaged, on the way or inside the block, raise that."""
    with TemporaryDirectory(prefix="fluss-store-") as temporary:
        copy = Path(temporary, path.name)
        try:
            _copy(path, copy)
            rows, families = Resources(MEMORY_BYTES_MIN).families()
            for options in (rows, *families.values()):
                options.set_disable_auto_compactions(True)
            database = Rdict(str(copy), rows, column_families=families)
            try:
                yield StoreView(path, database)
            finally:
                database.close()
        except DamagedKvStoreError:
            raise
        except Exception as error:
            raise DamagedKvStoreError(str(error).replace(str(copy), files.shown(path)).strip()) from error


def state_of(path: Path) -> KvState:
    """What a store covers; all of its rows are read. Raises DamagedKvStoreError for one that can't be used."""
    with looked_at(path) as store:
        for _ in store.values():
            pass
        return store.state


def _copy(path: Path, copy: Path) -> None:
    if not (path / CURRENT_NAME).exists():
        raise DamagedKvStoreError(f"it has no {CURRENT_NAME} file")  # RocksDB would make a new one.
    problem = manifest_problem(path)
    if problem is not None:
        raise DamagedKvStoreError(problem)
    copy.mkdir()
    for source in path.iterdir():
        if source.suffix == _LARGE_SUFFIX:
            os.symlink(source.absolute(), copy / source.name)
        elif not _LEFT_OUT.fullmatch(source.name):
            shutil.copyfile(source, copy / source.name)
