"""Waiting for a server that is away: for how long, and what the log says of it."""

# Small on purpose: one rule for the metadata, which has enough to do.

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from fluss.client.cluster.retry import Backoff
from fluss.doors import clock
from fluss.model.config import Config
from fluss.model.errors import ConnectError, ErrorCode

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Absence:
    """Of the servers of one client. Runs on the I/O loop."""

    def __init__(self, servers: str, limit_s: float, opening_limit_s: float) -> None:
        self.limit_s = limit_s
        self._servers = servers
        self._opening_limit_s = opening_limit_s
        self._has_answered = False
        self._since: float | None = None

    @classmethod
    def of(cls, config: Config) -> Self:
        """As the settings say. A server that has not answered yet is waited for no longer than opening may take."""
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
