"""How long a server takes to start, and the memory of servers and clients, idle and after work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.corners import Corner, RunningCorner, clients_of
from benchmarks.kv_workloads import create_kv_table
from benchmarks.log_workloads import create_log_table
from benchmarks.measure import Measurement, Progress, attempt, shown
from benchmarks.servers import Server, server
from benchmarks.worker_process import WorkerProcess, interpreter
from benchmarks.workloads import Metric, Sample, Sizes, Workload
from fluss.testing.processes import free_ports

_ROUNDS_MAX = 3
_SETTLING_S = 2.0
_LOAD_S_MAX = 60.0
_KEYS_SHARE = 5  # a key for every so many rows of the load


def _no_measure(_: RunningCorner, __: Sizes) -> Sample:
    raise NotImplementedError("measured with servers of its own")


RESOURCES = Workload(
    "resources",
    "Start-up and memory",
    (
        Metric("startup_s", "start-up, s", higher_is_better=False, is_compared=True),
        Metric("server_idle_mb", "server idle, MB", higher_is_better=False, is_compared=True),
        Metric("all_idle_mb", "all processes of the server idle, MB", higher_is_better=False, is_compared=True),
        Metric("client_idle_mb", "client idle, MB", higher_is_better=False, is_compared=True),
    ),
    _no_measure,
)
LOADED = Workload(
    "loaded",
    "Memory after a load",
    (
        Metric("server_loaded_mb", "server, MB", higher_is_better=False, is_compared=True),
        Metric("client_loaded_mb", "client, MB", higher_is_better=False, is_compared=True),
    ),
    _no_measure,
)


def measure_resources(
    corners: Sequence[Corner], sizes: Sizes, rounds: int, folder: Path, progress: Progress
) -> list[Measurement]:
    """Of each client on the server it belongs to, with processes that nothing else uses."""
    own = [corner for corner in corners if _belong_together(corner)]
    found = []
    for number in range(1, min(rounds, _ROUNDS_MAX) + 1):
        for corner in own:
            place = folder / f"resources-{corner.server}-{number}"
            with contextlib.ExitStack() as stack:
                cell = _Cell(corner, place, stack)
                found.append(attempt(RESOURCES.key, corner, number, cell.idle))
                progress(f"round {number}: {RESOURCES.title}: {corner.title}: {shown(found[-1])}")
                if found[-1].failure is None:
                    found.append(attempt(LOADED.key, corner, number, partial(cell.loaded, sizes)))
                    progress(f"round {number}: {LOADED.title}: {corner.title}: {shown(found[-1])}")
    return found


def _belong_together(corner: Corner) -> bool:
    return corner.is_baseline or (corner.client == "flussbett" and corner.server.startswith("flussbett"))


class _Cell:
    """A server and a client of its own, both put on the stack."""

    def __init__(self, corner: Corner, folder: Path, stack: contextlib.ExitStack) -> None:
        self._corner = corner
        self._folder = folder
        self._stack = stack

    def idle(self) -> Sample:
        self._folder.mkdir()
        name, place = self._corner.server, self._folder / "server"
        starting = server(name, place, port=free_ports(1)[0], warm=False)
        self._server, startup_s = self._stack.enter_context(_started(starting, self._folder))
        time.sleep(_SETTLING_S)
        idle, all_idle = self._server.memory_mb(), self._server.all_memory_mb()
        self._clients = self._stack.enter_context(clients_of(self._corner, self._server, self._folder))
        self._clients.reader.kill()  # The one that works is enough.
        self._clients.writer.call("list_databases", config=self._clients.config())
        return {
            "startup_s": startup_s,
            "server_idle_mb": idle,
            "all_idle_mb": all_idle,
            "client_idle_mb": self._clients.writer.call("memory_mb"),
        }

    def loaded(self, sizes: Sizes) -> Sample:
        clients = self._clients
        tables = {"log_table": create_log_table(clients, sizes), "kv_table": create_kv_table(clients, sizes.buckets)}
        keys = sizes.load_rows // _KEYS_SHARE
        config = clients.config()
        clients.writer.call_within(_LOAD_S_MAX, "load", config=config, rows=sizes.load_rows, keys=keys, **tables)
        return {
            "server_loaded_mb": self._server.memory_mb(),
            "client_loaded_mb": clients.writer.call("memory_mb"),
        }


@contextlib.contextmanager
def _started(starting: Server, folder: Path) -> Iterator[tuple[Server, float]]:
    """A server, and the seconds from the start of its processes until a client had its list of databases."""
    prober = WorkerProcess(interpreter("flussbett"), log_file=folder / "prober.log")
    try:
        prober.call("memory_mb")  # It is there now, and its imports are no part of what follows.
        with ThreadPoolExecutor(1) as executor:
            config = {"bootstrap.servers": starting.bootstrap_servers}
            listed = executor.submit(prober.call, "await_databases", config=config)
            began = time.monotonic()
            with starting.running() as running:
                yield running, listed.result() - began
    finally:
        prober.kill()
