"""Memory of the process: how much of what was freed the C library may keep, and what garbage collections pass over.

glibc has an arena for each of many threads, and what is freed in one is not used for another. Blocks of a store are
read in one thread and pushed out of the cache by another, so all arenas would grow, table after table. Without glibc
nothing is done about that.
"""

# Small on purpose: the one place that calls the C library's allocator.

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

ARENAS_MAX: Final = 2
_M_ARENA_MAX: Final = -8  # as in malloc.h


def share_arenas() -> None:
    """Have all threads share a few arenas; to be called before threads are started, and before Arrow is loaded.

    Arrow's own allocator would keep some 20 MB for the threads that write.
    """
    _call("mallopt", _M_ARENA_MAX, ARENAS_MAX)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def give_back() -> None:
    """Give what is free to the system. Takes some 20 ms for 100 MB, without the GIL."""
    _call("malloc_trim", 0)


def exempt_from_collection() -> None:
    """Have garbage collections pass over what there is now, which is modules for the most part.

    A full one would take 60 ms for them, and nobody is served meanwhile. For what comes later it takes a few.
    """
    gc.freeze()


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "top",
        )
    )


def allocated_bytes() -> int:
    """What was allocated and not freed; 0 without glibc. The rest of its memory is free, and fragments."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        return 0
    function.restype = _Mallinfo
    found = function()
    return int(found.uordblks) + int(found.hblkhd)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
