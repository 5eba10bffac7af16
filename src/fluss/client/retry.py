"""Deadlines and pauses between tries."""

from __future__ import annotations

import asyncio
import random
import time

PAUSE_MS_MIN = 20
PAUSE_MS_MAX = 1_000
JITTER = 0.3


class Backoff:
    """Pauses that double up to a limit, with jitter, and end at a deadline."""

    __slots__ = ("_attempts", "deadline")

    def __init__(self, limit_ms: float) -> None:
        self.deadline = time.monotonic() + limit_ms / 1000
        self._attempts = 0

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def capped_s(self, timeout_s: float) -> float:
        """The time limit of the next try, no longer than `timeout_s`."""
        return max(0.001, min(timeout_s, self.remaining_s))

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.deadline

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
    return pause_ms / 1000 * (1 - JITTER + 2 * JITTER * random.random())
