"""The corners: which client talks to which server, and the processes behind them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers import SERVERS, Server, server
from benchmarks.worker_process import WorkerProcess, interpreter

CLIENTS = {"flussbett": "Flussbett", "aiokafka": "aiokafka", "confluent-kafka": "confluent-kafka", "pyfluss": "pyfluss"}
KAFKA_CLIENTS = ("aiokafka", "confluent-kafka")
BASELINE = ("pyfluss", "apache")

Failed = Callable[["Corner", Exception], None]

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

    @property
    def is_kafka(self) -> bool:
        return self.server == "kafka"


def corners_of(clients: Sequence[str], servers: Sequence[str]) -> list[Corner]:
    """All pairs that speak the same protocol; no names mean all."""
    pairs = itertools.product(clients or CLIENTS, servers or SERVERS)
    return [Corner(*pair) for pair in pairs if (pair[0] in KAFKA_CLIENTS) == (pair[1] == "kafka")]


@dataclass
class RunningCorner:
    """A corner with its server and two client processes: one that measures, one that tails."""

    corner: Corner
    server: Server
    writer: WorkerProcess
    reader: WorkerProcess
    # By purpose, with the number of rows they were made with.
    _tables: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def server_pid(self) -> int:
        return self.server.pid

    def config(self, **extra: str) -> dict[str, str]:
        return {"bootstrap.servers": self.server.bootstrap_servers, **extra}

    def call(self, command: str, **arguments: Any) -> Any:
        """A command of the measuring client whose time is the server's as well."""
        return self.writer.call(command, config=self.config(), server_pid=self.server_pid, **arguments)

    def create_table(self, command: str = "create_table", **arguments: Any) -> str:
        """A fresh table that takes writes."""
        name = f"t{next(_numbers)}"
        self.writer.call(command, config=self.config(), table=name, **arguments)
        self.server.await_table(name)
        return name

    def drop_table(self, name: str) -> None:
        self.writer.call("drop_table", config=self.config(), table=name)

    def kept_table(self, purpose: str, rows: int, make: Callable[[], str]) -> str:
        """The table that was made for `purpose` with so many rows, or a new one."""
        name, found = self._tables.get(purpose, ("", -1))
        if found != rows:
            self.drop_kept_table(purpose)
            name = make()
            self._tables[purpose] = (name, rows)
        return name

    def drop_kept_table(self, purpose: str) -> None:
        if purpose in self._tables:
            self.drop_table(self._tables.pop(purpose)[0])

    def revive(self) -> None:
        """Start the clients anew that a failure has ended."""
        for worker in (self.writer, self.reader):
            worker.revive()


@contextlib.contextmanager
def running_corners(corners: Sequence[Corner], folder: Path, failed: Failed) -> Iterator[list[RunningCorner]]:
    """Start the servers and clients of all corners, at the same time and for the whole run.

    Those that do not start are given to `failed`; the others go on without them.
    """
    with contextlib.ExitStack() as stack:
        servers: dict[str, Server | Exception] = {}
        for name in dict.fromkeys(corner.server for corner in corners):
            try:
                servers[name] = stack.enter_context(server(name, folder / name).running())
            except Exception as error:
                servers[name] = error
        running = []
        for corner in corners:
            found = servers[corner.server]
            try:
                if isinstance(found, Exception):
                    raise found
                running.append(stack.enter_context(clients_of(corner, found, folder)))
            except Exception as error:
                failed(corner, error)
        yield running


@contextlib.contextmanager
def clients_of(corner: Corner, running: Server, folder: Path) -> Iterator[RunningCorner]:
    """The two clients of a corner whose server runs."""
    with contextlib.ExitStack() as stack:
        workers = {}
        for role in ("writer", "reader"):
            log_file = folder / f"{corner.client}-{corner.server}-{role}.log"
            workers[role] = WorkerProcess(interpreter(corner.client), log_file=log_file)
            stack.callback(workers[role].kill)
        yield RunningCorner(corner, running, workers["writer"], workers["reader"])
