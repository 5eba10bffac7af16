"""Declarative pipelines, run by Spark's own command: the page about them, pipelines in SQL, and mistakes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from fluss.sync import Schema, TableDescriptor, TablePath, connect
from fluss.testing import FlussServer
from tests.kit.pages import DOCS, Page, blocks_of

# Each run starts Spark, which on a busy machine takes a minute or two before anything happens.
RUN_S_MAX = 600
# With this the page begins what is to come in a second run.
SECOND_RUN = "order(3,"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(4 * RUN_S_MAX)]

ORDERS = pa.table({"order_id": [1, 2, 3], "product": ["rope", "oar", "rope"], "amount": [9.5, 61.0, 1.0]})
PROJECT = """
name: test
storage: {storage}
configuration:
  spark.sql.pipelines.maxFlowRetryAttempts: "0"
libraries:
  - glob:
      include: transformations/**
"""
PROGRAM = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
source = {{"bootstrap.servers": "{address}"}}


@dp.temporary_view
def orders():
    return spark.read.format("fluss").options(**source).options(**{read}).load("shop.orders")


dp.create_sink("copy", "fluss", {{**source, "table": "shop.copy", **{write}}})


@dp.append_flow(target="copy")
def copied():
    return spark.readStream.format("fluss").options(**source).load("shop.orders")
"""
QUERY = "CREATE MATERIALIZED VIEW products AS SELECT product, count(*) AS orders FROM orders GROUP BY product;"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    # Spark Connect then takes a free port; outside of tests it is always 15002.
    monkeypatch.setenv("SPARK_TESTING", "1")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.mark.parametrize("until", [SECOND_RUN, pytest.param(None, marks=pytest.mark.full)], ids=["one run", "whole"])
def test_the_page(tmp_path: Path, until: str | None) -> None:
    page = Page(DOCS / "howto" / "declarative-pipelines.md", tmp_path)
    page.replaced["file:///srv/shop-pipeline"] = (tmp_path / "storage").as_uri()
    page.command_s_max = RUN_S_MAX
    blocks = blocks_of(page.path)
    count = len(blocks) if until is None else [until in block.text for block in blocks].index(True)
    page.run(blocks[:count])


class Project:
    """A pipeline in a folder of its own."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address

    def write(self, read: dict[str, str], write: dict[str, str]) -> None:
        """The project with these options of its source and of its sink."""
        programs = self._folder / "transformations"
        programs.mkdir(exist_ok=True)
        spec = PROJECT.format(storage=(self._folder / "storage").as_uri())
        (self._folder / "spark-pipeline.yml").write_text(spec)
        (programs / "orders.py").write_text(PROGRAM.format(address=self._address, read=read, write=write))
        (programs / "products.sql").write_text(QUERY)

    def run(self, command: str) -> tuple[int, str]:
        """What the command returned and what it printed."""
        script = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
        done = subprocess.run(
            [str(script), command], cwd=self._folder, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def products(self) -> dict[str, int]:
        """What the query in SQL has found."""
        rows = pq.read_table(self._folder / "spark-warehouse" / "products").to_pylist()
        return {row["product"]: row["orders"] for row in rows}


@pytest.fixture
def project(tmp_path: Path, spark_server: FlussServer) -> Iterator[Project]:
    path = TablePath("shop", "orders")
    with connect(spark_server.bootstrap_servers) as connection:
        admin = connection.get_admin()
        admin.create_database("shop")
        for name in ("orders", "copy"):
            admin.create_table(TablePath("shop", name), TableDescriptor(Schema(ORDERS.schema)))
        with connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(ORDERS)
        yield Project(tmp_path, spark_server.bootstrap_servers)
        admin.drop_database("shop", cascade=True)


def test_queries_in_sql_and_a_sink_with_a_wrong_option(project: Project) -> None:
    project.write(read={"columns": "order_id, product"}, write={"exactlyonce": "true"})
    status, printed = project.run("run")
    assert status != 0, printed
    assert "Unknown option 'exactlyonce' for the data source 'fluss'. Did you mean 'exactly.once'?" in printed
    assert project.products() == {"rope": 2, "oar": 1}


def test_a_dry_run_names_a_wrong_option_of_a_source(project: Project) -> None:
    project.write(read={"colums": "order_id, product"}, write={})
    status, printed = project.run("dry-run")
    assert status != 0, printed
    assert "Unknown option 'colums' for the data source 'fluss'. Did you mean 'columns'?" in printed
