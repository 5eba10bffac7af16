"""A cache of what was read out of tables' definitions, bounded by their bytes.

`functools.lru_cache` counts entries only: definitions may have a megabyte each, and those of dropped tables would stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

BYTES_MAX: Final = 32 << 20  # of the definitions whose results one function keeps
ENTRIES_MAX: Final = 16_384


class DefinitionCache(Generic[*Ts, T]):
    """Decorates a function of definitions in bytes (and other hashable arguments) that always returns the same."""

    def __init__(self, function: Callable[[*Ts], T]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._results: dict[tuple[Any, ...], T] = {}
        self._bytes = 0
        self._changing = threading.Lock()

    def __call__(self, *args: *Ts) -> T:
        try:
            return self._results[args]
        except KeyError:
            pass
        result = self._function(*args)
        with self._changing:
            if args not in self._results:
                self._keep(args, result)
        return result

    @property
    def size_bytes(self) -> int:
        """Of the definitions that are kept."""
        return self._bytes

    def _keep(self, args: tuple[Any, ...], result: T) -> None:
        self._results[args] = result
        self._bytes += _size_bytes(args)
        while len(self._results) > ENTRIES_MAX or (self._bytes > BYTES_MAX and len(self._results) > 1):
            # The one that came first: to move those in use to the end would cost every call.
            oldest = next(iter(self._results))
            del self._results[oldest]
            self._bytes -= _size_bytes(oldest)


def _size_bytes(args: tuple[Any, ...]) -> int:
    return sum(len(arg) for arg in args if isinstance(arg, bytes))
