"""The messages that are read and written by hand, against protobuf's own reading and writing."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import encode_varint
from fluss.server.fetch_plan import BucketFetch, FetchPlan
from fluss.server.fetch_response import encode_fetch_response
from fluss.server.write_request import parse_produce_log, parse_put_kv
from fluss.storage.store import Storage

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ITEMS_MAX = 5
BUCKETS = st.lists(st.tuples(st.none() | INT64, INT32, st.binary(max_size=300)), max_size=ITEMS_MAX)


@given(acks=INT32, table_id=INT64, timeout_ms=INT32, buckets=BUCKETS)
def test_produce_requests_are_read_as_protobuf_reads_them(
    acks: int, table_id: int, timeout_ms: int, buckets: list[tuple[int | None, int, bytes]]
) -> None:
    message = pb.ProduceLogRequest(acks=acks, table_id=table_id, timeout_ms=timeout_ms)
    for partition_id, bucket_id, records in buckets:
        message.buckets_req.add(partition_id=partition_id, bucket_id=bucket_id, records=records)
    parsed = parse_produce_log(memoryview(message.SerializeToString()), ITEMS_MAX)
    assert (parsed.acks, parsed.table_id, parsed.timeout_ms) == (acks, table_id, timeout_ms)
    assert [(b.bucket.partition_id, b.bucket.bucket_id, bytes(b.records)) for b in parsed.batches] == buckets
    assert {batch.bucket.table_id for batch in parsed.batches} <= {table_id}


@given(table_id=INT64, targets=st.lists(INT32, max_size=5), agg_mode=st.none() | INT32, buckets=BUCKETS)
def test_put_requests_are_read_as_protobuf_reads_them(
    table_id: int, targets: list[int], agg_mode: int | None, buckets: list[tuple[int | None, int, bytes]]
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
    assert [(b.bucket.partition_id, b.bucket.bucket_id, bytes(b.records)) for b in parsed.batches] == buckets


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


FETCHED = st.lists(
    st.tuples(INT64, st.lists(st.tuples(st.none() | INT64, INT32, st.none() | st.binary(max_size=300)), max_size=4)),
    max_size=3,
)


@given(FETCHED)
def test_fetch_responses_are_what_protobuf_reads(
    tables: list[tuple[int, list[tuple[int | None, int, bytes | None]]]],
) -> None:
    plan = FetchPlan(cast(Storage, None), 0)
    for table_id, buckets in tables:
        fetches = []
        for partition_id, bucket_id, records in buckets:
            fetch = BucketFetch(TableBucket(table_id, bucket_id, partition_id), 0, 0, high_watermark=7)
            if records is None:
                fetch.error = FlussError("no", 19)
            else:
                fetch.parts, fetch.size_bytes = [records[:7], memoryview(records)[7:]], len(records)
                fetch.filtered_end_offset = bucket_id if bucket_id % 2 else None
            fetches.append(fetch)
        plan.tables.append((table_id, fetches))
    encoded = encode_fetch_response(plan)
    data = b"".join(encoded.parts)
    assert len(data) == encoded.size_bytes
    response = pb.FetchLogResponse.FromString(data)
    assert [table.table_id for table in response.tables_resp] == [table_id for table_id, _ in tables]
    for table, (_, buckets) in zip(response.tables_resp, tables, strict=True):
        for entry, (partition_id, bucket_id, records) in zip(table.buckets_resp, buckets, strict=True):
            assert entry.bucket_id == bucket_id
            assert entry.HasField("partition_id") == (partition_id is not None)
            assert entry.HasField("error_code") == (records is None)
            assert entry.HasField("records") == (records is not None)
            assert entry.HasField("high_watermark") == (records is not None)
            assert entry.records == (records or b"")
            assert entry.HasField("filtered_end_offset") == (records is not None and bucket_id % 2 == 1)
