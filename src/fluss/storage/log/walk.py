"""Walking the batches of a segment file, with checks.

A batch is good when its header makes sense, it ends within the file, its base offset is the one expected next, and,
where asked, its checksum holds. Length, magic, base offset, commit time and epoch are outside the checksum: the first
two break the walk when wrong, the third is caught by density, and the index has a checksum of them all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fluss.formats.batches.log_batch import (
    HEADER_SIZE_BYTES_MAX,
    BatchHeader,
    head_checksum,
    parse_header,
    verify_crc,
    walk,
)
from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.storage import files

_WINDOW_VERIFY_BYTES: Final = 4 * 1024 * 1024
_WINDOW_HEADERS_BYTES: Final = 8 * 1024
ALL_BATCHES: Final = sys.maxsize


class CorruptBatchError(CorruptDataError):
    """A batch on disk is bad. CORRUPT_MESSAGE makes readers raise; the storage codes would make them retry for ever."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{files.shown(path)}: corrupt batch at byte {position}: {reason}", ErrorCode.CORRUPT_MESSAGE)
        self.path = path
        self.position = position

    def __reduce__(self) -> tuple[type[CorruptDataError], tuple[str, int]]:
        return CorruptDataError, (self.message, self.error_code)


class WrongHeadsError(CorruptBatchError):
    """Commit times, or what else a batch's own checksum leaves out, are not what they were from a position on."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__(path, position, "the checksum of commit times from here on is wrong")


def _reason(error: CorruptDataError) -> str:
    # The format layer's text begins with a position within its buffer, which means nothing here.
    return error.message.partition(": ")[2] or error.message


def scan(
    fd: int,
    path: Path,
    position: int,
    end: int,
    offset: int,
    *,
    verify: bool,
    read_at: Callable[[int, int, int], bytes] = files.read_at,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield each batch from `position` to `end`, the first beginning at `offset`; a bad one raises CorruptBatchError.

    With `verify` every byte is read and every checksum compared; without, only headers are read.
    """
    window_bytes = _WINDOW_VERIFY_BYTES if verify else _WINDOW_HEADERS_BYTES
    window, window_start = b"", position
    while position < end:
        at = position - window_start
        if at + HEADER_SIZE_BYTES_MAX > len(window):
            window, window_start, at = read_at(fd, min(window_bytes, end - position), position), position, 0
        try:
            header = parse_header(window, at)
            _check_place(header, position, end, offset)
            if verify:
                if at + header.size_bytes > len(window):
                    wanted = min(max(window_bytes, header.size_bytes), end - position)
                    window, window_start, at = read_at(fd, wanted, position), position, 0
                verify_crc(window, at, header)
        except CorruptDataError as error:
            raise CorruptBatchError(path, position, _reason(error)) from None
        yield position, header
        position += header.size_bytes
        offset = header.next_offset


def _check_place(header: BatchHeader, position: int, end: int, offset: int) -> None:
    if header.base_offset != offset:
        raise CorruptDataError(f"log batch: base offset is {header.base_offset}, {offset} should follow here")
    if position + header.size_bytes > end:
        raise CorruptDataError(f"log batch: {header.size_bytes} bytes announced, {end - position} are left")


def check(
    data: bytes,
    path: Path,
    position: int,
    offset: int,
    heads_at: Callable[[int], int | None] = lambda _: None,
    batches_max: int = ALL_BATCHES,
) -> tuple[int, CorruptBatchError | None]:
    """Verify batches read from `position`: how many bytes are good, and what is wrong after them.

    `heads_at` tells the checksum of the heads of all batches before a position, where the index has one; bytes between
    two such positions are good when it fits. After `batches_max` batches it ends at the next such position.
    """
    good = checked = 0
    heads = heads_at(position)
    try:
        for count, (at, header) in enumerate(walk(data), 1):
            _check_place(header, at, len(data), offset)
            verify_crc(data, at, header)
            good = at + header.size_bytes
            offset = header.next_offset
            if heads is not None:
                heads = head_checksum(header, header.base_offset, header.commit_timestamp_ms, heads)
                expected = heads_at(position + good)
                if expected is None:
                    continue
                if expected != heads:
                    return checked, WrongHeadsError(path, position + checked)
                checked = good
            if count >= batches_max:
                return good, None
        if good < len(data):
            raise CorruptDataError(f"log batch: a batch is cut after {len(data) - good} bytes")
    except CorruptDataError as error:
        return good, CorruptBatchError(path, position + good, _reason(error))
    return good, None
