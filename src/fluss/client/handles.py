"""The result of a write, shared by all rows that travel together."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable
from typing import NoReturn, Protocol

from fluss.client import runtime
from fluss.model.errors import FlussError, TimeoutError


class Source(Protocol):
    """Where rows come from."""

    def expedite(self) -> None: ...
    def seen(self, error: FlussError) -> None: ...
    def error_of(self, start: int, stop: int) -> FlussError | None: ...


class Outcome:
    """How rows that travel together fared. Set on the I/O loop, read from anywhere."""

    __slots__ = ("_callbacks", "_source", "awaited", "done", "error")

    def __init__(self, source: Source) -> None:
        self.done = False
        self.error: FlussError | None = None
        self.awaited = False
        self._source = source
        self._callbacks: list[Callable[[], None]] | None = None

    def set(self, error: FlussError | None) -> None:
        """The rows are stored, or have failed."""
        self.error = error
        self.done = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()

    async def settled(self) -> None:
        """Wait until it is known, on the I/O loop, without caring how it went."""
        if self.done:
            return
        waiter = asyncio.get_running_loop().create_future()
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(lambda: None if waiter.done() else waiter.set_result(None))
        await waiter

    async def wait(self) -> None:
        """Wait on the I/O loop; raises when the rows have failed. Unsent rows are sent soon."""
        self.awaited = True
        if not self.done:
            self._source.expedite()
            await self.settled()
        self.check()

    def check(self) -> None:
        """Raise when the rows have failed."""
        if self.error is not None:
            _raise(self._source, self.error)


class RowsOutcome:
    """How some of the rows that travel together fared, where rows of one partition may fail and others not."""

    __slots__ = ("_outcome", "_source", "_start", "_stop", "awaited")

    def __init__(self, source: Source, outcome: Outcome, start: int, stop: int) -> None:
        self.awaited = False
        self._source = source
        self._outcome = outcome
        self._start, self._stop = start, stop

    @property
    def done(self) -> bool:
        return self._outcome.done

    async def wait(self) -> None:
        """Wait on the I/O loop; raises when the rows have failed. Unsent rows are sent soon."""
        if not self.done:
            self._source.expedite()
            await self._outcome.settled()
        self.check()

    def check(self) -> None:
        """Raise when the rows have failed."""
        error = self._source.error_of(self._start, self._stop)
        if error is not None:
            _raise(self._source, error)


def _raise(source: Source, error: FlussError) -> NoReturn:
    source.seen(error)
    # One exception per caller: a traceback grows with every raise of the same object.
    own = type(error)(error.message, error.error_code)
    own.__cause__ = error.__cause__
    raise own


class WriteHandle:
    """Rows under way to the server. Rows of one batch share one handle."""

    __slots__ = ("_outcomes",)

    def __init__(self, *outcomes: Outcome | RowsOutcome) -> None:
        self._outcomes = outcomes

    def done(self) -> bool:
        """Whether the server has stored the rows, or the write has failed."""
        return all(outcome.done for outcome in self._outcomes)

    async def wait(self) -> None:
        """Wait on the I/O loop until the rows are stored; raises if they are not."""
        for outcome in self._outcomes:
            outcome.awaited = True
        for outcome in self._outcomes:
            await outcome.wait()

    def result(self, timeout_s: float | None = None) -> None:
        """Wait in the calling thread until the rows are stored; raises if they are not."""
        if self.done():
            for outcome in self._outcomes:
                outcome.check()
            return
        runtime.run(self._wait_at_most(timeout_s))

    async def _wait_at_most(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self.wait()
        except builtins.TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"The rows were not acknowledged within {timeout_s:g} s; they are still on the way."
            ) from None
