"""The real pyfluss, in an interpreter of its own because it owns the import name `fluss`."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.peers.columns import arrow_schema
from tests.peers.environments import pyfluss_python
from tests.peers.jsonlines import JsonLinesProcess
from tests.peers.peer import DEFAULT_TIMEOUT_S, Columns, Peer

_DRIVER = Path(__file__).with_name("pyfluss_driver.py")


class PyflussPeer(Peer):
    """pyfluss 1.0.0; `config` takes its keys, e.g. `{"writer.batch-timeout-ms": "0"}`."""

    def __init__(self, bootstrap_servers: str, work_dir: Path, config: Mapping[str, str] | None = None) -> None:
        self._work_dir = work_dir
        command = [str(pyfluss_python()), str(_DRIVER)]
        # An inherited PYTHONPATH could put this project's `fluss` in front of the peer's.
        process = JsonLinesProcess("pyfluss", command, log_file=work_dir / "pyfluss.log", env={"PYTHONPATH": ""})
        super().__init__(process, bootstrap_servers, config or {})

    def create_table(self, database: str, table: str, columns: Columns | pa.Schema, **options: Any) -> None:
        """`columns` by Fluss type names, or an Arrow schema."""
        schema = columns if isinstance(columns, pa.Schema) else arrow_schema(columns)
        encoded = base64.b64encode(schema.serialize()).decode()
        self.call("create_table", database=database, table=table, schema=encoded, **options)

    def run_scenario(
        self, name: str, database: str, expected: Mapping[str, Any], ports: Sequence[int], *, timeout_s: float
    ) -> None:
        """Run one of tests.peers.scenarios in pyfluss's interpreter."""
        arguments = {"name": name, "database": database, "expected": dict(expected), "ports": list(ports)}
        self.call("run_scenario", timeout_s=timeout_s, **arguments)

    def scan_batches(self, database: str, table: str, *, fixed_schema: bool, count: int) -> list[dict[str, Any]]:
        """Batches until `count` rows came, each with its columns and rows."""
        arguments = {"fixed_schema": fixed_schema, "count": count}
        return list(self.call("scan_batches", database=database, table=table, **arguments))

    def append_arrow(
        self, database: str, table: str, data: pa.Table, *, flush: bool = True, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        with tempfile.TemporaryDirectory(dir=self._work_dir) as scratch:
            path = Path(scratch) / "rows.arrow"
            with pa.ipc.new_file(path, data.schema) as writer:
                writer.write_table(data)
            arguments = {"database": database, "table": table, "path": str(path), "flush": flush}
            self.call("append_arrow", timeout_s=timeout_s, **arguments)

    def scan_arrow(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """All rows of a log table through the batch scanner."""
        with tempfile.TemporaryDirectory(dir=self._work_dir) as scratch:
            path = Path(scratch) / "rows.arrow"
            arguments = {"database": database, "table": table, "path": str(path), "columns": columns}
            self.call("scan_arrow", timeout_s=timeout_s, **arguments)
            with pa.OSFile(str(path)) as source:
                return pa.ipc.open_file(source).read_all()
