"""The door to threads: single ones, pools, and which one is running.

To be called as `threads.pool(2, "fluss-name")`; a name that is imported or kept is not replaced. Event loops start
threads only for `to_thread` and `run_in_executor(None, …)`; the second is not used. Locks are `threading`'s own.
"""

# Small on purpose: nothing but what is replaced together.

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor


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
