"""SASL PLAIN with the right password, a wrong one and none, for every client on both servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluss import ErrorCode, FlussError
from fluss.server.net.users import add_user
from fluss.testing import ApacheFluss, FlussServer
from tests.compat.differences import APACHE, JAVA, OUR_CLIENT, OUR_SERVER, PYFLUSS
from tests.peers.fixtures import SASL_USERS
from tests.peers.jsonlines import PeerError
from tests.peers.ourclient import OurPeer
from tests.peers.samples import SMALL

pytestmark = pytest.mark.feature("SASL PLAIN")

ROW = {"id": 1, "name": "let in"}


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    folder = tmp_path_factory.mktemp("sasl")
    for name, password in SASL_USERS.items():
        add_user(folder / "users", name, password)
    with FlussServer(folder / "data", args=["--sasl-users", str(folder / "users")]) as server:
        yield server


PAIRS = [(OUR_CLIENT, OUR_SERVER), (PYFLUSS, OUR_SERVER), (JAVA, OUR_SERVER)]
PAIRS += [(client, APACHE) for client in (OUR_CLIENT, PYFLUSS, JAVA)]
ON = [
    pytest.param(pair, id=" on ".join(pair), marks=[pytest.mark.compat] if JAVA in pair or APACHE in pair else [])
    for pair in PAIRS
]


class Door:
    """Connects one kind of client to one kind of server that wants a login."""

    def __init__(self, client: str, address: str, peers: Any, cluster: ApacheFluss | None) -> None:
        self._client, self._address, self._peers = client, address, peers
        self.cluster = cluster

    def open(self, user: str | None = None, password: str = "") -> Any:
        prefix = "client." if self._client == JAVA else ""
        config = {}
        if user is not None:
            login = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password, "protocol": "sasl"}
            config = {f"{prefix}security.{key}": value for key, value in login.items()}
        return self._peers(self._address, config)


@pytest.fixture(params=ON)
def door(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Door:
    client, server = request.param
    record_property("clients", [client])
    record_property("server", server)
    peers = OurPeer if client == OUR_CLIENT else request.getfixturevalue(f"{client.lower()}_peers")
    if server == OUR_SERVER:
        return Door(client, request.getfixturevalue("sasl_server").bootstrap_servers, peers, None)
    cluster: ApacheFluss = request.getfixturevalue("apache_fluss")
    return Door(client, cluster.sasl_bootstrap_servers, peers, cluster)


def test_the_right_password_opens_everything(door: Door, new_name: Callable[[str], str]) -> None:
    client = door.open("alice", SASL_USERS["alice"])
    database = new_name("sasl")
    client.create_database(database)
    client.create_table(database, "t", SMALL)
    if door.cluster is not None:
        door.cluster.await_table(database, "t")
    client.append_rows(database, "t", [ROW])
    assert client.scan_rows(database, "t") == [ROW]
    other = door.open("bob", SASL_USERS["bob"])
    assert other.scan_rows(database, "t") == [ROW]
    client.close()
    other.close()


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("alice", SASL_USERS["bob"]), ("mallory", "mallory-secret"), (None, "")]
)
def test_nothing_else_opens(door: Door, user: str | None, password: str) -> None:
    with pytest.raises((FlussError, PeerError)) as refused:
        door.open(user, password)
    error: Any = refused.value
    code = error.code if isinstance(error, PeerError) else error.error_code
    assert code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert password == "" or password not in str(error)
