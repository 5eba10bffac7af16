"""The pages that go through Spark among other things, run as tests/docs runs the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fluss.spark
from tests.docs.pages import DOCS, Page

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("path", [DOCS / "tutorial.md"], ids=lambda path: path.name)
def test_page(path: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluss.spark, "session", lambda name="": spark)
    Page(path, tmp_path).run()
