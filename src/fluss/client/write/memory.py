"""How many bytes of rows a client holds before it lets writers wait."""

from __future__ import annotations

import asyncio
import threading

from fluss.client import runtime
from fluss.doors import clock
from fluss.model.errors import FlussError, TimeoutError


class BufferMemory:
    """A count shared by all writers of a client.

    Rows are counted after they are taken, so the limit may be passed by one write per thread. Threads wait on a
    condition, coroutines of the I/O loop on futures.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.full = False
        self.waiting = 0
        self._room = threading.Condition()
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, size_bytes: int) -> None:
        """Count bytes; never waits."""
        with self._room:
            self.used_bytes += size_bytes
            self.full = self.used_bytes >= self.limit_bytes

    def release(self, size_bytes: int) -> None:
        """Give bytes back; from any thread."""
        with self._room:
            self.used_bytes -= size_bytes
            self.full = self.used_bytes >= self.limit_bytes
            if self.full:
                return
            if self.waiting:
                self._room.notify_all()
        if self._waiters:
            runtime.call_soon(self._release_waiters)

    def _release_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wait_for_room(self, timeout_s: float) -> None:
        """Block the calling thread until there is room."""
        if runtime.on_io_thread():
            raise FlussError("The write buffer is full, and the I/O thread can't wait for itself to empty it.")
        deadline = clock.monotonic() + timeout_s
        with self._room:
            self.waiting += 1
            try:
                while self.full:
                    remaining_s = deadline - clock.monotonic()
                    if remaining_s <= 0 or not self._room.wait(min(remaining_s, threading.TIMEOUT_MAX)):
                        raise TimeoutError(
                            f"The write buffer of {self.limit_bytes} bytes stayed full for {timeout_s:g} s; the row "
                            "was not taken. Is the server up? See writer.buffer.memory-size and .wait-timeout."
                        )
            finally:
                self.waiting -= 1

    async def room(self) -> None:
        """Wait on the I/O loop until there is room."""
        while self.full:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            # Looked at again behind the waiter's place in the list: another thread may have made room in between.
            if self.full:
                await waiter
