"""`connect(address, **options)` in the three facades."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fluss
import fluss.aio
import fluss.sync
from fluss.api.connect import connect_config
from fluss.testing import FlussServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


def test_options_are_named_like_the_attributes_of_a_config() -> None:
    config = connect_config("host:1", {"request_timeout_ms": 5, "writer_acks": "1", "connect_timeout_ms": "7"})
    assert (config.bootstrap_servers, config.request_timeout_ms, config.connect_timeout_ms) == ("host:1", 5, 7)
    assert config.writer_acks == "1"
    assert connect_config(None, {}) == fluss.Config()
    assert connect_config(None, {"bootstrap_servers": "host:1"}).bootstrap_servers == "host:1"


def test_unknown_options_are_named() -> None:
    with pytest.raises(fluss.FlussError, match=r"Unknown configuration key 'request_timeout'.*request-timeout-ms"):
        connect_config(None, {"request_timeout": 5})


def test_sync(server: FlussServer) -> None:
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        assert connection.get_admin().list_databases() == ["fluss"]
    assert "closed" in repr(connection)


@pytest.mark.parametrize("facade", [fluss, fluss.aio], ids=["fluss", "aio"])
async def test_awaited_and_as_a_context(server: FlussServer, facade: object) -> None:
    connect = facade.connect  # type: ignore[attr-defined]
    connection = await connect(server.bootstrap_servers)
    assert await connection.get_admin().list_databases() == ["fluss"]
    await connection.close()
    async with connect(f"fluss://{server.bootstrap_servers}", request_timeout_ms=5_000) as connection:
        assert isinstance(connection, facade.FlussConnection)  # type: ignore[attr-defined]
        assert connection.config.request_timeout_ms == 5_000
        assert await (await connection.get_admin()).list_databases() == ["fluss"]
    assert "closed" in repr(connection)


async def test_nobody_there() -> None:
    with pytest.raises(fluss.FlussError, match=r"No Fluss server answers at 127\.0\.0\.1:1 "):
        await fluss.connect("127.0.0.1:1")
