"""Launchers and a fault proxy for tests against real processes.

* `ApacheFluss`: a real Apache Fluss 0.9.1 cluster on loopback, fetched by Maven.
* `FlussServer`: this package's server as a subprocess.
* `FaultProxy`: a TCP proxy that knows the wire's frames and breaks them on purpose.

Most tests need none of them by name: with flussbett installed, pytest has the fixtures `fluss_server`,
`fluss_database`, `fluss_connection` and `fluss_proxy`, so that a test needs one line:

    def test_orders(fluss_connection, fluss_database): ...

    def test_lost_answers(fluss_connection, fluss_database, fluss_proxy):
        fluss_proxy.drop_responses(limit=3)
        ...

The module `pytest_fluss` says what each of them is. Without pytest:

    with FlussServer(Path("data")) as server, fluss.sync.connect(server.bootstrap_servers) as connection: ...
"""

from __future__ import annotations

from fluss.testing.apache import ApacheFluss
from fluss.testing.processes import FlussServer, ProcessFailedError
from fluss.testing.proxy import Action, Direction, Fault, FaultProxy, ProxyCounters

__all__ = [
    "Action",
    "ApacheFluss",
    "Direction",
    "Fault",
    "FaultProxy",
    "FlussServer",
    "ProcessFailedError",
    "ProxyCounters",
]
