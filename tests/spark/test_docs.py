"""Every example of docs/spark.md, in its order, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fluss.spark
from fluss.testing import FlussServer

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"
ADDRESS = "127.0.0.1:9123"


def test_examples(
    spark: SparkSession, spark_server: FlussServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The address of the document belongs to whoever has it on this machine; its session is the one of all tests.
    monkeypatch.setattr(fluss.spark, "session", lambda name: spark)
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, Any] = {"checkpoint": str(tmp_path)}
    try:
        for block in blocks:
            exec(compile(block.replace(ADDRESS, spark_server.bootstrap_servers), str(DOCUMENT), "exec"), names)
    finally:
        if "catalog" in names:
            names["catalog"].drop_database("shop", if_exists=True, cascade=True)
            names["catalog"].close()
