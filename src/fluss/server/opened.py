"""Requests for buckets whose logs are closed: opened in threads first, while other connections go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine

from fluss.model.paths import TableBucket
from fluss.server.answers import Answer
from fluss.server.context import Aside, Handled
from fluss.storage.store import Storage


def when_open(storage: Storage, buckets: Collection[TableBucket], handle: Callable[[], Answer | Aside]) -> Handled:
    """What `handle` returns, now or once the buckets are open."""
    opening = storage.opening(buckets)
    return handle() if opening is None else _after(opening, handle)


async def _after(opening: Coroutine[None, None, None], handle: Callable[[], Answer | Aside]) -> Answer | Aside:
    await opening
    return handle()
