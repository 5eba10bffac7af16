"""The log record batch, which travels on the wire and lies in segments, byte for byte the same; its checksum.

Offsets and the commit time are outside the checksum, so a server stamps them into a batch without touching the rest.
A payload is copied only by `encode_batch`; whoever can send parts takes `encode_header` and the payload as it is.

Magic 0 is what is written. Magic 1 has a statistics block between header and rows and is written with statistics only.
Magic 2 is magic 1 with a leader epoch in front of the checksum. Apache Fluss 0.9 had another magic 1, which it never
wrote by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fluss.model.errors import CorruptDataError

_Checksum: TypeAlias = Callable[[bytes | bytearray | memoryview, int], int]

_loaded: _Checksum | None = None


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The checksum of bytes, or of those before them, whose checksum is `crc`, and these."""
    return (_loaded or _load())(data, crc)


def _load() -> _Checksum:
    # Loaded for the first checksum: the package loads what reads package metadata and command lines, 2.5 MB that an
    # idle server does without. Kept here: to import it again takes longer than the checksum of a small batch.
    global _loaded
    from crc32c import crc32c as checksum

    _loaded = checksum
    return checksum


if TYPE_CHECKING:
    import pyarrow as pa

    PayloadLike: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

BufferLike: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = 0
MAGIC_WITH_STATISTICS: Final = 1
_MAGIC_WITH_EPOCH: Final = 2
ATTRIBUTE_APPEND_ONLY: Final = 0x01
NO_WRITER_ID: Final = -1
NO_BATCH_SEQUENCE: Final = -1

_PREFIX_FORMAT: Final = (
    "<"
    "q"  # base offset: stamped by the server, 0 from a client
    "i"  # length: bytes after this field
    "b"  # magic: layout of what follows
    "q"  # commit timestamp in ms: stamped by the server, 0 from a client
)
_EPOCH_FORMAT: Final = "i"  # leader epoch: in magic 2, of no use to a single server
_CONTENT_FORMAT: Final = (
    "I"  # CRC-32C of everything after this field
    "h"  # schema id
    "B"  # attributes: bit 0 = append-only, there is no change-type vector
    "i"  # last offset delta: record count - 1, but 0 for an empty batch, which still takes one offset
    "q"  # writer id: -1 = not idempotent
    "i"  # batch sequence of that writer: -1 = not idempotent
    "i"  # record count
)
_STATISTICS_FORMAT: Final = "i"  # length of the statistics block: in magic 1 and 2
_HEADER: Final = struct.Struct(_PREFIX_FORMAT + _CONTENT_FORMAT)
_HEADER_1: Final = struct.Struct(_PREFIX_FORMAT + _CONTENT_FORMAT + _STATISTICS_FORMAT)
_HEADER_2: Final = struct.Struct(_PREFIX_FORMAT + _EPOCH_FORMAT + _CONTENT_FORMAT + _STATISTICS_FORMAT)
_HEADERS: Final = (_HEADER, _HEADER_1, _HEADER_2)  # by magic
_BASE_OFFSET: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<i")
_COMMIT_TIMESTAMP: Final = struct.Struct("<q")
_CRC: Final = struct.Struct("<I")
_WRITER: Final = struct.Struct("<qi")
# What the checksum of a batch leaves out, and the checksum itself.
_HEAD: Final = struct.Struct("<qibqIi")
_EPOCH_FIELD: Final = 4

HEADER_SIZE_BYTES: Final = _HEADER.size  # of magic 0, the shortest
HEADER_SIZE_BYTES_MAX: Final = _HEADER_2.size
LENGTH_PREFIX_BYTES: Final = 12  # base offset and length: what the length field does not count
LENGTH_MIN_BYTES: Final = HEADER_SIZE_BYTES - LENGTH_PREFIX_BYTES

_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 12
_COMMIT_TIMESTAMP_AT: Final = 13
_CRC_AT: Final = 21  # in magic 0 and 1
_CRC_START: Final = 25
_CRC_START_2: Final = 29
_WRITER_AT: Final = 32  # in magic 0 and 1
_STATISTICS_LENGTH_BYTES: Final = 4

CHANGE_TYPE_MAX: Final = 4


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    magic: int
    commit_timestamp_ms: int
    crc: int
    schema_id: int
    attributes: int
    last_offset_delta: int
    writer_id: int
    batch_sequence: int
    record_count: int
    statistics_size_bytes: int = 0
    leader_epoch: int = 0

    @property
    def header_size_bytes(self) -> int:
        """Up to the statistics block, or to the rows where there is none."""
        return _HEADERS[self.magic].size

    @property
    def size_bytes(self) -> int:
        return LENGTH_PREFIX_BYTES + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def append_only(self) -> bool:
        return self.attributes & ATTRIBUTE_APPEND_ONLY != 0


_make: Final = BatchHeader._make


def parse_header(buf: BufferLike, position: int = 0) -> BatchHeader:
    """Read and check the header at `position`; the batch itself may be longer than `buf`."""
    left_bytes = len(buf) - position
    if position < 0 or left_bytes < HEADER_SIZE_BYTES:
        raise _cut_header(position, HEADER_SIZE_BYTES, left_bytes)
    if buf[position + _MAGIC_AT]:
        header = _parse_with_statistics(buf, position, left_bytes)
    else:
        header = _make((*_HEADER.unpack_from(buf, position), 0, 0))
    problem = _header_problem(header)
    if problem is not None:
        raise CorruptDataError(f"log batch at byte {position}: {problem}")
    return header


def _parse_with_statistics(buf: BufferLike, position: int, left_bytes: int) -> BatchHeader:
    magic = buf[position + _MAGIC_AT]
    if magic > _MAGIC_WITH_EPOCH:
        raise CorruptDataError(
            f"log batch at byte {position}: magic {magic} is not known, only 0 to {_MAGIC_WITH_EPOCH} are"
        )
    layout = _HEADERS[magic]
    if left_bytes < layout.size:
        raise _cut_header(position, layout.size, left_bytes)
    fields = layout.unpack_from(buf, position)
    if magic == _MAGIC_WITH_EPOCH:
        return _make((*fields[:_EPOCH_FIELD], *fields[_EPOCH_FIELD + 1 :], fields[_EPOCH_FIELD]))
    return _make((*fields, 0))


def _cut_header(position: int, size_bytes: int, left_bytes: int) -> CorruptDataError:
    return CorruptDataError(
        f"log batch at byte {position}: a header takes {size_bytes} bytes, {max(left_bytes, 0)} are left"
    )


def _header_problem(header: BatchHeader) -> str | None:
    room_bytes = header.length - LENGTH_MIN_BYTES
    count = header.record_count
    if header.magic:
        room_bytes = header.size_bytes - header.header_size_bytes - header.statistics_size_bytes
        if header.statistics_size_bytes < 0:
            return f"statistics of {header.statistics_size_bytes} bytes"
    if room_bytes < 0:
        return f"length {header.length} is less than its header and statistics take"
    if count < 0:
        return f"record count {count} is negative"
    if header.last_offset_delta != (count - 1 if count else 0):
        return f"last offset delta {header.last_offset_delta} does not fit {count} records"
    if room_bytes < count and not header.append_only:
        return f"length {header.length} has no room for {count} change types"
    return None


def verify_crc(buf: BufferLike, position: int, header: BatchHeader) -> None:
    """Raise `CorruptDataError` unless the whole batch is in `buf` and its checksum holds."""
    end = position + header.size_bytes
    if end > len(buf):
        raise CorruptDataError(
            f"log batch at byte {position}: {header.size_bytes} bytes announced, {len(buf) - position} are left"
        )
    start = position + (_CRC_START_2 if header.magic == _MAGIC_WITH_EPOCH else _CRC_START)
    actual = crc32c(memoryview(buf)[start:end])
    if actual != header.crc:
        raise CorruptDataError(
            f"log batch at byte {position} (base offset {header.base_offset}): "
            f"CRC-32C is {actual:08x}, the header says {header.crc:08x}"
        )


def head_checksum(header: BatchHeader, base_offset: int, commit_timestamp_ms: int, before: int = 0) -> int:
    """The checksum of what `crc` leaves out of a batch, behind those of the batches before it."""
    epoch = header.leader_epoch
    return crc32c(_HEAD.pack(base_offset, header.length, header.magic, commit_timestamp_ms, header.crc, epoch), before)


def encode_header(
    payload: PayloadLike,
    *,
    schema_id: int,
    record_count: int,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
    change_types: bytes | bytearray | None = None,
    append_only: bool | None = None,
    statistics: bytes = b"",
) -> bytearray:
    """All of a batch that lies before its payload.

    Without `change_types` the batch is append-only, or its rows say what they are and `append_only` is False. With
    `statistics`, as `statistics.encode` makes them, the batch is of magic 1.
    """
    payload_bytes = memoryview(payload).nbytes
    if record_count == 0 and payload_bytes:
        raise ValueError("a batch without records has no payload")
    if change_types is not None and len(change_types) != record_count:
        raise ValueError(f"{len(change_types)} change types for {record_count} records")
    changes = b"" if change_types is None else change_types
    is_append_only = change_types is None if append_only is None else append_only
    attributes = ATTRIBUTE_APPEND_ONLY if is_append_only else 0
    delta = record_count - 1 if record_count else 0
    length = LENGTH_MIN_BYTES + len(changes) + payload_bytes
    content = (schema_id, attributes, delta, writer_id, batch_sequence, record_count)
    if statistics:
        length += _STATISTICS_LENGTH_BYTES + len(statistics)
        header = bytearray(_HEADER_1.pack(0, length, MAGIC_WITH_STATISTICS, 0, 0, *content, len(statistics)))
        header += statistics
    else:
        header = bytearray(_HEADER.pack(0, length, MAGIC, 0, 0, *content))
    header += changes
    _set_crc(header, payload)
    return header


def encode_batch(
    payload: PayloadLike,
    *,
    schema_id: int,
    record_count: int,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
    change_types: bytes | bytearray | None = None,
    append_only: bool | None = None,
    statistics: bytes = b"",
) -> bytearray:
    """Put a batch together in one piece; an empty batch has no payload."""
    header = encode_header(
        payload,
        schema_id=schema_id,
        record_count=record_count,
        writer_id=writer_id,
        batch_sequence=batch_sequence,
        change_types=change_types,
        append_only=append_only,
        statistics=statistics,
    )
    return bytearray().join((header, payload))


def resized_header(buf: BufferLike, position: int, header: BatchHeader, rows_size_bytes: int) -> bytearray:
    """A copy of a header for a batch without statistics and with other rows; the checksum stays as it was."""
    size = header.header_size_bytes
    copy = bytearray(memoryview(buf)[position : position + size])
    _LENGTH.pack_into(copy, _LENGTH_AT, size - LENGTH_PREFIX_BYTES + rows_size_bytes)
    if header.magic:
        _LENGTH.pack_into(copy, size - _STATISTICS_LENGTH_BYTES, 0)
    return copy


def stamp(buf: bytearray | memoryview, position: int, base_offset: int, commit_timestamp_ms: int) -> None:
    """Set what the server decides, in place; the checksum does not cover it."""
    _BASE_OFFSET.pack_into(buf, position, base_offset)
    _COMMIT_TIMESTAMP.pack_into(buf, position + _COMMIT_TIMESTAMP_AT, commit_timestamp_ms)


def set_writer(buf: bytearray | memoryview, writer_id: int, batch_sequence: int, payload: PayloadLike = b"") -> None:
    """Give a batch of ours its idempotence identity, in place, and renew the checksum.

    `buf` is the single batch, or its header when `payload` is kept beside it.
    """
    _WRITER.pack_into(buf, _WRITER_AT, writer_id, batch_sequence)
    _set_crc(buf, payload)


def _set_crc(header: bytearray | memoryview, payload: PayloadLike) -> None:
    _CRC.pack_into(header, _CRC_AT, crc32c(payload, crc32c(memoryview(header)[_CRC_START:])))


def walk(buf: BufferLike, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every complete batch; a cut last batch ends the walk, a bad header raises."""
    end = len(buf)
    while end - position >= HEADER_SIZE_BYTES:
        if end - position < HEADER_SIZE_BYTES_MAX and _is_cut(buf, position, end):
            return
        header = parse_header(buf, position)
        following = position + header.size_bytes
        if following > end:
            return
        yield position, header
        position = following


def _is_cut(buf: BufferLike, position: int, end: int) -> bool:
    magic = buf[position + _MAGIC_AT]
    return magic <= _MAGIC_WITH_EPOCH and end - position < _HEADERS[magic].size


def payload_of(buf: BufferLike, position: int, header: BatchHeader) -> tuple[memoryview | None, memoryview]:
    """Views of the change-type vector (None when append-only) and of the payload behind it."""
    view = memoryview(buf)
    start = position + HEADER_SIZE_BYTES
    if header.magic:
        start = position + header.header_size_bytes + header.statistics_size_bytes
    end = position + header.size_bytes
    if header.append_only:
        return None, view[start:end]
    payload_start = start + header.record_count
    return view[start:payload_start], view[payload_start:end]


def statistics_of(buf: BufferLike, position: int, header: BatchHeader) -> memoryview:
    """The statistics block, for `statistics.decode`; empty where there is none."""
    start = position + header.header_size_bytes
    return memoryview(buf)[start : start + header.statistics_size_bytes]
