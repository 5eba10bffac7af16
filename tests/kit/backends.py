"""The three kinds of address that a program can be pointed at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fluss.testing import ApacheFluss, FlussServer

OURS, EMBEDDED, APACHE = "server", "embedded", "apache"


@dataclass(frozen=True)
class Backend:
    """A running server or cluster."""

    kind: str
    bootstrap_servers: str
    cluster: ApacheFluss | None = None

    def await_table(self, database: str, table: str, partition: str | None = None) -> None:
        """Wait until a table or partition that was just created has leaders; here it has them at once."""
        if self.cluster is not None:
            self.cluster.await_table(database, table, partition)


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="session", params=[OURS, EMBEDDED, pytest.param(APACHE, marks=pytest.mark.compat)])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    if request.param == APACHE:
        cluster: ApacheFluss = request.getfixturevalue("apache_fluss")
        return Backend(APACHE, cluster.bootstrap_servers, cluster)
    if request.param == EMBEDDED:
        return Backend(EMBEDDED, (tmp_path_factory.mktemp("embedded") / "data").as_uri())
    server: FlussServer = request.getfixturevalue("our_server")
    return Backend(OURS, server.bootstrap_servers)
