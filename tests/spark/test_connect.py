"""Spark Connect: everything through a remote session."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fluss.testing import FlussServer

pytestmark = pytest.mark.spark

TIMEOUT_S = 240


def test_a_program_on_spark_connect(spark_server: FlussServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_TESTING", "1")  # Spark Connect then takes a free port instead of 15002
    command = [sys.executable, "-m", "tests.spark.connect_driver", spark_server.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-5_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "session": "pyspark.sql.connect.session",
        "read": [10, 45],
        "sql": [[0, 20], [1, 25]],
        "described": ["parity", "total"],
        "stream": [20, 10],
        "left": ["default"],
    }
