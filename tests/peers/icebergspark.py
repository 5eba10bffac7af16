"""Spark SQL with the Iceberg runtime for the JVM, in a process of its own: Spark has to start with the jars."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss.lake.format import CATALOG_NAME
from fluss.spark import session
from fluss.testing.apache import SQLITE_ARTIFACT, fetch_jars
from fluss.testing.processes import ManagedProcess

_ARTIFACTS = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", SQLITE_ARTIFACT)
_TIMEOUT_S = 180.0
_CATALOG = f"spark.sql.catalog.{CATALOG_NAME}"


def iceberg_jars() -> Path:
    """The directory of the runtime's jars."""
    return fetch_jars("iceberg-spark", _ARTIFACTS, alone=True)


def read_with_spark(catalog_file: Path, warehouse: Path, tables: Sequence[str], work_dir: Path) -> dict[str, pa.Table]:
    """The rows of tables, `database.table`, in a SQLite catalog."""
    arguments = [f"{iceberg_jars()}/*", str(catalog_file), str(warehouse), json.dumps(list(tables)), str(work_dir)]
    command = [sys.executable, "-m", "tests.peers.icebergspark", *arguments]
    root = Path(__file__).parents[2]
    process = ManagedProcess("Spark with Iceberg", command, log_file=work_dir / "iceberg-spark.log", cwd=root)
    try:
        process.wait_for_line("done", _TIMEOUT_S)
    finally:
        process.kill()
    return {name: pa.ipc.open_file(pa.memory_map(str(work_dir / f"{name}.arrow"))).read_all() for name in tables}


def catalog_conf(catalog_file: str, warehouse: str, **others: str) -> dict[str, Any]:
    """How Spark is told of a SQLite catalog."""
    settings = {"type": "jdbc", "uri": f"jdbc:sqlite:{catalog_file}", "jdbc.schema-version": "V1", **others}
    keys = {f"{_CATALOG}.{key}": value for key, value in {**settings, "warehouse": warehouse}.items()}
    return {_CATALOG: "org.apache.iceberg.spark.SparkCatalog", **keys}


def main(class_path: str, catalog_file: str, warehouse: str, tables: str, folder: str) -> None:
    """What runs in the process."""
    conf: dict[str, Any] = {"spark.driver.extraClassPath": class_path}
    with session("iceberg", **conf, **catalog_conf(catalog_file, warehouse)) as spark:
        for name in json.loads(tables):
            database, table = name.split(".")
            rows = spark.sql(f"SELECT * FROM `{CATALOG_NAME}`.`{database}`.`{table}`").toArrow()
            with pa.ipc.new_file(str(Path(folder) / f"{name}.arrow"), rows.schema) as writer:
                writer.write_table(rows)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
