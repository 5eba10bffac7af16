"""Databases and tables from Spark, and tables by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as st

from fluss.spark import Catalog
from fluss.sync import DataTypes, FlussError, InvalidRequestError, Schema, TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

ORDERS = "id BIGINT, name STRING"


@pytest.fixture
def catalog(ours: Backend) -> Iterator[Catalog]:
    with Catalog(ours.spark, ours.connection) as catalog:
        yield catalog
        catalog.drop_database(ours.database, cascade=True)
    ours.connection.get_admin().create_database(ours.database)
    assert not ours.spark.catalog.databaseExists(ours.database)


def _rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def test_databases(catalog: Catalog, new_name: Callable[[str], str]) -> None:
    name = new_name("made")
    catalog.create_database(name, comment="for a test")
    assert catalog.database_exists(name)
    assert name in catalog.list_databases()
    with pytest.raises(FlussError, match=name):
        catalog.create_database(name)
    catalog.create_database(name, if_not_exists=True)
    catalog.create_table(f"{name}.t", "id INT")
    with pytest.raises(FlussError, match=f"{name} has 1 tables"):
        catalog.drop_database(name)
    catalog.drop_database(name, cascade=True)
    assert not catalog.database_exists(name)
    catalog.drop_database(name, if_exists=True)


def test_names_are_those_of_sparks_own_catalog(catalog: Catalog, ours: Backend) -> None:
    table = f"{ours.database}.orders"
    catalog.create_table(table, ORDERS)
    settings = ours.spark.conf
    settings.set("spark.sql.catalog.other", "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    settings.set("spark.sql.catalog.other.url", "jdbc:derby:memory:other;create=true")
    settings.set("spark.sql.catalog.other.driver", "org.apache.derby.iapi.jdbc.AutoloadedDriver")
    ours.spark.catalog.setCurrentCatalog("other")
    try:
        with pytest.raises(
            InvalidRequestError, match=r"one is 'other': call spark\.catalog\.setCurrentCatalog\('spark_c"
        ):
            catalog.attach(table)
    finally:
        ours.spark.catalog.setCurrentCatalog("spark_catalog")
    assert ours.spark.table(catalog.attach(table)).count() == 0


def test_a_table_with_everything(catalog: Catalog, ours: Backend) -> None:
    name = f"{ours.database}.sales"
    catalog.create_table(
        name,
        "day STRING NOT NULL, id BIGINT COMMENT 'who', price DECIMAL(10, 2), tags ARRAY<STRING>",
        primary_key=["day", "id"],
        partitioned_by="day",
        buckets=3,
        bucket_by="id",
        properties={"table.log.ttl": "7d", "owner": "sales"},
        comment="what was sold",
    )
    info = catalog.info(name)
    assert (info.primary_keys, info.partition_keys, info.num_buckets) == (["day", "id"], ["day"], 3)
    assert (info.get_bucket_keys(), info.comment) == (["id"], "what was sold")
    assert info.properties["table.log.ttl"] == "7d"
    assert info.custom_properties["owner"] == "sales"
    assert catalog.list_tables(ours.database) == ["sales"]
    assert [tuple(row) for row in catalog.describe(name).collect()] == [
        ("day", "string NOT NULL", "string", False, "primary, partition", None),
        ("id", "bigint NOT NULL", "bigint", False, "primary, bucket", "who"),
        ("price", "decimal(10,2)", "decimal(10,2)", True, "", None),
        ("tags", "array<string>", "array<string>", True, "", None),
    ]
    with pytest.raises(FlussError, match="sales"):
        catalog.create_table(name, "id INT")
    catalog.create_table(name, "id INT", if_not_exists=True)
    catalog.drop_table(name)
    catalog.drop_table(name, if_exists=True)
    assert not catalog.table_exists(name)


def test_schemas_of_all_kinds(catalog: Catalog, ours: Backend) -> None:
    struct = st.StructType().add("id", st.LongType(), nullable=False).add("name", st.StringType())
    expected = Schema.builder().column("id", DataTypes.bigint()).column("name", DataTypes.string())
    schemas = {
        "ddl": "id BIGINT, name STRING",
        "struct": struct,
        "frame": ours.spark.createDataFrame([], struct),
        "fluss": expected.build(),
    }
    for name, schema in schemas.items():
        catalog.create_table(TablePath(ours.database, name), schema, primary_key="id")
        assert catalog.info(f"{ours.database}.{name}").schema == expected.primary_key(["id"]).build()


def test_a_log_table_by_name(catalog: Catalog, ours: Backend, tmp_path: Path) -> None:
    spark, name = ours.spark, f"{ours.database}.orders"
    catalog.create_table(name, ORDERS, buckets=2)
    assert catalog.attach(name) == name

    spark.sql(f"INSERT INTO {name} VALUES (1, 'rope'), (2, NULL)")
    spark.sql(f"INSERT INTO {name} (name, id) VALUES ('oar', 3)")
    spark.sql(f"INSERT INTO {name} BY NAME SELECT 'buoy' AS name, 4L AS id")
    spark.createDataFrame([(5, "net")], "x BIGINT, y STRING").write.insertInto(name)
    expected = [(1, "rope"), (2, None), (3, "oar"), (4, "buoy"), (5, "net")]
    assert _rows(spark, f"SELECT * FROM {name} ORDER BY id") == expected
    assert [tuple(row) for row in catalog.table(name).orderBy("id").collect()] == expected
    # Unlike a DataFrame, a name means the rows of now.
    ours.append(TablePath(ours.database, "orders"), pa.table({"id": [6], "name": ["mast"]}))
    assert spark.table(name).where("id > 3").count() == 3

    catalog.create_table(f"{ours.database}.copy", ORDERS)
    copy = catalog.attach(f"{ours.database}.copy")
    for stream in (spark.readStream.table(name), catalog.read_stream(name, scan_startup_mode="earliest")):
        writer = stream.writeStream.trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / str(id(stream)))).toTable(copy)
        assert query.awaitTermination(120)
    assert _rows(spark, f"SELECT count(*), count(DISTINCT id) FROM {copy}") == [(12, 6)]

    with pytest.raises(Exception, match="can't be overwritten"):
        spark.sql(f"INSERT OVERWRITE {name} VALUES (1, 'rope')")
    assert spark.table(name).count() == 6


def test_a_primary_key_table_by_name(catalog: Catalog, ours: Backend) -> None:
    name = f"{ours.database}.stock"
    catalog.create_table(name, "id INT, amount INT", primary_key="id")
    catalog.attach(name)
    catalog.attach(name, view=f"{ours.database}.stock_changes", changelog=True)
    catalog.attach(name, view="some_stock", filter="amount > 15", columns="id")
    ours.spark.sql(f"INSERT INTO {name} VALUES (1, 10), (2, 20)")
    ours.spark.sql(f"INSERT INTO {name} VALUES (1, 11)")
    assert _rows(ours.spark, f"SELECT * FROM {name} ORDER BY id") == [(1, 11), (2, 20)]
    assert catalog.attach(f"{name}$changelog") == f"{name}_changelog"
    count = f"SELECT count(*), count(DISTINCT _change_type) FROM {name}_changelog"
    assert _rows(ours.spark, count) == [(4, 3)]
    changes = f"SELECT _change_type, amount FROM {name}_changes WHERE id = 1 ORDER BY _log_offset"
    assert _rows(ours.spark, changes) == [("+I", 10), ("-U", 10), ("+U", 11)]
    assert _rows(ours.spark, "SELECT * FROM some_stock") == [(2,)]
    catalog.detach("some_stock")
    assert not ours.spark.catalog.tableExists("some_stock")


def test_a_table_with_a_new_column_is_attached_again(catalog: Catalog, ours: Backend) -> None:
    path = TablePath(ours.database, "growing")
    catalog.create_table(path, "id INT")
    name = catalog.attach(path)
    ours.spark.sql(f"INSERT INTO {name} VALUES (1)")
    ours.connection.get_admin().alter_table(path, add_columns=[("more", DataTypes.string())])
    assert _rows(ours.spark, f"SELECT * FROM {name}") == [(1,)]
    catalog.attach(path)
    ours.spark.sql(f"INSERT INTO {name} VALUES (2, 'two')")
    assert _rows(ours.spark, f"SELECT * FROM {name} ORDER BY id") == [(1, None), (2, "two")]


def test_all_tables_and_odd_names(catalog: Catalog, ours: Backend) -> None:
    spark, database = ours.spark, ours.database
    for table in ("select", "2026", "my-orders", "Mixed"):
        catalog.create_table(f"{database}.{table}", "id INT")
    assert catalog.attach_all(database) == [f"{database}.{name}" for name in ("2026", "Mixed", "my_orders", "select")]
    for name in ("`select`", "`2026`", "my_orders", "mixed"):
        spark.sql(f"INSERT INTO {database}.{name} VALUES (1)")
        assert spark.table(f"{database}.{name}").count() == 1
    assert ours.rows(TablePath(database, "my-orders")).num_rows == 1

    catalog.create_table(f"{database}.my_orders", "id INT")
    with pytest.raises(InvalidRequestError, match=r"Spark has Fluss table \S+\.my-orders under the name .* view="):
        catalog.attach(f"{database}.my_orders")
    with pytest.raises(InvalidRequestError, match=r"Spark can't have a table of the name 'a\.b\.c'"):
        catalog.attach(f"{database}.my_orders", view="a.b.c")
    assert catalog.attach(f"{database}.my_orders", view=f"{database}.others") == f"{database}.others"


def test_tables_of_sparks_own_are_left_alone(catalog: Catalog, ours: Backend) -> None:
    catalog.create_table(f"{ours.database}.t", "id INT")
    ours.spark.sql("CREATE TABLE theirs (x INT) USING parquet")
    try:
        for touch in (lambda: catalog.attach(f"{ours.database}.t", view="theirs"), lambda: catalog.detach("theirs")):
            with pytest.raises(InvalidRequestError, match="Spark has a table of its own under the name 'theirs'"):
                touch()
        assert ours.spark.table("theirs").columns == ["x"]
    finally:
        ours.spark.sql("DROP TABLE theirs")
    with pytest.raises(FlussError, match="nowhere"):
        catalog.attach(f"{ours.database}.nowhere")


def test_dropping_detaches(catalog: Catalog, ours: Backend) -> None:
    spark, database = ours.spark, ours.database
    for table in ("a", "b"):
        catalog.create_table(f"{database}.{table}", "id INT")
        catalog.attach(f"{database}.{table}")
    catalog.drop_table(f"{database}.a")
    assert not spark.catalog.tableExists(f"{database}.a")
    assert spark.catalog.tableExists(f"{database}.b")
    # A temporary view is in no database, though Spark lists it with each.
    spark.range(1).createTempView("fleeting")
    catalog.detach(f"{database}.b")
    spark.catalog.dropTempView("fleeting")
    assert not spark.catalog.databaseExists(database)
    assert catalog.table_exists(f"{database}.b")
    catalog.detach(f"{database}.b")


def test_dropping_leaves_a_table_that_took_the_name(catalog: Catalog, ours: Backend) -> None:
    name = f"{ours.database}.taken"
    catalog.create_table(name, "id INT")
    catalog.attach(name)
    ours.spark.sql("SELECT 5 AS id").write.mode("overwrite").saveAsTable(name)
    catalog.drop_table(name)
    assert not catalog.table_exists(name)
    assert _rows(ours.spark, f"SELECT * FROM {name}") == [(5,)]
    ours.spark.sql(f"DROP DATABASE {ours.database} CASCADE")


def test_a_catalog_connects_by_itself(ours: Backend) -> None:
    with Catalog(ours.spark, ours.address, request_timeout_ms=20_000) as catalog:
        assert ours.database in catalog.list_databases()
        assert catalog.options == {"bootstrap.servers": ours.address, "request-timeout-ms": "20000"}
    with pytest.raises(InvalidRequestError, match="belong to an address"):
        Catalog(ours.spark, ours.connection, request_timeout_ms=20_000)


@pytest.mark.compat
def test_tables_of_apache_fluss_by_name(apache: Backend) -> None:
    with Catalog(apache.spark, apache.connection) as catalog:
        name = f"{apache.database}.orders"
        catalog.create_table(name, ORDERS, buckets=2)
        catalog.create_table(f"{apache.database}.keyed", ORDERS, primary_key="id", buckets=1)
        catalog.attach_all(apache.database)
        for table in (name, f"{apache.database}.keyed"):
            apache.spark.sql(f"INSERT INTO {table} VALUES (1, 'rope'), (2, 'oar')")
            assert _rows(apache.spark, f"SELECT * FROM {table} ORDER BY id") == [(1, "rope"), (2, "oar")]
        catalog.drop_table(name)
        catalog.drop_table(f"{apache.database}.keyed")
        assert not apache.spark.catalog.databaseExists(apache.database)
