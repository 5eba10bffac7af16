"""What all connections share: memory by budgets, and the event loop by turns, a little of each in each pass.

Requests that wait are executed one per connection and round, a little in each pass. Between two passes the loop reads
sockets and serves everybody else, so a connection that sends many requests, or one whose answer takes long to make,
delays the others by one pass and not by all its work.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from fluss.doors import clock
from fluss.model.errors import ConnectError

# A reader always gets this much, or it would never go on; small enough for thousands of stopped readers.
RESPONSE_BYTES_MIN: Final = 64 << 10
_OLDEST_EVERY: Final = 4  # frames that get what they miss


class FrameShare:
    """What one large frame holds of the request budget while it arrives."""

    __slots__ = ("address", "extra_bytes", "granted", "held_bytes", "size_bytes", "wanted_bytes")

    def __init__(self, address: str, size_bytes: int, granted: Callable[[], None]) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.granted = granted
        self.held_bytes = 0
        self.extra_bytes = 0  # that it holds beyond the limit, to become whole
        self.wanted_bytes = 0  # above `held_bytes` while it waits

    @property
    def missing_bytes(self) -> int:
        """What it still needs to be whole."""
        return self.size_bytes - self.held_bytes - self.extra_bytes


class RequestBudget:
    """Bytes of requests received and not executed yet.

    A large frame gets memory in steps, for what has arrived of it. It may hold as much as is free besides, for all
    connections and for those of its address; so however many frames stand still, the next one finds some room, and one
    address leaves some to the others. Frames that are half there can't block each other for ever: one at a time, a
    short one before long ones, gets all that it is missing beyond the limit. Small frames, and requests that are being
    executed, are only counted.
    """

    def __init__(self, bytes_max: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self._bytes_max = bytes_max
        self._address_bytes_max = bytes_max - bytes_max // 4
        self._soon = soon
        self._used_bytes = 0
        self._frame_bytes = 0  # of them, what large frames hold
        self._used_by_address: Counter[str] = Counter()
        self._waiting: list[FrameShare] = []
        self._finishing: FrameShare | None = None
        self._finished = 0
        self._is_granting = False

    @property
    def used_bytes(self) -> int:
        return self._used_bytes + (0 if self._finishing is None else self._finishing.extra_bytes)

    @property
    def is_crowded(self) -> bool:
        """Whether a frame waits for memory that others hold."""
        return bool(self._waiting)

    @property
    def exceeded(self) -> bool:
        return self._used_bytes > self._bytes_max

    def add(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        self._grant_soon()

    def grow(self, share: FrameShare, wanted_bytes: int) -> bool:
        """True when the frame may hold so much now; otherwise it is told later that it may."""
        if wanted_bytes <= share.held_bytes or share is self._finishing:
            return True
        if self._fits(share, wanted_bytes):
            self._hold(share, wanted_bytes)
            return True
        if self._may_finish(share):
            self._finish(share)
            return True
        share.wanted_bytes = wanted_bytes
        self._waiting.append(share)
        return False

    def end(self, share: FrameShare) -> None:
        """The frame is whole, or will never be."""
        if share.wanted_bytes > share.held_bytes and share in self._waiting:
            self._waiting.remove(share)
        if self._finishing is share:
            self._finishing = None
        self._used_bytes -= share.held_bytes
        self._frame_bytes -= share.held_bytes
        self._used_by_address[share.address] -= share.held_bytes
        if not self._used_by_address[share.address]:
            del self._used_by_address[share.address]
        share.held_bytes = share.extra_bytes = 0
        self._grant_soon()

    def _fits(self, share: FrameShare, wanted_bytes: int) -> bool:
        free_bytes = self._bytes_max - self._used_bytes
        free_bytes_of_address = self._address_bytes_max - self._used_by_address[share.address]
        return wanted_bytes <= free_bytes and wanted_bytes <= free_bytes_of_address

    def _hold(self, share: FrameShare, wanted_bytes: int) -> None:
        more_bytes = wanted_bytes - share.held_bytes
        share.held_bytes = wanted_bytes
        self._used_bytes += more_bytes
        self._frame_bytes += more_bytes
        self._used_by_address[share.address] += more_bytes

    def _may_finish(self, share: FrameShare) -> bool:
        """One frame at a time, and not while what is being executed takes the room: that ends by itself."""
        executed_bytes = self._used_bytes - self._frame_bytes
        return self._finishing is None and (
            not executed_bytes or executed_bytes + share.missing_bytes <= self._bytes_max // 2
        )

    def _finish(self, share: FrameShare) -> None:
        self._finishing = share
        self._finished += 1
        share.extra_bytes = share.missing_bytes

    def _grant_soon(self) -> None:
        """Look at those who wait once for all that is released now."""
        if self._waiting and not self._is_granting:
            self._is_granting = True
            self._soon(self._grant)

    def _grant(self) -> None:
        self._is_granting = False
        waiting, self._waiting = self._waiting, []
        granted = []
        for share in waiting:
            if self._fits(share, share.wanted_bytes):
                self._hold(share, share.wanted_bytes)
                granted.append(share)
            else:
                self._waiting.append(share)
        if self._waiting:
            share = self._next_to_finish()
            if self._may_finish(share):
                self._waiting.remove(share)
                self._finish(share)
                granted.append(share)
        for share in granted:
            share.granted()

    def _next_to_finish(self) -> FrameShare:
        """A short one before long ones, but now and then the one that waits longest."""
        is_turn_of_oldest = self._finished % _OLDEST_EVERY == 0
        return self._waiting[0] if is_turn_of_oldest else min(self._waiting, key=lambda item: item.missing_bytes)


class ResponseBudget:
    """Bytes of responses that clients do not take.

    The fuller it is the less a fetch may read, so readers that stopped make the others' responses smaller but never
    stop them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._unsent_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def add(self, size_bytes: int) -> None:
        self._unsent_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self._unsent_bytes -= size_bytes

    def allowance_bytes(self) -> int:
        """How much one response may be."""
        return max(RESPONSE_BYTES_MIN, (self._bytes_max - self._unsent_bytes) // 4)


PASS_S: Final = 0.002  # of turns before the loop looks at its sockets again; one request may take longer
STEP_S: Final = 0.002  # that a long answer is worked on between two turns


class Turns:
    """The queue for the event loop. Each entry gets one turn and waits again for the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None] | asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def wait(self, take_turn: Callable[[], None]) -> None:
        """Call back when it is this one's turn."""
        self._waiting.append(take_turn)
        self._schedule()

    async def next(self) -> None:
        """Return when it is the caller's turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._is_scheduled = False
        end_s = clock.monotonic() + PASS_S
        try:
            while self._waiting:
                turn = self._waiting.popleft()
                if isinstance(turn, asyncio.Future):
                    if not turn.done():
                        # Its work is done after this pass: no more of it than one step in each.
                        turn.set_result(None)
                        break
                else:
                    turn()
                    if clock.monotonic() >= end_s:
                        break
        finally:
            if self._waiting:
                self._schedule()


class Pace:
    """Lets an answer that takes long be made in steps; it ends when nobody waits for it any more."""

    def __init__(self, turns: Turns, is_connected: Callable[[], bool]) -> None:
        self._turns = turns
        self._is_connected = is_connected
        self._end_s = clock.monotonic() + STEP_S

    async def rest(self) -> None:
        """Let others go on if this step has lasted long enough."""
        if clock.monotonic() < self._end_s:
            return
        await self._turns.next()
        if not self._is_connected():
            raise ConnectError("The client closed the connection before its answer was made.")
        self._end_s = clock.monotonic() + STEP_S
