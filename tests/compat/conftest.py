"""One server and all clients on it, for the suites that let every client meet every other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fluss.testing import ApacheFluss, FlussServer
from tests.compat.differences import APACHE, JAVA, OUR_CLIENT, OUR_SERVER, PYFLUSS
from tests.peers.fixtures import PeerFactory
from tests.peers.javaclient import JavaPeer
from tests.peers.ourclient import OurPeer
from tests.peers.pyfluss import PyflussPeer

WITHOUT_JAVA, WITH_JAVA = OUR_SERVER, f"{OUR_SERVER}, {JAVA} too"

ON_OUR_SERVER = [WITHOUT_JAVA, pytest.param(WITH_JAVA, marks=pytest.mark.compat)]
EVERYWHERE = [*ON_OUR_SERVER, pytest.param(APACHE, marks=pytest.mark.compat)]


@dataclass
class Cluster:
    """A server and the clients on it."""

    server: FlussServer | ApacheFluss
    clients: dict[str, Any]

    @property
    def name(self) -> str:
        return APACHE if isinstance(self.server, ApacheFluss) else OUR_SERVER

    def create_table(self, by: str, database: str, table: str, columns: dict[str, str], **options: Any) -> None:
        self.clients[by].create_table(database, table, columns, **options)
        if not options.get("partition_keys"):
            self.await_table(database, table)

    def create_partition(self, by: str, database: str, table: str, spec: dict[str, str]) -> None:
        self.clients[by].create_partition(database, table, spec)
        self.await_table(database, table, "$".join(spec.values()))

    def await_table(self, database: str, table: str, partition: str | None = None) -> None:
        if isinstance(self.server, ApacheFluss):
            self.server.await_table(database, table, partition)


def connect_all(address: str, pyfluss: PeerFactory[PyflussPeer], java: PeerFactory[JavaPeer] | None) -> dict[str, Any]:
    clients: dict[str, Any] = {OUR_CLIENT: OurPeer(address), PYFLUSS: pyfluss(address)}
    if java is not None:
        clients[JAVA] = java(address)
    return clients


@pytest.fixture(scope="package")
def matrix_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    """A server of this package's own: its tests restart it."""
    with FlussServer(tmp_path_factory.mktemp("compat") / "data") as server:
        yield server


@pytest.fixture(scope="module", params=EVERYWHERE)
def cluster(request: pytest.FixtureRequest, pyfluss_peers: PeerFactory[PyflussPeer]) -> Iterator[Cluster]:
    server = request.getfixturevalue("apache_fluss" if request.param == APACHE else "matrix_server")
    java = None if request.param == WITHOUT_JAVA else request.getfixturevalue("java_peers")
    made = Cluster(server, connect_all(server.bootstrap_servers, pyfluss_peers, java))
    yield made
    for client in made.clients.values():
        client.close()


@pytest.fixture
def database(cluster: Cluster, new_name: Callable[[str], str], record_property: Callable[[str, object], None]) -> str:
    record_property("clients", list(cluster.clients))
    record_property("server", cluster.name)
    name = new_name("compat")
    cluster.clients[PYFLUSS].create_database(name, ignore_if_exists=False)
    return name
