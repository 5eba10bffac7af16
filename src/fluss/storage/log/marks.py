"""The marks file: how far the catalog and each log were known to be safe, kept apart from both.

A file that lost its end looks like one that was never longer, and bad bytes at the end of a log look like a write that
was cut off. The mark tells them apart: it is written after a sync has returned and before anybody is told, so all that
was acknowledged lies before it. Whatever is wrong before a mark is damage; what lies behind it was never acknowledged.

A mark is written without a sync of its own, which would double the price of an acknowledgement. While the same system
runs, a killed process loses nothing of it: the mark is exact. After a restart of the system it is a lower bound, about
a second old, for so often the file is synced. The boot id tells which of the two holds.

The file consists of places with three slots of 64 bytes, each with a checksum and a number. A write goes neither to the
slot that is known to be on disk nor to the one that a sync is about to bring there: whatever becomes of a write, the
last synced mark stays. The first place is the catalog's, each other one a bucket's. A damaged slot says nothing, and
the next older one is a lower bound. All calls are made on the loop, but `sync` may run in a thread.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32  # CRC-32C would load a package that an idle server does without

from fluss.doors import randomness, threads
from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.failpoints import Site

_SLOT_BYTES: Final = 64
_SLOTS: Final = 3
_PLACE_BYTES: Final = _SLOTS * _SLOT_BYTES
_GROW_BYTES: Final = 160 * _PLACE_BYTES
UNKNOWN_HEADS: Final = 0
_CRC: Final = struct.Struct("<I")  # of the rest of the slot, which follows
# number, boot and mode, table id, partition id + 1, bucket id, heads, start offset, segment, position, end offset
_LOG: Final = struct.Struct("<IIIIIIqqqq4x")
# number, magic, is settled, generation, size, checksum
_CATALOG: Final = struct.Struct("<IIIqqI28x")
_CATALOG_MAGIC: Final = 0x54434C46
_BOOT_MASK: Final = (1 << 31) - 1
_SYNCED: Final = 1 << 31
_NUMBER_MASK: Final = (1 << 32) - 1


class Mark(NamedTuple):
    """What a log is known to have had."""

    start_offset: int
    segment_base_offset: int
    position: int  # of its end in that segment
    end_offset: int
    heads_checksum: int = UNKNOWN_HEADS  # of all batches of that segment
    is_exact: bool = True  # nothing behind it was acknowledged
    is_synced: bool = True  # it was on disk, and not in the system's memory alone

    @property
    def is_certain(self) -> bool:
        """Whether the log must still have all of it: a power cut takes what was not synced."""
        return self.is_synced or self.is_exact


class CatalogMark(NamedTuple):
    """What the catalog is known to have had."""

    generation: int
    is_settled: bool  # its file has the size and checksum that follow
    size_bytes: int = 0
    crc: int = 0


class _Place:
    """Three slots: where they lie, which ones are taken, and the number of the newest."""

    __slots__ = ("free", "newest", "number", "position", "synced", "syncing")

    def __init__(self, position: int, number: int = 0, synced: int | None = None) -> None:
        self.position = position
        self.number = number
        self.newest = synced or 0
        self.synced = synced
        self.syncing: int | None = None
        self.free = self._neither()  # the slot for the next write

    def _neither(self) -> int:
        return next(slot for slot in range(_SLOTS) if slot != self.synced and slot != self.syncing)

    def begin_sync(self) -> None:
        """What was written last is about to be on disk."""
        self.syncing = self.newest
        self.free = self._neither()

    def end_sync(self, *, is_synced: bool) -> None:
        """It is on disk, or that is not known. What was written meanwhile may be written over."""
        if is_synced:
            self.synced = self.syncing
        self.syncing = None


class _Known:
    """The mark of a bucket, and where it is written."""

    __slots__ = ("mark", "place")

    def __init__(self, place: _Place, mark: Mark) -> None:
        self.place = place
        self.mark = mark


# A bucket as the file has it: table, partition + 1 or 0, bucket. Its hash takes a fraction of a TableBucket's.
_Names: TypeAlias = tuple[int, int, int]


def _names(bucket: TableBucket) -> _Names:
    return bucket.table_id, 0 if bucket.partition_id is None else bucket.partition_id + 1, bucket.bucket_id


def _bucket(names: _Names) -> TableBucket:
    table_id, partition, bucket_id = names
    return TableBucket(table_id, bucket_id, partition - 1 if partition else None)


class Marks:
    def __init__(self, fd: int | None, content: bytes, boot: int) -> None:
        self._fd = fd
        self._boot = boot
        self._size_bytes = len(content)
        self._known: dict[_Names, _Known] = {}
        self._free: list[_Place] = []
        self._catalog_place = _Place(0)
        self._unsynced: set[_Place] = set()
        self._lock = threads.lock()  # of slots: `sync` runs in threads
        self._syncs = threads.lock()  # one at a time
        self.catalog: CatalogMark | None = None
        self.on_dirty: Callable[[], None] = lambda: None  # called when a sync is due
        self._load(content)

    @classmethod
    def open(cls, path: Path) -> Marks:
        """The marks in a file, which is made if it is not there."""
        try:
            fd = files.open_existing(path, writable=True)
        except FileNotFoundError:
            fd = files.create(path, Site.MARKS_CREATE)
            files.sync_directory(path.parent, Site.MARKS_CREATE)
        try:
            marks = cls(fd, files.read_at(fd, os.fstat(fd).st_size, 0), _boot_number())
            if not marks._size_bytes:
                marks._grow()
            marks.sync()  # A kill leaves marks that are in the system's memory alone.
        except BaseException:
            files.close(fd)
            raise
        return marks

    @classmethod
    def read(cls, path: Path) -> Marks:
        """The marks in a file that is only looked at; none if it is not there."""
        try:
            return cls(None, path.read_bytes(), _boot_number())
        except FileNotFoundError:
            return cls(None, b"", _boot_number())

    def _load(self, content: bytes) -> None:
        self._size_bytes -= len(content) % _PLACE_BYTES
        for position in range(0, self._size_bytes, _PLACE_BYTES):
            newest = _newest(content, position)
            if position == 0:
                self._load_catalog(content, newest)
            elif newest is None:
                self._free.append(_Place(position))
            else:
                self._load_log(content, position, newest)

    def _load_catalog(self, content: bytes, newest: int | None) -> None:
        if newest is not None:
            number, magic, settled, *rest = _CATALOG.unpack_from(content, newest * _SLOT_BYTES + _CRC.size)
            if magic == _CATALOG_MAGIC:
                self._catalog_place = _Place(0, number, newest)
                self.catalog = CatalogMark(rest[0], bool(settled), *rest[1:])

    def _load_log(self, content: bytes, position: int, newest: int) -> None:
        fields = _LOG.unpack_from(content, position + newest * _SLOT_BYTES + _CRC.size)
        number, boot, names, heads = fields[0], fields[1], fields[2:5], fields[5]
        start_offset, segment_base_offset, end_position, end_offset = fields[6:]
        place = _Place(position, number, newest)
        other = self._known.get(names)
        if other is not None:
            # A place was used again and that was lost in a power loss: the one with more is the newer.
            if other.mark.end_offset >= end_offset:
                self._free.append(_Place(position, number))
                return
            self._free.append(_Place(other.place.position, other.place.number))
        mark = Mark(
            start_offset,
            segment_base_offset,
            end_position,
            end_offset,
            heads,
            is_exact=boot & _BOOT_MASK == self._boot,
            is_synced=boot & _SYNCED != 0,
        )
        self._known[names] = _Known(place, mark)

    # --- what is known

    @property
    def buckets(self) -> Collection[TableBucket]:
        """Those with a mark."""
        return [_bucket(names) for names in self._known]

    def get(self, bucket: TableBucket) -> Mark | None:
        known = self._known.get(_names(bucket))
        return None if known is None else known.mark

    # --- writing

    def put(self, bucket: TableBucket, mark: Mark) -> None:
        """Write a mark of this boot; raises OSError when it can't be kept."""
        self._put(_names(bucket), mark)

    def _put(self, names: _Names, mark: Mark) -> None:
        known = self._known.get(names)
        place = self._free_place() if known is None else known.place
        start_offset, segment_base_offset, position, end_offset, heads, _, is_synced = mark
        boot = self._boot | _SYNCED if is_synced else self._boot
        number = (place.number + 1) & _NUMBER_MASK
        offsets = (start_offset, segment_base_offset, position, end_offset)
        self._write(place, number, _LOG.pack(number, boot, *names, heads, *offsets))
        if known is None:
            self._known[names] = _Known(self._free.pop(), mark)
        else:
            known.mark = mark

    def _free_place(self) -> _Place:
        if not self._free:
            self._grow()
        return self._free[-1]

    def put_catalog(self, mark: CatalogMark) -> None:
        """Write the mark of the catalog; raises OSError when it can't be kept."""
        generation, is_settled, size_bytes, crc = mark
        number = (self._catalog_place.number + 1) & _NUMBER_MASK
        body = _CATALOG.pack(number, _CATALOG_MAGIC, is_settled, generation, size_bytes, crc)
        self._write(self._catalog_place, number, body)
        self.catalog = mark

    def forget(self, bucket: TableBucket) -> None:
        """Drop the mark of a bucket that is gone."""
        names = _names(bucket)
        known = self._known.get(names)
        if known is None or self._fd is None:
            return
        place = known.place
        files.write_at(self._fd, bytes(_PLACE_BYTES), place.position, Site.MARKS_WRITE)
        del self._known[names]
        # Its numbers go on: should the zeros be lost, a later owner's mark still counts as the newer one.
        self._free.append(_Place(place.position, place.number))
        self.on_dirty()

    def _write(self, place: _Place, number: int, body: bytes) -> None:
        assert self._fd is not None, "these marks are only looked at"
        content = _CRC.pack(crc32(body)) + body
        with self._lock:
            slot = place.free
            files.write_at(self._fd, content, place.position + slot * _SLOT_BYTES, Site.MARKS_WRITE)
            place.newest = slot
            place.number = number
            is_first = not self._unsynced
            self._unsynced.add(place)
        if is_first:
            self.on_dirty()

    def _grow(self) -> None:
        """Make room with bytes that are written: a mark must not fail for want of space."""
        assert self._fd is not None, "these marks are only looked at"
        start = self._size_bytes
        files.write_at(self._fd, bytes(_GROW_BYTES), start, Site.MARKS_WRITE)
        self._size_bytes += _GROW_BYTES
        positions = range(max(start, _PLACE_BYTES), self._size_bytes, _PLACE_BYTES)
        self._free += map(_Place, reversed(positions))

    def sync(self) -> None:
        """Return when all marks that were put before are on disk."""
        if self._fd is None:
            return
        with self._syncs:
            with self._lock:
                places, self._unsynced = self._unsynced, set()
                for place in places:
                    place.begin_sync()
            is_synced = False
            try:
                files.sync(self._fd, Site.MARKS_WRITE)
                is_synced = True
            finally:
                with self._lock:
                    for place in places:
                        place.end_sync(is_synced=is_synced)
                    if not is_synced:
                        self._unsynced |= places

    def close(self) -> None:
        if self._fd is not None:
            files.close(self._fd)
            self._fd = None


class LogMark:
    """The mark of one log, for the log that writes it."""

    __slots__ = ("_bucket", "_marks", "_names")

    def __init__(self, marks: Marks, bucket: TableBucket) -> None:
        self._marks = marks
        self._bucket = bucket
        self._names = _names(bucket)

    @property
    def found(self) -> Mark | None:
        """What was written last."""
        return self._marks.get(self._bucket)

    def put(self, mark: Mark) -> None:
        """Note how far the log is safe."""
        self._marks._put(self._names, mark)

    def sync(self) -> None:
        """Return when the mark is on disk; may be called in a thread."""
        self._marks.sync()


def _newest(content: bytes, position: int) -> int | None:
    """Which slot of a place counts: of the good ones the one that was written last."""
    newest: int | None = None
    number = 0
    for slot in range(_SLOTS):
        found = _number(content, position + slot * _SLOT_BYTES)
        if found is not None and (newest is None or (found - number) & _NUMBER_MASK <= _NUMBER_MASK >> 1):
            newest, number = slot, found
    return newest


def _number(content: bytes, position: int) -> int | None:
    """The number of a good slot. One that was never written is not good: the checksum of zeros is not zero."""
    body = memoryview(content)[position + _CRC.size : position + _SLOT_BYTES]
    (crc,) = _CRC.unpack_from(content, position)
    if crc32(body) != crc:
        return None
    (number,) = _CRC.unpack_from(body)
    return int(number)


def _boot_number() -> int:
    """A number for the run of the system; where it does not tell its boot id, one that was never used."""
    return crc32(files.boot_id() or randomness.token_bytes(16)) & _BOOT_MASK
