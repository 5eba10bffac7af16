"""Lookups and scans: what one side writes the other reads; the kernels' bytes are compared in tests/unit/formats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.lookups import (
    BucketKey,
    LookupKind,
    LookupResponse,
    encode_entries,
    encode_entry_lists,
    encode_limit_scan,
    encode_scan_kv,
    lookup_request,
    parse_lookup_response,
)
from fluss.protocol.protobuf import Encoded, parse_request

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PLACES = st.tuples(st.none() | INT64, INT32)
VALUES = st.binary(min_size=1, max_size=300)
Refusal = tuple[int, str]
REFUSALS = st.tuples(st.integers(1, 73), st.text(max_size=20))


def joined(answer: Encoded) -> memoryview:
    body = b"".join(answer.parts)
    assert len(body) == answer.size_bytes
    return memoryview(body)


@pytest.mark.parametrize("kind", LookupKind)
@given(table_id=INT64, keys=st.dictionaries(PLACES, st.lists(st.binary(max_size=20), max_size=4), max_size=4))
def test_what_the_client_asks_the_server_reads(
    kind: LookupKind, table_id: int, keys: dict[BucketKey, list[bytes]]
) -> None:
    api, body = lookup_request(kind, table_id, keys, 1.5)
    request: Any = parse_request(api, memoryview(body))
    assert api is (api_keys.PREFIX_LOOKUP if kind is LookupKind.PREFIX else api_keys.LOOKUP)
    assert request.table_id == table_id
    asked = {
        (item.partition_id if item.HasField("partition_id") else None, item.bucket_id): list(item.keys)
        for item in request.buckets_req
    }
    assert asked == keys
    if kind is not LookupKind.PREFIX:
        inserts = kind is LookupKind.ROW_OR_INSERT
        assert request.insert_if_not_exists == inserts
        assert (request.acks, request.timeout_ms) == ((-1, 1_500) if inserts else (0, 0))


@given(st.lists(st.tuples(PLACES, st.lists(st.none() | VALUES, max_size=5) | REFUSALS), max_size=4))
def test_the_row_of_each_key_comes_back(said: list[tuple[BucketKey, Any]]) -> None:
    check_answers(LookupKind.ROW, encode_entries, said)


@given(st.lists(st.tuples(PLACES, st.lists(st.lists(VALUES, max_size=3), max_size=4) | REFUSALS), max_size=4))
def test_the_rows_of_each_prefix_come_back(said: list[tuple[BucketKey, Any]]) -> None:
    check_answers(LookupKind.PREFIX, encode_entry_lists, said)


def check_answers(kind: LookupKind, encode: Any, said: list[tuple[BucketKey, Any]]) -> None:
    response = LookupResponse()
    for (partition_id, bucket_id), entries in said:
        bucket = TableBucket(1, bucket_id, partition_id)
        if isinstance(entries, tuple):
            response.fail(bucket, *entries)
        else:
            response.add(bucket, encode(entries))
    body = joined(response.encoded())
    found = list(parse_lookup_response(kind, body, "test"))
    assert [item.bucket for item in found] == [bucket for bucket, _ in said]
    for item, (_, entries) in zip(found, said, strict=True):
        if isinstance(entries, tuple):
            assert (item.entries, item.refusal) == ([], told(*entries))
        else:
            assert (item.entries, item.refusal) == (entries, None)
    message_type = pb.PrefixLookupResponse if kind is LookupKind.PREFIX else pb.LookupResponse
    assert len(message_type.FromString(bytes(body)).buckets_resp) == len(said)


def told(code: int, text: str) -> Refusal:
    """Clients of these requests do not know the code of back-pressure."""
    is_pressure = code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION
    return (ErrorCode.KV_STORAGE_EXCEPTION if is_pressure else code), text


@pytest.mark.parametrize("kind", LookupKind)
@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\x05\x10\x00", b"\x0a\x00", b"\x0b", b"\x0a" + b"\xff" * 11])
def test_bytes_that_are_no_answer_are_refused(kind: LookupKind, body: bytes) -> None:
    with pytest.raises(CorruptDataError, match="The answer of test is not a valid one to a lookup") as raised:
        list(parse_lookup_response(kind, memoryview(body), "test"))
    assert raised.value.error_code == ErrorCode.CORRUPT_MESSAGE


@given(records=st.lists(st.binary(max_size=300), max_size=4), is_log_table=st.booleans())
def test_the_records_of_a_limit_scan_come_back(records: list[bytes], is_log_table: bool) -> None:
    answer = encode_limit_scan(records, is_log_table=is_log_table)
    assert all(part is given for part, given in zip(answer.parts[1:], records, strict=True))
    message = pb.LimitScanResponse.FromString(bytes(joined(answer)))
    assert (message.records, message.is_log_table) == (b"".join(records), is_log_table)
    assert not message.HasField("error_code")


@given(scanner_id=st.none() | st.binary(max_size=16), log_offset=st.none() | INT64, records=st.binary(max_size=300))
def test_the_records_of_a_scan_come_back(scanner_id: bytes | None, log_offset: int | None, records: bytes) -> None:
    head = pb.ScanKvResponse(scanner_id=scanner_id, log_offset=log_offset, has_more_results=scanner_id is not None)
    answer = encode_scan_kv(head, records)
    assert answer.parts[1] is records
    message = pb.ScanKvResponse.FromString(bytes(joined(answer)))
    assert message.records == records
    message.ClearField("records")
    assert message == head
