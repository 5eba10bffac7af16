"""Frames of the wire protocol, cut from the byte stream, sans I/O. All integers are big-endian.

Request:  length:int32  api_key:int16  api_version:int16  request_id:int32  body
Response: length:int32  type:int8      request_id:int32   body              (type 2 has no request id)

`length` counts what follows it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from fluss.model.errors import CorruptDataError, ErrorCode

FRAME_SIZE_BYTES_MAX = 100 << 20
LENGTH_SIZE_BYTES = 4

SUCCESS, ERROR, FAILURE = 0, 1, 2

_REQUEST = struct.Struct(
    ">"
    "i"  # length of the rest
    "h"  # api key
    "h"  # api version
    "i"  # request id, the client's choice
)
_RESPONSE = struct.Struct(
    ">"
    "i"  # length of the rest
    "b"  # SUCCESS, ERROR or FAILURE
    "i"  # request id
)
_LENGTH = struct.Struct(">i")
REQUEST_HEADER_SIZE_BYTES = _REQUEST.size
RESPONSE_HEADER_SIZE_BYTES = _RESPONSE.size
_REQUEST_REST = struct.Struct(">hhi")
_RESPONSE_REST = struct.Struct(">bi")


class Request(NamedTuple):
    """A request frame without its length."""

    api_key: int
    api_version: int
    request_id: int
    body: memoryview


class Response(NamedTuple):
    """A response frame without its length. `request_id` is None for a FAILURE, which ends the connection."""

    kind: int
    request_id: int | None
    body: memoryview


def request_header(api_key: int, api_version: int, request_id: int, body_size_bytes: int) -> bytes:
    """The bytes before a request's body."""
    return _REQUEST.pack(8 + body_size_bytes, api_key, api_version, request_id)


def response_header(kind: int, request_id: int, body_size_bytes: int) -> bytes:
    """The bytes before a response's body."""
    return _RESPONSE.pack(5 + body_size_bytes, kind, request_id)


def parse_request(frame: memoryview) -> Request:
    """A request from a frame's bytes after the length."""
    if len(frame) < _REQUEST_REST.size:
        raise CorruptDataError(
            f"A request frame has at least {_REQUEST_REST.size} bytes, not {len(frame)}.", ErrorCode.CORRUPT_MESSAGE
        )
    api_key, api_version, request_id = _REQUEST_REST.unpack_from(frame)
    return Request(api_key, api_version, request_id, frame[_REQUEST_REST.size :])


def parse_response(frame: memoryview) -> Response:
    """A response from a frame's bytes after the length."""
    if len(frame) >= 1 and frame[0] == FAILURE:
        return Response(FAILURE, None, frame[1:])
    if len(frame) < _RESPONSE_REST.size:
        raise CorruptDataError(
            f"A response frame has at least {_RESPONSE_REST.size} bytes, not {len(frame)}.", ErrorCode.CORRUPT_MESSAGE
        )
    kind, request_id = _RESPONSE_REST.unpack_from(frame)
    return Response(kind, request_id, frame[_RESPONSE_REST.size :])


Frame: TypeAlias = bytearray | memoryview


class BadLengthError(CorruptDataError):
    """A frame announces a length that can't be right: `frames` came whole before it, `header` is how it begins.

    The code is not a retriable one: the same bytes would be refused again.
    """

    def __init__(self, length: int, limit: int, frames: list[Frame], header: bytes) -> None:
        super().__init__(
            f"A frame announces {length} bytes; the limit is {limit}. "
            "Send smaller batches, or check that both sides speak the Fluss protocol.",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
        self.frames = frames
        self.header = header

    def __reduce__(self) -> tuple[type[CorruptDataError], tuple[str, int]]:
        return CorruptDataError, (self.message, self.error_code)


class _SharedScratch(threading.local):
    def __init__(self) -> None:
        self.scratch = bytearray(FrameReader.SCRATCH_SIZE_BYTES)


class FrameReader:
    """Cuts a byte stream into frames, in the shape of asyncio's BufferedProtocol: the socket reads into our buffer.

    A small frame is read into a scratch buffer; a frame that does not fit gets a buffer of its exact size, so large
    bodies are copied once, by the socket. Memory is only taken when bytes of the frame have come, in steps that grow
    with them, so that a hostile length alone costs nothing.

    All readers of a thread share one scratch buffer; only a reader with part of a frame left has its own, so that an
    idle connection costs nothing either. That is safe because event loops on POSIX read, and call `buffer_updated`,
    right after `get_buffer`.

    A bad length raises BadLengthError once `header_size_bytes` of that frame are there, so that a server can still say
    whose request it refuses.

    `padding` looks at the beginning of a large frame and says how many bytes to leave free before it in its buffer, so
    that what matters inside is aligned in memory. `growth_size_bytes` is the first step of a large buffer: a client
    that trusts its server takes them whole. `allocate` makes them; what they hold at first does not matter.
    """

    SCRATCH_SIZE_BYTES = 64 << 10
    GROWTH_SIZE_BYTES = 64 << 10
    _STEEP_SIZE_BYTES = 1 << 20  # up to here each step is four times the last, and then twice: few copies at first

    def __init__(
        self,
        frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX,
        header_size_bytes: int = 0,
        *,
        padding: Callable[[memoryview], int] | None = None,
        growth_size_bytes: int = GROWTH_SIZE_BYTES,
        allocate: Callable[[int], bytearray] = bytearray,
    ) -> None:
        self.frame_size_bytes_max = frame_size_bytes_max
        self._header_size_bytes = header_size_bytes
        self._padding = padding
        self._growth_size_bytes = growth_size_bytes
        self._allocate = allocate
        self._scratch: bytearray | None = None  # None: nothing is left, the shared one is used
        self._start = 0  # first unread byte of scratch
        self._end = 0  # one past the last byte read into scratch
        self._large: bytearray | None = None  # padding and the frame under way, when it does not fit into scratch
        self._large_padding = 0
        self._large_size = 0  # sizes include the padding
        self._large_filled = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of unfinished frames held, for memory accounting."""
        return (self._end - self._start) + (len(self._large) if self._large is not None else 0)

    @property
    def large_frame_size_bytes(self) -> int:
        """The size of the frame under way once it has a buffer of its own, otherwise 0."""
        return self._large_size - self._large_padding if self._large is not None else 0

    @property
    def large_buffer_size_bytes(self) -> int:
        """How large the buffer of that frame is when it is next read into; 0 without one."""
        if self._large is None:
            return 0
        return self._grown_size() if self._large_filled == len(self._large) else len(self._large)

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes; never empty."""
        if self._large is not None:
            if self._large_filled == len(self._large):
                # A new buffer, not extend(): the event loop may still hold a view of the old one.
                grown = self._allocate(self._grown_size())
                grown[: self._large_filled] = self._large
                self._large = grown
            return memoryview(self._large)[self._large_filled :]
        scratch = self._scratch
        if scratch is None:
            scratch = _shared.scratch
        elif self._end == len(scratch):
            rest = scratch[self._start : self._end]
            scratch[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return memoryview(scratch)[self._end :]

    def buffer_updated(self, size_bytes: int) -> list[Frame]:
        """The frames (without their length) that the last `size_bytes` read completed; each is the caller's to keep."""
        frames: list[Frame] = []
        if self._large is not None:
            self._large_filled += size_bytes
            if self._large_filled == self._large_size:
                padding = self._large_padding
                frames.append(memoryview(self._large)[padding:] if padding else self._large)
                self._large = None
            return frames
        scratch = _shared.scratch if self._scratch is None else self._scratch
        self._end += size_bytes
        while self._end - self._start >= LENGTH_SIZE_BYTES:
            (length,) = _LENGTH.unpack_from(scratch, self._start)
            begin = self._start + LENGTH_SIZE_BYTES
            if not 0 <= length <= self.frame_size_bytes_max:
                if self._end - begin < self._header_size_bytes:
                    break
                header = bytes(scratch[begin : begin + self._header_size_bytes])
                raise BadLengthError(length, self.frame_size_bytes_max, frames, header)
            if self._end - begin >= length:
                frames.append(scratch[begin : begin + length])
                self._start = begin + length
            elif length + LENGTH_SIZE_BYTES > len(scratch):
                self._begin_large(length, memoryview(scratch)[begin : self._end])
                break
            else:
                break
        self._keep_rest(scratch)
        return frames

    def _grown_size(self) -> int:
        size = self._large_filled
        return min(self._large_size, max(self._growth_size_bytes, size * (4 if size < self._STEEP_SIZE_BYTES else 2)))

    def _begin_large(self, length: int, received: memoryview) -> None:
        # No more than has come: it grows when it is read on, and until then a paused connection holds only this.
        padding = self._large_padding = 0 if self._padding is None else self._padding(received)
        self._large = bytearray(padding)
        self._large += received
        self._large_size, self._large_filled = padding + length, padding + len(received)
        self._start = self._end

    def _keep_rest(self, scratch: bytearray) -> None:
        rest_bytes = self._end - self._start
        if not rest_bytes:
            self._scratch = None
            self._start = self._end = 0
        elif self._scratch is None:
            self._scratch = bytearray(self.SCRATCH_SIZE_BYTES)
            self._scratch[:rest_bytes] = memoryview(scratch)[self._start : self._end]
            self._start, self._end = 0, rest_bytes


_shared = _SharedScratch()
