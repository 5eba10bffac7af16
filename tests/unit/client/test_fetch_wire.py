"""The answer to a fetch, against the protobuf library."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.client.fetch_wire import parse_fetch_response, records_position
from fluss.model.errors import FlussError
from fluss.protocol import messages_pb2 as pb

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
