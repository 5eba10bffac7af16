"""Requests that are worked on while the connection's next ones begin, some after closed logs were opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from fluss.model.errors import TimeoutError
from fluss.model.paths import TableBucket
from fluss.server.net.answers import Answer
from fluss.server.net.context import ConnectionContext, Replier
from fluss.storage.store import Storage

Work: TypeAlias = Callable[[], Coroutine[Any, Any, Answer]]


def reply_concurrently(context: ConnectionContext, work: Work, wait_ms: int | None = None) -> Concurrent:
    """Let the next requests begin, unless the connection has enough of this kind under way."""
    if context.reads_running >= context.limits.reads_running_per_connection_max:
        return work()
    return ConcurrentReply(context, work, context.limits.request_wait_ms_max if wait_ms is None else wait_ms)


class ConcurrentReply:
    """A deferred reply: that of work under way, once it is done."""

    def __init__(self, context: ConnectionContext, work: Work, wait_ms: int) -> None:
        self.wait_ms = wait_ms
        self._context = context
        self._work = work
        self._replier: Replier | None = None

    def start(self, replier: Replier) -> None:
        self._replier = replier
        self._context.reads_running += 1
        task = asyncio.get_running_loop().create_task(self._work())
        task.add_done_callback(self._done)

    def expire(self) -> None:
        if self._replier is not None:
            self._replier.fail(TimeoutError("The server did not finish this request within its time; try again."))
            self._replier = None

    def hurry(self) -> None:
        """It is under way already."""

    def abandon(self) -> None:
        """The work goes on to its end; what it writes may be half done otherwise."""
        self._replier = None

    def _done(self, task: asyncio.Task[Answer]) -> None:
        self._context.reads_running -= 1
        error = None if task.cancelled() else task.exception()
        if self._replier is None or task.cancelled():
            return
        if error is not None:
            self._replier.fail(error)
        else:
            self._replier.reply(task.result())


Concurrent: TypeAlias = Answer | ConcurrentReply | Coroutine[Any, Any, Answer]


BUCKETS_AT_ONCE: Final = 64  # that a request may name and still be answered in one go
_OPENED_AT_ONCE: Final = 128

_Outcome = TypeVar("_Outcome")


def with_open_logs(
    storage: Storage, buckets: Collection[TableBucket], handle: Callable[[], _Outcome]
) -> _Outcome | Coroutine[Any, Any, _Outcome]:
    """What `handle` returns, now or once the buckets are open."""
    opening = storage.opening(buckets)
    return handle() if opening is None else _after(opening, handle)


async def _after(opening: Coroutine[None, None, None], handle: Callable[[], _Outcome]) -> _Outcome:
    await opening
    return handle()


async def each_open(context: ConnectionContext, buckets: Sequence[TableBucket]) -> AsyncIterator[int]:
    """The numbers of many buckets, each when it is open; others have their turns in between."""
    pace = context.pace()
    for begin in range(0, len(buckets), _OPENED_AT_ONCE):
        part = buckets[begin : begin + _OPENED_AT_ONCE]
        if (opening := context.storage.opening(part)) is not None:
            await opening
        for number in range(begin, begin + len(part)):
            yield number
            await pace.rest()
