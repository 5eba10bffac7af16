"""The door to time: the clocks of this machine, and sleep.

To be called as `clock.monotonic()`; a name that is imported or kept is not replaced. These are Python's own functions,
not wrapped: some are called for each request. What a server stamps, and removes by age, is the matter of
`fluss.model.clock`, which looks through this door. Event loops have clocks of their own, `loop.time()`.
"""

# Small on purpose: nothing but what is replaced together.

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

monotonic: Callable[[], float] = time.monotonic
"""Seconds since some moment, by a clock that nobody sets: for deadlines, pauses and measurements."""

wall_ns: Callable[[], int] = time.time_ns
"""Nanoseconds since 1970, by a clock that may be wrong."""

# Where there is no such clock (macOS), the monotonic one has to do.
elapsed_ns: Callable[[], int] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)
"""Nanoseconds since some moment before this process began, suspends included, by a clock that nobody sets."""

sleep: Callable[[float], None] = time.sleep
"""Let the calling thread wait for seconds; no coroutine calls it. With 0 only others get a turn."""
