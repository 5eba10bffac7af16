"""The door to chance: random numbers that anybody may guess, and secrets that nobody may.

To be called as `randomness.chance.random()`; a name that is imported or kept is not replaced. With a seed for each,
all that this package draws is drawn again:

    with replaced(randomness, chance=Random(1), token_bytes=Random(2).randbytes):
"""

# Small on purpose: nothing but what is replaced together.

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

chance: Random = Random()
"""Spreads load: the first bucket, the order of servers, the length of a pause. Not for what others must not guess."""

token_bytes: Callable[[int], bytes] = os.urandom
"""So many bytes of the system's generator, for keys, and for ids that nobody else may have."""


def new_uuid() -> UUID:
    """An id that nobody else has, of version 4."""
    from uuid import UUID  # a server without a lake makes none

    return UUID(bytes=token_bytes(16), version=4)


def _seed_child() -> None:
    # Or all children of a process would choose alike.
    chance.seed()


os.register_at_fork(after_in_child=_seed_child)
