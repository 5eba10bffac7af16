"""Every example of docs/lake.md, in its order, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fluss.spark
from fluss.testing import FlussServer

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[2] / "docs" / "lake.md"
ADDRESS = "127.0.0.1:9123"


def test_examples(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluss.spark, "session", lambda name: spark)
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, Any] = {}
    with FlussServer(tmp_path / "data") as server:
        try:
            for block in blocks:
                exec(compile(block.replace(ADDRESS, server.bootstrap_servers), str(DOCUMENT), "exec"), names)
        finally:
            names["conn"].close()
