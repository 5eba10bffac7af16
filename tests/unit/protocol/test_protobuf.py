"""What the halves written by hand share: numbers, and errors that say whose bytes are wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import decode_varint, encode_varint, parse_answer, parse_request


@given(number=st.integers(0, (1 << 64) - 1), before=st.binary(max_size=5), behind=st.binary(max_size=5))
def test_numbers_come_back(number: int, before: bytes, behind: bytes) -> None:
    written = encode_varint(number)
    assert decode_varint(memoryview(before + written + behind), len(before)) == (number, len(before) + len(written))
    tagged = pb.PbFetchLogTableResponse.FromString(b"\x08" + written)
    assert tagged.table_id % (1 << 64) == number


@pytest.mark.parametrize(
    ("body", "error"), [(b"", IndexError), (b"\x80" * 9, IndexError), (b"\x80" * 11, OverflowError)]
)
def test_what_is_no_number_is_refused(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_varint(memoryview(body), 0)


def test_requests_are_read() -> None:
    request = pb.ListTablesRequest(database_name="d")
    assert parse_request(api_keys.LIST_TABLES, memoryview(request.SerializeToString())) == request


@pytest.mark.parametrize(("body", "reason"), [(b"\x0a\xff", ""), (b"\x0b", ""), (b"", "it lacks required fields")])
def test_requests_that_are_none_are_not_tried_again(body: bytes, reason: str) -> None:
    with pytest.raises(
        CorruptDataError, match=f"The body of this ListTables request can't be read: .*{reason}"
    ) as raised:
        parse_request(api_keys.LIST_TABLES, memoryview(body))
    assert raised.value.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_answers_that_are_none_are_told_with_their_sender() -> None:
    with pytest.raises(CorruptDataError, match="The answer of host:1 is not a valid ListTablesResponse") as raised:
        parse_answer(pb.ListTablesResponse, b"\x0a\xff", "host:1")
    assert raised.value.error_code == ErrorCode.CORRUPT_MESSAGE
