"""What users read when something is wrong."""

from __future__ import annotations

import pytest

from fluss.spark import register
from fluss.sync import DataTypes, Schema, TablePath
from fluss.testing.processes import free_ports
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

IDS = Schema.builder().column("id", DataTypes.bigint()).build()


def test_missing_table(ours: Backend) -> None:
    nowhere = TablePath(ours.database, "nowhere")
    with pytest.raises(Exception, match=rf"NotFoundError: .*{nowhere}"):
        ours.load(nowhere)
    with pytest.raises(Exception, match=rf"NotFoundError: .*{nowhere}"):
        ours.save(ours.spark.range(1), nowhere)


def test_unknown_option(ours: Backend) -> None:
    path = ours.create("ids", IDS)
    with pytest.raises(Exception, match=r"Unknown option 'colums' for the data source \S+\. Did you mean 'columns'"):
        ours.load(path, colums="id")
    with pytest.raises(Exception, match="The option 'columns' is for reading"):
        ours.save(ours.spark.range(1), path, columns="id")


def test_missing_options(ours: Backend) -> None:
    with pytest.raises(Exception, match=r"needs \.option\('bootstrap.servers', 'host:port'\)"):
        ours.spark.read.format("fluss").load("a.b")
    with pytest.raises(Exception, match=r"needs a table: \.option\('table', 'database.table'\)"):
        ours.spark.read.format("fluss").option("bootstrap.servers", ours.address).load()


def test_names_of_sparks_catalog_that_were_not_attached(ours: Backend) -> None:
    writer = ours.spark.range(1).write.format("fluss").option("bootstrap.servers", ours.address).mode("append")
    with pytest.raises(
        Exception, match=r"name in toTable\(\) or saveAsTable\(\) is one of Spark's catalog: \S+Catalog\("
    ):
        writer.saveAsTable("not_attached")


def test_nobody_at_the_address(ours: Backend) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    reader = ours.spark.read.format("fluss").option("bootstrap.servers", address)
    with pytest.raises(Exception, match=rf"ConnectError: .*{address}"):
        reader.option("client.connect-timeout", "2000").load("a.b")


def test_schema_that_is_not_the_tables(ours: Backend) -> None:
    path = ours.create("ids", IDS)
    with pytest.raises(Exception, match="is of type bigint, in Spark bigint; the schema says int"):
        ours.load(path, schema="id int").collect()
    with pytest.raises(Exception, match="The table has no column 'idd'; its columns are id"):
        ours.load(path, schema="idd bigint").collect()
    with pytest.raises(Exception, match="The table has no column 'idd'; its columns are id"):
        ours.load(path, columns="idd")


def test_registering_by_hand_changes_nothing(ours: Backend) -> None:
    path = ours.create("ids", IDS)
    register(ours.spark)
    ours.save(ours.spark.range(3), path)
    assert ours.load(path).count() == 3
