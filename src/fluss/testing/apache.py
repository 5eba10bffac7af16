"""A real Apache Fluss cluster on loopback, without Docker: jars from Maven, ZooKeeper, coordinator, tablets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from filelock import FileLock

from fluss.testing.processes import (
    LOOPBACK,
    POLL_INTERVAL_S,
    ManagedProcess,
    ReservedPorts,
    has_database,
    has_leaders,
    probe_cluster,
)

FLUSS_VERSION = "0.9.1-incubating"
_LOG4J_VERSION = "2.25.4"
_LOG4J_GROUP = "org.apache.logging.log4j"

SERVER_ARTIFACTS = (
    f"org.apache.fluss:fluss-server:{FLUSS_VERSION}",
    f"{_LOG4J_GROUP}:log4j-slf4j-impl:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-core:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-api:{_LOG4J_VERSION}",
)
CLIENT_ARTIFACTS = (
    f"org.apache.fluss:fluss-client:{FLUSS_VERSION}",
    f"{_LOG4J_GROUP}:log4j-slf4j-impl:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-core:{_LOG4J_VERSION}",
    f"{_LOG4J_GROUP}:log4j-api:{_LOG4J_VERSION}",
)
SQLITE_ARTIFACT = "org.xerial:sqlite-jdbc:3.50.3.0"
# The lake plugin, Hadoop's classes that it wants beside it, and the driver of its catalog.
LAKE_ARTIFACTS = (
    f"org.apache.fluss:fluss-lake-iceberg:{FLUSS_VERSION}",
    "io.trino.hadoop:hadoop-apache:3.3.5-2",
    SQLITE_ARTIFACT,
)

_FETCH_TIMEOUT_S = 900
_LOCK_TIMEOUT_S = _FETCH_TIMEOUT_S + 60


def cache_dir() -> Path:
    """Where jars and classes are kept: `FLUSS_TEST_CACHE`, or a folder of the user's cache."""
    configured = os.environ.get("FLUSS_TEST_CACHE")
    path = Path(configured) if configured else Path.home() / ".cache" / "flussbett" / "apache-fluss-0.9.1"
    path.mkdir(parents=True, exist_ok=True)
    return path


def fetch_jars(name: str, artifacts: Sequence[str], *, alone: bool = False) -> Path:
    """The directory that holds `artifacts` (`group:artifact:version[:classifier]`) and all they need at run time.

    With `alone`, these jars and no others, for those that bring all they need along.
    """
    pom = _pom(name, _copy_plugin(artifacts) if alone else _dependencies(artifacts))
    root = cache_dir()
    final = root / f"{name}-{hashlib.sha256(pom.encode()).hexdigest()[:12]}"
    if not final.is_dir():
        # One lock for all: Maven's own repository is not made for several at a time.
        with FileLock(root / "maven.lock", timeout=_LOCK_TIMEOUT_S):
            if not final.is_dir():
                _download(pom, "copy" if alone else "copy-dependencies", root, final)
    return final


def _download(pom: str, goal: str, root: Path, final: Path) -> None:
    """Fetch into a scratch directory and rename it, so that `final` is complete whenever it exists."""
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("Maven (mvn) is needed to fetch Apache Fluss and is not on the PATH")
    with tempfile.TemporaryDirectory(dir=root, prefix="fetch-") as scratch:
        (Path(scratch) / "pom.xml").write_text(pom)
        command = [maven, "-q", "-B", f"dependency:{goal}", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not fetch {final.name}:\n{(done.stdout + done.stderr)[-4000:]}")
        (Path(scratch) / "lib").rename(final)


def _dependencies(artifacts: Sequence[str]) -> str:
    items = "".join(f"    <dependency>{_coordinates(artifact)}</dependency>\n" for artifact in artifacts)
    return f"  <dependencies>\n{items}  </dependencies>\n"


def _copy_plugin(artifacts: Sequence[str]) -> str:
    """The poms of such jars are not read: some name a parent that was never published."""
    items = "".join(f"<artifactItem>{_coordinates(artifact)}</artifactItem>\n" for artifact in artifacts)
    return (
        "  <build><plugins><plugin><artifactId>maven-dependency-plugin</artifactId><configuration>\n"
        f"<artifactItems>\n{items}</artifactItems>\n</configuration></plugin></plugins></build>\n"
    )


def _coordinates(artifact: str) -> str:
    names = ("groupId", "artifactId", "version", "classifier")
    return "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, artifact.split(":"), strict=False))


def _pom(name: str, content: str) -> str:
    return (
        "<project>\n  <modelVersion>4.0.0</modelVersion>\n"
        f"  <groupId>flussbett.testing</groupId><artifactId>{name}</artifactId><version>1</version>\n"
        "  <packaging>pom</packaging>\n"
        f"{content}</project>\n"
    )


ZOOKEEPER, COORDINATOR, TABLET = "zookeeper", "coordinator", "tablet"

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

_LOGIN_MODULE = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule"

LAKE_FORMAT = "iceberg"


@dataclass(frozen=True)
class Node:
    """One server process of the cluster; ZooKeeper has the first port only."""

    role: str
    tablet_id: int
    port: int
    internal_port: int
    sasl_port: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.tablet_id}" if self.role == TABLET else self.role

    def listeners(self, *, sasl: bool) -> str:
        ports = {"INTERNAL": self.internal_port, "CLIENT": self.port} | ({"SASL": self.sasl_port} if sasl else {})
        return ", ".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())


def configuration_dir(data_dir: Path, node: Node) -> Path:
    return data_dir / "conf" / node.name


def log4j_file(data_dir: Path) -> Path:
    return data_dir / "conf" / "log4j.properties"


def write_configuration(
    data_dir: Path, zookeeper: Node, servers: list[Node], config: Mapping[str, str], sasl_users: Mapping[str, str]
) -> None:
    """All files that the processes of a cluster read at their start."""
    for node in (zookeeper, *servers):
        configuration_dir(data_dir, node).mkdir(parents=True, exist_ok=True)
    log4j_file(data_dir).write_text(_LOG4J)
    (configuration_dir(data_dir, zookeeper) / "zoo.cfg").write_text(
        f"dataDir={data_dir / 'zookeeper'}\nclientPort={zookeeper.port}\n"
        f"clientPortAddress={LOOPBACK}\nmaxClientCnxns=0\nadmin.enableServer=false\ntickTime=1000\n"
    )
    for node in servers:
        settings = {
            "zookeeper.address": f"{LOOPBACK}:{zookeeper.port}",
            "zookeeper.client.session-timeout": _SESSION_TIMEOUT,
            "remote.data.dir": str(data_dir / "remote"),
            "data.dir": str(data_dir / node.name),
            "default.bucket.number": "1",
            "default.replication.factor": "1",
            "internal.listener.name": "INTERNAL",
            "bind.listeners": node.listeners(sasl=bool(sasl_users)),
            "tablet-server.id": str(node.tablet_id),
            **(_sasl_settings(sasl_users) if sasl_users else {}),
            **config,
        }
        text = "".join(f"{key}: {value}\n" for key, value in settings.items())
        (configuration_dir(data_dir, node) / "server.yaml").write_text(text)


def lake_settings(warehouse: Path) -> dict[str, str]:
    """A lake on this machine whose catalog is a SQLite file."""
    return {
        "datalake.format": LAKE_FORMAT,
        "datalake.iceberg.type": "jdbc",
        "datalake.iceberg.uri": f"jdbc:sqlite:{lake_catalog_file(warehouse)}",
        "datalake.iceberg.warehouse": str(warehouse),
    }


def lake_catalog_file(warehouse: Path) -> Path:
    return warehouse / "catalog.db"


def _sasl_settings(users: Mapping[str, str]) -> dict[str, str]:
    """Two more listeners would not know each other's users: these are for the SASL one, the others stay open."""
    for text in (*users.keys(), *users.values()):
        if not text.isascii() or not text.isprintable() or '"' in text or "\\" in text:
            raise ValueError("names and passwords of a test cluster must be printable ASCII without quotes")
    accounts = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return {
        "security.protocol.map": "SASL:SASL, CLIENT:PLAINTEXT, INTERNAL:PLAINTEXT",
        "security.sasl.enabled.mechanisms": "PLAIN",
        "security.sasl.plain.jaas.config": f"{_LOGIN_MODULE} required {accounts};",
    }


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

TABLETS_MAX = 8

_DEFAULT_DATABASE = "fluss"
_PORTS_PER_NODE = 3
_LEADER_TIMEOUT_S = 20.0
_GRACEFUL_STOP_S = 15.0


class ApacheFluss:
    """Starts, restarts and stops one cluster whose files are all below `data_dir`.

    Without `data_dir` the files are in a temporary directory that leaving the context removes. `config` is added to the
    servers' configuration, `jvm_options` replaces the defaults of a role (`zookeeper`, `coordinator`, `tablet`). With
    `sasl_users` (passwords by name) there is a second listener, `sasl_bootstrap_servers`, that wants a SASL PLAIN
    login. With `lake`, the directory of a warehouse, the servers have the Iceberg plugin; its catalog is a SQLite file
    there. Usable as a context manager, which stops without grace: the data is for throwing away.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        config: Mapping[str, str] | None = None,
        tablets: int = 1,
        sasl_users: Mapping[str, str] | None = None,
        lake: Path | None = None,
        jvm_options: Mapping[str, Sequence[str]] | None = None,
        startup_timeout_s: float = 90.0,
    ) -> None:
        if not 1 <= tablets <= TABLETS_MAX:
            raise ValueError(f"a test cluster has 1 to {TABLETS_MAX} tablet servers, not {tablets}")
        self._scratch = tempfile.TemporaryDirectory(prefix="apache-fluss-") if data_dir is None else None
        self.data_dir = Path(self._scratch.name if self._scratch else data_dir or "").absolute()
        self.lake = lake and lake.absolute()
        self.config = {**(lake_settings(self.lake) if self.lake else {}), **(config or {})}
        self.sasl_users = dict(sasl_users or {})
        self._jvm_options = {**DEFAULT_JVM_OPTIONS, **(jvm_options or {})}
        self._startup_timeout_s = startup_timeout_s
        self._processes: dict[str, ManagedProcess] = {}
        self._reserved = ReservedPorts(_PORTS_PER_NODE * (2 + tablets))
        ports = self._reserved.numbers
        roles = [(ZOOKEEPER, 0), (COORDINATOR, 0), *((TABLET, number) for number in range(tablets))]
        nodes = [
            Node(role, number, *ports[_PORTS_PER_NODE * i : _PORTS_PER_NODE * (i + 1)])
            for i, (role, number) in enumerate(roles)
        ]
        self._zookeeper, self._coordinator, *self._tablets = nodes

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self._coordinator.port}"

    @property
    def sasl_bootstrap_servers(self) -> str:
        if not self.sasl_users:
            raise RuntimeError("the cluster has no SASL listener: give it sasl_users")
        return f"{LOOPBACK}:{self._coordinator.sasl_port}"

    @property
    def ports(self) -> list[int]:
        """Client ports of the running coordinator and tablet servers."""
        return [node.port for node in self._running()]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running servers: `zookeeper`, `coordinator`, `tablet-0` and so on."""
        return {name: process.pid for name, process in self._processes.items()}

    @property
    def _plugins_dir(self) -> Path:
        return self.data_dir / "plugins"

    def start(self) -> ApacheFluss:
        """Fetch the jars if need be, start all servers, return when the tablet servers take requests."""
        if self._processes:
            raise RuntimeError("the cluster is already running")
        servers = [self._coordinator, *self._tablets]
        write_configuration(self.data_dir, self._zookeeper, servers, self.config, self.sasl_users)
        if self.lake is not None:
            self._prepare_lake(self.lake)
        try:
            for node in (self._zookeeper, *servers):
                self._launch(node)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, *, graceful: bool = False) -> None:
        """Stop every server: at once, or in the order that lets each one sign off."""
        for node in (*self._tablets, self._coordinator, self._zookeeper):
            self._end(node, graceful=graceful)

    def restart(self) -> None:
        """Stop and start on the same ports and data; the cure for a coordinator that elects no leaders any more."""
        self.stop(graceful=True)
        self.start()

    def stop_tablet(self, number: int, *, graceful: bool = False) -> None:
        """Stop one tablet server; with grace it signs off first, without it just dies."""
        self._end(self._tablets[number], graceful=graceful)

    def start_tablet(self, number: int) -> None:
        """Start a stopped tablet server on its old ports and data; returns when every server knows it again."""
        self._launch(self._tablets[number])
        self._wait_until_ready()

    def await_table(self, database: str, table: str, partition: str | None = None, *, restarts: int = 1) -> None:
        """Wait until all servers know leaders of a table that was just created; a partitioned one by partition name.

        A coordinator that never elects one has lost its way for good (it happens when tables are created
        concurrently): the cluster is restarted up to `restarts` times, then this raises.
        """
        deadline = time.monotonic() + _LEADER_TIMEOUT_S
        while not all(has_leaders(LOOPBACK, node.port, database, table, partition) for node in self._running()):
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
        self._reserved.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _running(self) -> list[Node]:
        return [node for node in (self._coordinator, *self._tablets) if node.name in self._processes]

    def _end(self, node: Node, *, graceful: bool) -> None:
        process = self._processes.pop(node.name, None)
        if process is not None and graceful:
            process.terminate(_GRACEFUL_STOP_S)
        elif process is not None:
            process.kill()

    def _launch(self, node: Node) -> None:
        if node.name in self._processes:
            raise RuntimeError(f"{node.name} is already running")
        java = shutil.which("java")
        if java is None:
            raise RuntimeError("a Java 17 runtime (java) is needed to run Apache Fluss and is not on the PATH")
        jars = fetch_jars("server", SERVER_ARTIFACTS)
        folder = configuration_dir(self.data_dir, node)
        arguments = [str(folder / "zoo.cfg")] if node.role == ZOOKEEPER else ["--configDir", str(folder)]
        # Native libraries are unpacked there; a killed JVM would leave them behind.
        temporary = self.data_dir / "tmp"
        temporary.mkdir(exist_ok=True)
        command = [
            java,
            *_JVM_OPTIONS,
            *self._jvm_options[node.role],
            f"-Djava.io.tmpdir={temporary}",
            "-Dlog4j.shutdownHookEnabled=false",
            f"-Dlog4j.configurationFile={log4j_file(self.data_dir).as_uri()}",
            "-cp",
            f"{jars}/*",
            _MAIN_CLASSES[node.role],
            *arguments,
        ]
        log_file = self.data_dir / "logs" / f"{node.name}.log"
        env = {"FLUSS_PLUGINS_DIR": str(self._plugins_dir)} if self.lake else {}
        self._processes[node.name] = ManagedProcess(f"Apache Fluss {node.name}", command, log_file=log_file, env=env)

    def _prepare_lake(self, warehouse: Path) -> None:
        """Put the plugin's jars where the servers look for them, and make a catalog that several may use at once."""
        warehouse.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(lake_catalog_file(warehouse))) as catalog:
            catalog.execute("PRAGMA journal_mode = WAL")
        plugin = self._plugins_dir / LAKE_FORMAT
        if not plugin.exists():
            plugin.parent.mkdir(exist_ok=True)
            plugin.symlink_to(fetch_jars("lake", LAKE_ARTIFACTS, alone=True))

    def _wait_until_ready(self) -> None:
        """Ready means that all servers know exactly the tablet servers that run here, and the database of all clusters.

        The coordinator makes that one while it answers already.
        """
        deadline = time.monotonic() + self._startup_timeout_s
        wanted = {(LOOPBACK, node.port) for node in self._running() if node.role == TABLET}
        waiting = self._running()
        while waiting:
            self._check_running()
            waiting = [node for node in waiting if not _knows(node, wanted)]
            if waiting and time.monotonic() > deadline:
                late = self._processes[waiting[0].name]
                raise late.failed(f"was not ready within {self._startup_timeout_s:g} s")
            time.sleep(POLL_INTERVAL_S)

    def _check_running(self) -> None:
        for process in self._processes.values():
            process.check_running()


def _knows(node: Node, tablets: set[tuple[str, int]]) -> bool:
    cluster = probe_cluster(LOOPBACK, node.port)
    if cluster is None or cluster.coordinators != 1 or set(cluster.tablets) != tablets:
        return False
    return has_database(LOOPBACK, node.port, _DEFAULT_DATABASE)
