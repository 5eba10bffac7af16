"""A server for the client's tests, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.model.config import Config
from fluss.testing import FlussServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: FlussServer) -> Iterator[ClientCore]:
    connected = run(ClientCore.connect(Config({"bootstrap.servers": server.bootstrap_servers})))
    yield connected
    run(connected.close())
