"""Requests for buckets whose logs are closed: opened in threads first, while other connections go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from typing import Any, Final, TypeVar

from fluss.model.paths import TableBucket
from fluss.server.net.context import ConnectionContext
from fluss.storage.store import Storage

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
