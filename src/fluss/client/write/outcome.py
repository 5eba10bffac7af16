"""The result of a write, shared by all rows that travel together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from fluss.client import runtime
from fluss.doors import clock
from fluss.model.errors import FlussError, TimeoutError


class Source(Protocol):
    """Where rows come from."""

    def expedite(self, *, on_loop: bool) -> None: ...
    def seen(self, error: FlussError) -> None: ...
    def left(self) -> None: ...
    def error_of(self, start: int, stop: int) -> FlussError | None: ...


class Outcome:
    """How rows that travel together fared. Set on an event loop, read and waited for from anywhere."""

    __slots__ = ("_callbacks", "_source", "awaited", "done", "error", "told")

    def __init__(self, source: Source) -> None:
        self.done = False
        self.error: FlussError | None = None
        self.awaited = False
        """Somebody waits, and will be told of a failure."""
        self.told = False
        self._source = source
        self._callbacks: list[Callable[[], None]] = []

    def set(self, error: FlussError | None) -> None:
        """The rows are stored, or have failed."""
        self.error = error
        self.done = True
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()

    async def settled(self) -> None:
        """Wait on any event loop until it is known, without caring how it went."""
        if self.done:
            return
        runtime.check_running()
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._callbacks.append(lambda: _release_on(loop, waiter))
        # Looked at again behind the callback's place in the list: it may have been set in between.
        if not self.done:
            await waiter

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait in the calling thread until it is known; False when that took too long."""
        if self.done:
            return True
        runtime.check_may_block()
        released = threading.Event()
        self._callbacks.append(released.set)
        return self.done or released.wait(timeout_s)

    def expedite(self, *, on_loop: bool) -> None:
        """Let unsent rows be sent soon: somebody waits for them, on the running loop or in the calling thread."""
        self._source.expedite(on_loop=on_loop)

    def check(self) -> None:
        """Raise when the rows have failed."""
        if self.error is not None:
            self.told = True
            _raise(self._source, self.error)

    def leave(self) -> None:
        """Somebody stopped waiting before he was told: a failure is the writer's to report."""
        if not self.told:
            self._source.left()


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

    async def settled(self) -> None:
        """Wait on any event loop until it is known, without caring how it went."""
        await self._outcome.settled()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait in the calling thread until it is known; False when that took too long."""
        return self._outcome.join(timeout_s)

    def expedite(self, *, on_loop: bool) -> None:
        """Let unsent rows be sent soon: somebody waits for them, on the running loop or in the calling thread."""
        self._source.expedite(on_loop=on_loop)

    def check(self) -> None:
        """Raise when the rows have failed."""
        error = self._source.error_of(self._start, self._stop)
        if error is not None:
            _raise(self._source, error)

    def leave(self) -> None:
        """The writer reports failures of such rows whether somebody waits or not, until somebody was told."""


def _release_on(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    if asyncio.get_running_loop() is loop:
        _release(waiter)
    else:
        runtime.call_on(loop, _release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _raise(source: Source, error: FlussError) -> NoReturn:
    source.seen(error)
    raise own_copy(error)


def own_copy(error: FlussError) -> FlussError:
    """One exception per caller: a traceback grows with every raise of the same object."""
    own = type(error)(error.message, error.error_code)
    own.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        own.add_note(note)
    return own


class WriteHandle:
    """Rows under way to the server. Rows of one batch share one handle."""

    __slots__ = ("_outcomes",)

    def __init__(self, *outcomes: Outcome | RowsOutcome) -> None:
        self._outcomes = outcomes

    def done(self) -> bool:
        """Whether the server has stored the rows, or the write has failed."""
        return all(outcome.done for outcome in self._outcomes)

    async def wait(self) -> None:
        """Wait on any event loop until the rows are stored; raises if they are not."""
        told = 0
        try:
            for outcome in self._begin():
                if not outcome.done:
                    outcome.expedite(on_loop=True)
                    await outcome.settled()
                told += 1
                outcome.check()
        except BaseException:
            self._leave(told)
            raise

    def result(self, timeout_s: float | None = None) -> None:
        """Wait in the calling thread until the rows are stored; raises if they are not."""
        deadline = None if timeout_s is None else clock.monotonic() + timeout_s
        told = 0
        try:
            for outcome in self._begin():
                if not outcome.done:
                    outcome.expedite(on_loop=False)
                    if not outcome.join(None if deadline is None else max(0.0, deadline - clock.monotonic())):
                        raise TimeoutError(
                            f"The rows were not acknowledged within {timeout_s:g} s; they are still on the way."
                        )
                told += 1
                outcome.check()
        except BaseException:
            self._leave(told)
            raise

    def _begin(self) -> tuple[Outcome | RowsOutcome, ...]:
        for outcome in self._outcomes:
            outcome.awaited = True
        return self._outcomes

    def _leave(self, told: int) -> None:
        """The caller was told of so many outcomes, and waits for no others."""
        for outcome in self._outcomes[told:]:
            outcome.leave()
