"""A server that dies at a chosen request of this process, and is started again when a client says that it waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from fluss.client.net.connection import Connection
from fluss.model.errors import ConnectError
from fluss.testing import FlussServer

_LOGGER = "fluss.client.cluster.retry"
# A server ends with the thread that started it, so this one outlives all tests.
_starter = ThreadPoolExecutor(1, thread_name_prefix="server-starter")


class Outages(logging.Handler):
    """What is asked of a server, and how it dies of it."""

    def __init__(self, server: FlussServer) -> None:
        super().__init__()
        self._server = server
        self._starting: Future[FlussServer] | None = None
        self._fatal_request: str | None = None
        self._fatal_answer: str | None = None
        self._is_watching = False
        self._stays_away = False
        self.asked: list[str] = []
        """Requests by name, in their order"""
        self.begun: list[str] = []
        """What was said when a wait began"""
        self.ended: list[str] = []

    def strike(self, name: str) -> None:
        """Let the server die before it gets the next request of this name, and again before it answers one."""
        self._fatal_request = self._fatal_answer = name

    def keep_away(self) -> None:
        """Kill the server and leave it so, up to `settle`."""
        self._server.kill()
        self._stays_away = True

    @property
    def is_over(self) -> bool:
        """Whether the server has died as often as it was to."""
        return self._fatal_request is None and self._fatal_answer is None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Requests in here count; those around it prepare something, or look at what has become of it."""
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False

    def asking(self, name: str) -> None:
        """A request is about to be sent."""
        if not self._is_watching:
            return
        self.asked.append(name)
        if name == self._fatal_request:
            self._fatal_request = None
            self._kill()

    def answered(self, name: str) -> bool:
        """Whether the answer of a request, which has come, gets through."""
        if not self._is_watching or name != self._fatal_answer or self._fatal_request is not None:
            return True
        self._fatal_answer = None
        self._kill()
        return False

    def _kill(self) -> None:
        self._await_start()
        self._server.kill()
        if len(self.begun) > len(self.ended):  # who waits already says nothing more
            self._start()

    def emit(self, record: logging.LogRecord) -> None:
        """A client says that it waits, or that this is over."""
        text = record.getMessage()
        (self.begun if "Waiting for it" in text else self.ended).append(text)
        if self._starting is None and not self._stays_away and self._server.process.returncode is not None:
            self._start()

    def _start(self) -> None:
        self._starting = _starter.submit(self._server.start)

    def settle(self) -> None:
        """Return when the server runs."""
        self._await_start()
        if self._server.process.returncode is not None:
            self._server.start()
        self._stays_away = False

    def _await_start(self) -> None:
        if self._starting is not None:
            self._starting.result()
            self._starting = None


@contextmanager
def outages_of(server: FlussServer, patch: pytest.MonkeyPatch) -> Iterator[Outages]:
    """Outages of a server that runs."""
    outages = Outages(server)
    submit = Connection.submit

    def watched(self: Connection, api: Any, parts: Any, timeout_s: float, answered: Callable[[Any], None]) -> int:
        def passed_on(answer: Any) -> None:
            is_answer = not isinstance(answer, Exception)
            is_lost = is_answer and not outages.answered(api.name)
            answered(ConnectError(f"The connection to {self.address} was lost.") if is_lost else answer)

        outages.asking(api.name)
        return submit(self, api, parts, timeout_s, passed_on)

    patch.setattr(Connection, "submit", watched)
    logger = logging.getLogger(_LOGGER)
    logger.addHandler(outages)
    try:
        yield outages
    finally:
        logger.removeHandler(outages)
        outages.settle()
