"""Seeds: each random test draws from one, prints it, and takes it from FLUSS_SEED to be replayed."""

from __future__ import annotations

import os
import random

import pytest

SEED_VARIABLE = "FLUSS_SEED"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test; pytest shows the line with the failure."""
    given = os.environ.get(SEED_VARIABLE)
    value = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"replay with: {SEED_VARIABLE}={value} pytest '{request.node.nodeid}'")
    return value


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)
