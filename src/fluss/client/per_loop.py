"""What a client has on each event loop of its callers: connections, and what uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from fluss.client import runtime


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class PerLoop(Generic[T]):
    """One object for each loop, made on it when first asked for."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], T]) -> None:
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            # What belongs to a closed loop can't be used any more, nor closed.
            for closed in [known for known in list(self._by_loop) if known.is_closed()]:
                self._by_loop.pop(closed, None)
            found = self._by_loop[loop] = self._make(loop)
        return found

    def all(self) -> list[T]:
        """Those of all loops; from any thread."""
        return list(self._by_loop.values())

    def close(self) -> None:
        """Close all, each on its loop; from any thread."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop in list(self._by_loop):
            found = self._by_loop.pop(loop, None)
            if found is None:
                continue
            if loop is here:
                found.close()
            else:
                runtime.call_on(loop, found.close)
