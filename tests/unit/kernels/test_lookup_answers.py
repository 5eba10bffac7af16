"""Answers of lookups: what the kernel writes and reads is what protobuf writes and reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats import kernel
from fluss.model.errors import CorruptDataError
from fluss.protocol import messages_pb2 as pb
from tests.kit.formats.modes import damage_bytes, in_both_modes, needs_both

values = st.binary(min_size=1, max_size=300)
ids = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
buckets = st.integers(-(2**31), 2**31 - 1)


@given(found=st.lists(st.one_of(st.none(), values), max_size=5))
def test_entries_of_keys(found: list[bytes | None]) -> None:
    message = pb.PbLookupBucketResponse(bucket_id=0)
    for value in found:
        message.values.add(values=value)
    head = pb.PbLookupBucketResponse(bucket_id=0).SerializeToString()
    assert head + kernel.join_entries(found) == message.SerializeToString()


@given(found=st.lists(st.lists(values, max_size=3), max_size=4))
def test_entries_of_prefixes(found: list[list[bytes]]) -> None:
    message = pb.PbPrefixLookupBucketResponse(bucket_id=0)
    for listed in found:
        message.value_lists.add(values=listed)
    head = pb.PbPrefixLookupBucketResponse(bucket_id=0).SerializeToString()
    assert head + kernel.join_entry_lists(found) == message.SerializeToString()


@given(partition_id=ids, bucket=buckets, found=st.lists(st.one_of(st.none(), values), max_size=5))
def test_answers_are_read(partition_id: int | None, bucket: int, found: list[bytes | None]) -> None:
    answer = pb.LookupResponse()
    item = answer.buckets_resp.add(bucket_id=bucket, partition_id=partition_id)
    for value in found:
        item.values.add(values=value)
    answer.buckets_resp.add(bucket_id=1, error_code=7, error_message="nö")
    assert kernel.split_found(memoryview(answer.SerializeToString()), False) == [
        (partition_id, bucket, 0, b"", found),
        (None, 1, 7, "nö".encode(), []),
    ]


@given(found=st.lists(st.lists(values, max_size=3), max_size=4))
def test_answers_of_prefixes_are_read(found: list[list[bytes]]) -> None:
    answer = pb.PrefixLookupResponse()
    item = answer.buckets_resp.add(bucket_id=3)
    for listed in found:
        item.value_lists.add(values=listed)
    assert kernel.split_found(answer.SerializeToString(), True) == [(None, 3, 0, b"", found)]


def test_fields_of_later_versions_are_passed_over() -> None:
    unknown = b"\x48\x05\x51" + bytes(8) + b"\x5d" + bytes(4) + b"\x62\x01x"
    bucket = b"\x10\x02" + unknown + b"\x2a\x05\x48\x05\x0a\x01v"
    body = unknown + b"\x0a" + bytes([len(bucket)]) + bucket
    assert kernel.split_found(body, False) == [(None, 2, 0, b"", [b"v"])]
    assert kernel.split_found(b"", False) == []


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",  # no length
        b"\x0a\x05\x10\x00",  # shorter than announced
        b"\x0a\x00",  # no bucket id
        b"\x0a\x04\x10\x00\x2a\x01",  # an entry that ends behind its bucket
        b"\x0a\x06\x10\x00\x2a\x02\x0a\x01",  # a value that ends behind its entry
        b"\x0b",  # a group
        b"\x0a" + b"\xff" * 9 + b"\x02",  # more than 64 bits
        b"\x0a" + b"\xff" * 9 + b"\x01",  # more bytes than there can be
    ],
)
def test_bytes_that_are_no_answer_are_refused(body: bytes) -> None:
    for with_lists in (False, True):
        with pytest.raises(CorruptDataError):
            kernel.split_found(body, with_lists)


@needs_both
@given(found=st.lists(st.one_of(st.none(), values), max_size=3), bucket=buckets, data=st.data())
def test_kernels_agree(found: list[bytes | None], bucket: int, data: st.DataObject) -> None:
    answer = pb.LookupResponse()
    answer.buckets_resp.add(bucket_id=bucket, error_code=data.draw(buckets))
    for value in found:
        answer.buckets_resp[0].values.add(values=value)
    body = bytearray(answer.SerializeToString())
    damage_bytes(data, body)
    for with_lists in (False, True):

        def read(kernel: Any, with_lists: bool = with_lists) -> Any:
            return kernel.split_found(bytes(body), with_lists)

        plain, compiled = in_both_modes(read)
        assert plain == compiled
    plain, compiled = in_both_modes(lambda kernel: kernel.join_entries(found))
    assert plain == compiled
