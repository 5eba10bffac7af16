"""Every program of this folder, in one session."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from fluss.spark import Catalog
from fluss.sync import Config, FlussConnection
from fluss.testing import FlussServer
from tests.spark.everyday import joins, state, streams
from tests.spark.everyday.tables import Program, Tables

pytestmark = pytest.mark.spark

SUBJECTS = (streams, joins, state)


def _programs(subject: ModuleType) -> list[Program]:
    """The functions of a module, in their order."""
    found = [value for value in vars(subject).values() if inspect.isfunction(value)]
    return [value for value in found if value.__module__ == subject.__name__ and not value.__name__.startswith("_")]


PROGRAMS = [program for subject in SUBJECTS for program in _programs(subject)]


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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Program, spark: SparkSession, tables: Tables) -> None:
    program(spark, tables)
