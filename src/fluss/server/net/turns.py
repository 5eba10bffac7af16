"""Turns on the event loop: requests that wait are executed one per connection and round, a little in each pass.

Between two passes the loop reads sockets and serves everybody else, so a connection that sends many requests, or one
whose answer takes long to make, delays the others by one pass and not by all its work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from fluss.doors import clock
from fluss.model.errors import ConnectError

PASS_S: Final = 0.002  # of turns before the loop looks at its sockets again; one request may take longer
STEP_S: Final = 0.002  # that a long answer is worked on between two turns


class Turns:
    """Who waits to go on. Each entry gets one turn and waits again for the next."""

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
