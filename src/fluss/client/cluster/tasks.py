"""Background work by name: each thing is done once at a time, with growing pauses between failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from fluss.client.cluster.retry import Failures
from fluss.model.errors import FlussError


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
