"""Retries: deadlines, pauses with jitter, waiting for a server that is away, background work by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Self, TypeVar

from fluss.doors import clock, randomness
from fluss.model.config import Config
from fluss.model.errors import ConnectError, ErrorCode, FlussError

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
    def expired(self) -> bool:
        return clock.monotonic() >= self.deadline

    async def pause(self) -> bool:
        """Wait before the next try; False when the deadline has passed."""
        if self.expired:
            return False
        self._attempts += 1
        await asyncio.sleep(min(pause_s(self._attempts), self.remaining_s))
        return True


def pause_s(attempts: int, first_ms: float = PAUSE_MS_MIN, max_ms: float = PAUSE_MS_MAX) -> float:
    """The pause after the n-th failure in a row, n from 1."""
    pause_ms: float = min(first_ms * 2 ** min(attempts - 1, 16), max_ms)
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
        """A limit for the next try: what remains, no more than one try may take, and never nothing."""
        return max(min(self.backoff.remaining_s, self._limit_s), LAST_TRY_S_MIN)

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
    """Whether a failure may pass: never, for calls whose failures are all final."""
    return False


_log = logging.getLogger(__name__)


class Absence:
    """The absence of all servers that a client knows: how long it is waited for. Used on the I/O loop."""

    def __init__(self, servers: str, limit_s: float, opening_limit_s: float) -> None:
        self.limit_s = limit_s
        self._servers = servers
        self._opening_limit_s = opening_limit_s
        self._has_answered = False
        self._since: float | None = None

    @classmethod
    def of(cls, config: Config) -> Self:
        """As long as the settings allow; for a server that has not answered yet, no longer than opening may take."""
        limit_ms: int = config.server_wait_timeout_ms
        return cls(config.bootstrap_servers, limit_ms / 1000, min(limit_ms, config.connect_timeout_ms) / 1000)

    async def outlast(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` returns, asked again while no server answers, up to the limit."""
        limit_s = self.limit_s if self._has_answered else self._opening_limit_s
        backoff: Backoff | None = None
        while True:
            try:
                found = await ask()
            except ConnectError as error:
                if not limit_s:
                    raise
                backoff = backoff or Backoff(limit_s * 1000)
                self._begin(limit_s, error)
                if not await backoff.pause():
                    # Not retriable: whoever tries again would wait as long once more.
                    text = f"{error.message} It was waited for, for {limit_s:g} s ({self._setting(limit_s)})."
                    raise ConnectError(text, ErrorCode.CLIENT_ERROR) from error
            else:
                self._end()
                return found

    def _begin(self, limit_s: float, error: ConnectError) -> None:
        if self._since is None:
            self._since = clock.monotonic()
            setting = self._setting(limit_s)
            _log.warning("%s Waiting for it, for up to %g s (%s).", error.message, limit_s, setting)

    def _end(self) -> None:
        self._has_answered = True
        if self._since is not None:
            away_s, self._since = clock.monotonic() - self._since, None
            # As visible as what was said before it.
            _log.warning("The server at %s answers after %.1f s.", self._servers, away_s)

    def _setting(self, limit_s: float) -> str:
        key: str = (Config.server_wait_timeout_ms if limit_s == self.limit_s else Config.connect_timeout_ms).key
        return key


class KeyedTasks:
    """Runs on the I/O loop; `on_end` is called after each piece of work."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._failures: dict[Hashable, Failures] = {}
        self._stopped = False

    def __contains__(self, key: Hashable) -> bool:
        return key in self._running

    def start(self, key: Hashable, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Start unless work of this name is under way."""
        if key in self._running or self._stopped:
            return
        task = asyncio.ensure_future(work(*args))
        self._running[key] = task
        task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: Hashable) -> None:
        self._running.pop(key, None)
        if not self._stopped:
            self._on_end()

    async def attempt(self, key: Hashable, work: Coroutine[Any, Any, object]) -> FlussError | None:
        """Do the work; after a failure wait a little and return it, so that trying again is never a storm."""
        try:
            await work
        except FlussError as error:
            problem = error
        except Exception as error:  # a mistake of ours must end as an error of the rows, not as silence
            problem = FlussError(f"Unexpected failure: {error!r}")
            problem.__cause__ = error
        else:
            self._failures.pop(key, None)
            return None
        await self._failures.setdefault(key, Failures()).pause()
        if not problem.is_retriable:
            self._failures.pop(key, None)  # nobody tries this again by itself
        return problem

    def stop(self) -> None:
        """Cancel everything; nothing starts any more."""
        self._stopped = True
        for task in list(self._running.values()):
            task.cancel()
