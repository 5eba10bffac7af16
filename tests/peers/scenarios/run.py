"""Runs one scenario on a connection: a database of its own, leaders awaited where they come late."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.peers.scenarios.world import SCENARIOS, World

_PROBE = Path(__file__).parents[3] / "src" / "fluss" / "testing" / "processes.py"
_LEADER_TIMEOUT_S = 20.0
_INTERVAL_S = 0.02


class NoLeaderError(Exception):
    """The real cluster elected no leader: it has wedged (a known fault of it) and has to be restarted."""


async def run_scenario(
    name: str, api: Any, conn: Any, database: str, expected: Mapping[str, Any], ports: Sequence[int]
) -> None:
    """`ports` are those of all servers of a real cluster; none for a server whose tables are ready at once."""
    admin = conn.get_admin()
    await admin.create_database(database)
    probe = _load_probe()

    async def await_leaders(database: str, table: str, partition: str | None) -> None:
        deadline = time.monotonic() + _LEADER_TIMEOUT_S
        while not all(probe.has_leaders("127.0.0.1", port, database, table, partition) for port in ports):
            if time.monotonic() > deadline:
                raise NoLeaderError(f"no leader for {database}.{table}")
            await asyncio.sleep(_INTERVAL_S)

    await SCENARIOS[name](World(api, conn, admin, database, expected, await_leaders))
    await admin.drop_database(database)


def _load_probe() -> Any:
    """By file: in pyfluss's interpreter the package around it is another one."""
    name = "flussbett_probe"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _PROBE)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
