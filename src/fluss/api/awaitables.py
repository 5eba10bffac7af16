"""Awaitables for calls that are done when they return but may be awaited."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


class Done:
    """What `close()` returns: the work is done, and `await` on it is allowed."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # makes this a generator, as __await__ must be


DONE = Done()
