"""Files of a RocksDB database, read and checked without opening it: manifests and tables (SST files).

To open a database for this would push others out of the pool, begin compactions, and check only the blocks that an
iteration meets. Here every byte of a table is covered: its blocks lie one behind the other, each with a checksum, and
the blocks that its footer, index and metaindex name must fill the file.

A manifest names only tables that are whole and synced. What a killed process was writing is not among them, and one
that is open may grow while it is read: a record that is cut off at its end does not count.

The checksums of a manifest are also compared before RocksDB reads it. RocksDB reads a manifest with bytes behind its
last record for ever, and holds the GIL meanwhile: the whole server would stand still. The file is a few KB, in blocks
of 32 KiB with records that do not cross them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from fluss.formats.batches.log_batch import crc32c

CURRENT_NAME: Final = "CURRENT"
TABLE_FORMAT_VERSION: Final = 5
BLOCK_TRAILER_BYTES: Final = 5  # kind of compression, checksum
_READ_BYTES: Final = 256 << 10

_FOOTER: Final = struct.Struct("<B40sIQ")  # kind of checksum, handles of metaindex and index, version, magic
_TABLE_MAGIC: Final = 0x88E241B785F4CFF7
_CHECKSUM_CRC32C: Final = 1
_U32: Final = struct.Struct("<I")
_MASK_DELTA: Final = 0xA282EAD8

_RECORD: Final = struct.Struct("<IHB")  # checksum, size, kind; records lie in blocks
_RECORD_BLOCK_BYTES: Final = 32 << 10
_WHOLE, _FIRST, _LAST = 1, 2, 4
_KINDS: Final = range(1, 5)  # a whole record, or its first, middle and last part
# What an edit in the manifest is made of. Tags with this bit may be passed over by whoever does not know them.
_IGNORABLE: Final = 1 << 13
_TEXT_TAGS: Final = frozenset({1, 201})
_NUMBER_TAGS: Final = frozenset({2, 3, 4, 9, 10, 200, 203, 300})
_FLAG_TAGS: Final = frozenset({202})
_CURSOR_TAG: Final = 5
_DELETED_TAG: Final = 6
_ADDED_TAG: Final = 103
_ADDED_END: Final = 1

# Size and position: the bytes, fewer only at the end of the file.
ReadAt: TypeAlias = Callable[[int, int], bytes]


class DamagedRocksFileError(Exception):
    """A file is not what RocksDB wrote."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"damaged at byte {position}: {reason}")
        self.position = position


class UnknownEditError(Exception):
    """A manifest has something that this module does not know, which is not damage."""


class _Block(NamedTuple):
    position: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.position + self.size_bytes + BLOCK_TRAILER_BYTES


def manifest_name(current: bytes) -> str:
    """The manifest that the file CURRENT names."""
    name = current.removesuffix(b"\n").decode("ascii", "replace")
    if not name.startswith("MANIFEST-") or not name[9:].isdigit() or not current.endswith(b"\n"):
        raise DamagedRocksFileError(0, f"{current[:40]!r} names no manifest")
    return name


def table_name(number: int) -> str:
    return f"{number:06d}.sst"


class StoreManifest:
    """The tables of a database, by number, with their sizes in bytes."""

    def __init__(self, data: bytes) -> None:
        self.tables: dict[int, int] = {}
        self._data = data
        self.cut_at: int | None = None  # where a record begins that is not all there
        for record in self._records():
            try:
                _apply(record, self.tables)
            except IndexError:
                raise UnknownEditError("an edit ends too early") from None

    def _records(self) -> Iterator[bytes]:
        parts: list[bytes] = []
        for part in _parts(self._data):
            if part.problem is None:
                parts = [part.content] if part.kind in (_WHOLE, _FIRST) else [*parts, part.content]
                if part.kind in (_WHOLE, _LAST):
                    yield b"".join(parts)
            elif part.is_cut:
                self.cut_at = part.position
            else:
                raise DamagedRocksFileError(part.position, part.problem)


class _Part(NamedTuple):
    """A record of a manifest, or a part of one; or what there is in its place, with which a walk ends."""

    position: int
    kind: int = 0
    content: bytes = b""
    problem: str | None = None
    is_cut: bool = False  # the file ends within it, as while it is being written


def _parts(data: bytes) -> Iterator[_Part]:
    position = 0
    while position < len(data):
        left_bytes = _RECORD_BLOCK_BYTES - position % _RECORD_BLOCK_BYTES
        if left_bytes < _RECORD.size:
            position += left_bytes
            continue
        start = position + _RECORD.size
        if start > len(data):
            yield _Part(position, problem="a record is cut off", is_cut=True)
            return
        crc, size_bytes, kind = _RECORD.unpack_from(data, position)
        end = start + size_bytes
        if end > len(data) and size_bytes <= left_bytes - _RECORD.size:
            yield _Part(position, problem="a record is cut off", is_cut=True)
            return
        if kind not in _KINDS or crc != masked_crc(crc32c(data[start - 1 : end])):
            yield _Part(position, problem="the checksum of a record does not fit")
            return
        yield _Part(position, kind, data[start:end])
        position = end


def _apply(record: bytes, tables: dict[int, int]) -> None:
    at = _Cursor(record)
    while not at.is_at_end:
        tag = at.number()
        if tag == _ADDED_TAG:
            at.number()  # level
            number, size_bytes = at.number(), at.number()
            at.skip_added()
            tables[number] = size_bytes
        elif tag == _DELETED_TAG:
            at.number()
            tables.pop(at.number(), None)
        elif tag in _NUMBER_TAGS:
            at.number()
        elif tag in _TEXT_TAGS or tag & _IGNORABLE:
            at.text()
        elif tag == _CURSOR_TAG:
            at.number()
            at.text()
        elif tag not in _FLAG_TAGS:
            raise UnknownEditError(f"edit with tag {tag}")


def check_table(read_at: ReadAt, size_bytes: int) -> None:
    """Read all of a table file and compare every checksum; raises DamagedRocksFileError."""
    footer_at = size_bytes - _FOOTER.size
    if footer_at < 0:
        raise DamagedRocksFileError(size_bytes, "the file is too short")
    kind, handles, version, magic = _FOOTER.unpack(read_at(_FOOTER.size, footer_at))
    if (kind, version, magic) != (_CHECKSUM_CRC32C, TABLE_FORMAT_VERSION, _TABLE_MAGIC):
        raise DamagedRocksFileError(footer_at, "the footer is not one of a table")
    try:
        at = _Cursor(handles)
        metaindex, index = at.block(), at.block()
        if at.rest().strip(b"\0"):
            raise DamagedRocksFileError(footer_at, "the footer has bytes that nobody wrote")
        blocks = [metaindex, index]
        blocks += _named_by_metaindex(_read_block(read_at, metaindex, footer_at))
        blocks += _named_by_index(_read_block(read_at, index, footer_at))
    except (IndexError, struct.error):
        raise DamagedRocksFileError(footer_at, "the index names no blocks") from None
    _check_blocks(read_at, sorted(blocks), footer_at)


def _read_block(read_at: ReadAt, block: _Block, end: int) -> bytes:
    if block.end > end:
        raise DamagedRocksFileError(block.position, "a block reaches beyond the file")
    data = read_at(block.size_bytes + BLOCK_TRAILER_BYTES, block.position)
    _check_block(data, 0, block)
    return data[: block.size_bytes]


def _check_block(window: bytes, at: int, block: _Block) -> None:
    end = at + block.size_bytes + 1
    if len(window) < end + _U32.size:
        raise DamagedRocksFileError(block.position, "the file ends within a block")
    (crc,) = _U32.unpack_from(window, end)
    if crc != masked_crc(crc32c(memoryview(window)[at:end])):
        raise DamagedRocksFileError(block.position, "the checksum of a block does not fit")


def _check_blocks(read_at: ReadAt, blocks: list[_Block], end: int) -> None:
    window, window_start, position = b"", 0, 0
    for block in blocks:
        if block.position != position:
            raise DamagedRocksFileError(position, f"a block should begin here, the next one begins at {block.position}")
        if block.end > end:
            raise DamagedRocksFileError(position, "a block reaches beyond the file")
        if block.end > window_start + len(window):
            window = read_at(min(max(_READ_BYTES, block.end - position), end - position), position)
            window_start = position
        _check_block(window, position - window_start, block)
        position = block.end
    if position != end:
        raise DamagedRocksFileError(position, "no block covers what follows")


def _named_by_metaindex(content: bytes) -> list[_Block]:
    found = []
    at = _Cursor(content, _entries_end(content))
    while not at.is_at_end:
        at.number()
        key_bytes, value_bytes = at.number(), at.number()
        at.skip(key_bytes)
        found.append(_Cursor(at.take(value_bytes)).block())
    return found


def _named_by_index(content: bytes) -> list[_Block]:
    """Data blocks. Where an entry shares bytes with the one before, its handle is told as a difference, too."""
    found: list[_Block] = []
    at = _Cursor(content, _entries_end(content))
    while not at.is_at_end:
        shared_bytes = at.number()
        at.skip(at.number())
        if not shared_bytes:
            found.append(at.block())
        else:
            change = at.number()
            size_bytes = found[-1].size_bytes + (change >> 1 ^ -(change & 1))
            found.append(_Block(found[-1].end, size_bytes))
    return found


def _entries_end(content: bytes) -> int:
    """The position where the entries of a block end, and the list of restarts begins."""
    restarts = int.from_bytes(content[-_U32.size :], "little")
    return max(0, len(content) - _U32.size * (restarts + 1))


class _Cursor:
    """Reads numbers of variable length, and texts behind their length."""

    def __init__(self, data: bytes, end: int | None = None) -> None:
        self._data = data
        self._at = 0
        self._end = len(data) if end is None else end

    @property
    def is_at_end(self) -> bool:
        return self._at >= self._end

    def number(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def block(self) -> _Block:
        return _Block(self.number(), self.number())

    def take(self, size_bytes: int) -> bytes:
        start = self._at
        self._at += size_bytes
        return self._data[start : self._at]

    def skip(self, size_bytes: int) -> None:
        self._at += size_bytes

    def rest(self) -> bytes:
        return self._data[self._at : self._end]

    def text(self) -> None:
        self.skip(self.number())

    def skip_added(self) -> None:
        """What follows number and size of a table that was added: keys, numbers, and fields up to an end mark."""
        self.text()
        self.text()
        self.number()
        self.number()
        while self.number() != _ADDED_END:
            self.text()


def manifest_problem(directory: Path) -> str | None:
    """What is wrong with the manifest of a database; None: nothing, or RocksDB will say it."""
    try:
        name = (directory / CURRENT_NAME).read_text(errors="replace").strip()
        data = (directory / Path(name).name).read_bytes()
    except (OSError, ValueError):
        return None
    bad = next((part for part in _parts(data) if part.problem is not None), None)
    return None if bad is None else f"Corruption: {name} has a bad record at byte {bad.position}"


def masked_crc(crc: int) -> int:
    """A CRC-32C as RocksDB's files have it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
