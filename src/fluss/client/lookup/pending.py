"""One pending lookup: keys of one bucket, the callers that wait for them, and what there is for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from fluss.client.lookup.values import ValueReader
from fluss.doors import clock
from fluss.model.errors import FlussError, TimeoutError
from fluss.model.infos import TableInfo

# The queue ends a lookup at its deadline; this is for a process whose I/O thread has ended.
GRACE_S = 5.0

Read: TypeAlias = Callable[[ValueReader, Sequence[Any]], Sequence[Any]]
"""Makes a result for each caller of what the server has for their keys; an error is one, too"""


class LookupQueue(Protocol):
    """Where lookups of one table and kind wait for their leaders."""

    info: TableInfo
    timeout_s: float

    def add(self, lookups: Iterable[Lookup]) -> None: ...
    def close(self) -> None: ...


Place: TypeAlias = "tuple[LookupQueue, Read, str | None, int]"
"""What lookups have in common that travel as one: queue, what is made of the answer, partition, bucket"""


class Caller(Protocol):
    """Who waits for a lookup: a future of the loop, or a thread."""

    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class WaitingThread:
    """A thread that waits for a lookup, told once."""

    __slots__ = ("_error", "_gate", "_result")

    def __init__(self) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self._result = result
        self._gate.release()

    def set_exception(self, exception: BaseException) -> None:
        self._error = exception
        self._gate.release()

    def wait(self, timeout_s: float) -> Any:
        """Wait in the calling thread."""
        if not self._gate.acquire(timeout=timeout_s + GRACE_S):
            raise TimeoutError("The lookup was not answered in time.")
        if self._error is not None:
            raise self._error
        return self._result


class Lookup:
    """Keys of one bucket, and those who look them up: each one of them, or one all of them."""

    __slots__ = (
        "attempts",
        "bucket",
        "callers",
        "deadline",
        "error",
        "is_ended",
        "keys",
        "partition",
        "partition_id",
        "queue",
        "read",
        "results",
    )

    def __init__(self, place: Place, keys: list[bytes], callers: list[Caller]) -> None:
        self.queue, self.read, self.partition, self.bucket = place
        self.partition_id: int | None = None
        self.keys = keys
        self.callers = callers
        self.deadline = clock.monotonic() + self.queue.timeout_s
        self.attempts = 0
        self.results: Sequence[Any] = ()
        self.error: FlussError | None = None
        self.is_ended = False

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(caller.cancelled() for caller in self.callers)

    @property
    def is_divisible(self) -> bool:
        return len(self.callers) > 1

    def split(self, count: int) -> tuple[Lookup, Lookup]:
        """The first so many callers, and the others."""
        return self._part(slice(count)), self._part(slice(count, None))

    def _part(self, which: slice) -> Lookup:
        part = Lookup((self.queue, self.read, self.partition, self.bucket), self.keys[which], self.callers[which])
        part.partition_id, part.deadline, part.attempts = self.partition_id, self.deadline, self.attempts
        return part

    def resolve(self) -> None:
        """Tell the callers; on their loop, or anywhere if they are threads."""
        if self.error is not None:
            for caller in self.callers:
                if not caller.done():
                    caller.set_exception(_own(self.error))
            return
        for caller, result in zip(self.callers, self.results, strict=True):
            if caller.done():
                continue
            if isinstance(result, FlussError):
                caller.set_exception(self._unreadable(result))
            else:
                caller.set_result(result)

    def _unreadable(self, error: FlussError) -> FlussError:
        place = f"bucket {self.bucket} of table {self.queue.info.table_path}"
        return type(error)(f"Can't read a row of {place}: {error.message}", error.error_code)


def _own(error: FlussError) -> FlussError:
    """One exception per caller: a traceback grows with every raise of the same object."""
    own = type(error)(error.message, error.error_code)
    own.__cause__ = error.__cause__
    return own
