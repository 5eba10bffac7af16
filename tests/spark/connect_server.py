"""A server of Spark Connect in a process of its own, as programs meet it away from their own machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from fluss.testing.processes import ManagedProcess
from tests.spark.connect_driver import SETTINGS

_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_TIMEOUT_S = 120


@contextmanager
def remote_session(folder: Path) -> Iterator[SparkSession]:
    """A session of a new server that works in `folder`."""
    settings = {
        **SETTINGS,
        "spark.connect.grpc.binding.port": "0",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [str(_SUBMIT), "--master", "local[2]", *options, "--class", _SERVER, "spark-internal"]
    folder.mkdir(parents=True, exist_ok=True)
    env = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_API_MODE": "classic"}
    server = ManagedProcess("Spark Connect", command, log_file=folder / "connect.log", env=env, cwd=folder)
    try:
        started = server.wait_for_line(r".*Spark Connect server started at: .*:(\d+)\D*", _START_TIMEOUT_S)
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{started[1]}").create()
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        server.kill()
