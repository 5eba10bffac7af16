"""What a program does with pyfluss, written once and run in two places.

Each scenario is a coroutine over a `World`: the real pyfluss runs it in its own interpreter (see `pyfluss_driver.py`),
`fluss.aio` runs it in the test's. Nothing here imports a client; `world.api` is the module under test.
"""

from __future__ import annotations

from tests.peers.scenarios import admin, appends, keyed_tables, partitions, scans, tables, types, upserts
from tests.peers.scenarios.world import FEATURES, SCENARIOS, World

__all__ = [
    "FEATURES",
    "SCENARIOS",
    "World",
    "admin",
    "appends",
    "keyed_tables",
    "partitions",
    "scans",
    "tables",
    "types",
    "upserts",
]
