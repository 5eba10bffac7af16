"""The real pyfluss 1.0.0 through its whole API for log tables, on our server and on Apache Fluss 0.9.1.

`fluss.aio` runs the same scenarios word for word, on the embedded server as well: it is meant to be a drop-in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

import fluss.aio
import fluss.sync
from tests.compat.differences import OUR_CLIENT, PYFLUSS, expected, server_name
from tests.kit.backends import APACHE, EMBEDDED, OURS, Backend
from tests.peers.fixtures import PeerFactory
from tests.peers.jsonlines import PeerError
from tests.peers.pyfluss import PyflussPeer
from tests.peers.scenarios import FEATURES
from tests.peers.scenarios.run import NoLeaderError, run_scenario

SCENARIO_TIMEOUT_S = 60.0

ON = [
    (PYFLUSS, OURS),
    (OUR_CLIENT, OURS),
    (OUR_CLIENT, EMBEDDED),
    pytest.param(PYFLUSS, APACHE, marks=pytest.mark.compat),
    pytest.param(OUR_CLIENT, APACHE, marks=pytest.mark.compat),
]


@pytest.fixture(scope="module")
def pyfluss_on(pyfluss_peers: PeerFactory[PyflussPeer]) -> Iterator[Callable[[str], PyflussPeer]]:
    """One pyfluss process for each address."""
    peers: dict[str, PyflussPeer] = {}

    def connect(address: str) -> PyflussPeer:
        if address not in peers:
            peers[address] = pyfluss_peers(address)
        return peers[address]

    yield connect
    for peer in peers.values():
        peer.close()


@pytest.fixture(scope="module")
def kept_running() -> Iterator[Callable[[str], None]]:
    """Keeps a connection to an address: an embedded server would otherwise start and stop with every scenario."""
    kept: dict[str, fluss.sync.FlussConnection] = {}

    def keep(address: str) -> None:
        if address not in kept:
            kept[address] = fluss.sync.FlussConnection.create(fluss.sync.Config({"bootstrap.servers": address}))

    yield keep
    for connection in kept.values():
        connection.close()


@pytest.mark.parametrize(("peer", "backend"), ON, indirect=["backend"])
@pytest.mark.parametrize("scenario", [pytest.param(n, marks=pytest.mark.feature(f)) for n, f in FEATURES.items()])
def test_scenario(
    scenario: str,
    peer: str,
    backend: Backend,
    pyfluss_on: Callable[[str], PyflussPeer],
    kept_running: Callable[[str], None],
    new_name: Callable[[str], str],
) -> None:
    known = expected(peer, server_name(backend.kind))

    def run() -> None:
        database, ports = new_name("scenario"), backend.cluster.ports if backend.cluster else []
        if peer == PYFLUSS:
            client = pyfluss_on(backend.bootstrap_servers)
            client.run_scenario(scenario, database, known, ports, timeout_s=SCENARIO_TIMEOUT_S)
        else:
            kept_running(backend.bootstrap_servers)
            asyncio.run(_run_ours(scenario, backend.bootstrap_servers, database, known, ports))

    try:
        run()
    except (PeerError, NoLeaderError) as error:
        wedged = isinstance(error, NoLeaderError) or error.kind == NoLeaderError.__name__
        if not wedged or backend.cluster is None:
            raise
        backend.cluster.restart()
        run()


async def _run_ours(name: str, address: str, database: str, known: dict[str, object], ports: list[int]) -> None:
    async with await fluss.aio.FlussConnection.create(fluss.aio.Config({"bootstrap.servers": address})) as conn:
        coroutine = run_scenario(name, fluss.aio, conn, database, known, ports)
        await asyncio.wait_for(coroutine, SCENARIO_TIMEOUT_S)
