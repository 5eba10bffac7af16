"""One connection: bytes in and out, and how much of either it may make the server hold."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final, Protocol, cast

from fluss.doors import sockets
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.trust import Address
from fluss.protocol import frames
from fluss.protocol.protobuf import Part
from fluss.server.net.budgets import FrameShare
from fluss.server.net.context import ConnectionContext, ServerContext, error_frame
from fluss.server.net.limits import ConnectionPatience, Seen
from fluss.server.net.session import Session

_log = logging.getLogger(__name__)

# How long a connection that gets a last word is still read, so that the word is not lost in a reset.
LINGER_S: Final = 1.0
_DISCARD = bytearray(64 << 10)
_QUICKACK: Final = getattr(socket, "TCP_QUICKACK", None)
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
_ESTABLISHED: Final = 1  # of Linux, the first byte of tcp_info


class Connections(Protocol):
    """The owner of the list of connections."""

    def admit(self, connection: ServerConnection, peer: str) -> FlussError | None:
        """None when the connection may stay, otherwise why not."""

    def forget(self, connection: ServerConnection) -> None: ...


class ServerConnection(asyncio.BufferedProtocol):
    """Reads frames for a session and sends what it answers."""

    def __init__(self, server: ServerContext, connections: Connections) -> None:
        self._server = server
        self._limits = server.limits
        self._metrics = server.metrics
        self._connections = connections
        self._reader = frames.FrameReader(self._limits.frame_bytes_max, frames.REQUEST_HEADER_SIZE_BYTES - 4)
        self._context: ConnectionContext | None = None
        self._awaits_login = False
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._session: Session | None = None
        self._refusal: FlussError | None = None
        self._last_frame: list[Part] | None = None  # to be sent when all before it are answered
        self._share: FrameShare | None = None  # of the large frame under way
        self._waits_for_budget = False
        self._frames = 0  # received
        self._received_bytes = 0
        self._patience = ConnectionPatience(server.loop.time())
        self._unsent_bytes = 0  # as counted when the client stopped taking responses
        self._reading = True
        self._stopping = False
        self._discarding = False
        self.peer = "?"
        self._address = "?"

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self._session is None or self._session.idle

    @property
    def fetches_waiting(self) -> int:
        return self._context.fetches_waiting if self._context is not None else 0

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio.Transport objects, they only look like them.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._socket = _own_view(transport.get_extra_info("socket"))
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.peer = f"{peer[0]}:{peer[1]}"
        self._address = peer[0]
        self._set_options()
        transport.set_write_buffer_limits(high=self._limits.response_bytes_per_connection_max)
        self._refusal = self._connections.admit(self, peer[0])
        if self._refusal is None:
            name = transport.get_extra_info("sockname")
            address = self._server.config.advertise or Address(name[0], name[1])
            self._context = ConnectionContext(self._server, address, peer[0], self._is_connected)
            self._session = Session(self._context, self._send, self._update_reading)
            self._await_login()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(_DISCARD) if self._discarding else self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._metrics.received_bytes += nbytes
        self._received_bytes += nbytes
        if self._discarding:
            return
        if self._awaits_login:
            self._await_login()
        try:
            received = self._reader.buffer_updated(nbytes)
        except frames.BadLengthError as error:
            self._receive(error.frames)
            self._refuse_frame(error)
            return
        self._receive(received)
        # Of a large frame nothing may have come but its length.
        is_unanswered = not self.idle or self._reader.buffered_bytes or self._reader.large_frame_size_bytes
        if is_unanswered:
            self._acknowledge()
            self._watch_large_frame()
        if is_unanswered or not self._reading:
            self._update_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._server.response_budget.add(self._unsent_bytes)
        if self._session is not None:
            self._session.pause_writing()
        self._update_reading()

    def resume_writing(self) -> None:
        self._release_unsent()
        if self._session is not None:
            self._session.resume_writing()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        self._release_unsent()
        self._release_frame()
        self._reader = frames.FrameReader()
        if self._session is not None:
            self._session.close()
        if self._context is not None:
            self._context.close()
        # They refer to this object: cycles would keep all of it until they are collected, while everybody waits.
        self._session = self._context = None
        self._connections.forget(self)

    # --- called by the server

    @property
    def is_stranger(self) -> bool:
        """Whether its client has to log in and has not."""
        return self._context is not None and self._context.is_stranger

    def overdue(self, now_s: float) -> str | None:
        """Why the connection is to be closed, if it is; to be asked from time to time."""
        if self._transport is None or self._session is None or self._discarding or self._stopping:
            return None
        seen = Seen(
            self._frames,
            self._received_bytes,
            self._transport.get_write_buffer_size(),
            frame_bytes=self._reader.buffered_bytes + self._reader.large_frame_size_bytes,
            is_large=self._share is not None,
            is_in_the_way=self._server.request_budget.is_crowded,
            is_read=self._reading,
            is_idle=self._session.idle,
            is_stranger=self.is_stranger,
        )
        return self._patience.overdue(seen, now_s, self._limits)

    def end(self) -> None:
        """Close now, with what is left unsent if the client does not take it."""
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()

    def stop(self) -> None:
        """Read no more requests, and answer soon those that wait."""
        self._stopping = True
        self._update_reading()
        if self._session is not None:
            self._session.hurry()

    def close(self) -> None:
        """Send what is left and close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- requests

    def _is_connected(self) -> bool:
        """Whether the client has neither closed nor reset the connection, though what it sent may be unread."""
        if self._socket is None:
            return self._transport is not None  # a transport without a socket tells by itself
        try:
            # The kernel knows before the end of what was sent is read.
            return _TCP_INFO is None or self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] == _ESTABLISHED
        except OSError:
            return False

    def _await_login(self) -> None:
        """Take small frames only, until the client has logged in."""
        assert self._context is not None
        self._awaits_login = self._context.is_stranger
        before_login = self._limits.frame_bytes_before_login_max
        self._reader.frame_size_bytes_max = before_login if self._awaits_login else self._limits.frame_bytes_max

    def _acknowledge(self) -> None:
        """Let the kernel acknowledge what was read at once; an answer would have done so.

        It forgets the wish after each read. Clients that send a frame in two writes without TCP_NODELAY, or the next
        request before the answer, would wait 40 ms for it.
        """
        if _QUICKACK is not None and self._socket is not None:
            _set_option(self._socket, socket.IPPROTO_TCP, _QUICKACK)

    def _receive(self, received: list[frames.Frame]) -> None:
        if not received:
            return
        self._frames += len(received)
        self._release_frame()
        try:
            if self._session is None:
                self._last_word(received[0], self._refusal)
            else:
                self._session.receive(received)
        except CorruptDataError as error:
            # Too short for a request id: nothing to answer to, and nothing to trust behind it.
            _log.warning("%s: %s The connection is closed.", self.peer, error)
            self._discarding = True
            self.close()

    def _refuse_frame(self, error: frames.BadLengthError) -> None:
        _log.warning("%s: %s The connection is closed.", self.peer, error)
        self._last_word(error.header, error)

    def _last_word(self, frame: frames.Frame | bytes, error: FlussError | None) -> None:
        """Answer the request that begins with `frame` with an error, after those before it; then close."""
        assert error is not None
        request = frames.parse_request(memoryview(frame))
        self._discarding = True
        self._last_frame = error_frame(request.request_id, error)
        self._server.loop.call_later(LINGER_S, self.close)
        if self._session is not None:
            self._session.hurry()
        self._send_last_frame()
        self._update_reading()

    def _send_last_frame(self) -> None:
        if self._last_frame is None or not self.idle or self._transport is None or self._transport.is_closing():
            return
        self._transport.writelines(self._last_frame)
        self._last_frame = None
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _send(self, frame: list[Part]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(frame)
            self._metrics.sent_bytes += sum(map(len, frame))
            if self._discarding:
                self._send_last_frame()
        if not self._reading:
            self._update_reading()

    # --- flow control

    def _watch_large_frame(self) -> None:
        """Ask for the memory that the next read of a large frame takes."""
        wanted_bytes = self._reader.large_buffer_size_bytes
        if not wanted_bytes or self._waits_for_budget:
            return
        share = self._share
        if share is None:
            share = self._share = FrameShare(self._address, self._reader.large_frame_size_bytes, self._granted)
        self._waits_for_budget = not self._server.request_budget.grow(share, wanted_bytes)

    def _granted(self) -> None:
        self._waits_for_budget = False
        self._update_reading()

    def _release_frame(self) -> None:
        if self._share is not None:
            self._server.request_budget.end(self._share)
            self._share = None
            self._waits_for_budget = False

    def _release_unsent(self) -> None:
        if self._unsent_bytes:
            self._server.response_budget.release(self._unsent_bytes)
            self._unsent_bytes = 0

    def _update_reading(self) -> None:
        wanted = self._discarding or self._wants_requests()
        if wanted == self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _wants_requests(self) -> bool:
        session = self._session
        if self._stopping or self._waits_for_budget:
            return False
        if session is None:
            return True
        return (
            self._unsent_bytes == 0
            and session.open_requests < self._limits.requests_per_connection_max
            and session.queued_bytes < self._limits.request_bytes_per_connection_max
            and not (session.queued_bytes and self._server.request_budget.exceeded)
        )

    def _set_options(self) -> None:
        if self._socket is None:
            return
        _set_option(self._socket, socket.IPPROTO_TCP, socket.TCP_NODELAY)
        # A client whose machine vanished is noticed by the kernel.
        _set_option(self._socket, socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def _own_view(transport_socket: socket.socket | None) -> socket.socket | None:
    """A plain socket of the transport's number: uvloop's takes 7 us a call. To be detached, never closed."""
    if transport_socket is None:
        return None
    return sockets.attach(
        transport_socket.fileno(), transport_socket.family, transport_socket.type, transport_socket.proto
    )


def _set_option(connected: socket.socket, level: int, option: int) -> None:
    try:
        connected.setsockopt(level, option, 1)
    except OSError:
        # The client has gone, which the next read or write will say.
        pass
