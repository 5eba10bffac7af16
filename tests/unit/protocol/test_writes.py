"""Write requests: what the client writes the server reads, both against protobuf; and answers that need no parsing."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.batches import kv_batch, log_batch
from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.model.merge_mode import MergeMode
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Part, encode_varint
from fluss.protocol.writes import (
    BUCKET_OVERHEAD_BYTES,
    PRODUCE_LOG,
    PlacedBatch,
    WriteRequest,
    bucket_parts,
    parse_produce_log,
    parse_put_kv,
    parse_stage_write,
    put_kv,
    says_stored,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ITEMS_MAX = 5
BUCKETS = st.lists(st.tuples(st.none() | INT64, INT32, st.binary(max_size=300)), max_size=ITEMS_MAX)
HEADER_BYTES = 7

Buckets = list[tuple[int | None, int, bytes]]


def placed(buckets: Buckets) -> list[PlacedBatch]:
    return [
        (partition_id, bucket_id, bytearray(records[:HEADER_BYTES]), memoryview(records)[HEADER_BYTES:])
        for partition_id, bucket_id, records in buckets
    ]


def joined(parts: list[Part]) -> memoryview:
    return memoryview(b"".join(parts))


def found(parsed: Any) -> Buckets:
    return [(batch.bucket.partition_id, batch.bucket.bucket_id, bytes(batch.records)) for batch in parsed.batches]


@given(acks=INT32, table_id=INT64, timeout_ms=INT32, buckets=BUCKETS)
def test_what_an_append_writes_is_read(acks: int, table_id: int, timeout_ms: int, buckets: Buckets) -> None:
    body = joined(PRODUCE_LOG.parts(table_id, acks, timeout_ms, placed(buckets)))
    parsed = parse_produce_log(body, ITEMS_MAX)
    assert (parsed.acks, parsed.table_id, parsed.timeout_ms) == (acks, table_id, timeout_ms)
    assert (parsed.target_columns, parsed.agg_mode) == ([], 0)
    assert found(parsed) == buckets
    assert [item.records for item in pb.ProduceLogRequest.FromString(body).buckets_req] == [b[2] for b in buckets]


@given(
    table_id=INT64,
    targets=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    mode=st.sampled_from(MergeMode),
    buckets=BUCKETS,
)
def test_what_an_upsert_writes_is_read(table_id: int, targets: list[int], mode: MergeMode, buckets: Buckets) -> None:
    body = joined(put_kv(tuple(targets), mode).parts(table_id, -1, 7, placed(buckets)))
    parsed = parse_put_kv(body, ITEMS_MAX)
    assert (parsed.acks, parsed.table_id, parsed.timeout_ms) == (-1, table_id, 7)
    assert (parsed.target_columns, parsed.agg_mode) == (targets, mode)
    assert found(parsed) == buckets
    message = pb.PutKvRequest.FromString(body)
    assert (list(message.target_columns), message.agg_mode) == (targets, mode)


def test_requests_stamp_the_batches_that_they_carry() -> None:
    assert WriteRequest(api_keys.PRODUCE_LOG, log_batch.set_writer) == PRODUCE_LOG
    assert put_kv((1,), MergeMode.DEFAULT) == WriteRequest(api_keys.PUT_KV, kv_batch.set_writer, (1,))


@given(
    numbers=st.tuples(INT64, INT64, INT32, INT64, INT32, INT32),
    query_id=st.text(),
    targets=st.lists(INT32, max_size=5),
    agg_mode=st.none() | INT32,
    buckets=BUCKETS,
)
def test_what_a_staged_write_writes_is_read(
    numbers: tuple[int, ...], query_id: str, targets: list[int], agg_mode: int | None, buckets: Buckets
) -> None:
    names = ("table_id", "batch_id", "task", "attempt", "sequence", "timeout_ms")
    fields: Any = dict(zip(names, numbers, strict=True))
    head = pb.StageWriteRequest(query_id=query_id, target_columns=targets, agg_mode=agg_mode, **fields)
    field_number = pb.StageWriteRequest.BUCKETS_REQ_FIELD_NUMBER
    body = joined([head.SerializeToString(), *bucket_parts(field_number, placed(buckets))])
    parsed = parse_stage_write(body, ITEMS_MAX)
    assert tuple(getattr(parsed, name) for name in names) == numbers
    assert (parsed.query_id, parsed.target_columns, parsed.agg_mode) == (query_id, targets, agg_mode or 0)
    assert parsed.size_bytes == len(body)
    assert found(parsed) == buckets


def test_batches_are_sent_and_read_where_they_are() -> None:
    header, payload = bytearray(b"h" * HEADER_BYTES), memoryview(b"x" * 1_000)
    parts = PRODUCE_LOG.parts(1, -1, 1, [(1 << 62, 2**31 - 1, header, payload)])
    assert parts[-2] is header
    assert parts[-1] is payload
    assert len(parts[-3]) <= BUCKET_OVERHEAD_BYTES
    body = bytearray().join(parts)
    (batch,) = parse_produce_log(memoryview(body), 1).batches
    assert batch.records.obj is body


@given(acks=INT32, table_id=INT64, timeout_ms=INT32, buckets=BUCKETS)
def test_produce_requests_are_read_as_protobuf_reads_them(
    acks: int, table_id: int, timeout_ms: int, buckets: Buckets
) -> None:
    message = pb.ProduceLogRequest(acks=acks, table_id=table_id, timeout_ms=timeout_ms)
    for partition_id, bucket_id, records in buckets:
        message.buckets_req.add(partition_id=partition_id, bucket_id=bucket_id, records=records)
    parsed = parse_produce_log(memoryview(message.SerializeToString()), ITEMS_MAX)
    assert (parsed.acks, parsed.table_id, parsed.timeout_ms) == (acks, table_id, timeout_ms)
    assert found(parsed) == buckets
    assert {batch.bucket.table_id for batch in parsed.batches} <= {table_id}


@given(table_id=INT64, targets=st.lists(INT32, max_size=5), agg_mode=st.none() | INT32, buckets=BUCKETS)
def test_put_requests_are_read_as_protobuf_reads_them(
    table_id: int, targets: list[int], agg_mode: int | None, buckets: Buckets
) -> None:
    message = pb.PutKvRequest(acks=-1, table_id=table_id, timeout_ms=7, target_columns=targets, agg_mode=agg_mode)
    for partition_id, bucket_id, records in buckets:
        message.buckets_req.add(partition_id=partition_id, bucket_id=bucket_id, records=records)
    body = message.SerializeToString()
    # Packed as protobuf writes them, then one by one as others may.
    more = b"".join(bytes([4 << 3]) + encode_varint(target & (1 << 64) - 1) for target in targets)
    parsed = parse_put_kv(memoryview(body + more), ITEMS_MAX)
    assert (parsed.acks, parsed.table_id, parsed.timeout_ms) == (-1, table_id, 7)
    assert parsed.target_columns == targets * 2
    assert parsed.agg_mode == (agg_mode or 0)
    assert found(parsed) == buckets


PARSERS: list[tuple[Any, Any]] = [(parse_produce_log, pb.ProduceLogRequest), (parse_put_kv, pb.PutKvRequest)]


@pytest.mark.parametrize(("parse", "message_type"), PARSERS)
@given(body=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_as_protobuf_does(parse: Any, message_type: Any, body: bytes) -> None:
    try:
        parsed = parse(memoryview(body), ITEMS_MAX)
    except CorruptDataError:
        return
    try:
        message = message_type.FromString(body)
    except DecodeError:
        # Stricter in details that do not matter here, such as field number 0.
        return
    assert (parsed.acks, parsed.table_id, parsed.timeout_ms) == (message.acks, message.table_id, message.timeout_ms)
    assert [bytes(batch.records) for batch in parsed.batches] == [item.records for item in message.buckets_req]
    if message_type is pb.PutKvRequest:
        assert (parsed.target_columns, parsed.agg_mode) == (list(message.target_columns), message.agg_mode)


@pytest.mark.parametrize(("parse", "message_type"), PARSERS)
@pytest.mark.parametrize("cut", range(1, 40))
def test_cut_requests_are_refused(parse: Any, message_type: Any, cut: int) -> None:
    message = message_type(acks=-1, table_id=1, timeout_ms=1)
    message.buckets_req.add(bucket_id=1, records=b"x" * 40)
    with pytest.raises(CorruptDataError):
        parse(memoryview(message.SerializeToString())[:-cut], ITEMS_MAX)


def staged_write() -> bytes:
    message = pb.StageWriteRequest(
        table_id=1, query_id="query", batch_id=2, task=3, attempt=4, sequence=5, timeout_ms=6
    )
    message.buckets_req.add(bucket_id=1, records=b"x" * 20)
    return message.SerializeToString()


@given(body=st.binary(max_size=60) | st.builds(lambda cut: staged_write()[:-cut], st.integers(1, 25)))
def test_staged_writes_that_are_none_are_refused(body: bytes) -> None:
    """All of the fields are required, so no bytes of chance have them."""
    with pytest.raises(CorruptDataError) as raised:
        parse_stage_write(memoryview(body), ITEMS_MAX)
    assert raised.value.error_code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.RECORD_TOO_LARGE_EXCEPTION)


def test_a_staged_write_whose_query_is_no_text_is_refused() -> None:
    body = staged_write().replace(b"query", b"que\xffy")
    with pytest.raises(CorruptDataError, match="a text is not UTF-8") as raised:
        parse_stage_write(memoryview(body), ITEMS_MAX)
    assert raised.value.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\x2a\x04\x10\x01\x1a\x00" * 500_000, f"{ITEMS_MAX} buckets"),
        (b"\x20\x01" * 500_000, "target columns"),
        (b"\x22\xa0\xc2\x1e" + b"\x01" * 500_000, "target columns"),
        (b"".join(encode_varint(number << 3) + b"\x01" for number in range(1 << 14, 1 << 18)), "lacks"),
    ],
)
def test_requests_that_name_too_much_take_no_memory(body: bytes, what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match=what):
            parse_put_kv(memoryview(body), ITEMS_MAX)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def answer(*items: pb.PbProduceLogBucketResponse) -> memoryview:
    return memoryview(pb.ProduceLogResponse(buckets_resp=items).SerializeToString())


@pytest.mark.parametrize("partition_id", [None, 0, 7, 1 << 40])
@pytest.mark.parametrize("bucket", [0, 1, 300])
@pytest.mark.parametrize("offset", [0, 1, 127, 128, 1 << 20, (1 << 63) - 1])
def test_one_batch_that_is_stored(partition_id: int | None, bucket: int, offset: int) -> None:
    said = answer(pb.PbProduceLogBucketResponse(partition_id=partition_id, bucket_id=bucket, base_offset=offset))
    assert says_stored(said, partition_id, bucket)
    assert not says_stored(said, partition_id, bucket + 1)
    assert not says_stored(said, 8, bucket)
    for size in range(len(said)):
        assert not says_stored(said[:size], partition_id, bucket)


@pytest.mark.parametrize(
    "said",
    [
        answer(),
        answer(pb.PbProduceLogBucketResponse(bucket_id=1)),
        answer(pb.PbProduceLogBucketResponse(bucket_id=1, error_code=3)),
        answer(pb.PbProduceLogBucketResponse(bucket_id=1, error_code=3, base_offset=5)),
        answer(*[pb.PbProduceLogBucketResponse(bucket_id=1, base_offset=5)] * 2),
        # An error behind the offset, as the wire may have it.
        memoryview(bytes([0x0A, 6, 0x10, 1, 0x28, 5, 0x18, 3])),
        memoryview(bytes([0x0A, 6, 0x10, 1, 0x28, 0x85, 0x18, 3])),
        # An offset without digits, and one with too many.
        memoryview(bytes([0x0A, 3, 0x10, 1, 0x28])),
        memoryview(bytes([0x0A, 14, 0x10, 1, 0x28, *[0x80] * 10, 0])),
    ],
)
def test_all_else_is_parsed(said: memoryview) -> None:
    assert not says_stored(said, None, 1)


def test_answers_to_puts_look_alike() -> None:
    stored = pb.PbPutKvBucketResponse(bucket_id=1, log_end_offset=5)
    assert says_stored(memoryview(pb.PutKvResponse(buckets_resp=[stored]).SerializeToString()), None, 1)
    stored.pressure = 0.5
    assert not says_stored(memoryview(pb.PutKvResponse(buckets_resp=[stored]).SerializeToString()), None, 1)
