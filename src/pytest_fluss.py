"""Fixtures for tests of programs that use Fluss, there wherever flussbett and pytest are installed:

    def test_orders(fluss_connection, fluss_database):
        path = TablePath(fluss_database, "orders")
        ...

* `fluss_server`: a server on a temporary directory, one for the whole run (`fluss.testing.FlussServer`).
* `fluss_database`: the name of a new database, dropped with its tables after the test.
* `fluss_connection`: a connection of `fluss.sync`. For the other facades connect to `fluss_server.bootstrap_servers`.
* `fluss_proxy`: what stands between clients and that server and can break the network (`fluss.testing.FaultProxy`).
  A test that names it, and all others of the run, reach the server through it.

It is a module of its own because pytest loads it in every run, and `fluss` takes a moment to load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from fluss.sync import FlussConnection
    from fluss.testing import FaultProxy, FlussServer


class _Backend(NamedTuple):
    server: FlussServer
    proxy: FaultProxy | None

    @property
    def address(self) -> str:
        return self.server.bootstrap_servers if self.proxy is None else self.proxy.address

    def repair(self) -> None:
        """Undo what a test has done to the network and the server."""
        if self.proxy is not None:
            self.proxy.clear()
            self.proxy.unfreeze()
        if self.server.process.returncode is not None:
            self.server.start()


@pytest.fixture(scope="session")
def _fluss_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Backend]:
    from fluss.testing import FaultProxy, FlussServer

    directory = tmp_path_factory.mktemp("fluss") / "data"
    # The disk of a test need not survive a power cut.
    args = ["--durability", "os"]
    if not any("fluss_proxy" in getattr(item, "fixturenames", ()) for item in request.session.items):
        with FlussServer(directory, args=args) as server:
            yield _Backend(server, None)
        return
    # Clients go where the server tells them to, so it has to name the proxy from the start.
    with FaultProxy() as proxy, FlussServer(directory, args=[*args, "--advertise", proxy.address]) as server:
        proxy.set_target(server.bootstrap_servers)
        yield _Backend(server, proxy)


@pytest.fixture(scope="session")
def fluss_server(_fluss_backend: _Backend) -> FlussServer:
    """A Flussbett server on a temporary directory; a test may kill it, for the next one it is started again."""
    return _fluss_backend.server


@pytest.fixture
def fluss_proxy(_fluss_backend: _Backend) -> Iterator[FaultProxy]:
    """The network between clients and `fluss_server`, to be broken; it is whole again for the next test."""
    if _fluss_backend.proxy is None:
        pytest.fail("fluss_proxy must be an argument of a test or fixture: the server is started with it or without")
    yield _fluss_backend.proxy
    _fluss_backend.repair()


@pytest.fixture
def fluss_database(_fluss_backend: _Backend) -> Iterator[str]:
    """The name of a new database; it is dropped after the test, with all its tables."""
    import uuid

    from fluss.sync import connect

    _fluss_backend.repair()
    name = f"test_{uuid.uuid4().hex[:12]}"
    with connect(_fluss_backend.address) as connection:
        connection.get_admin().create_database(name)
    yield name
    _fluss_backend.repair()
    with connect(_fluss_backend.address) as connection:
        connection.get_admin().drop_database(name, ignore_if_not_exists=True, cascade=True)


@pytest.fixture
def fluss_connection(_fluss_backend: _Backend) -> Iterator[FlussConnection]:
    """A connection of `fluss.sync` to `fluss_server`."""
    from fluss.sync import connect

    _fluss_backend.repair()
    with connect(_fluss_backend.address) as connection:
        yield connection
