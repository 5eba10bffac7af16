"""A server with a lake for all tests of this folder, and a database for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fluss.sync import Config, FlussConnection
from fluss.testing import FlussServer
from tests.kit.lake.lake import Lake


@pytest.fixture(scope="session")
def lake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("lake") / "data") as server:
        yield server


@pytest.fixture
def lake(lake_server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Lake]:
    database = new_name("lake")
    with FlussConnection.create(Config({"bootstrap.servers": lake_server.bootstrap_servers})) as connection:
        connection.get_admin().create_database(database)
        yield Lake(lake_server, connection, database, lake_server.data_dir.absolute() / "lake")
        connection.get_admin().drop_database(database, cascade=True)
