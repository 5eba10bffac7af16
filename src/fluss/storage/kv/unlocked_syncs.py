"""Syncs of RocksDB without the GIL, where its binding keeps it: in opening and checkpoints.

While a thread holds the GIL, all others of the process stand still, the server's event loop first; and a sync takes as
long as the disk likes. A small C library, compiled where the kernels are, gives up the GIL for the time of each sync.
Where it could not be compiled, or not on Linux, syncs of a slow disk keep everybody waiting.

Only calls during which no other thread can wait for a lock of RocksDB with the GIL held may be made so.
"""

# Small on purpose: the door to the C library beside it.

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rocksdict import rocksdict

try:
    from fluss.storage import _unlocked_syncs as implementation
except ImportError:
    implementation = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)


def _redirected() -> bool:
    if implementation is None:
        return False
    try:
        return implementation.redirect(rocksdict.__file__) > 0
    except OSError as error:
        _log.warning("openings and snapshots of tables keep others waiting while the disk is slow: %s", error)
        return False


IN_USE = _redirected()


@contextmanager
def unlocked_syncs() -> Iterator[None]:
    """Give up the GIL in syncs that this thread makes in the block."""
    if not IN_USE:
        yield
        return
    implementation.begin()
    try:
        yield
    finally:
        implementation.end()
