"""The real Java client of Apache Fluss, in a JVM of its own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from fluss.testing.apache import CLIENT_ARTIFACTS, cache_dir, fetch_jars
from tests.peers.jsonlines import JsonLinesProcess
from tests.peers.peer import Peer, Row

_SOURCES = Path(__file__).parent / "java" / "peer"
_COMPILE_TIMEOUT_S = 120
_JVM_OPTIONS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dlog4j2.level=WARN",
)


@dataclass(frozen=True)
class Snapshot:
    """A bucket of a primary-key table as of an offset of its changelog."""

    bucket: int
    snapshot_id: int
    log_offset: int
    rows: list[Row]


class JavaPeer(Peer):
    """fluss-client 0.9.1; `config` takes Java's keys, e.g. `{"client.writer.batch-timeout": "0ms"}`.

    `create_table` also takes `aggregations={column: [function, parameters]}`.
    """

    def __init__(self, bootstrap_servers: str, work_dir: Path, config: Mapping[str, str] | None = None) -> None:
        class_path = f"{compiled_driver()}:{_client_jars()}/*"
        temporary = f"-Djava.io.tmpdir={work_dir}"  # a killed JVM leaves what it unpacked there
        command = [_tool("java"), *_JVM_OPTIONS, temporary, "-cp", class_path, "peer.Driver"]
        process = JsonLinesProcess("Java client", command, log_file=work_dir / "java-client.log")
        super().__init__(process, bootstrap_servers, config or {})

    def alter_table(
        self,
        database: str,
        table: str,
        *,
        add_columns: Mapping[str, str] | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] = (),
    ) -> None:
        """Columns by Fluss type names."""
        changes: dict[str, Any] = {
            "add_columns": add_columns or {},
            "set": set_properties or {},
            "reset": list(reset_properties),
        }
        self.call("alter_table", database=database, table=table, **changes)

    def table_stats(self, database: str, table: str) -> int:
        """The number of rows."""
        return int(self.call("table_stats", database=database, table=table))

    def read_snapshots(
        self, database: str, table: str, *, partition: str | None = None, columns: Sequence[str] | None = None
    ) -> dict[int, Snapshot]:
        """The latest snapshot of each bucket that has one, read from its files."""
        place: dict[str, Any] = {"database": database, "table": table, "partition": partition}
        found = self.call("read_snapshots", columns=columns, **place)
        return {item["bucket"]: Snapshot(**item) for item in found}

    def lease_snapshots(
        self, database: str, table: str, lease: str, *, duration_ms: int, partition: str | None = None
    ) -> list[int]:
        """Keep the latest snapshots from being removed; returns the buckets whose snapshot is gone already."""
        place: dict[str, Any] = {"database": database, "table": table, "partition": partition}
        return list(self.call("lease_snapshots", lease=lease, duration_ms=duration_ms, **place))

    def drop_lease(self, lease: str) -> None:
        self.call("drop_lease", lease=lease)

    def database_info(self, database: str) -> dict[str, Any]:
        """name, comment, custom_properties."""
        return dict(self.call("database_info", database=database))


def _client_jars() -> Path:
    return fetch_jars("client", CLIENT_ARTIFACTS)


def compiled_driver() -> Path:
    """The directory of the driver's classes; compiled once for a state of its sources."""
    jars = _client_jars()
    sources = sorted(_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources) + jars.name.encode())
    root = cache_dir()
    final = root / f"driver-{digest.hexdigest()[:12]}"
    with FileLock(root / "driver.lock", timeout=_COMPILE_TIMEOUT_S + 60):
        if not final.is_dir():
            # Renamed when complete, so that the directory is whole whenever it exists.
            scratch = Path(tempfile.mkdtemp(dir=root, prefix="compile-"))
            command = [_tool("javac"), "-cp", f"{jars}/*", "-d", str(scratch), *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
            if done.returncode != 0:
                shutil.rmtree(scratch)
                raise RuntimeError(f"the Java driver does not compile:\n{done.stderr}")
            scratch.rename(final)
    return final


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"a Java 17 development kit ({name}) is needed for the Java client and is not on the PATH")
    return found
