"""A real Apache Fluss cluster on loopback: ZooKeeper, a coordinator and one tablet server, no Docker."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fluss.testing.maven import SERVER_ARTIFACTS, fetch_jars
from fluss.testing.ports import LOOPBACK, free_ports
from fluss.testing.probe import has_leaders, probe_cluster
from fluss.testing.processes import POLL_INTERVAL_S, ManagedProcess

ZOOKEEPER, COORDINATOR, TABLET = "zookeeper", "coordinator", "tablet"

_MAIN_CLASSES = {
    ZOOKEEPER: "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain",
    COORDINATOR: "org.apache.fluss.server.coordinator.CoordinatorServer",
    TABLET: "org.apache.fluss.server.tablet.TabletServer",
}

# Heap limits for a small machine that runs the tests as well; the tablet server has RocksDB's memory on top.
DEFAULT_JVM_OPTIONS: Mapping[str, Sequence[str]] = {
    ZOOKEEPER: ("-Xmx128m", "-XX:+UseSerialGC"),
    COORDINATOR: ("-Xmx384m", "-XX:+UseSerialGC"),
    TABLET: ("-Xmx1g", "-XX:+UseG1GC"),
}
_JVM_OPTIONS = (
    "--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED",
    # The JVM would otherwise leave a file per process in the system's temporary directory.
    "-XX:-UsePerfData",
)

_LOG4J = """\
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=Console
logger.zookeeper.name=org.apache.fluss.shaded.zookeeper3
logger.zookeeper.level=WARN
appender.console.name=Console
appender.console.type=Console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %-5p %c - %m%n
"""

# A killed server's ZooKeeper session has to end before its successor can register; the default is a minute.
_SESSION_TIMEOUT = "6s"

_LEADER_TIMEOUT_S = 20.0
_GRACEFUL_STOP_S = 15.0


class ApacheFluss:
    """Starts, restarts and stops one cluster whose files are all below `data_dir`.

    `config` is added to the servers' configuration, `jvm_options` replaces the defaults of a role (`zookeeper`,
    `coordinator`, `tablet`). Usable as a context manager, which stops without grace: the data is for throwing away.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        config: Mapping[str, str] | None = None,
        jvm_options: Mapping[str, Sequence[str]] | None = None,
        startup_timeout_s: float = 90.0,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.config = dict(config or {})
        self._jvm_options = {**DEFAULT_JVM_OPTIONS, **(jvm_options or {})}
        self._startup_timeout_s = startup_timeout_s
        self._processes: dict[str, ManagedProcess] = {}
        ports = free_ports(5)
        self._zookeeper_port, self._coordinator_port, self.tablet_port = ports[:3]
        self._internal_ports = {COORDINATOR: ports[3], TABLET: ports[4]}

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self._coordinator_port}"

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running servers by role."""
        return {role: process.pid for role, process in self._processes.items()}

    def start(self) -> ApacheFluss:
        """Fetch the jars if need be, start all servers, return when the tablet server takes requests."""
        if self._processes:
            raise RuntimeError("the cluster is already running")
        jars = fetch_jars("server", SERVER_ARTIFACTS)
        self._write_configuration()
        deadline = time.monotonic() + self._startup_timeout_s
        try:
            for role in (ZOOKEEPER, COORDINATOR, TABLET):
                self._processes[role] = self._launch(role, jars)
            self._wait_until_ready(deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, *, graceful: bool = False) -> None:
        """Stop every server: at once, or in the order that lets each one sign off."""
        for role in (TABLET, COORDINATOR, ZOOKEEPER):
            process = self._processes.pop(role, None)
            if process is not None and graceful:
                process.terminate(_GRACEFUL_STOP_S)
            elif process is not None:
                process.kill()

    def restart(self) -> None:
        """Stop and start on the same ports and data; the cure for a coordinator that elects no leaders any more."""
        self.stop(graceful=True)
        self.start()

    def await_table(self, database: str, table: str, partition: str | None = None, *, restarts: int = 1) -> None:
        """Wait until all servers know leaders of a table that was just created; a partitioned one by partition name.

        A coordinator that never elects one has lost its way for good (it happens when tables are created
        concurrently): the cluster is restarted up to `restarts` times, then this raises.
        """
        deadline = time.monotonic() + _LEADER_TIMEOUT_S
        while not all(has_leaders(LOOPBACK, port, database, table, partition) for port in self._client_ports()):
            self._check_running()
            if time.monotonic() > deadline:
                if restarts == 0:
                    raise self._processes[COORDINATOR].failed(f"elected no leader for {database}.{table}")
                self.restart()
                return self.await_table(database, table, partition, restarts=restarts - 1)
            time.sleep(POLL_INTERVAL_S)

    def __enter__(self) -> ApacheFluss:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _client_ports(self) -> tuple[int, int]:
        return self._coordinator_port, self.tablet_port

    def _launch(self, role: str, jars: Path) -> ManagedProcess:
        java = shutil.which("java")
        if java is None:
            raise RuntimeError("a Java 17 runtime (java) is needed to run Apache Fluss and is not on the PATH")
        log4j = self.data_dir / "conf" / "log4j.properties"
        configuration = self.data_dir / "conf" / role
        arguments = [str(configuration / "zoo.cfg")] if role == ZOOKEEPER else ["--configDir", str(configuration)]
        command = [
            java,
            *_JVM_OPTIONS,
            *self._jvm_options[role],
            "-Dlog4j.shutdownHookEnabled=false",
            f"-Dlog4j.configurationFile={log4j.as_uri()}",
            "-cp",
            f"{jars}/*",
            _MAIN_CLASSES[role],
            *arguments,
        ]
        return ManagedProcess(f"Apache Fluss {role}", command, log_file=self.data_dir / "logs" / f"{role}.log")

    def _wait_until_ready(self, deadline: float) -> None:
        """Ready means that both servers answer and both know exactly the tablet server started here."""
        waiting = {COORDINATOR: self._coordinator_port, TABLET: self.tablet_port}
        while waiting:
            self._check_running()
            for role, port in list(waiting.items()):
                cluster = probe_cluster(LOOPBACK, port)
                if cluster and cluster.coordinators == 1 and cluster.tablets == ((LOOPBACK, self.tablet_port),):
                    del waiting[role]
            if waiting and time.monotonic() > deadline:
                raise self._processes[next(iter(waiting))].failed(f"was not ready within {self._startup_timeout_s:g} s")
            time.sleep(POLL_INTERVAL_S)

    def _check_running(self) -> None:
        for process in self._processes.values():
            process.check_running()

    def _write_configuration(self) -> None:
        folder = self.data_dir / "conf"
        for role in (ZOOKEEPER, COORDINATOR, TABLET):
            (folder / role).mkdir(parents=True, exist_ok=True)
        (folder / "log4j.properties").write_text(_LOG4J)
        (folder / ZOOKEEPER / "zoo.cfg").write_text(
            f"dataDir={self.data_dir / 'zookeeper'}\nclientPort={self._zookeeper_port}\n"
            f"clientPortAddress={LOOPBACK}\nmaxClientCnxns=0\nadmin.enableServer=false\ntickTime=1000\n"
        )
        for role, port in ((COORDINATOR, self._coordinator_port), (TABLET, self.tablet_port)):
            settings = {
                "zookeeper.address": f"{LOOPBACK}:{self._zookeeper_port}",
                "zookeeper.client.session-timeout": _SESSION_TIMEOUT,
                "remote.data.dir": str(self.data_dir / "remote"),
                "data.dir": str(self.data_dir / role),
                "default.bucket.number": "1",
                "default.replication.factor": "1",
                "internal.listener.name": "INTERNAL",
                "bind.listeners": f"INTERNAL://{LOOPBACK}:{self._internal_ports[role]}, CLIENT://{LOOPBACK}:{port}",
                "tablet-server.id": "0",
                **self.config,
            }
            text = "".join(f"{key}: {value}\n" for key, value in settings.items())
            (folder / role / "server.yaml").write_text(text)
