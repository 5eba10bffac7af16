"""Writes whose answer waits until all their batches are safe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.model.errors import ErrorCode, InvalidRequestError, TimeoutError
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import Replier

NO_ACKS: Final = 0
_ACKS: Final = (NO_ACKS, 1, -1)
_WAIT_MS_UNLIMITED: Final = 2**31 - 1

WriteResponse: TypeAlias = pb.ProduceLogResponse | pb.PutKvResponse


def check_acks(acks: int) -> None:
    """Code 18 for anything that is no kind of acknowledgement."""
    if acks not in _ACKS:
        raise InvalidRequestError(f"acks must be 0, 1 or -1 (all), not {acks}.", ErrorCode.INVALID_REQUIRED_ACKS)


def write_wait_ms(timeout_ms: int) -> int:
    """How long a write may take by its request; the server's own limit may be shorter."""
    return timeout_ms if timeout_ms > 0 else _WAIT_MS_UNLIMITED


class BucketWait(NamedTuple):
    """A batch until it is safe, and who writes its outcome into the response."""

    safe: asyncio.Future[Any]
    succeed: Callable[[Any], None]
    fail: Callable[[BaseException], None]


def answered(response: WriteResponse, waits: list[BucketWait], timeout_ms: int) -> WriteResponse | DeferredWrite:
    """The response, now or when all batches are safe."""
    return DeferredWrite(response, waits, timeout_ms) if waits else response


class DeferredWrite:
    """Batches that are taken and not safe yet."""

    def __init__(self, response: WriteResponse, waits: list[BucketWait], timeout_ms: int) -> None:
        self.wait_ms = write_wait_ms(timeout_ms)
        self._pending = 0
        self._response = response
        self._waits = waits
        self._replier: Replier | None = None

    def start(self, replier: Replier) -> None:
        self._replier = replier
        for wait in self._waits:
            if not wait.safe.done():
                self._pending += 1
                wait.safe.add_done_callback(self._safe)
        if not self._pending:
            self._finish()

    def expire(self) -> None:
        """Buckets that are late are told so; what becomes of their batches is open, so clients send them again."""
        for wait in self._waits:
            wait.safe.remove_done_callback(self._safe)
        self._finish()

    def hurry(self) -> None:
        """All is under way already."""

    def abandon(self) -> None:
        self._replier = None
        for wait in self._waits:
            wait.safe.remove_done_callback(self._safe)

    def _settled(self) -> WriteResponse:
        """The response with what is known of each batch."""
        for wait in self._waits:
            error = wait.safe.exception() if wait.safe.done() else _late()
            if error is not None:
                wait.fail(error)
            else:
                wait.succeed(wait.safe.result())
        return self._response

    def _safe(self, _: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _finish(self) -> None:
        # Forgotten first: it knows this object, too, and cycles are work for the collector.
        replier, self._replier = self._replier, None
        if replier is not None:
            replier.reply(self._settled())


def _late() -> TimeoutError:
    return TimeoutError("The batch was not safe within the request's timeout; send it again to learn its fate.")
