"""The pages that go through Spark among other things, run as tests/docs runs the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fluss.spark
from tests.kit.pages import DOCS, ROOT, Page

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("path", [DOCS / "tutorial.md", ROOT / "README.md"], ids=lambda path: path.name)
def test_page(path: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluss.spark, "session", lambda name="": spark)
    try:
        page = Page(path, tmp_path)
        if path.name == "README.md":
            page.replaced["./copy"] = str(tmp_path / "copy")  # Spark was started elsewhere
            page.before_block("fluss.spark", lambda: _shop(spark, page.address))
        page.run()
    finally:
        for query in spark.streams.active:
            query.stop()


def _shop(spark: SparkSession, address: str) -> None:
    """The tables that the README takes for granted."""
    catalog = fluss.spark.Catalog(spark, address)
    catalog.create_database("shop")
    for table in ("shop.orders", "shop.copy"):
        catalog.create_table(table, "order_id BIGINT, product STRING")
    catalog.close()
