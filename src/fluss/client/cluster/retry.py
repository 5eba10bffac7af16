"""Trying again: deadlines, pauses with jitter, and which failures are worth it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fluss.doors import clock, randomness
from fluss.model.errors import FlussError

T = TypeVar("T")

PAUSE_MS_MIN = 20
PAUSE_MS_MAX = 1_000
JITTER = 0.3
# What a try has that begins at the deadline: enough for what needs no waiting.
LAST_TRY_S_MIN = 0.001


class Backoff:
    """Pauses that double up to a limit, with jitter, and end at a deadline."""

    __slots__ = ("_attempts", "deadline")

    def __init__(self, limit_ms: float) -> None:
        self.deadline = clock.monotonic() + limit_ms / 1000
        self._attempts = 0

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.deadline - clock.monotonic())

    @property
    def wait_s(self) -> float:
        """A limit for the next try: what remains, and never nothing."""
        return max(self.remaining_s, LAST_TRY_S_MIN)

    @property
    def expired(self) -> bool:
        return clock.monotonic() >= self.deadline

    async def pause(self) -> bool:
        """Wait before the next try; False when the deadline has passed."""
        if self.expired:
            return False
        self._attempts += 1
        await asyncio.sleep(min(pause_s(self._attempts), self.remaining_s))
        return True


def pause_s(attempts: int) -> float:
    """The pause after the n-th failure in a row, n from 1."""
    pause_ms: float = min(PAUSE_MS_MIN * 2 ** min(attempts - 1, 16), PAUSE_MS_MAX)
    return pause_ms / 1000 * (1 - JITTER + 2 * JITTER * randomness.chance.random())


class Failures:
    """Failures in a row of what is tried without end: the pause after each grows with their number."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    async def pause(self) -> None:
        """Another failure: wait before the next try."""
        self._count += 1
        await asyncio.sleep(pause_s(self._count))

    def clear(self) -> None:
        """A try went well."""
        self._count = 0


class NotReadyError(Exception):
    """A try that found nobody to ask. Another one may, whatever the problem is that ends the last."""

    def __init__(self, problem: FlussError) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Tries:
    """The tries of one call until its deadline.

    `may_pass` says which failures another try may get over, `renew` is done before it: looking for a new leader, say.
    What it raises is final.
    """

    __slots__ = ("_limit_s", "_may_pass", "_renew", "backoff")

    def __init__(
        self,
        limit_s: float,
        may_pass: Callable[[FlussError], bool],
        renew: Callable[[], Awaitable[None]] | None = None,
        absence_s: float = 0.0,
    ) -> None:
        """With `absence_s` all tries may take so much longer than one, because their server may be away."""
        self.backoff = Backoff((limit_s + absence_s) * 1000)
        self._limit_s = limit_s
        self._may_pass = may_pass
        self._renew = renew

    @property
    def wait_s(self) -> float:
        """A limit for the next try."""
        return min(self.backoff.wait_s, self._limit_s)

    async def again(self, error: FlussError | NotReadyError) -> None:
        """Return when it is time for another try; raise the error if none would help, or the time is over."""
        if isinstance(error, NotReadyError):
            if not await self.backoff.pause():
                raise error.problem from None
        elif not self._may_pass(error) or not await self.backoff.pause():
            raise error
        if self._renew is not None:
            await self._renew()


async def repeat(tries: Tries, attempt: Callable[[Tries], Awaitable[T]]) -> T:
    """The result of the first attempt that has one."""
    while True:
        try:
            return await attempt(tries)
        except (FlussError, NotReadyError) as error:
            await tries.again(error)


def is_retriable(error: FlussError) -> bool:
    """Whether the same call may succeed later."""
    return error.is_retriable


def never(_: FlussError) -> bool:
    """For calls whose failures are all final."""
    return False
