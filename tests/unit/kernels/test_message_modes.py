"""Write requests and Arrow messages: the compiled kernel and the plain one read, and refuse, the same bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.arrow.messages import ArrowLayout
from fluss.formats.arrow.payload import Codec, Compression, encode
from fluss.model.types import DataTypes
from fluss.protocol import messages_pb2 as pb
from tests.kit.formats.modes import damage_bytes, in_both_modes, needs_both

ROWS = pa.record_batch([pa.array([1, 2]), pa.array(["x", None]), pa.array([[1], []])], names=["a", "b", "c"])
LAYOUT = ArrowLayout([DataTypes.bigint(), DataTypes.string(), DataTypes.array(DataTypes.bigint())])
MESSAGES = [bytes(encode(ROWS, Codec(compression))) for compression in Compression]


def _request() -> bytes:
    request = pb.PutKvRequest(acks=-1, table_id=1 << 40, timeout_ms=7, target_columns=[0, -1], agg_mode=1)
    request.buckets_req.add(partition_id=-3, bucket_id=2, records=b"rows")
    request.buckets_req.add(bucket_id=1, records=b"")
    return request.SerializeToString()


def _checked(kernel: Any, body: bytes) -> Any:
    view = memoryview(body)
    rows, body_start, _, nodes, buffers, codec = message = kernel.read_message(view)
    sizes, total, has_raw = kernel.decoded_sizes(view, body_start, buffers, codec is not None)
    kernel.check_layout(LAYOUT._numbers, rows, nodes, sizes)
    kernel.check_message(LAYOUT._numbers, view, rows)
    return message, sizes, total, has_raw


@needs_both
@pytest.mark.parametrize("message", MESSAGES)
def test_sound_messages(message: bytes) -> None:
    one, two = in_both_modes(lambda k: _checked(k, message))
    assert one == two
    assert one[0] == "returned"


@needs_both
@given(data=st.data(), message=st.sampled_from(MESSAGES))
def test_damaged_messages(data: st.DataObject, message: bytes) -> None:
    body = bytearray(message)
    damage_bytes(data, body)
    cut = bytes(body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body)
    one, two = in_both_modes(lambda k: _checked(k, cut))
    assert one == two


@needs_both
@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=16, max_size=16))
def test_numbers_of_any_size(numbers: list[int]) -> None:
    node_count, buffer_count = len(LAYOUT.nodes), LAYOUT.buffer_count
    nodes, sizes = numbers[: 2 * node_count], [abs(number) >> 8 for number in numbers[:buffer_count]]
    one, two = in_both_modes(lambda k: k.check_layout(LAYOUT._numbers, nodes[0], nodes, sizes))
    assert one == two


@needs_both
def test_sound_requests() -> None:
    one, two = in_both_modes(lambda k: k.split_write(memoryview(_request()), 5, 4, 0, 9))
    assert one == two
    numbers, text, targets, buckets = one[1]
    assert (numbers, text, targets) == ({1: -1, 2: 1 << 40, 3: 7, 6: 1}, None, [0, -1])
    assert [(partition, bucket, bytes(records)) for partition, bucket, records in buckets] == [
        (-3, 2, b"rows"),
        (None, 1, b""),
    ]


@needs_both
@given(data=st.data())
def test_damaged_requests(data: st.DataObject) -> None:
    body = bytearray(_request())
    damage_bytes(data, body)
    one, two = in_both_modes(lambda k: k.split_write(memoryview(body), 5, 4, 1, 9))
    assert one == two


@needs_both
@given(body=st.binary(max_size=60))
def test_any_bytes(body: bytes) -> None:
    one, two = in_both_modes(lambda k: k.split_write(memoryview(body), 5, 4, 1, 9))
    assert one == two
    one, two = in_both_modes(lambda k: _checked(k, body))
    assert one == two
