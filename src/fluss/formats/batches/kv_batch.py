"""The kv record batch: what a writer puts into a bucket of a primary-key table, upserts and deletes by encoded key.

It travels only; a server takes it apart and writes a log batch, the changelog, and the table itself.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.batches.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID, BufferLike, crc32c
from fluss.formats.rows.codecs import rows_of, view_of
from fluss.model.errors import CorruptDataError, ErrorCode

_HEADER: Final = struct.Struct(
    "<"
    "i"  # length: bytes after this field
    "b"  # magic: layout of what follows
    "I"  # CRC-32C of everything after this field
    "h"  # schema id of all rows
    "B"  # attributes: none are known
    "q"  # writer id: -1 = not idempotent
    "i"  # batch sequence of that writer: -1 = not idempotent
    "i"  # record count
)
_CRC: Final = struct.Struct("<I")
_WRITER: Final = struct.Struct("<qi")
_SCHEMA_ID: Final = struct.Struct("<h")

_MAGIC: Final = 0
_LENGTH_PREFIX_BYTES: Final = 4  # what the length field does not count
_CRC_AT: Final = 5
_CRC_START: Final = 9
_WRITER_AT: Final = 12
HEADER_SIZE_BYTES: Final = _HEADER.size

# A record of a few bytes becomes two Python objects: 100 bytes and more.
RECORD_COUNT_MAX: Final = 1 << 20


class KvBatchHeader(NamedTuple):
    length: int
    magic: int
    crc: int
    schema_id: int
    attributes: int
    writer_id: int
    batch_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return _LENGTH_PREFIX_BYTES + self.length


class KvRecords(NamedTuple):
    """The records of a batch in order: keys, and what is to be stored there; None is a delete."""

    keys: list[bytes]
    values: list[bytes | None]


def encode_records(keys: pa.BinaryArray, rows: pa.BinaryArray) -> bytearray:
    """The records of encoded keys and rows; a null row is a delete."""
    if len(keys) != len(rows):
        raise ValueError(f"{len(keys)} keys for {len(rows)} rows")
    if keys.null_count:
        raise ValueError("a key is null")
    validity = view_of(rows.buffers()[0]) if rows.null_count else None
    return kernel.join_kv_records(rows_of(keys), rows_of(rows), validity, rows.offset, len(rows))


def encode_header(
    records: bytes | bytearray,
    *,
    schema_id: int,
    record_count: int,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
) -> bytearray:
    """All of a batch that lies before its records."""
    if record_count > RECORD_COUNT_MAX:
        raise ValueError(f"{record_count} records; a kv batch has at most {RECORD_COUNT_MAX}")
    length = HEADER_SIZE_BYTES - _LENGTH_PREFIX_BYTES + len(records)
    header = bytearray(_HEADER.pack(length, _MAGIC, 0, schema_id, 0, writer_id, batch_sequence, record_count))
    _set_crc(header, records)
    return header


def set_writer(header: bytearray | memoryview, writer_id: int, batch_sequence: int, records: BufferLike) -> None:
    """Give a batch of ours its idempotence identity, in place, and renew the checksum."""
    _WRITER.pack_into(header, _WRITER_AT, writer_id, batch_sequence)
    _set_crc(header, records)


def _set_crc(header: bytearray | memoryview, records: BufferLike) -> None:
    _CRC.pack_into(header, _CRC_AT, crc32c(records, crc32c(memoryview(header)[_CRC_START:])))


def parse_header(buf: BufferLike) -> KvBatchHeader:
    """Read and check the header of the one batch that `buf` is, checksum included.

    A bad checksum has code 14: the bytes may have been damaged on their way. All else has one that no client retries.
    """
    if len(buf) < HEADER_SIZE_BYTES:
        raise _malformed(f"a header takes {HEADER_SIZE_BYTES} bytes, {len(buf)} are there")
    header = KvBatchHeader(*_HEADER.unpack_from(buf))
    if header.magic != _MAGIC:
        raise _malformed(f"magic {header.magic} is not known, only {_MAGIC} is")
    if header.size_bytes != len(buf):
        raise _malformed(f"{header.size_bytes} bytes announced, {len(buf)} are there")
    actual = crc32c(memoryview(buf)[_CRC_START:])
    if actual != header.crc:
        raise CorruptDataError(f"kv batch: CRC-32C is {actual:08x}, the header says {header.crc:08x}")
    if header.attributes:
        raise _malformed(f"attributes {header.attributes} are not known")
    if not 0 <= header.record_count <= RECORD_COUNT_MAX:
        raise _malformed(f"{header.record_count} records, where at most {RECORD_COUNT_MAX} may be")
    return header


def _malformed(text: str) -> CorruptDataError:
    return CorruptDataError(f"kv batch: {text}", ErrorCode.UNSUPPORTED_VERSION)


def decode_records(buf: BufferLike, header: KvBatchHeader) -> KvRecords:
    """Keys and the values to store: each row behind the schema id of the batch."""
    prefix = _SCHEMA_ID.pack(header.schema_id)
    records = memoryview(buf)[HEADER_SIZE_BYTES:]
    return KvRecords(*kernel.split_kv_records(records, header.record_count, prefix))
