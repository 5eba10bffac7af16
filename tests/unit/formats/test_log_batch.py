from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c

from fluss.formats.batches import log_batch
from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES, BatchHeader
from fluss.model.errors import CorruptDataError
from tests.kit.formats.vectors import (
    LOG_EMPTY_APPEND_ONLY,
    LOG_EMPTY_CHANGELOG,
    LOG_EMPTY_CHANGELOG_SERVER,
    LOG_INDEXED_ROW,
    LOG_TWO_ROWS,
)


def _patched(batch: bytes, at: int, value: bytes) -> bytes:
    return batch[:at] + value + batch[at + len(value) :]


@pytest.mark.parametrize(
    ("change_types", "expected"), [(None, LOG_EMPTY_APPEND_ONLY), (b"", LOG_EMPTY_CHANGELOG)], ids=["append", "changes"]
)
def test_empty_batch_is_what_java_writes(change_types: bytes | None, expected: bytes) -> None:
    batch = log_batch.encode_batch(
        b"", schema_id=1, record_count=0, writer_id=7, batch_sequence=3, change_types=change_types
    )
    assert batch == expected


@pytest.mark.parametrize(
    ("batch", "record_count", "append_only"),
    [
        (LOG_EMPTY_APPEND_ONLY, 0, True),
        (LOG_EMPTY_CHANGELOG, 0, False),
        (LOG_EMPTY_CHANGELOG_SERVER, 0, False),
        (LOG_INDEXED_ROW, 1, True),
        (LOG_TWO_ROWS, 2, True),
    ],
)
def test_foreign_batches_parse_and_their_checksums_hold(batch: bytes, record_count: int, append_only: bool) -> None:
    header = log_batch.parse_header(batch)
    log_batch.verify_crc(batch, 0, header)
    assert header.size_bytes == len(batch)
    assert header.record_count == record_count
    assert header.append_only is append_only
    assert header.schema_id == 1


def test_header_fields_of_a_server_batch() -> None:
    header = log_batch.parse_header(LOG_EMPTY_CHANGELOG_SERVER)
    assert header == BatchHeader(0, 36, 0, 0x01A1DE03F54F, 0x2128292E, 1, 0, 0, 3, 0, 0)


def test_empty_batch_takes_one_offset() -> None:
    batch = bytearray(LOG_EMPTY_APPEND_ONLY)
    log_batch.stamp(batch, 0, 41, 1)
    header = log_batch.parse_header(batch)
    assert (header.last_offset, header.next_offset) == (41, 42)


def test_stamp_keeps_the_checksum_and_everything_else() -> None:
    batch = bytearray(b"xy" + LOG_TWO_ROWS)
    log_batch.stamp(batch, 2, 1 << 40, 1_700_000_000_000)
    header = log_batch.parse_header(batch, 2)
    log_batch.verify_crc(batch, 2, header)
    assert (header.base_offset, header.last_offset, header.next_offset) == (1 << 40, (1 << 40) + 1, (1 << 40) + 2)
    assert header.commit_timestamp_ms == 1_700_000_000_000
    assert batch[2 + 21 :] == LOG_TWO_ROWS[21:]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, pa.py_buffer])
def test_reassembled_from_its_parts_a_batch_is_the_same(wrap: type) -> None:
    _, payload = log_batch.payload_of(LOG_TWO_ROWS, 0, log_batch.parse_header(LOG_TWO_ROWS))
    batch = log_batch.encode_batch(wrap(bytes(payload)), schema_id=1, record_count=2)
    log_batch.set_writer(batch, 7, 3)
    assert batch == LOG_TWO_ROWS


def test_writer_can_be_set_again() -> None:
    batch = bytearray(LOG_TWO_ROWS)
    log_batch.set_writer(memoryview(batch), 1 << 40, 9)
    header = log_batch.parse_header(batch)
    log_batch.verify_crc(batch, 0, header)
    assert (header.writer_id, header.batch_sequence) == (1 << 40, 9)


@pytest.mark.parametrize("change_types", [None, b"\x01\x02\x03"], ids=["append", "changes"])
def test_header_and_payload_are_the_batch(change_types: bytes | None) -> None:
    payload = pa.py_buffer(b"payload")
    header = log_batch.encode_header(payload, schema_id=2, record_count=3, change_types=change_types)
    whole = log_batch.encode_batch(payload, schema_id=2, record_count=3, change_types=change_types)
    assert header + b"payload" == whole
    assert len(header) == HEADER_SIZE_BYTES + len(change_types or b"")
    log_batch.set_writer(header, 1 << 40, 9, payload)
    log_batch.set_writer(whole, 1 << 40, 9)
    assert header + b"payload" == whole
    log_batch.verify_crc(whole, 0, log_batch.parse_header(whole))


def test_change_types_lie_before_the_payload() -> None:
    batch = log_batch.encode_batch(b"payload", schema_id=2, record_count=3, change_types=b"\x01\x02\x03")
    header = log_batch.parse_header(batch)
    log_batch.verify_crc(batch, 0, header)
    changes, payload = log_batch.payload_of(batch, 0, header)
    assert changes is not None
    assert (bytes(changes), bytes(payload)) == (b"\x01\x02\x03", b"payload")
    assert header.record_count == 3


def test_encode_refuses_parts_that_contradict() -> None:
    with pytest.raises(ValueError, match="no payload"):
        log_batch.encode_batch(b"x", schema_id=1, record_count=0)
    with pytest.raises(ValueError, match="2 change types for 3"):
        log_batch.encode_batch(b"x", schema_id=1, record_count=3, change_types=b"\0\0")


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (8, b"\x23\0\0\0", "length 35"),
        (8, b"\xff\xff\xff\xff", "length -1"),
        (12, b"\x01", "statistics of -1 bytes"),
        (12, b"\x03", "magic 3 is not known"),
        (12, b"\xff", "magic 255 is not known"),
        (28, b"\x02\0\0\0", "delta 2 does not fit 2 records"),
        (44, b"\x03\0\0\0", "delta 1 does not fit 3 records"),
        (44, b"\0\0\0\0", "delta 1 does not fit 0 records"),
        (44, b"\xff\xff\xff\xff", "record count -1"),
    ],
)
def test_bad_header_says_what_is_wrong(at: int, value: bytes, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        log_batch.parse_header(_patched(LOG_TWO_ROWS, at, value))


def test_change_types_that_do_not_fit_are_refused() -> None:
    batch = log_batch.encode_batch(b"", schema_id=1, record_count=3, change_types=b"\0\0\0")
    with pytest.raises(CorruptDataError, match="no room for 3 change types"):
        log_batch.parse_header(_patched(bytes(batch), 8, (36 + 2).to_bytes(4, "little")))


def test_header_cut_short() -> None:
    with pytest.raises(CorruptDataError, match="47 are left"):
        log_batch.parse_header(LOG_TWO_ROWS[: HEADER_SIZE_BYTES - 1])
    with pytest.raises(CorruptDataError):
        log_batch.parse_header(LOG_TWO_ROWS, -1)


def test_every_bit_behind_the_crc_is_protected() -> None:
    header = log_batch.parse_header(LOG_TWO_ROWS)
    for at in range(25, len(LOG_TWO_ROWS)):
        damaged = _patched(LOG_TWO_ROWS, at, bytes([LOG_TWO_ROWS[at] ^ 0x10]))
        with pytest.raises(CorruptDataError, match="CRC-32C"):
            log_batch.verify_crc(damaged, 0, header)


def test_crc_of_a_cut_batch_is_not_computed() -> None:
    header = log_batch.parse_header(LOG_TWO_ROWS)
    with pytest.raises(CorruptDataError, match="announced"):
        log_batch.verify_crc(LOG_TWO_ROWS[:-1], 0, header)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_walk_ends_before_a_cut_batch(wrap: type) -> None:
    whole = LOG_TWO_ROWS + LOG_EMPTY_CHANGELOG + LOG_INDEXED_ROW
    starts = [0, len(LOG_TWO_ROWS), len(LOG_TWO_ROWS) + HEADER_SIZE_BYTES]
    ends = [*starts[1:], len(whole)]
    for size in range(len(whole) + 1):
        positions = [position for position, _ in log_batch.walk(wrap(whole[:size]))]
        assert positions == [start for start, end in zip(starts, ends, strict=True) if end <= size]
    assert [header.record_count for _, header in log_batch.walk(whole, starts[1])] == [0, 1]


def test_walk_raises_on_a_bad_header() -> None:
    walked = log_batch.walk(LOG_TWO_ROWS + _patched(LOG_TWO_ROWS, 12, b"\x09"))
    assert next(walked)[0] == 0
    with pytest.raises(CorruptDataError, match=f"at byte {len(LOG_TWO_ROWS)}: magic 9"):
        next(walked)


def test_crc_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


# --- magic 1 and 2


def _with_epoch(batch: bytes | bytearray) -> bytes:
    """A batch of magic 1 as one of magic 2: four bytes more before the checksum."""
    (length,) = struct.unpack_from("<i", batch, 8)
    head = batch[:8] + struct.pack("<i", length + 4) + b"\x02" + batch[13:21] + struct.pack("<i", 7)
    return bytes(head + batch[21:])


@pytest.mark.parametrize("change_types", [None, b"\x01\x02\x03"], ids=["append", "changes"])
@pytest.mark.parametrize("magic", [1, 2])
def test_statistics_lie_between_header_and_rows(magic: int, change_types: bytes | None) -> None:
    plain = log_batch.encode_batch(b"payload", schema_id=2, record_count=3, change_types=change_types)
    batch = bytes(
        log_batch.encode_batch(
            b"payload", schema_id=2, record_count=3, change_types=change_types, statistics=b"the statistics"
        )
    )
    if magic == 2:
        batch = _with_epoch(batch)
    data = b"".join((plain, batch, plain))
    (_, first), (at, header), (_, last) = log_batch.walk(data)
    assert (first.magic, header.magic, last.magic) == (0, magic, 0)
    assert header.header_size_bytes == {1: 52, 2: 56}[magic]
    assert header.leader_epoch == {1: 0, 2: 7}[magic]
    same = {"length": 0, "crc": 0, "magic": 0, "statistics_size_bytes": 0, "leader_epoch": 0}
    assert first._replace(**same) == header._replace(**same)
    log_batch.verify_crc(data, at, header)
    assert bytes(log_batch.statistics_of(data, at, header)) == b"the statistics"
    changes, payload = log_batch.payload_of(data, at, header)
    assert (None if changes is None else bytes(changes), bytes(payload)) == (change_types, b"payload")


@pytest.mark.parametrize("magic", [1, 2])
def test_what_the_server_stamps_is_outside_of_the_checksum(magic: int) -> None:
    batch = log_batch.encode_batch(b"payload", schema_id=2, record_count=3, statistics=b"s")
    if magic == 2:
        batch = bytearray(_with_epoch(batch))
    log_batch.stamp(batch, 0, 1 << 40, 1_700_000_000_000)
    header = log_batch.parse_header(batch)
    log_batch.verify_crc(batch, 0, header)
    assert (header.base_offset, header.commit_timestamp_ms) == (1 << 40, 1_700_000_000_000)
    for at in range(25 if magic == 1 else 29, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptDataError):
            log_batch.verify_crc(damaged, 0, log_batch.parse_header(damaged))


def test_writer_of_a_batch_with_statistics() -> None:
    payload = pa.py_buffer(b"payload")
    header = log_batch.encode_header(payload, schema_id=2, record_count=3, statistics=b"s")
    log_batch.set_writer(header, 1 << 40, 9, payload)
    batch = header + b"payload"
    parsed = log_batch.parse_header(batch)
    log_batch.verify_crc(batch, 0, parsed)
    assert (parsed.writer_id, parsed.batch_sequence) == (1 << 40, 9)


@pytest.mark.parametrize("magic", [1, 2])
def test_a_cut_batch_with_statistics_ends_the_walk(magic: int) -> None:
    batch = bytes(log_batch.encode_batch(b"payload", schema_id=2, record_count=3, statistics=b"statistics"))
    if magic == 2:
        batch = _with_epoch(batch)
    for size in range(len(batch)):
        assert len(list(log_batch.walk(batch + batch[:size]))) == 1


@pytest.mark.parametrize("size", [-1, 18, 1 << 30])
def test_statistics_that_do_not_fit(size: int) -> None:
    batch = log_batch.encode_batch(b"payload", schema_id=2, record_count=3, statistics=b"statistics")
    struct.pack_into("<i", batch, 48, size)
    with pytest.raises(CorruptDataError, match="statistics"):
        log_batch.parse_header(batch)


def test_a_header_for_fewer_rows_has_no_statistics() -> None:
    batch = bytes(log_batch.encode_batch(b"payload", schema_id=2, record_count=3, statistics=b"statistics"))
    for whole, size in ((batch, 52), (_with_epoch(batch), 56)):
        header = log_batch.parse_header(whole)
        smaller = log_batch.resized_header(b"xx" + whole, 2, header, 3) + b"pay"
        assert log_batch.parse_header(smaller) == header._replace(length=size - 12 + 3, statistics_size_bytes=0)
        assert bytes(log_batch.payload_of(smaller, 0, log_batch.parse_header(smaller))[1]) == b"pay"
