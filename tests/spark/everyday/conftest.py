"""What every program is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fluss.spark import Catalog
from fluss.sync import Config, FlussConnection
from fluss.testing import FlussServer
from tests.spark.everyday.tables import Tables


@pytest.fixture
def tables(
    spark: SparkSession, spark_server: FlussServer, new_name: Callable[[str], str], tmp_path: Path
) -> Iterator[Tables]:
    """Tables for one program; what it leaves behind is ended."""
    database = new_name("everyday")
    config = Config({"bootstrap.servers": spark_server.bootstrap_servers})
    with FlussConnection.create(config) as connection, Catalog(spark, connection) as catalog:
        catalog.create_database(database)
        yield Tables(connection, catalog, database, tmp_path)
        for query in spark.streams.active:
            query.stop()
        catalog.drop_database(database, cascade=True)
