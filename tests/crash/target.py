"""The server that hostile bytes are sent to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest

import fluss
from fluss.testing import FlussServer
from tests.crash.servers import new_server
from tests.kit.loads.kv_clients import KvLoad
from tests.kit.loads.workload import DATABASE, Plan, Workload
from tests.kit.loads.writers import POLL_INTERVAL_S
from tests.kit.rows import descriptor
from tests.kit.wire import Wire

PATH = fluss.TablePath(DATABASE, "target")
PROGRESS_S_MAX = 10.0
CONNECTIONS_PER_CLIENT_MAX = 3


class Target:
    """A server under a normal load, with a table for attacks."""

    def __init__(self, server: FlussServer, load: Workload | KvLoad, table_id: int) -> None:
        self.server = server
        self.load = load
        self.table_id = table_id
        self._process = psutil.Process(server.pid)
        self._log_position = 0

    @property
    def memory_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    def await_connections_gone(self) -> None:
        """Wait until only the normal clients are connected."""
        clients = len(self.load.writers) + len(self.load.followers)
        deadline = time.monotonic() + PROGRESS_S_MAX
        while len(self._process.net_connections()) > 1 + clients * CONNECTIONS_PER_CLIENT_MAX:
            assert time.monotonic() < deadline, self._process.net_connections()
            time.sleep(POLL_INTERVAL_S)

    def check(self) -> None:
        """The server lives, has no exception to tell of, and its normal clients go on."""
        self.server.process.check_running()
        self.load.await_progress(within_s=PROGRESS_S_MAX)
        with self.server.log_file.open() as file:
            file.seek(self._log_position)
            log = file.read()
            self._log_position = file.tell()
        assert "Traceback" not in log, log[log.index("Traceback") :][:3_000]
        assert "never retrieved" not in log


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    plan = Plan(row_writers=1, batch_writers=1, plain_writers=1, pause_s=0.01)
    with new_server(tmp_path_factory.mktemp("hostile")) as server:
        load = Workload(server.bootstrap_servers, 0, plan)
        load.prepare()
        with Wire(server.bootstrap_servers) as wire:
            table_id = wire.create_table(PATH, descriptor(1))
        with load:
            load.await_progress()
            yield Target(server, load, table_id)
            load.finish()
