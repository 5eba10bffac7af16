"""What simulated threads wait on, in the place of the real ones: loops, locks, conditions, events, futures, pools."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, TypeVar

from fluss.testing.sim.scheduler import NS, Scheduler, SimThread

T = TypeVar("T")

# A loop is woken a little after its timer is due, or it would look again and again before it is.
_LATE_NS: Final = 1_000


class SimLoop(asyncio.BaseEventLoop):
    """A loop in simulated time: when it has nothing to do, its thread gives the baton away.

    It has neither sockets nor signals. Transports of `network` call it as other threads do.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._selector = self
        self._waiting: SimThread | None = None

    def time(self) -> float:
        return self._scheduler.seconds()

    def select(self, timeout: float | None) -> tuple[()]:
        """What BaseEventLoop asks of a selector: wait for a while, or until woken."""
        scheduler = self._scheduler
        if timeout is not None and timeout <= 0:
            scheduler.switch()
        else:
            self._waiting = scheduler.current
            scheduler.block(None if timeout is None else scheduler.now_ns + int(timeout * NS) + _LATE_NS)
            self._waiting = None
        return ()

    def _process_events(self, _: object) -> None:
        pass

    def _write_to_self(self) -> None:
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)


class SimLock:
    """In the place of `threading.Lock` and, with `is_reentrant`, of `threading.RLock`."""

    def __init__(self, scheduler: Scheduler, *, is_reentrant: bool = False) -> None:
        self._scheduler = scheduler
        self._is_reentrant = is_reentrant
        self._owner: SimThread | None = None
        self._depth = 0
        self._waiting: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        if blocking:
            scheduler.pause()
        me = scheduler.current
        if self._owner is me and self._is_reentrant:
            self._depth += 1
            return True
        deadline_ns = None if timeout < 0 else scheduler.deadline_ns(timeout)
        while self._owner is not None:
            if not blocking:
                return False
            self._waiting.append(me)
            if not scheduler.block(deadline_ns):
                self._waiting.remove(me)
                return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if self._owner is None or (self._is_reentrant and self._owner is not self._scheduler.current):
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiting:
                self._scheduler.wake(self._waiting.popleft())

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def release_all(self) -> int:
        """Release it however often it was taken; how often that was."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_again(self, depth: int) -> None:
        """Undo `release_all`."""
        self.acquire()
        self._depth = depth


class SimCondition:
    """In the place of `threading.Condition`."""

    def __init__(self, scheduler: Scheduler, lock: SimLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock or SimLock(scheduler, is_reentrant=True)
        self._waiting: deque[SimThread] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        me = scheduler.current
        self._waiting.append(me)
        depth = self._lock.release_all()
        woken = scheduler.block(scheduler.deadline_ns(timeout))
        if not woken:
            self._waiting.remove(me)
        self._lock.take_again(depth)
        return woken

    def notify(self, n: int = 1) -> None:
        while n and self._waiting:
            self._scheduler.wake(self._waiting.popleft())
            n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimEvent:
    """In the place of `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: list[SimThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            self._scheduler.wake(thread)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        deadline_ns = self._scheduler.deadline_ns(timeout)
        me = self._scheduler.current
        while not self._is_set:
            self._waiting.append(me)
            if not self._scheduler.block(deadline_ns):
                if me in self._waiting:
                    self._waiting.remove(me)
                break
        return self._is_set


def result(scheduler: Scheduler, future: Future[T], timeout_s: float | None = None) -> T:
    """As `threads.result`."""
    if not future.done():
        done = SimEvent(scheduler)
        _tell(future, done)
        done.wait(timeout_s)
    return future.result(0)


def wait(scheduler: Scheduler, futures: Collection[Future[Any]]) -> None:
    """As `threads.wait`."""
    for future in futures:
        if not future.done():
            done = SimEvent(scheduler)
            _tell(future, done)
            done.wait()


def _tell(future: Future[Any], done: SimEvent) -> None:
    future.add_done_callback(lambda _: done.set())


class SimPool(Executor):
    """In the place of a `ThreadPoolExecutor`."""

    def __init__(self, scheduler: Scheduler, count: int, name: str) -> None:
        self._scheduler = scheduler
        self._count = count
        self._name = name
        self._threads: list[SimThread] = []
        self._idle: deque[SimThread] = deque()
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        self._queue.append((future, partial(fn, *args, **kwargs)))
        if self._idle:
            self._scheduler.wake(self._idle.popleft())
        elif len(self._threads) < self._count:
            process = self._scheduler.current.process
            thread = SimThread(self._scheduler, process, f"{self._name}_{len(self._threads)}", self._work)
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        if cancel_futures:
            for future, _ in self._queue:
                future.cancel()
            self._queue.clear()
        while self._idle:
            self._scheduler.wake(self._idle.popleft())
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        scheduler = self._scheduler
        while True:
            while not self._queue:
                if self._is_shut:
                    return
                self._idle.append(scheduler.current)
                scheduler.block()
            future, work = self._queue.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                value = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)
            del future, work


async def to_thread(scheduler: Scheduler, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """As `asyncio.to_thread`, with a thread of its own."""
    context = contextvars.copy_context()
    pool = SimPool(scheduler, 1, "to-thread")
    try:
        return await asyncio.wrap_future(pool.submit(partial(context.run, function, *args, **kwargs)))
    finally:
        pool.shutdown(wait=False)
