"""The servers by name, each with the process that keeps the tables."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data import DATABASE
from benchmarks.kafka_broker import KafkaBroker
from benchmarks.worker_loop import process_cpu_s, resident_mb
from fluss.testing import ApacheFluss, FlussServer

SERVERS = {
    "flussbett-fsync": "Flussbett, fsync",
    "flussbett-os": "Flussbett, no fsync",
    "kafka": "Kafka (no fsync)",
    "apache": "Apache Fluss (no fsync)",
}

# Twice what it was seen to use under load: the other servers and the clients need memory as well.
_TABLET_JVM = ("-Xms1g", "-Xmx2g", "-XX:+UseG1GC")
_SETTLING_S_MAX = 30.0
_SETTLING_STEP_S = 0.3
_IDLE_SHARE = 0.1  # of a core


class Server:
    """A server that runs or can be started."""

    def __init__(self, launcher: FlussServer | ApacheFluss | KafkaBroker) -> None:
        self._launcher = launcher

    @property
    def bootstrap_servers(self) -> str:
        return self._launcher.bootstrap_servers

    @property
    def pid(self) -> int:
        """Of the process that keeps the tables; asked each time, for a cluster may have been restarted."""
        launcher = self._launcher
        return launcher.pids["tablet-0"] if isinstance(launcher, ApacheFluss) else launcher.pid

    @property
    def pids(self) -> list[int]:
        """Of all its processes."""
        return list(self._launcher.pids.values()) if isinstance(self._launcher, ApacheFluss) else [self.pid]

    def memory_mb(self) -> float:
        return resident_mb(self.pid)

    def all_memory_mb(self) -> float:
        return sum(map(resident_mb, self.pids))

    def await_table(self, table: str) -> None:
        """Apache Fluss takes writes a while after it has said that there is a table."""
        if isinstance(self._launcher, ApacheFluss):
            self._launcher.await_table(DATABASE, table)

    def settle(self) -> None:
        """Wait until it has nothing to do any more: what it tidies up later must not count for what comes next."""
        deadline = time.monotonic() + _SETTLING_S_MAX
        while time.monotonic() < deadline:
            before = process_cpu_s(self.pid)
            time.sleep(_SETTLING_STEP_S)
            if process_cpu_s(self.pid) - before < _IDLE_SHARE * _SETTLING_STEP_S:
                return

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        with self._launcher:
            yield self


def server(name: str, folder: Path, *, port: int = 0, warm: bool = True) -> Server:
    """Not started yet. With `warm`, a JVM has its memory at once, as it would have after a while."""
    if name == "apache":
        return Server(ApacheFluss(folder, jvm_options={"tablet": _TABLET_JVM} if warm else None))
    if name == "kafka":
        return Server(KafkaBroker(folder))
    return Server(FlussServer(folder, port=port, args=["--durability", name.removeprefix("flussbett-")]))
