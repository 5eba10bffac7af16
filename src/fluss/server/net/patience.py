"""Time limits of connections: to log in, to send the rest of a frame, to ask something, to take answers.

One sweep looks at all connections from time to time. It compares what it sees with what it saw before, so reading and
answering pay nothing for these timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Protocol

from fluss.server.net.limits import Limits
from fluss.server.net.turns import Turns

_log = logging.getLogger(__name__)

SWEEP_S_MAX: Final = 1.0
_SWEEPS_PER_WAIT: Final = 4
_CONNECTIONS_PER_TURN: Final = 500


class Seen(NamedTuple):
    """A connection at one moment."""

    frames: int  # received so far
    received_bytes: int
    unsent_bytes: int
    frame_bytes: int  # not 0 while a frame is half there
    is_large: bool
    is_in_the_way: bool  # others wait for the memory of such frames
    is_read: bool
    is_idle: bool
    is_stranger: bool  # who has to log in


class ConnectionPatience:
    """Since when a connection does what it does."""

    __slots__ = ("_connected_s", "_frame_s", "_frames", "_quiet_s", "_received_bytes", "_unsent_bytes", "_window")

    def __init__(self, now_s: float) -> None:
        self._connected_s = now_s
        self._quiet_s = now_s
        self._frame_s = now_s
        self._frames = 0
        self._received_bytes = 0
        self._unsent_bytes = 0
        self._window = (now_s, 0)  # when it began, and what had been received then

    def overdue(self, seen: Seen, now_s: float, limits: Limits) -> str | None:
        """Why to close the connection, None if it may stay."""
        if seen.is_stranger and now_s - self._connected_s > limits.login_wait_ms_max / 1_000:
            return f"did not log in within {limits.login_wait_ms_max} ms"
        return self._late_frame(seen, now_s, limits) or self._too_quiet(seen, now_s, limits)

    def _late_frame(self, seen: Seen, now_s: float, limits: Limits) -> str | None:
        if not seen.frame_bytes or not seen.is_read or seen.frames != self._frames:
            # Nothing under way, nothing the client could do about it, or another frame than last time.
            self._frame_s = now_s
            self._frames = seen.frames
            self._window = (now_s, seen.received_bytes)
            return None
        wait_ms = limits.frame_wait_ms_max if seen.is_large else limits.small_frame_wait_ms_max
        if now_s - self._frame_s > wait_ms / 1_000:
            return f"did not send the rest of a request within {wait_ms} ms"
        since_s, received_bytes = self._window
        stall_ms = limits.frame_stall_crowded_ms_max if seen.is_in_the_way else limits.frame_stall_ms_max
        if seen.is_large and now_s - since_s > stall_ms / 1_000:
            if seen.received_bytes - received_bytes < limits.frame_bytes_per_second_min * (now_s - since_s):
                return f"sent a large request at less than {limits.frame_bytes_per_second_min} bytes/s"
            self._window = (now_s, seen.received_bytes)
        return None

    def _too_quiet(self, seen: Seen, now_s: float, limits: Limits) -> str | None:
        is_working = not seen.is_idle and not seen.unsent_bytes
        if is_working or (seen.received_bytes, seen.unsent_bytes) != (self._received_bytes, self._unsent_bytes):
            self._quiet_s = now_s
            self._received_bytes, self._unsent_bytes = seen.received_bytes, seen.unsent_bytes
            return None
        if now_s - self._quiet_s <= limits.connection_idle_ms_max / 1_000:
            return None
        what = "did not take its answers" if seen.unsent_bytes else "asked nothing"
        return f"{what} for {limits.connection_idle_ms_max} ms"


class Swept(Protocol):
    """A connection, as the sweep needs it."""

    peer: str

    def overdue(self, now_s: float) -> str | None: ...

    def end(self) -> None: ...


def sweep_interval_s(limits: Limits) -> float:
    """Often enough for the shortest wait."""
    shortest_ms = min(
        limits.login_wait_ms_max,
        limits.small_frame_wait_ms_max,
        limits.frame_wait_ms_max,
        limits.frame_stall_ms_max,
        limits.frame_stall_crowded_ms_max,
        limits.connection_idle_ms_max,
    )
    return min(SWEEP_S_MAX, shortest_ms / 1_000 / _SWEEPS_PER_WAIT)


async def sweep(connections: Callable[[], Collection[Swept]], turns: Turns, interval_s: float) -> None:
    """Close connections that are overdue, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(interval_s)
        closed: dict[str, list[str]] = defaultdict(list)
        for number, connection in enumerate(list(connections()), 1):
            reason = connection.overdue(loop.time())
            if reason is not None:
                closed[reason].append(connection.peer)
                connection.end()
            if number % _CONNECTIONS_PER_TURN == 0:
                await turns.next()
        for reason, peers in closed.items():
            # One line: there may be thousands.
            _log.warning("closed %d connections, first %s: each %s", len(peers), peers[0], reason)
