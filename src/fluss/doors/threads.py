"""The door to threads: single ones, pools, which one is running, and what they wait on; and to event loops.

To be called as `threads.pool(2, "fluss-name")`; a name that is imported or kept is not replaced. Event loops start
threads only for `to_thread` and `run_in_executor(None, …)`; the second is not used. Locks and their kin are
`threading`'s own, not wrapped. Whoever waits for a `concurrent.futures.Future` does so with `result` or `wait`.
"""

# Small on purpose: nothing but what is replaced together.

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as _wait
from typing import Any


def daemon(run: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """A thread that the process does not wait for when it ends; to be started."""
    return threading.Thread(target=run, args=args, name=name, daemon=True)


def pool(count: int, name: str) -> Executor:
    """Up to so many threads, which begin with their first work and share a name."""
    return ThreadPoolExecutor(count, thread_name_prefix=name)


to_thread = asyncio.to_thread
"""Do some work, that no pool is there for, in a thread of the loop's; in the context of the caller."""

current: Callable[[], threading.Thread] = threading.current_thread
"""The thread that runs."""

lock = threading.Lock
rlock = threading.RLock
condition = threading.Condition
event = threading.Event


result = Future.result
"""What a future has, waited for in the calling thread for some seconds at most; raises TimeoutError behind them."""


def wait(futures: Collection[Future[Any]]) -> None:
    """Return when all are done, however they ended."""
    _wait(futures)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
