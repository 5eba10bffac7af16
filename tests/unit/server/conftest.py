from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.thread_server import RunningServer, Wire


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Wire]:
    with server.connect() as connected:
        yield connected
