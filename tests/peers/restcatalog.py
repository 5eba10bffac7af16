"""Iceberg's REST catalog, the implementation that Iceberg tests its own clients with, on loopback."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fluss.testing.apache import SQLITE_ARTIFACT, fetch_jars
from fluss.testing.processes import ManagedProcess

_SOURCE = Path(__file__).parent / "java" / "rest" / "RestCatalog.java"
_ARTIFACTS = (
    "org.apache.iceberg:iceberg-core:1.11.0",
    "org.apache.iceberg:iceberg-core:1.11.0:tests",
    "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.1.5",
    "io.trino.hadoop:hadoop-apache:3.3.5-2",
    "org.slf4j:slf4j-nop:2.0.17",
    SQLITE_ARTIFACT,
)
_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_START_TIMEOUT_S = 60.0


def rest_jars() -> Path:
    """The directory of the catalog's jars."""
    return fetch_jars("rest-catalog", _ARTIFACTS)


@contextmanager
def rest_catalog(work_dir: Path) -> Iterator[str]:
    """The address of a new catalog whose tables are below `work_dir`."""
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("a Java 17 development kit (java) is needed for the REST catalog and is not on the PATH")
    warehouse = work_dir / "rest-warehouse"
    warehouse.mkdir(parents=True)
    command = [
        java,
        *_JVM_OPTIONS,
        f"-Djava.io.tmpdir={work_dir}",  # a killed JVM leaves what it unpacked there
        "-cp",
        f"{rest_jars()}/*",
        str(_SOURCE),
        str(warehouse),
        str(warehouse / "catalog.db"),
    ]
    process = ManagedProcess("REST catalog", command, log_file=work_dir / "rest-catalog.log")
    try:
        port = process.wait_for_line(r"port (\d+)", _START_TIMEOUT_S)[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
