"""Memory that all connections together may hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

# A reader always gets this much, or it would never go on; small enough for thousands of stopped readers.
RESPONSE_BYTES_MIN: Final = 64 << 10


class RequestBudget:
    """Bytes of requests received and not executed yet.

    A large frame asks for its whole size before it is read on, in turn with others: holders can always finish, so
    frames that are half there can't block each other for ever. Small frames are only counted.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def exceeded(self) -> bool:
        return self._used_bytes > self._bytes_max

    def add(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self._used_bytes += size
            if not granted():
                self._used_bytes -= size

    def reserve(self, size_bytes: int, granted: Callable[[], bool]) -> bool:
        """True when the bytes are reserved now; otherwise `granted` is called later, and says whether it wants them."""
        if not self._waiting and self._fits(size_bytes):
            self._used_bytes += size_bytes
            return True
        self._waiting.append((size_bytes, granted))
        return False

    def _fits(self, size_bytes: int) -> bool:
        return self._used_bytes + size_bytes <= self._bytes_max


class ResponseBudget:
    """Bytes of responses that clients do not take.

    The fuller it is the less a fetch may read, so readers that stopped make the others' responses smaller but never
    stop them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._unsent_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def add(self, size_bytes: int) -> None:
        self._unsent_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self._unsent_bytes -= size_bytes

    def allowance_bytes(self) -> int:
        """How much one response may be."""
        return max(RESPONSE_BYTES_MIN, (self._bytes_max - self._unsent_bytes) // 4)
