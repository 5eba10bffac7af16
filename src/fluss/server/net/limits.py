"""A limit on all that a client can make the server hold or do, and the sweep that closes late and idle connections.

Each limit can be set in the `[limits]` table of fluss.toml, by its name here. The first worry is memory: one
connection, and all of them together, cost a bounded amount however slowly they read or fast they write.

Time limits are for logging in, the rest of a frame, the next request and the taking of answers. One sweep looks at all
connections from time to time. It compares what it sees with what it saw before, so reading and answering pay nothing
for these timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Final, NamedTuple, Protocol

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.protocol.frames import FRAME_SIZE_BYTES_MAX
from fluss.server.net.budgets import Turns
from fluss.storage.catalog.catalog import (
    BUCKETS_PER_TABLE_MAX,
    DEFINITION_BYTES_PER_TABLE_MAX,
    DEFINITION_BYTES_TOTAL_MAX,
)

_KIB = 1 << 10
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    # One request. Only ProduceLog and PutKv carry data, so everything else has to be small.
    frame_bytes_max: int = FRAME_SIZE_BYTES_MAX
    control_request_bytes_max: int = 2 * _MIB
    batch_bytes_max: int = 64 * _MIB
    request_items_max: int = 10_000  # buckets or tables named in one request
    request_wait_ms_max: int = 60_000  # after this an unanswered request is answered with REQUEST_TIME_OUT

    # Connections. A client makes up to three per server.
    connections_max: int = 10_000
    connections_per_address_max: int = 4_000
    connection_idle_ms_max: int = 600_000  # without a request, and with none waiting; as Apache Fluss
    login_wait_ms_max: int = 30_000  # from connecting to a right login, where one is needed
    refusals_waiting_max: int = 64  # refused connections kept until their first request, to answer it with the reason

    # Tables: what their definitions, and answers about them, may cost.
    buckets_per_table_max: int = BUCKETS_PER_TABLE_MAX  # or of each partition; larger tables that there are still work
    definition_bytes_per_table_max: int = DEFINITION_BYTES_PER_TABLE_MAX  # descriptor and all schemas
    definition_bytes_total_max: int = DEFINITION_BYTES_TOTAL_MAX
    metadata_bytes_max: int = 16 * _MIB  # of one answer

    # Requests received and not answered yet: above the limit the connection is not read.
    request_bytes_per_connection_max: int = 8 * _MIB
    requests_per_connection_max: int = 1_024
    request_bytes_total_max: int = 256 * _MIB
    # A frame that does not arrive loses its connection. The time that the server itself does not read does not count.
    small_frame_wait_ms_max: int = 30_000  # up to 64 KiB
    frame_wait_ms_max: int = 120_000
    frame_stall_ms_max: int = 10_000  # in each such time a large frame has to come at this rate
    frame_stall_crowded_ms_max: int = 2_000  # the same while others wait for the memory that it holds
    frame_bytes_per_second_min: int = 16 * _KIB

    # Responses not taken by the client yet: above the limit the connection's requests wait.
    response_bytes_per_connection_max: int = 1 * _MIB
    response_bytes_total_max: int = 256 * _MIB

    # Logins.
    frame_bytes_before_login_max: int = 64 * _KIB
    failed_logins_max: int = 10_000  # pairs of user and address whose wrong logins are remembered

    # Fetches.
    fetch_bytes_max: int = 16 * _MIB
    fetch_wait_ms_max: int = 60_000
    fetches_waiting_per_connection_max: int = 256

    # Other reads: rows of one answer.
    limit_scan_bytes_max: int = 64 * _MIB
    limit_scan_rows_max: int = 1_000_000  # of a primary-key table
    lookup_keys_max: int = 100_000
    lookup_bytes_max: int = 64 * _MIB
    scan_kv_bytes_max: int = 8 * _MIB
    scan_kv_rows_max: int = 100_000
    reads_running_per_connection_max: int = 8  # lookups; the next requests wait for more

    lake_buckets_max: int = 100_000  # whose offsets one request prepares for a lake snapshot

    # Scans of primary-key tables: each keeps old rows alive.
    scanners_total_max: int = 200
    scanners_per_connection_max: int = 64
    scanner_idle_ms_max: int = 600_000

    # Stopping: running requests get this long.
    stop_wait_ms_max: int = 5_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise _bad(f"limits.{field.name} must be a positive integer, not {value!r}")
        if self.frame_bytes_max > FRAME_SIZE_BYTES_MAX:
            raise _bad(f"limits.frame_bytes_max must be at most {FRAME_SIZE_BYTES_MAX}, not {self.frame_bytes_max}")
        if self.request_bytes_total_max < self.frame_bytes_max:
            raise _bad("limits.request_bytes_total_max must not be less than limits.frame_bytes_max")


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_CONFIG_EXCEPTION)


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
    """The times since which a connection is idle, sends a frame or does not log in; says when that is too long."""

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
