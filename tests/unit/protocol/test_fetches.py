"""The answer to a fetch: what the server writes the client reads, both against the protobuf library."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.fetches import encode_fetch_response, parse_fetch_response, records_position
from fluss.protocol.protobuf import Encoded
from fluss.server.net.context import code_and_text
from fluss.server.read.fetch_plan import BucketFetch

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)

Tables = list[tuple[int, list[tuple[int | None, int, bytes | None]]]]

FETCHED = st.lists(
    st.tuples(INT64, st.lists(st.tuples(st.none() | INT64, INT32, st.none() | st.binary(max_size=300)), max_size=4)),
    max_size=3,
)


def encoded(tables: Tables) -> Encoded:
    """The answer of a server that failed to read the buckets without records."""
    read = []
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
        read.append((table_id, fetches))
    return encode_fetch_response(read, code_and_text)


@given(FETCHED)
def test_fetch_responses_are_what_protobuf_reads(tables: Tables) -> None:
    answer = encoded(tables)
    data = b"".join(answer.parts)
    assert len(data) == answer.size_bytes
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


@given(FETCHED)
def test_what_the_server_writes_the_client_reads(tables: Tables) -> None:
    answers = parse_fetch_response(memoryview(b"".join(encoded(tables).parts)), "test")
    expected = [(table_id, *bucket) for table_id, buckets in tables for bucket in buckets]
    assert len(answers) == len(expected)
    for answer, (table_id, partition_id, bucket_id, records) in zip(answers, expected, strict=True):
        assert answer.table_id == table_id
        assert answer.item.HasField("partition_id") == (partition_id is not None)
        assert (answer.item.partition_id, answer.item.bucket_id) == (partition_id or 0, bucket_id)
        assert (answer.item.error_code, answer.item.error_message) == ((19, "no") if records is None else (0, ""))
        assert answer.item.high_watermark == (0 if records is None else 7)
        assert bytes(answer.records) == (records or b"")


def test_records_are_sent_from_where_they_were_read() -> None:
    records = memoryview(b"x" * 1_000)
    fetch = BucketFetch(TableBucket(1, 0), 0, 0, parts=[records], size_bytes=len(records))
    assert any(part is records for part in encode_fetch_response([(1, [fetch])], code_and_text).parts)


buckets = st.builds(
    pb.PbFetchLogBucketResponse,
    partition_id=st.none() | st.integers(-(2**63), 2**63 - 1),
    bucket_id=st.integers(-(2**31), 2**31 - 1),
    error_code=st.none() | st.integers(-1, 73),
    error_message=st.none() | st.text(max_size=20),
    high_watermark=st.none() | st.integers(0, 2**63 - 1),
    log_start_offset=st.none() | st.integers(0, 2**63 - 1),
    records=st.none() | st.binary(max_size=300),
)
tables = st.builds(
    pb.PbFetchLogTableResponse, table_id=st.integers(0, 2**63 - 1), buckets_resp=st.lists(buckets, max_size=4)
)
responses = st.builds(pb.FetchLogResponse, tables_resp=st.lists(tables, max_size=3))


@given(st.binary(max_size=50), st.binary(min_size=300, max_size=400), st.integers(0, 2**63 - 1))
def test_the_first_records_are_found_in_the_beginning_of_an_answer(head: bytes, records: bytes, number: int) -> None:
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=head.hex())
    bucket = pb.PbFetchLogBucketResponse(
        bucket_id=1, high_watermark=number, remote_log_fetch_info=info, records=records
    )
    table = pb.PbFetchLogTableResponse(table_id=number, buckets_resp=[bucket])
    body = memoryview(pb.FetchLogResponse(tables_resp=[table]).SerializeToString())
    position = records_position(body[:-200])
    assert position is not None
    assert bytes(body[position:]) == records
    assert records_position(body[: position - 3]) is None
    assert records_position(memoryview(pb.FetchLogResponse().SerializeToString())) is None


@given(responses)
def test_it_reads_what_the_library_reads(response: pb.FetchLogResponse) -> None:
    answers = parse_fetch_response(memoryview(response.SerializeToString()), "test")
    expected = [(table.table_id, bucket) for table in response.tables_resp for bucket in table.buckets_resp]
    assert len(answers) == len(expected)
    for answer, (table_id, bucket) in zip(answers, expected, strict=True):
        assert answer.table_id == table_id
        assert bytes(answer.records) == bucket.records
        bucket.ClearField("records")
        assert answer.item == bucket


def test_records_are_views_of_the_answer() -> None:
    response = pb.FetchLogResponse()
    response.tables_resp.add(table_id=1).buckets_resp.add(bucket_id=0, records=b"x" * 1_000)
    body = bytearray(response.SerializeToString())
    (answer,) = parse_fetch_response(memoryview(body), "test")
    assert answer.records.obj is body


@given(responses, st.integers(0, 2**32))
def test_damaged_answers_raise_our_error_or_parse(response: pb.FetchLogResponse, seed: int) -> None:
    chance = random.Random(seed)
    body = bytearray(response.SerializeToString())
    for _ in range(chance.randint(0, 3)):
        if body:
            body[chance.randrange(len(body))] = chance.randrange(256)
    del body[chance.randint(0, len(body)) :]
    try:
        parse_fetch_response(memoryview(body), "test")
    except FlussError:
        pass


@pytest.mark.parametrize("body", [b"\x0a\x05\x08", b"\x0a", b"\x0f\x00", b"\xff" * 11])
def test_cut_and_unknown_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(FlussError):
        parse_fetch_response(memoryview(body), "test")
