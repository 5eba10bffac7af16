"""A server, a table and a client of a victim: what an operator or a catalog says of the lake is foreign."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss.api.operations import LakeRegistry
from fluss.lake.report import TieringReport
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.sync import Config, FlussConnection, FlussTable, Schema, TableBucket, TableDescriptor, TablePath
from fluss.testing import FlussServer
from tests.kit.lake.hostile import HostileCatalog, server_settings

ROOT = Path(__file__).parents[3]
COLUMNS = pa.schema([("id", pa.int64())])
PATH = TablePath("fluss", "t")
COMMAND_S_MAX = 120.0


@dataclass(frozen=True)
class Attack:
    """A server that somebody else has set up, with a table; `mark` is there once foreign code has run."""

    server: FlussServer
    connection: FlussConnection
    mark: Path

    @property
    def table(self) -> FlussTable:
        return self.connection.get_table(PATH)

    def write(self, count: int) -> None:
        with self.table.new_append().create_writer() as writer:
            for number in range(count):
                writer.append({"id": number})

    def tier(self, **arguments: Any) -> TieringReport:
        [report] = tier(self.connection, LocalExecutor(self.connection, 1), tables=[PATH], **arguments)
        return report

    def register(self, snapshot_id: int = 42) -> None:
        """Have the server say that there is a snapshot."""
        registry, info = LakeRegistry(self.connection), self.table.get_table_info()
        offsets = {TableBucket(info.table_id, 0): 0}
        registry.commit(info, snapshot_id, registry.prepare(info, offsets), offsets)

    def run(self, *arguments: str, status: int = 0, **env: str) -> str:
        """A command in a process of its own, in a folder without settings; what it says."""
        command = [sys.executable, "-m", "fluss.cli", *arguments, "--bootstrap", self.server.bootstrap_servers]
        python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": python_path, **env}
        done = subprocess.run(
            command,
            cwd=self.mark.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def rows(self, **arguments: Any) -> int:
        return int(self.table.new_scan().union(**arguments).to_arrow().num_rows)


@contextmanager
def attacked(folder: Path, lake: Mapping[str, str], **settings: str) -> Iterator[Attack]:
    """A server whose operator says this of the lake, and a client with these settings."""
    with FlussServer(folder / "data", args=server_settings(folder, lake)) as server:
        config = Config({"bootstrap.servers": server.bootstrap_servers, **settings})
        with FlussConnection.create(config) as connection:
            descriptor = TableDescriptor(Schema(COLUMNS), bucket_count=1, properties={"table.datalake.enabled": "true"})
            connection.get_admin().create_table(PATH, descriptor)
            yield Attack(server, connection, folder / "mark")


def of_service(catalog: HostileCatalog) -> dict[str, str]:
    return {"type": "rest", "uri": catalog.uri, "warehouse": str(catalog.warehouse)}


def foreign_keys(address: str) -> dict[str, str]:
    """Settings that lead to another host."""
    url = f"http://{address}"
    return {
        "uri": url,
        "oauth2-server-uri": f"{url}/token",
        "s3.endpoint": url,
        "s3.signer.uri": url,
        "s3.proxy-uri": url,
    }
