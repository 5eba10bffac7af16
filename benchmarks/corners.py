"""The corners: which client talks to which server, and the processes behind them."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers.environments import pyfluss_python

from benchmarks.data import DATABASE
from benchmarks.worker_process import WorkerProcess
from fluss.testing import ApacheFluss, FlussServer

CLIENTS = {"flussbett": "Flussbett", "pyfluss": "pyfluss"}
SERVERS = {
    "flussbett-fsync": "Flussbett, fsync",
    "flussbett-os": "Flussbett, no fsync",
    "apache": "Apache Fluss (no fsync)",
}
BASELINE = ("pyfluss", "apache")

# Twice what it was seen to use under load: the other servers and the clients need memory as well.
_TABLET_JVM = ("-Xms1g", "-Xmx2g", "-XX:+UseG1GC")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Corner:
    """One client on one server."""

    client: str
    server: str

    @property
    def title(self) -> str:
        return f"{CLIENTS[self.client]} on {SERVERS[self.server]}"

    @property
    def place(self) -> tuple[int, int]:
        """Where the corner stands in a table."""
        return list(CLIENTS).index(self.client), list(SERVERS).index(self.server)

    @property
    def is_baseline(self) -> bool:
        return (self.client, self.server) == BASELINE


@dataclass
class RunningCorner:
    """A corner with its server and two client processes: one that measures, one that tails."""

    corner: Corner
    bootstrap_servers: str
    writer: WorkerProcess
    reader: WorkerProcess
    apache: ApacheFluss | None
    server_pid: int  # of the process that keeps the tables
    tables: dict[str, str] = field(default_factory=dict)

    def config(self, **extra: str) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers, **extra}

    def create_table(self, purpose: str, *, buckets: int = 1, codec: str = "ZSTD") -> str:
        """A fresh table that takes writes; `purpose` finds it again for reading and dropping."""
        name = f"t{next(_numbers)}"
        self.writer.call("create_table", config=self.config(), table=name, buckets=buckets, codec=codec)
        if self.apache is not None:
            self.apache.await_table(DATABASE, name)
        self.tables[purpose] = name
        return name

    def create_kv_table(self, purpose: str, *, buckets: int = 1) -> str:
        """A fresh primary-key table."""
        name = f"t{next(_numbers)}"
        self.writer.call("create_kv_table", config=self.config(), table=name, buckets=buckets)
        if self.apache is not None:
            self.apache.await_table(DATABASE, name)
        self.tables[purpose] = name
        return name

    def server_memory_mb(self) -> float:
        """What the server's process has in memory now."""
        status = Path(f"/proc/{self.server_pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1e3

    def drop_table(self, purpose: str) -> None:
        self.writer.call("drop_table", config=self.config(), table=self.tables.pop(purpose))


@contextlib.contextmanager
def running_corners(corners: Sequence[Corner], folder: Path) -> Iterator[list[RunningCorner]]:
    """Start the servers and clients of all corners, at the same time and for the whole run."""
    interpreters = {"flussbett": (Path(sys.executable), "fluss.aio"), "pyfluss": (Path(), "fluss")}
    if any(corner.client == "pyfluss" for corner in corners):
        interpreters["pyfluss"] = (pyfluss_python(), "fluss")
    with contextlib.ExitStack() as stack:
        servers: dict[str, Any] = {
            server: stack.enter_context(_server(server, folder)) for server in {c.server: None for c in corners}
        }
        running = []
        for corner in corners:
            server = servers[corner.server]
            workers = {}
            for role in ("writer", "reader"):
                log = folder / f"{corner.client}-{corner.server}-{role}.log"
                workers[role] = WorkerProcess(*interpreters[corner.client], log_file=log)
                stack.callback(workers[role].kill)
            running.append(
                RunningCorner(
                    corner,
                    server.bootstrap_servers,
                    workers["writer"],
                    workers["reader"],
                    server if isinstance(server, ApacheFluss) else None,
                    server.pids["tablet-0"] if isinstance(server, ApacheFluss) else server.pid,
                )
            )
        yield running


def _server(name: str, folder: Path) -> FlussServer | ApacheFluss:
    if name == "apache":
        return ApacheFluss(folder / name, jvm_options={"tablet": _TABLET_JVM})
    return FlussServer(folder / name, args=["--durability", name.removeprefix("flussbett-")])
