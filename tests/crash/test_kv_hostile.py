"""Absurd counts, lengths and amounts in requests for primary-key tables: refused, or served, in bounded memory.

Bounds are on the peak. Reads are bounded by the largest answer, which is there twice: as rows and as a frame. The
changes of a put are there up to four times: as they came and are stored, as rows, as Arrow, and as a batch of the log.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.formats.batches.kv_batch import HEADER_SIZE_BYTES, RECORD_COUNT_MAX, encode_header, encode_records
from fluss.formats.changelog.aggregation import CHANGES_SIZE_MAX_BYTES
from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.keys import KeyEncoder
from fluss.model.errors import ErrorCode
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from tests.crash.kv_target import BUCKET, STORES_BYTES, KvTarget, kv_target
from tests.crash.target import PROGRESS_S_MAX
from tests.kit.loads.writers import POLL_INTERVAL_S, client_config
from tests.kit.memory import MIB, Memory
from tests.kit.mutations import sealed_kv
from tests.kit.wire import Wire, parsed, put_request

__all__ = ["kv_target"]

LIMITS: Final = Limits()
READ_BYTES_MAX: Final = 2 * LIMITS.lookup_bytes_max + STORES_BYTES
PUT_BYTES_MAX: Final = 4 * CHANGES_SIZE_MAX_BYTES + STORES_BYTES
ANSWER_S_MAX: Final = 60.0
BLOBS: Final = fluss.TablePath("fluss", "blobs")
SCHEMA: Final = fluss.Schema(pa.schema([("id", pa.int32()), ("blob", pa.binary()), ("note", pa.int32())]), ["id"])
KEYS: Final = KeyEncoder(SCHEMA.columns[:1])
ROWS: Final = CompactedFormat(SCHEMA.columns)
SCANNERS: Final = 2_000
WIDE_COLUMNS: Final = 4_000
FLOOD: Final = 20_000


def key(number: int) -> bytes:
    return KEYS.encode_row([number])


def batch(rows: dict[int, bytes | None]) -> bytes:
    keys = pa.array([key(number) for number in rows], pa.binary())
    values = pa.array([ROWS.encode_row([number, blob, 0]) for number, blob in rows.items()], pa.binary())
    return raw_batch(keys, values)


def raw_batch(keys: pa.BinaryArray, rows: pa.BinaryArray) -> bytes:
    records = encode_records(keys, rows)
    return bytes(encode_header(records, schema_id=1, record_count=len(keys)) + records)


class Blobs:
    """A table of small and large rows, and requests for it."""

    def __init__(self, wire: Wire, table_id: int) -> None:
        self.wire = wire
        self.table_id = table_id

    def put(self, records: bytes, targets: tuple[int, ...] = ()) -> int:
        """The error code."""
        answer = self.wire.call(api_keys.PUT_KV, put_request(self.table_id, BUCKET, records, targets))
        return answer.buckets_resp[0].error_code

    def lookup(self, keys: list[bytes], *, insert: bool = False) -> pb.PbLookupBucketResponse:
        request = pb.LookupRequest(table_id=self.table_id)
        request.buckets_req.add(bucket_id=BUCKET, keys=keys)
        if insert:
            request.insert_if_not_exists, request.acks, request.timeout_ms = True, -1, 50_000
        return self.wire.call(api_keys.LOOKUP, request).buckets_resp[0]

    def prefix_lookup(self, prefixes: list[bytes]) -> pb.PbPrefixLookupBucketResponse:
        request = pb.PrefixLookupRequest(table_id=self.table_id)
        request.buckets_req.add(bucket_id=BUCKET, keys=prefixes)
        return self.wire.call(api_keys.PREFIX_LOOKUP, request).buckets_resp[0]

    def scan(self, **asked: object) -> pb.ScanKvResponse:
        request = pb.ScanKvRequest(batch_size_bytes=10, **asked)  # type: ignore[arg-type]
        if "scanner_id" not in asked:
            request.bucket_scan_req.table_id, request.bucket_scan_req.bucket_id = self.table_id, BUCKET
            request.call_seq_id = 0
        return self.wire.call(api_keys.SCAN_KV, request)


@pytest.fixture
def blobs(kv_target: KvTarget) -> Iterator[Blobs]:
    """Empty at first; others are served all the while."""
    with Wire(kv_target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        made = Blobs(wire, wire.create_table(BLOBS, fluss.TableDescriptor(SCHEMA, bucket_count=1)))
        yield made
        kv_target.check()
        wire.drop_table(BLOBS)


@contextmanager
def within(target: KvTarget, growth_bytes_max: int) -> Iterator[None]:
    with Memory(target.server.pid) as memory:
        yield
    assert memory.growth_bytes < growth_bytes_max


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (24, "<i", 2**31 - 1),
        (24, "<i", -(2**31)),
        (24, "<i", RECORD_COUNT_MAX + 1),
        (24, "<i", RECORD_COUNT_MAX),
        (24, "<i", 1),
        (HEADER_SIZE_BYTES, "<i", 2**31 - 1),
        (HEADER_SIZE_BYTES, "<i", -1),
        (HEADER_SIZE_BYTES, "<i", 0),
        (HEADER_SIZE_BYTES + 4, "<B", 0x7F),  # a key longer than its record
        (HEADER_SIZE_BYTES + 4, "<I", 0xFFFFFFFF),
        (0, "<i", 2**31 - 1),
        (9, "<h", -1),
        (9, "<h", 32_767),
        (11, "<B", 0xFF),
        (4, "<b", 1),
    ],
)
def test_absurd_numbers_are_refused(kv_target: KvTarget, blobs: Blobs, position: int, layout: str, value: int) -> None:
    records = bytearray(batch({1: b"x" * 200, 2: b"y" * 200}))
    struct.pack_into(layout, records, position, value)
    sealed = sealed_kv(records, keep_length=position == 0)
    with within(kv_target, READ_BYTES_MAX):
        assert blobs.put(sealed) in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_TABLE_EXCEPTION)
    assert not any(value.HasField("values") for value in blobs.lookup([key(1), key(2)]).values)


def test_large_values(kv_target: KvTarget, blobs: Blobs, chance: random.Random) -> None:
    """What is too large for a batch is refused, and what would be too large for readers of the changelog, too."""
    with within(kv_target, PUT_BYTES_MAX):
        assert blobs.put(batch({1: bytes(LIMITS.batch_bytes_max)})) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        large = chance.randbytes(60 * MIB)
        assert not blobs.put(batch({2: large}))
        # Its old and new rows do not fit into one answer to a fetch.
        assert blobs.put(batch({2: large})) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert not blobs.put(batch({2: b"small again"}))
    with fluss.sync.FlussConnection.create(client_config(kv_target.server.bootstrap_servers, {})) as connection:
        scanner = connection.get_table(BLOBS).new_scan().create_changelog_batch_scanner()
        scanner.subscribe_buckets({BUCKET: fluss.EARLIEST_OFFSET})
        assert scanner.to_arrow()["_change_type"].to_pylist() == ["+I", "-U", "+U"]
        scanner.close()


@pytest.mark.parametrize("count", [100_000, pytest.param(RECORD_COUNT_MAX, marks=pytest.mark.full)])
def test_many_tiny_records(kv_target: KvTarget, blobs: Blobs, count: int) -> None:
    columns = [pa.array(range(count), pa.int32()), pa.nulls(count, pa.binary()), pa.nulls(count, pa.int32())]
    rows = pa.record_batch(columns, names=SCHEMA.column_names)
    records = raw_batch(KEYS.encode(rows), ROWS.encode(rows))
    with within(kv_target, PUT_BYTES_MAX):
        for _ in range(2):
            assert blobs.put(records) in (0, ErrorCode.REQUEST_TIME_OUT)
    # The whole bucket at once, and again and again: either is more than one answer has.
    with within(kv_target, READ_BYTES_MAX):
        if count == RECORD_COUNT_MAX:
            assert blobs.prefix_lookup([b""]).error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert blobs.prefix_lookup([b""] * FLOOD).error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


def test_small_updates_of_large_rows(kv_target: KvTarget, blobs: Blobs) -> None:
    """A few bytes each that make a row of megabytes anew: what waits to be stored is bounded, too."""
    assert not blobs.put(batch({1: bytes(8 * MIB)}))
    records = raw_batch(pa.array([key(1)]), pa.array([ROWS.encode_row([1, None, 7])]))
    update = put_request(blobs.table_id, BUCKET, records, (0, 2))
    body = update.SerializeToString()
    with within(kv_target, PUT_BYTES_MAX):
        sent = [blobs.wire.send(api_keys.PUT_KV.key, body) for _ in range(60)]
        for response in [blobs.wire.receive() for _ in sent]:
            assert not parsed(pb.PutKvResponse, response).buckets_resp[0].error_code
    assert blobs.wire.latest(blobs.table_id, BUCKET) == 1 + 2 * len(sent)


def test_few_rows_asked_for_very_often(kv_target: KvTarget, blobs: Blobs) -> None:
    """A request of kilobytes for gigabytes of rows that are there once."""
    assert not blobs.put(batch(dict.fromkeys(range(1000))))
    assert not blobs.put(batch({5_000: bytes(8 * MIB)}))
    with within(kv_target, READ_BYTES_MAX):
        assert blobs.prefix_lookup([key(1)[:1]] * FLOOD).error_code in (0, ErrorCode.RECORD_TOO_LARGE_EXCEPTION)
        assert blobs.prefix_lookup([b""] * FLOOD).error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert blobs.lookup([key(5_000)] * 1_000).error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert len(blobs.lookup([key(5_000)] * 4).values) == 4


def test_a_hundred_thousand_keys(kv_target: KvTarget, blobs: Blobs) -> None:
    keys = [key(number) for number in range(LIMITS.lookup_keys_max)]
    assert not blobs.put(batch({7: b"x"}))
    with within(kv_target, READ_BYTES_MAX):
        found = blobs.lookup(keys).values
        assert [number for number, value in enumerate(found) if value.HasField("values")] == [7]
        with pytest.raises(fluss.FlussError) as raised:
            blobs.lookup([*keys, b"one more"])
        assert raised.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


def test_a_flood_of_inserts(kv_target: KvTarget, blobs: Blobs) -> None:
    """Keys that are not there, many of them twice, some of them no keys: each is made once, or its request refused."""
    requests = []
    for start in range(0, FLOOD, 1_000):
        request = pb.LookupRequest(table_id=blobs.table_id, insert_if_not_exists=True, acks=-1, timeout_ms=50_000)
        request.buckets_req.add(bucket_id=BUCKET, keys=[key(number // 2) for number in range(start, start + 1_000)])
        requests.append(request)
    bad = pb.LookupRequest(table_id=blobs.table_id, insert_if_not_exists=True, acks=-1, timeout_ms=50_000)
    bad.buckets_req.add(bucket_id=BUCKET, keys=[key(1 << 20), b"", b"\xff" * 1_000])
    with within(kv_target, READ_BYTES_MAX):
        sent = [blobs.wire.send(api_keys.LOOKUP.key, one.SerializeToString()) for one in (*requests, bad, *requests)]
        answers = {answer.request_id: answer for answer in (blobs.wire.receive() for _ in sent)}
        for number, request_id in enumerate(sent):
            (answer,) = parsed(pb.LookupResponse, answers[request_id]).buckets_resp
            if number == len(requests):
                assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION, answer
            else:
                assert all(value.HasField("values") for value in answer.values), answer.error_message
    assert blobs.wire.latest(blobs.table_id, BUCKET) == FLOOD // 2
    assert not blobs.lookup([key(1 << 20)]).values[0].HasField("values")


def test_rows_of_nulls(kv_target: KvTarget) -> None:
    """A few bytes per row and thousands of columns: kilobytes that would be gigabytes as Arrow."""
    wide = pa.schema([("id", pa.int32()), *((f"c{number}", pa.int64()) for number in range(WIDE_COLUMNS))])
    path = fluss.TablePath("fluss", "wide")
    keys = [key(number) for number in range(30_000)]
    bits = bytearray(b"\xff" * (WIDE_COLUMNS // 8 + 1))
    bits[0] = 0xFE
    rows = [bytes(bits) + encoded for encoded in keys]
    few, many = (raw_batch(pa.array(keys[:count]), pa.array(rows[:count])) for count in (1_000, 30_000))
    with Wire(kv_target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        descriptor = fluss.TableDescriptor(fluss.Schema(wide, ["id"]), bucket_count=1)
        table = Blobs(wire, wire.create_table(path, descriptor))
        with within(kv_target, PUT_BYTES_MAX):
            for targets in ((), (0, 1)):
                assert not table.put(few, targets)
                assert table.put(many, targets) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        kv_target.check()
        wire.drop_table(path)


def test_thousands_of_scanners(kv_target: KvTarget, blobs: Blobs) -> None:
    """Those above the limit are refused, nobody has use of another's, and all are gone with their connections."""
    assert not blobs.put(batch(dict.fromkeys(range(50), b"x" * 20)))
    address = kv_target.server.bootstrap_servers
    with within(kv_target, READ_BYTES_MAX):
        answers = [blobs.scan() for _ in range(SCANNERS)]
        mine = [answer.scanner_id for answer in answers if not answer.error_code]
        assert len(mine) == len(set(mine)) == LIMITS.scanners_per_connection_max
        assert {answer.error_code for answer in answers} == {0, ErrorCode.TOO_MANY_SCANNERS}
        with ExitStack() as stack:
            others = [Blobs(stack.enter_context(Wire(address, ANSWER_S_MAX)), blobs.table_id) for _ in range(10)]
            for scanner_id in mine:
                assert others[0].scan(scanner_id=scanner_id, call_seq_id=1).error_code == ErrorCode.UNKNOWN_SCANNER_ID
                assert not others[0].scan(scanner_id=scanner_id, close_scanner=True).error_code
            assert blobs.scan(scanner_id=mine[0], call_seq_id=1).records, "another connection has closed it"
            opened = sum(not other.scan().error_code for other in others for _ in range(SCANNERS // 10))
            assert opened == LIMITS.scanners_total_max - LIMITS.scanners_per_connection_max
    with Wire(address, ANSWER_S_MAX) as wire:
        another = Blobs(wire, blobs.table_id)
        deadline = time.monotonic() + PROGRESS_S_MAX
        while another.scan().error_code:
            assert time.monotonic() < deadline, "scanners outlive their connections"
            time.sleep(POLL_INTERVAL_S)
