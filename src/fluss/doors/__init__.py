"""What a simulation replaces: time, chance, threads and the network, each reached through one module alone.

In this order: `clock`, `randomness`, `threads`, `sockets`. Callers name a door with its function, as in
`clock.monotonic()`, and calls it when it is needed: what `replaced` puts into the module then reaches everybody. The
door to the disk is `fluss.storage.files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def replaced(door: ModuleType, **others: object) -> Iterator[None]:
    """Put others in the place of what a door has, for all threads of the process, until the block ends.

        with replaced(clock, monotonic=lambda: now_s, sleep=slept.append):

    What was handed out before, threads and sockets above all, stays what it is.
    """
    own = {name: getattr(door, name) for name in others}
    vars(door).update(others)
    try:
        yield
    finally:
        vars(door).update(own)
