"""The client's I/O thread: one event loop per process, made on first use.

Core coroutines run on this loop only. A blocking caller enters through `run`, an asynchronous one through `bridge`.
A forked child inherits neither the thread nor a usable loop: it gets a new runtime on first use, and objects made
before the fork refuse to work there.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from fluss.doors import threads
from fluss.model.errors import FlussError

T = TypeVar("T")

INNER_FRAMES = "FLUSS_INNER_FRAMES"
"""An environment variable: with it tracebacks of errors have the I/O loop's frames, too"""
EXIT_DRAIN_S_MAX = 5.0
EXIT_STOP_S_MAX = 2.0
WORKER_COUNT = 2
_START_S_MAX = 10.0


class Drainable(Protocol):
    """Something with unsent rows at the end of the process."""

    async def drain(self) -> None: ...
    def unsent(self) -> list[tuple[str, int]]: ...
    def take_failure(self) -> FlussError | None: ...


class _Runtime:
    """A loop in a daemon thread, and a few workers for what would hold the loop up."""

    def __init__(self) -> None:
        self.loop = threads.new_loop()
        self.workers = threads.pool(WORKER_COUNT, "fluss-worker")
        started = threads.event()
        self.thread = threads.daemon(self._run, started, name="fluss-io")
        self.thread.start()
        if not started.wait(_START_S_MAX):
            raise FlussError(f"The client's I/O thread did not start within {_START_S_MAX:g} s.")

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        self.loop.run_forever()


process_id = os.getpid()
"""This process, kept up to date across forks: cheaper to compare than os.getpid() on every call."""

_lock = threads.lock()
_current: _Runtime | None = None
_ended = False
# A child never closes what it inherited: the numbers of its descriptors may belong to others by then.
_inherited: list[_Runtime] = []
_socket_fds: set[int] = set()
# A loop holds its tasks by weak reference only.
_spawned: set[Future[object]] = set()
_drainables: weakref.WeakSet[Drainable] = weakref.WeakSet()


def _runtime() -> _Runtime:
    global _current
    runtime = _current
    if runtime is None:
        if _ended:
            raise FlussError("The process is ending: connections can't be used any more.")
        with _lock:
            if _current is None:
                _current = _Runtime()
            runtime = _current
    return runtime


def _runtime_for(coro: Coroutine[Any, Any, T]) -> _Runtime:
    try:
        return _runtime()
    except BaseException:
        coro.close()  # or Python warns that nobody awaited it
        raise


def run(coro: Coroutine[Any, Any, T], limit_s: float | None = None) -> T:
    """Run a core coroutine and wait, in any thread but the I/O thread. An interrupt, or the limit, cancels it."""
    runtime = _runtime_for(coro)
    try:
        check_may_block()
    except RuntimeError:
        coro.close()
        raise
    future = asyncio.run_coroutine_threadsafe(coro, runtime.loop)
    try:
        return threads.result(future, limit_s)
    except FlussError as error:
        raise _from_outside(error) from error.__cause__
    except BaseException:
        future.cancel()
        raise


def begin(coro: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a core coroutine without waiting for it, in any thread."""
    return asyncio.run_coroutine_threadsafe(coro, _runtime_for(coro).loop)


async def bridge(coro: Coroutine[Any, Any, T]) -> T:
    """Await a core coroutine on the caller's own loop. Cancelling this cancels the core coroutine."""
    runtime = _runtime_for(coro)
    if asyncio.get_running_loop() is runtime.loop:
        return await coro
    try:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coro, runtime.loop))
    except FlussError as error:
        raise _from_outside(error) from error.__cause__


def _from_outside(error: FlussError) -> FlussError:
    """The error without frames of the I/O loop and of what led to it, so that it shows the caller's call."""
    shown: BaseException | None = None if INNER_FRAMES in os.environ else error
    while shown is not None and shown.__traceback__ is not None:
        shown.__traceback__ = None
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return error


def call_soon(callback: Callable[..., object], *args: Any) -> None:
    """Call `callback` on the I/O loop soon; from any thread. Does nothing when the process is ending."""
    if not _ended:
        _runtime().loop.call_soon_threadsafe(callback, *args)


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call `callback` on any loop soon; from any thread. Does nothing when that loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        pass  # whoever waited there is gone


def has_ended() -> bool:
    """Whether the process is ending: nothing happens on the I/O loop any more."""
    return _ended


def check_running() -> None:
    """Raise when the process is ending: nothing happens on the I/O loop any more."""
    _runtime()


def check_may_block() -> None:
    """Raise when the calling thread can't wait for the I/O loop."""
    if threads.current() is _runtime().thread:
        raise RuntimeError("A blocking call was made on the client's I/O thread; it would wait for itself for ever.")


def spawn(coro: Coroutine[Any, Any, object]) -> None:
    """Start a coroutine on the I/O loop and leave it to itself; from any thread. Not when the process is ending."""
    if _ended:
        coro.close()
        return
    future = asyncio.run_coroutine_threadsafe(coro, _runtime().loop)
    _spawned.add(future)
    future.add_done_callback(_spawned.discard)


def on_io_thread() -> bool:
    """Whether the caller is the I/O thread."""
    runtime = _current
    return runtime is not None and threads.current() is runtime.thread


async def in_worker(function: Callable[..., T], *args: Any) -> T:
    """Run a function beside the loop; on the loop itself when the interpreter is shutting its threads down."""
    runtime = _runtime()
    try:
        future = runtime.workers.submit(function, *args)
    except RuntimeError:
        return function(*args)
    return await asyncio.wrap_future(future)


def check_process(made_in: int, what: str) -> None:
    """Raise when an object made before a fork is used in the child."""
    if made_in != process_id:
        raise FlussError(
            f"This {what} was made in process {made_in} and can't be used in process {process_id}, its fork. "
            "Open a new connection in the child process."
        )


def register_socket(fd: int) -> None:
    """Remember a socket, so that a forked child lets go of it."""
    _socket_fds.add(fd)


def forget_socket(fd: int) -> None:
    """The socket is closed."""
    _socket_fds.discard(fd)


def register_drainable(drainable: Drainable) -> None:
    """Drain this at the end of the process; kept by weak reference."""
    _drainables.add(drainable)


def _before_fork() -> None:
    # A child of a fork in the middle of `_runtime` would find the lock taken for ever.
    _lock.acquire()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global process_id, _current, _drainables
    process_id = os.getpid()
    _drainables = weakref.WeakSet()
    _spawned.clear()
    if _current is not None:
        _inherited.append(_current)
        _current = None
    _replace_sockets()
    _lock.release()


def _replace_sockets() -> None:
    """Put /dev/null in the place of each inherited socket: the connection ends with the parent, the number stays."""
    if not _socket_fds:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for fd in _socket_fds:
        try:
            os.dup2(null, fd, inheritable=False)
        except OSError:
            pass
    os.close(null)
    _socket_fds.clear()


def _end_at_exit() -> None:
    """Drain, then stop the I/O thread: one that runs on while the interpreter is taken down crashes it."""
    global _current, _ended
    _drain_at_exit()
    runtime, _current, _ended = _current, None, True
    if runtime is not None:
        runtime.loop.call_soon_threadsafe(runtime.loop.stop)
        runtime.thread.join(EXIT_STOP_S_MAX)
        _inherited.append(runtime)


def _drain_at_exit() -> None:
    drainables = list(_drainables)
    waiting = [drainable for drainable in drainables if drainable.unsent()]
    if waiting and _current is not None:

        async def drain() -> None:
            await asyncio.gather(*(drainable.drain() for drainable in waiting), return_exceptions=True)

        future = asyncio.run_coroutine_threadsafe(drain(), _current.loop)
        try:
            threads.result(future, EXIT_DRAIN_S_MAX)
        except BaseException:
            future.cancel()
    for drainable in drainables:
        _say_what_was_lost(drainable)


def _say_what_was_lost(drainable: Drainable) -> None:
    for table, row_count in drainable.unsent():
        print(
            f"fluss: {row_count} rows for {table} were not acknowledged before the process ended; "
            "call flush() or close the connection first.",
            file=sys.stderr,
        )
    failure = drainable.take_failure()
    if failure is not None:
        print(f"fluss: nobody was told before the process ended: {failure}", file=sys.stderr)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_end_at_exit)
