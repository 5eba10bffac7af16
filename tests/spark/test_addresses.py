"""Servers that Spark finds by other addresses than host:port."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fluss.spark
from fluss.model.trust import ENDPOINT_NAME, Endpoint
from fluss.sync import TablePath, connect

pytestmark = pytest.mark.spark

PATH = TablePath("d", "numbers")


def _kill_server(directory: Path) -> None:
    endpoint = Endpoint.from_bytes((directory / ENDPOINT_NAME).read_bytes())
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)


def test_tasks_join_the_server_of_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "data of spark"
    address = directory.as_uri()
    with fluss.spark.Catalog(spark, address) as catalog:
        catalog.create_database(PATH.database_name)
        catalog.create_table(PATH, "id BIGINT", buckets=2)
    writer = spark.range(100, numPartitions=2).write.format("fluss").option("bootstrap.servers", address)
    writer.mode("append").save(str(PATH))
    frame = spark.read.format("fluss").option("bootstrap.servers", address).load(str(PATH))
    assert frame.count() == 100
    # As when it leaves, after its last connection: tasks of a query that is planned already start the next one.
    _kill_server(directory)
    assert {row.id for row in frame.collect()} == set(range(100))
    _kill_server(directory)


def test_the_server_in_this_process(spark: SparkSession) -> None:
    with connect("memory:") as connection, fluss.spark.Catalog(spark, connection) as catalog:
        catalog.create_database(PATH.database_name)
        catalog.create_table(PATH, "id BIGINT")
        name = catalog.attach(PATH, view="numbers_in_memory")
        spark.sql(f"INSERT INTO {name} VALUES (1), (2)")
        reader = spark.read.format("fluss").options(**fluss.spark.options(connection))
        assert reader.load(str(PATH)).count() == spark.table(name).count() == 2
        catalog.drop_database(PATH.database_name, cascade=True)
    with pytest.raises(Exception, match=r"belongs to one Python process; give Spark .*fluss\.spark\.options"):
        spark.read.format("fluss").option("bootstrap.servers", "memory:").load(str(PATH))
