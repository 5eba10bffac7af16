"""A network between simulated hosts: streams that are slow, come in pieces, stand still, or are cut.

Bytes of a connection arrive in order or not at all; different connections overtake each other. While a link is down,
what was to cross it waits, as TCP would send it again; after a time the side that sends gives up. A host without power
says nothing, and once it is back it resets connections that it does not know. A process that was killed leaves the
closing of its connections to its host.

Transports belong to loops; what arrives is given to them as by another thread. `SimSocket` is what the socket of a
transport can be asked and told.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from fluss.testing.sim.scheduler import NS, Scheduler, SimProcess

P = TypeVar("P", bound=asyncio.BaseProtocol)

_FIRST_FD: Final = 1 << 20
_FIRST_PORT: Final = 40_000
_WINDOW_BYTES: Final = 256 << 10
_HIGH_WATER_BYTES: Final = 64 << 10
_READ_BYTES: Final = 256 << 10
_RETRY_S: Final = 0.2
_ESTABLISHED, _CLOSED = b"\x01", b"\x07"


class Hop(NamedTuple):
    """One direction between two hosts."""

    source: str
    target: str


class Weather(NamedTuple):
    """How the network is, on the whole."""

    delay_s_min: float = 0.00005
    delay_s_max: float = 0.001
    bytes_per_s: float = 1e9
    pieces_share: float = 0.2
    """How often bytes come in pieces"""
    gives_up_s: float = 10.0
    """How long a side sends again before it takes the connection for lost"""


class SimNetwork:
    """All hosts, and what is between them."""

    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self.scheduler = scheduler
        self.weather = weather
        self.down: set[Hop] = set()
        self.off: set[str] = set()
        """Hosts without power"""
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._sockets: dict[int, SimTransport] = {}
        self._ports = _FIRST_PORT
        self._fds = _FIRST_FD
        self.transports: dict[SimTransport, None] = {}
        self.connections = 0
        self.sent_bytes = 0

    # --- the door `sockets`

    async def connect(self, make_protocol: Callable[[], P], host: str, port: int) -> P:
        """As `sockets.connect`."""
        scheduler, process = self.scheduler, self.scheduler.current.process
        deadline_ns = scheduler.now_ns + int(self.weather.gives_up_s * NS)
        while True:
            await asyncio.sleep(self.delay_s())
            if self.is_open(process.host, host) and self.is_open(host, process.host):
                break
            if scheduler.now_ns > deadline_ns:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            await asyncio.sleep(_RETRY_S)
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._ports += 1
        self.connections += 1
        here, there = (process.host, self._ports), (host, port)
        scheduler.trace.add("connect", self._ports, host, port)
        loop = asyncio.get_running_loop()
        near = SimTransport(self, process, loop, here, there)
        far = SimTransport(self, listener.process, listener.loop, there, here)
        near.peer, far.peer = far, near
        protocol = make_protocol()
        near.begin(protocol)
        listener.accept(far)
        return protocol

    def bind(self, host: str, port: int) -> socket.socket:
        """As `sockets.bind`."""
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return cast(socket.socket, _BoundSocket((host, port)))

    async def listen(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], bound: socket.socket, backlog: int
    ) -> asyncio.Server:
        """As `sockets.listen`."""
        address = bound.getsockname()
        process = self.scheduler.current.process
        listener = SimListener(self, process, asyncio.get_running_loop(), address, make_protocol)
        self._listeners[address] = listener
        process.at_end.append(listener.close)
        return cast(asyncio.Server, listener)

    def attach(self, fd: int, family: int = -1, kind: int = -1, protocol: int = -1) -> socket.socket:
        """As `sockets.attach`, and as `sockets.duplicate`."""
        transport = self._sockets.get(fd)
        if transport is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return cast(socket.socket, SimSocket(transport, fd))

    # --- for transports

    def delay_s(self) -> float:
        """How long something is on its way."""
        low, high = self.weather.delay_s_min, self.weather.delay_s_max
        # Mostly quick, seldom very slow.
        return low + (high - low) * self.scheduler.chance.random() ** 3

    def is_open(self, source: str, target: str) -> bool:
        """Whether anything crosses."""
        return Hop(source, target) not in self.down and source not in self.off and target not in self.off

    def next_fd(self) -> int:
        """A number for a socket."""
        self._fds += 1
        return self._fds

    def register(self, transport: SimTransport) -> None:
        """Its socket is open."""
        self._sockets[transport.fd] = transport
        self.transports[transport] = None

    def forget(self, transport: SimTransport) -> None:
        """Its connection is over."""
        self.transports.pop(transport, None)

    def close(self, fd: int) -> None:
        """A socket is closed; until then its number is not another's."""
        self._sockets.pop(fd, None)

    def unlisten(self, address: tuple[str, int], listener: SimListener) -> None:
        """Nobody listens there any more."""
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    # --- faults

    def cut(self, link: Hop) -> None:
        """Let nothing cross in this direction."""
        self.scheduler.trace.add("cut", *link)
        self.down.add(link)

    def mend(self, link: Hop) -> None:
        """Let things cross again."""
        self.scheduler.trace.add("mend", *link)
        self.down.discard(link)
        self._go_on()

    def power_off(self, host: str) -> None:
        """The host vanishes: its connections are forgotten there, and nobody is told."""
        self.off.add(host)
        for transport in list(self.transports):
            if transport.process.host == host:
                transport.vanish()

    def power_on(self, host: str) -> None:
        """The host is back, and knows nothing."""
        self.off.discard(host)
        self._go_on()

    def reset_one(self) -> bool:
        """Reset some connection at both ends; whether there was one."""
        living = [transport for transport in self.transports if transport.peer in self.transports]
        if not living:
            return False
        transport = self.scheduler.chance.choice(living)
        self.scheduler.trace.add("reset", transport.fd)
        transport.peer.lose(_reset())
        transport.lose(_reset())
        return True

    def end_of(self, process: SimProcess) -> None:
        """A process was killed: its host closes its connections."""
        for transport in list(self.transports):
            if transport.process is process:
                transport.orphan()

    def _go_on(self) -> None:
        for transport in list(self.transports):
            transport.pump()


class SimListener:
    """Takes connections; in the place of an `asyncio.Server`."""

    def __init__(
        self,
        network: SimNetwork,
        process: SimProcess,
        loop: asyncio.AbstractEventLoop,
        address: tuple[str, int],
        make_protocol: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self.process = process
        self.loop = loop
        self._network = network
        self._address = address
        self._make_protocol = make_protocol
        self._context = contextvars.copy_context()

    def accept(self, transport: SimTransport) -> None:
        """Begin with a connection on the loop."""
        self.loop.call_soon_threadsafe(lambda: transport.begin(self._make_protocol()), context=self._context)

    def close(self) -> None:
        self._network.unlisten(self._address, self)


class _BoundSocket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        pass


class SimSocket:
    """A socket object for the socket of a transport."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, 0

    def __init__(self, transport: SimTransport, fd: int) -> None:
        self._transport = transport
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        self._check()

    def getsockopt(self, level: int, option: int, size_bytes: int = 0) -> bytes:
        self._check()
        return _ESTABLISHED if self._transport.is_connected else _CLOSED

    def shutdown(self, how: int) -> None:
        """Reset: nobody shuts a socket down but to let nothing more leave."""
        self._check()
        self._transport.reset()

    def detach(self) -> int:
        return self._fd

    def close(self) -> None:
        pass

    def __enter__(self) -> SimSocket:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _check(self) -> None:
        if self._transport.is_gone:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    peer: SimTransport

    def __init__(
        self,
        network: SimNetwork,
        process: SimProcess,
        loop: asyncio.AbstractEventLoop,
        here: tuple[str, int],
        there: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": here, "peername": there})
        self.process = process
        self._network = network
        self._scheduler = network.scheduler
        self._loop = loop
        self._context = contextvars.copy_context()
        self.fd = network.next_fd()
        network.register(self)
        self._extra["socket"] = SimSocket(self, self.fd)  # type: ignore[attr-defined]  # of BaseTransport
        self._protocol: asyncio.BufferedProtocol = None  # type: ignore[assignment]  # `begin` sets it
        self._to_send: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._flight: deque[bytes] = deque()  # sent and not arrived
        self._flights = 0  # rises when what was under way is lost
        self._window_bytes = 0  # sent and not read by the peer
        self._arrives_ns = 0
        self._stalled_since_ns: int | None = None
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._is_paused_writing = False
        self._sends_end = self._sent_end = False
        self._arrived: deque[bytes] = deque()
        self._end_arrived = False
        self._is_reading = True
        self._read_is_due = False
        self._is_closing = False
        self._fate: Exception | None = None
        self.is_gone = False
        """Whether its socket is closed, or useless"""

    # --- asyncio's side

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach a protocol, on the loop."""
        self._protocol = cast(asyncio.BufferedProtocol, protocol)
        if self.is_gone:
            self._protocol.connection_made(self)
            self._lost()
            return
        self._protocol.connection_made(self)
        self._want_read()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._is_reading = False
            self._sends_end = True
            self.pump()

    def abort(self) -> None:
        if not self.is_gone:
            self._is_closing = True
            self._tell_peer(lambda: self.peer.lose(_reset()))
            self._leave(None)

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = True
            self._want_read()

    def is_reading(self) -> bool:
        return self._is_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._sends_end = True
        self.pump()

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        if self.is_gone or self._sends_end:
            return
        data = b"".join(list_of_data)
        if not data:
            return
        self._to_send.append(data)
        self._unsent_bytes += len(data)
        self.pump()
        if self._unsent_bytes > self._high and not self._is_paused_writing:
            self._is_paused_writing = True
            self._protocol.pause_writing()

    # --- the system's side

    @property
    def is_connected(self) -> bool:
        """Whether the peer has neither closed nor reset the connection, as far as this side knows."""
        return not self.is_gone and not self._end_arrived and self._fate is None

    def pump(self) -> None:
        """Let leave what can leave now."""
        if self.is_gone:
            return
        network, scheduler = self._network, self._scheduler
        if not network.is_open(self.process.host, self.peer.process.host):
            self._stall()
            return
        self._stalled_since_ns = None
        if self.peer.is_gone and (self._to_send or self._sends_end):
            self._tell_self(lambda: self.lose(_reset()))
            return
        while self._to_send and self._window_bytes < _WINDOW_BYTES:
            data = self._piece()
            self._unsent_bytes -= len(data)
            self._window_bytes += len(data)
            self._flight.append(data)
            network.sent_bytes += len(data)
            scheduler.trace.add("send", self.fd, data)
            delay_s = network.delay_s() + len(data) / network.weather.bytes_per_s
            self._arrives_ns = max(self._arrives_ns, scheduler.now_ns + int(delay_s * NS))
            scheduler.at(self._arrives_ns, partial(self._deliver, self._flights))
        if self._is_paused_writing and self._unsent_bytes <= self._low:
            self._is_paused_writing = False
            self._call(self._protocol.resume_writing)
        if self._sends_end and not self._to_send and not self._sent_end:
            self._sent_end = True
            self._arrives_ns = max(self._arrives_ns, scheduler.now_ns + int(network.delay_s() * NS))
            scheduler.at(self._arrives_ns, self._deliver_end)
            if self._is_closing:
                self._leave(None)

    def _piece(self) -> bytes:
        data = self._to_send.popleft()
        if len(data) > 1 and self._scheduler.chance.random() < self._network.weather.pieces_share:
            cut = self._scheduler.chance.randrange(1, len(data))
            self._to_send.appendleft(data[cut:])
            return data[:cut]
        return data

    def _stall(self) -> None:
        """Send again and again what does not arrive, until this side gives up."""
        if (not self._to_send and not (self._sends_end and not self._sent_end)) or self._stalled_since_ns is not None:
            return
        since_ns = self._stalled_since_ns = self._scheduler.now_ns

        def give_up() -> None:
            if self._stalled_since_ns == since_ns:
                self.lose(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

        self._scheduler.after(self._network.weather.gives_up_s, give_up)

    def _deliver(self, flight: int) -> None:
        peer = self.peer
        if flight != self._flights:
            return
        if not self._network.is_open(self.process.host, peer.process.host):
            if not self.is_gone:
                self._take_back()
            return
        data = self._flight.popleft()
        if peer.is_gone:
            self.lose(_reset())
            return
        peer._arrived.append(data)
        peer._want_read()

    def _take_back(self) -> None:
        """What is under way is lost: it is sent again when the link is there."""
        self._flights += 1
        size_bytes = sum(map(len, self._flight))
        self._unsent_bytes += size_bytes
        self._window_bytes -= size_bytes
        self._to_send.extendleft(reversed(self._flight))
        self._flight.clear()
        self._sent_end = False
        self._stall()

    def _deliver_end(self) -> None:
        peer = self.peer
        if not self._network.is_open(self.process.host, peer.process.host):
            if self.is_gone:
                # A closed socket's end is sent again by the system, for a while.
                self._scheduler.after(_RETRY_S, self._deliver_end)
            else:
                self._take_back()
            return
        peer._end_arrived = True
        peer._want_read()

    def _want_read(self) -> None:
        if self._read_is_due or self.is_gone or not self._is_reading or self._protocol is None:
            return
        if self._arrived or self._end_arrived:
            self._read_is_due = True
            self._call(self._read)

    def _read(self) -> None:
        self._read_is_due = False
        if self.is_gone or not self._is_reading:
            return
        if self._arrived:
            data = self._arrived.popleft()
            buffer = memoryview(self._protocol.get_buffer(-1)).cast("B")
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            if count < len(data):
                self._arrived.appendleft(data[count:])
            self.peer._taken(count)
            self._protocol.buffer_updated(count)
        elif self._end_arrived:
            self._end_arrived = True
            self._is_reading = False
            if not self._protocol.eof_received():
                self.close()
            return
        self._want_read()

    def _taken(self, count: int) -> None:
        self._window_bytes -= count
        if self._to_send:
            self.pump()

    # --- ends

    def lose(self, error: Exception) -> None:
        """The connection ends on this side."""
        if not self.is_gone:
            self._is_closing = True
            self._leave(error)

    def reset(self) -> None:
        """Drop all that has not left, and tell both sides."""
        self._to_send.clear()
        self._tell_peer(lambda: self.peer.lose(_reset()))
        self.lose(_reset())

    def orphan(self) -> None:
        """Its process is gone: the system sends what it was given, then an end, or a reset if something was unread."""
        if self.is_gone:
            return
        if self._arrived or self._scheduler.chance.random() < 0.5:
            self._tell_peer(lambda: self.peer.lose(_reset()))
            self.vanish()
            return
        self._sends_end = self._is_closing = True
        self.pump()

    def vanish(self) -> None:
        """It is forgotten, and nobody is told."""
        self.is_gone = True
        self._to_send.clear()
        self._network.forget(self)

    def _leave(self, error: Exception | None) -> None:
        self._fate = error
        self.vanish()
        if self._protocol is not None and self.process.is_alive:
            self._call(self._lost)

    def _lost(self) -> None:
        self._protocol.connection_lost(self._fate)
        self._network.close(self.fd)

    def _tell_peer(self, what: Callable[[], None]) -> None:
        if self._network.is_open(self.process.host, self.peer.process.host):
            self._arrives_ns = max(self._arrives_ns, self._scheduler.now_ns + int(self._network.delay_s() * NS))
            self._scheduler.at(self._arrives_ns, what)

    def _tell_self(self, what: Callable[[], None]) -> None:
        self._scheduler.after(self._network.delay_s(), what)

    def _call(self, what: Callable[[], object]) -> None:
        if not self.process.is_alive:
            return
        try:
            self._loop.call_soon_threadsafe(what, context=self._context)
        except RuntimeError:
            self.vanish()  # its loop is closed

    def __hash__(self) -> int:
        return self.fd


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
