"""Tiering by merge-on-read in a process of its own: Spark has to start with Iceberg's jars."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fluss.lake.report import TieringReport
from fluss.lake.tiering.round import CRASH_VARIABLE, TieringSettings, tier_table
from fluss.lake.tiering.task import LocalExecutor
from fluss.spark import session, tier
from fluss.spark.source_options import options
from fluss.spark.tiering import SparkMerger
from fluss.sync import TablePath, connect
from fluss.testing.processes import ProcessFailedError
from tests.peers.icebergspark import catalog_conf, iceberg_jars
from tests.peers.jsonlines import JsonLinesProcess
from tests.peers.peer import Row
from tests.peers.values import encode

_TIMEOUT_S = 120.0
_COPY, _MERGE = "copy", "merge"


def spark_conf() -> dict[str, str]:
    """What a Spark session needs for merge-on-read."""
    return {"spark.driver.extraClassPath": f"{iceberg_jars()}/*"}


class MergingSpark:
    """A Spark session with Iceberg's runtime, of which this is the remote control."""

    def __init__(self, address: str, warehouse: Path, work_dir: Path) -> None:
        arguments = [address, str(warehouse), json.dumps(spark_conf())]
        self._command = [sys.executable, "-m", "tests.peers.mergingspark", *arguments]
        self._log_file = work_dir / "merging-spark.log"
        self._process: JsonLinesProcess | None = None

    def tier(self, path: TablePath, **arguments: Any) -> dict[str, Any]:
        """A round; what its report says."""
        return dict(self._call("tier", table=str(path), arguments=arguments))

    def die(self, path: TablePath, step: str) -> None:
        """A round whose process is killed at a step; the next call starts another one."""
        with pytest.raises(ProcessFailedError):
            self._call("tier", table=str(path), arguments={}, crash=step)
        self.kill()

    def race(self, path: TablePath, loser: str, winner: str) -> list[dict[str, Any]]:
        """A round, `copy` or `merge`, and a whole other one just before it commits; reports in this order."""
        return list(self._call("race", table=str(path), loser=loser, winner=winner))

    def rows(self, path: TablePath) -> list[Row]:
        """What Spark SQL finds in the lake."""
        return list(self._call("rows", table=str(path)))

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _call(self, command: str, **arguments: Any) -> Any:
        if self._process is None:
            env = {"PYTHONPATH": str(Path(__file__).parents[2])}
            self._process = JsonLinesProcess("merging Spark", self._command, log_file=self._log_file, env=env)
        return self._process.call(command, _TIMEOUT_S, **arguments)


class _Driver:
    """What runs in the process."""

    def __init__(self, spark: Any, address: str, warehouse: str) -> None:
        self._spark, self._address, self._warehouse = spark, address, warehouse

    def tier(self, table: str, arguments: dict[str, Any], crash: str = "") -> Any:
        os.environ[CRASH_VARIABLE] = crash
        where = {"bootstrap_servers": self._address, "warehouse": self._warehouse}
        [report] = tier(self._spark, **where, tables=[table], merge_on_read=True, **arguments)
        return _told(report)

    def race(self, table: str, loser: str, winner: str) -> Any:
        path = TablePath(*table.split("."))
        reports: list[TieringReport] = []
        with self._settings(loser) as first, self._settings(winner) as second:
            lost = tier_table(first, path, lambda: reports.append(tier_table(second, path)))
        return [_told(report) for report in (lost, *reports)]

    def rows(self, table: str) -> Any:
        name = ".".join(f"`{part}`" for part in ("fluss-iceberg-catalog", *table.split(".")))
        return self._spark.sql(f"SELECT * FROM {name}").toArrow().to_pylist()

    @contextmanager
    def _settings(self, way: str) -> Iterator[TieringSettings]:
        with connect(self._address) as connection:
            merger = SparkMerger(self._spark, options(connection)) if way == _MERGE else None
            yield TieringSettings(connection, LocalExecutor(connection), self._warehouse, merger=merger)


def _told(report: TieringReport) -> dict[str, Any]:
    counts = {"row_count": report.row_count, "added": report.files_added, "removed": report.files_removed}
    return {"status": str(report.status), "reason": report.reason, **counts}


def main(address: str, warehouse: str, conf: str) -> None:
    """Commands come as lines of JSON."""
    catalog = catalog_conf(f"{warehouse}/catalog.db", warehouse, **{"cache-enabled": "false"})
    with session("merging", **json.loads(conf), **catalog) as spark:
        driver = _Driver(spark, address, warehouse)
        for line in sys.stdin:
            message = json.loads(line)
            number, command = message.pop("id"), message.pop("command")
            message.pop("timeout_s")
            answer: dict[str, Any] = {"id": number}
            try:
                answer["result"] = encode(getattr(driver, command)(**message))
            except Exception as error:
                answer["error"] = {"type": type(error).__name__, "message": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
