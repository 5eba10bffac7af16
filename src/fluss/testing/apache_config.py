"""Configuration files of a real Apache Fluss cluster on loopback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fluss.testing.ports import LOOPBACK

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
