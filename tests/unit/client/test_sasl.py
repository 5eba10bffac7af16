"""Logging in: against a scripted server, our server and, in the compatibility run, a real cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluss.client.client import ClientCore
from fluss.client.net.connection import Credentials
from fluss.client.runtime import run
from fluss.model.config import Config
from fluss.model.errors import AuthenticationError, InvalidRequestError
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.users import add_user
from fluss.testing import ApacheFluss, FlussServer
from tests.kit.client_tables import everything, make_table
from tests.kit.scripted import PATH, Refuse, ScriptedServer

USER, PASSWORD = "alice", "s3cret ü"
LOGIN = {"security.protocol": "sasl", "security.sasl.username": USER, "security.sasl.password": PASSWORD}


def connect(bootstrap: str, **settings: Any) -> ClientCore:
    return run(ClientCore.connect(Config({"bootstrap.servers": bootstrap, **settings})))


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """A server that lets only USER in, as a real one does: an empty challenge after a good login."""

    def authenticate(request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        if request.protocol != "PLAIN" or request.token != f"\0{USER}\0{PASSWORD}".encode():
            raise Refuse(46, "Authentication failed: Invalid username or password")
        return pb.AuthenticateResponse(challenge=b"")

    with ScriptedServer() as server:
        server.handlers[1038] = authenticate
        yield server


@pytest.mark.parametrize("protocol", ["sasl", "SASL", "Sasl"])
def test_every_connection_logs_in_before_anything_else(scripted: ScriptedServer, protocol: str) -> None:
    client = connect(scripted.address, **(LOGIN | {"client.security.protocol": protocol}))
    run(client.table(PATH)).append_writer().append([1, "a"]).result(5)
    run(client.close())
    keys = [key for key, _ in scripted.requests]
    assert keys.count(1038) == scripted.connections
    assert keys[:3] == [1000, 1038, 1012]
    assert scripted.ids() == [1]


def test_a_wrong_password_says_who_was_refused_and_what_to_set(scripted: ScriptedServer) -> None:
    with pytest.raises(AuthenticationError, match=r"user 'alice'.*security\.sasl\.password") as caught:
        connect(scripted.address, **(LOGIN | {"security.sasl.password": "wrong"}))
    assert caught.value.error_code == 46
    assert not caught.value.is_retriable
    assert "\n" not in caught.value.message
    assert "wrong" not in caught.value.message
    assert scripted.count(1038) == 1


def test_a_server_that_can_not_check_now_is_asked_again(scripted: ScriptedServer) -> None:
    check, refusals = scripted.handlers[1038], [1, 2, 3]

    def later(request: pb.AuthenticateRequest) -> Any:
        if refusals:
            refusals.pop()
            raise Refuse(51, "not now")
        return check(request)

    scripted.handlers[1038] = later
    run(connect(scripted.address, **LOGIN).close())
    assert scripted.count(1038) == 4


def test_being_asked_again_ends_at_the_deadline(scripted: ScriptedServer) -> None:
    def never(_: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        raise Refuse(51, "not now")

    scripted.handlers[1038] = never
    began = time.monotonic()
    with pytest.raises(AuthenticationError, match=r"'alice' just now: not now\. Try again later") as caught:
        connect(scripted.address, **LOGIN, **{"connect-timeout": 500})
    assert caught.value.error_code == 51
    assert time.monotonic() - began < 3
    assert 3 < scripted.count(1038) < 20


def test_a_server_without_logins_says_that_it_has_none(scripted: ScriptedServer) -> None:
    def disabled(_: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        raise Refuse(46, "protocol PLAIN is not enabled")

    scripted.handlers[1038] = disabled
    with pytest.raises(AuthenticationError, match=r"security\.protocol=PLAINTEXT"):
        connect(scripted.address, **LOGIN)


def test_a_missing_login_says_what_to_set(scripted: ScriptedServer) -> None:
    def metadata(_: pb.MetadataRequest) -> pb.MetadataResponse:
        raise Refuse(46, "The connection has not authenticated successfully yet.")

    scripted.handlers[1012] = metadata
    with pytest.raises(AuthenticationError, match=r"wants a login: set security\.protocol=sasl"):
        connect(scripted.address)


@pytest.mark.parametrize("change", [{"username": ""}, {"password": ""}, {"username": "a\0b"}])
def test_credentials_that_are_none(change: dict[str, str]) -> None:
    settings = LOGIN | {f"security.sasl.{key}": value for key, value in change.items()}
    with pytest.raises(InvalidRequestError, match=f"security.sasl.{next(iter(change))}"):
        Credentials.of(Config(settings))


def test_the_password_is_not_shown() -> None:
    credentials = Credentials.of(Config(LOGIN))
    assert PASSWORD not in repr(credentials)
    assert USER in repr(credentials)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    folder: Path = tmp_path_factory.mktemp("sasl")
    add_user(folder / "users", USER, PASSWORD)
    with FlussServer(folder / "data", args=["--sasl-users", str(folder / "users")]) as running:
        yield running


def test_our_server(server: FlussServer) -> None:
    client = connect(server.bootstrap_servers, **LOGIN)
    table = make_table(client)
    table.append_writer().append([1, "a", 0.5]).result(10)
    assert everything(table)["id"].to_pylist() == [1]
    run(client.close())
    with pytest.raises(AuthenticationError, match="user 'alice'"):
        connect(server.bootstrap_servers, **(LOGIN | {"security.sasl.password": "wrong"}))
    with pytest.raises(AuthenticationError, match="wants a login"):
        connect(server.bootstrap_servers)


@pytest.mark.compat
def test_a_real_cluster(tmp_path: Path) -> None:
    with ApacheFluss(tmp_path / "cluster", sasl_users={USER: "s3cret"}) as cluster:
        login = LOGIN | {"security.sasl.password": "s3cret"}
        client = connect(cluster.sasl_bootstrap_servers, **login)
        table = make_table(client)
        table.append_writer().append([1, "a", 0.5]).result(30)
        assert everything(table)["id"].to_pylist() == [1]
        run(client.close())
        with pytest.raises(AuthenticationError, match="user 'alice'"):
            connect(cluster.sasl_bootstrap_servers, **(login | {"security.sasl.password": "wrong"}))
        with pytest.raises(AuthenticationError, match="wants a login"):
            connect(cluster.sasl_bootstrap_servers)
        with pytest.raises(AuthenticationError, match="PLAINTEXT"):
            connect(cluster.bootstrap_servers, **login)
