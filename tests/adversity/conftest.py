"""A server that is reached through a fault proxy only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.testing import FaultProxy, FlussServer


@pytest.fixture
def proxied(tmp_path: Path, seed: int) -> Iterator[tuple[FlussServer, FaultProxy]]:
    with FaultProxy(seed=seed) as proxy:
        server = FlussServer(tmp_path / "data", args=["--advertise", proxy.address, "--durability", "os"])
        with server:
            proxy.set_target(server.bootstrap_servers)
            yield server, proxy
