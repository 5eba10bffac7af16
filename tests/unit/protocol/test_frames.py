"""Frames: byte vectors, and a reader that gets the stream in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import CorruptDataError
from fluss.protocol import frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.frames import FrameReader


def test_request_vector() -> None:
    body = pb.ApiVersionsRequest(client_software_name="fluss-rust", client_software_version="1.0.0")
    data = body.SerializeToString()
    frame = frames.request_header(1000, 0, 0, len(data)) + data
    assert frame.hex() == "0000001b03e80000000000000a0a666c7573732d727573741205312e302e30"
    request = frames.parse_request(memoryview(frame)[4:])
    assert (request.api_key, request.api_version, request.request_id, bytes(request.body)) == (1000, 0, 0, data)


def test_error_response_vector() -> None:
    data = pb.ErrorResponse(error_code=7, error_message="no").SerializeToString()
    frame = frames.response_header(frames.ERROR, 5, len(data)) + data
    assert frame.hex() == "0000000b0100000005080712026e6f"
    response = frames.parse_response(memoryview(frame)[4:])
    assert (response.kind, response.request_id) == (frames.ERROR, 5)
    assert pb.ErrorResponse.FromString(bytes(response.body)).error_message == "no"


def test_failure_has_no_request_id() -> None:
    response = frames.parse_response(memoryview(b"\x02\x08\x07"))
    assert (response.kind, response.request_id, bytes(response.body)) == (frames.FAILURE, None, b"\x08\x07")


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x00\x00\x00"])
def test_short_frames_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        frames.parse_response(memoryview(data))
    with pytest.raises(CorruptDataError):
        frames.parse_request(memoryview(data))


def feed(reader: FrameReader, data: bytes, piece_bytes: int) -> list[bytes]:
    """Give the reader a stream the way a socket does: never more than asked for, never more than there is."""
    result: list[bytes] = []
    position = 0
    while position < len(data):
        buffer = reader.get_buffer()
        size = min(piece_bytes, len(buffer), len(data) - position)
        buffer[:size] = data[position : position + size]
        position += size
        result.extend(bytes(frame) for frame in reader.buffer_updated(size))
    return result


def stream(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 700))
def test_reader_cuts_any_stream(bodies: list[bytes], piece_bytes: int) -> None:
    assert feed(FrameReader(), stream(bodies), piece_bytes) == bodies


@pytest.mark.parametrize("piece_bytes", [1000, 65_536, 1 << 22])
def test_reader_takes_frames_larger_than_its_buffers(piece_bytes: int) -> None:
    sizes = [10, FrameReader.SCRATCH_SIZE_BYTES - 4, FrameReader.SCRATCH_SIZE_BYTES, 200_000, 3, 13_000_000, 0, 65_000]
    bodies = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    assert feed(FrameReader(), stream(bodies), piece_bytes) == bodies


def test_a_hostile_length_costs_no_memory() -> None:
    reader = FrameReader()
    feed(reader, (90 << 20).to_bytes(4, "big") + b"x", 5)
    assert reader.buffered_bytes <= FrameReader.GROWTH_SIZE_BYTES


@pytest.mark.parametrize("length", [(101 << 20).to_bytes(4, "big"), b"\xff\xff\xff\xff", b"GET "])
def test_absurd_lengths_are_refused(length: bytes) -> None:
    with pytest.raises(CorruptDataError, match="limit"):
        feed(FrameReader(), length, 4)


@pytest.mark.parametrize("padding", [0, 3, 7])
def test_large_frames_lie_where_the_reader_is_told(padding: int) -> None:
    reader = FrameReader(padding=lambda beginning: padding if beginning[0] == 2 else 0, growth_size_bytes=1 << 20)
    bodies = [b"\x01" * 100_000, b"\x02" * 3_000_000, b"\x02", b"\x02" * 70_000]
    assert feed(reader, stream(bodies), 50_000) == bodies
