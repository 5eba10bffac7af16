"""Every statement of SQL on the name of a table: what becomes of it, and that no row of the table does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fluss.spark import Catalog
from fluss.sync import DataTypes, InvalidRequestError, TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

OK = "OK"
PARTITIONS = "does not support partition management"
NOT_V2 = "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE"
GONE = "TABLE_OR_VIEW_NOT_FOUND"
OTHER_COLUMNS = "Spark's table {t} has other columns than the Fluss table {t}: "
NO_TABLE = r"CREATE TABLE \.\.\. USING fluss .*attach\('database.table'\)"

# What Spark says, or passes on from the data source.
REFUSED = {
    "TRUNCATE TABLE {t}": "does not support truncates",
    "TRUNCATE TABLE {t} PARTITION (id = 1)": PARTITIONS,
    "DELETE FROM {t}": "does not support deletes",
    "DELETE FROM {t} WHERE id = 1": "does not support deletes",
    "UPDATE {t} SET name = 'z'": "does not support UPDATE TABLE",
    "MERGE INTO {t} t USING other o ON t.id = o.id WHEN MATCHED THEN DELETE": "does not support MERGE INTO",
    "INSERT OVERWRITE {t} VALUES (9, 'z')": r"{t} can't be overwritten: .*or INSERT INTO\. .*catalog\.drop_table",
    "INSERT INTO {t} REPLACE WHERE id = 1 VALUES (9, 'z')": "does not support overwrite by filter",
    "INSERT OVERWRITE {t} PARTITION (id = 1) VALUES ('z')": "NON_PARTITION_COLUMN",
    "LOAD DATA INPATH '/nowhere' INTO TABLE {t}": NOT_V2,
    "ANALYZE TABLE {t} COMPUTE STATISTICS": NOT_V2,
    "MSCK REPAIR TABLE {t}": NOT_V2,
    "SHOW PARTITIONS {t}": PARTITIONS,
    "ALTER TABLE {t} ADD PARTITION (id = 1)": PARTITIONS,
    "ALTER TABLE {t} DROP PARTITION (id = 1)": PARTITIONS,
    "ALTER TABLE {t} RECOVER PARTITIONS": NOT_V2,
    "ALTER TABLE {t} SET SERDEPROPERTIES ('a' = 'b')": NOT_V2,
    "ALTER TABLE {t} ALTER COLUMN name TYPE INT": "NOT_SUPPORTED_CHANGE_COLUMN",
    "ALTER TABLE {t} ALTER COLUMN name SET NOT NULL": "Cannot change nullable column",
    "ALTER TABLE {t} ADD CONSTRAINT c CHECK (id > 0)": "does not support table constraint",
    "CREATE TABLE {t} (id INT) USING fluss": "TABLE_OR_VIEW_ALREADY_EXISTS",
    "CREATE INDEX i ON {t} (id)": "CreateIndex is not supported",
    "SELECT * FROM {t} VERSION AS OF 1": "UNSUPPORTED_FEATURE.TIME_TRAVEL",
    "REPLACE TABLE {t} USING parquet AS SELECT 1L AS id": "does not support REPLACE TABLE AS SELECT",
    "REPLACE TABLE {t} USING fluss AS SELECT 1L AS id": NO_TABLE,
    "CREATE OR REPLACE TABLE {t} USING fluss AS SELECT 1L AS id": NO_TABLE,
}
# Spark changes its catalog, or nothing, and asks nobody. What the next query by this name says.
ACCEPTED = {
    "ALTER TABLE {t} ADD COLUMN more INT": OTHER_COLUMNS
    + r"it has more int\. .*ALTER TABLE does not .*attach\('{t}'\)",
    "ALTER TABLE {t} DROP COLUMN name": OTHER_COLUMNS + "it lacks name string",
    "ALTER TABLE {t} RENAME COLUMN name TO nom": OTHER_COLUMNS + "it has nom string and it lacks name string",
    "ALTER TABLE {t} REPLACE COLUMNS (id BIGINT, other INT)": OTHER_COLUMNS + "it has other int and it lacks name",
    "ALTER TABLE {t} ALTER COLUMN name FIRST": OTHER_COLUMNS + "they are in another order",
    "ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL": OK,
    "ALTER TABLE {t} ALTER COLUMN name COMMENT 'c'": OK,
    "ALTER TABLE {t} ALTER COLUMN name SET DEFAULT 'x'": OK,
    "ALTER TABLE {t} SET TBLPROPERTIES ('table.log.ttl' = '1d')": OK,
    "ALTER TABLE {t} UNSET TBLPROPERTIES IF EXISTS ('a')": OK,
    "ALTER TABLE {t} SET LOCATION '/nowhere'": OK,
    "ALTER TABLE {t} CLUSTER BY (id)": OK,
    "ALTER TABLE {t} RENAME TO {t}_renamed": GONE,
    "COMMENT ON TABLE {t} IS 'mine'": OK,
    "REFRESH TABLE {t}": OK,
    "CACHE TABLE {t}": OK,
    "UNCACHE TABLE {t}": OK,
    "SHOW COLUMNS IN {t}": OK,
    "SHOW TBLPROPERTIES {t}": OK,
    "SHOW CREATE TABLE {t}": OK,
    "DESCRIBE EXTENDED {t}": OK,
    "CREATE TABLE IF NOT EXISTS {t} (id INT) USING fluss": OK,
    "CREATE OR REPLACE TABLE {t} (id INT) USING fluss": r"needs \.option\('bootstrap.servers'.*" + NO_TABLE,
    "DROP TABLE {t}": GONE,
    "DROP TABLE {t} PURGE": GONE,
    "DROP DATABASE {d} CASCADE": GONE,
}


@pytest.fixture
def catalog(ours: Backend) -> Iterator[Catalog]:
    with Catalog(ours.spark, ours.connection) as catalog:
        ours.spark.sql("CREATE OR REPLACE TEMP VIEW other AS SELECT 1L AS id, 'o' AS name")
        yield catalog
        ours.spark.sql(f"DROP DATABASE IF EXISTS {ours.database} CASCADE")
        ours.spark.catalog.dropTempView("other")


def _run(spark: SparkSession, statement: str) -> str:
    """What Spark says: the message in one line, or OK."""
    try:
        spark.sql(statement).collect()
    except PySparkException as error:
        lines = str(error).splitlines()
        return next((line for line in reversed(lines) if "Error: " in line), lines[0])
    return OK


def _rows(backend: Backend, path: TablePath) -> list[tuple[object, ...]]:
    table = backend.connection.get_table(path).new_scan().to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def _table(backend: Backend, catalog: Catalog, name: str, key: str | tuple[()] = ()) -> TablePath:
    path = TablePath(backend.database, name)
    catalog.create_table(path, "id BIGINT, name STRING", primary_key=key, buckets=2)
    catalog.attach(path)
    backend.spark.sql(f"INSERT INTO {path} VALUES (1, 'a'), (2, 'b')")
    return path


@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", [(), "id"])
def test_no_statement_changes_the_table(ours: Backend, catalog: Catalog, key: str | tuple[()]) -> None:
    path = _table(ours, catalog, "kept", key)
    info, expected = catalog.info(path), [(1, "a"), (2, "b")]
    for statement, outcome in {**REFUSED, **ACCEPTED}.items():
        said = _run(ours.spark, statement.format(t=path, d=ours.database))
        wanted = re.compile(re.sub(r"\{t\}", str(path), outcome))
        if statement in ACCEPTED:
            assert said == OK, statement
            said = _run(ours.spark, f"SELECT * FROM {path}")
        assert wanted.search(said), (statement, said)
        assert _rows(ours, path) == expected, statement
        assert catalog.info(path) == info, statement
        if statement in ACCEPTED or "REPLACE TABLE" in statement:
            ours.spark.catalog.clearCache()
            catalog.attach(path)
    ours.spark.sql(f"INSERT INTO {path} VALUES (3, 'c')")
    assert _rows(ours, path) == [*expected, (3, "c")]


def test_inserts_by_a_name_that_spark_has_changed_are_refused(ours: Backend, catalog: Catalog) -> None:
    path = _table(ours, catalog, "kept")
    spark, before = ours.spark, _rows(ours, path)
    spark.sql(f"ALTER TABLE {path} ADD COLUMN more INT")
    frame = spark.sql("SELECT 3L AS id, 'c' AS name, 1 AS more")
    for insert in (
        lambda: spark.sql(f"INSERT INTO {path} VALUES (3, 'c', 1)"),
        lambda: spark.sql(f"INSERT INTO {path} (id, name) VALUES (3, 'c')"),
        lambda: frame.writeTo(str(path)).append(),
        lambda: frame.write.insertInto(str(path)),
        lambda: spark.readStream.table(str(path)).writeStream.format("noop").trigger(availableNow=True).start(),
    ):
        with pytest.raises(PySparkException, match=rf"Spark's table {path} has other columns .* it has more int\."):
            query = insert()
            if query is not None:
                query.awaitTermination(120)
    catalog.attach(path)
    assert _rows(ours, path) == before


def test_a_table_that_was_altered_is_attached_again(ours: Backend, catalog: Catalog, tmp_path: Path) -> None:
    path = _table(ours, catalog, "growing")
    spark, name = ours.spark, catalog.attach(path, view=f"{ours.database}.grown")
    ours.connection.get_admin().alter_table(path, add_columns=[("more", DataTypes.int())])
    repair = rf"it lacks more int\. .*catalog\.attach\('{path}', view='{name}'\)"
    assert spark.table(name).columns == ["id", "name"]
    assert spark.table(name).count() == 2
    with pytest.raises(PySparkException, match=repair):
        spark.sql(f"INSERT INTO {name} VALUES (3, 'c')")
    with pytest.raises(PySparkException, match=repair):
        writer = spark.readStream.table(name).writeStream.option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).toTable(name).awaitTermination(120)
    catalog.attach(path, view=name)
    spark.sql(f"INSERT INTO {name} VALUES (3, 'c', 4)")
    assert _rows(ours, path) == [(1, "a", None), (2, "b", None), (3, "c", 4)]
    # A table of the same name with other columns.
    catalog.drop_table(path)
    catalog.create_table(path, "id STRING")
    assert not spark.catalog.tableExists(name)


def test_a_table_that_somebody_else_made_anew_is_noticed(ours: Backend, catalog: Catalog) -> None:
    path = _table(ours, catalog, "anew")
    admin = ours.connection.get_admin()
    admin.drop_table(path)
    assert "anew" in _run(ours.spark, f"SELECT * FROM {path}")
    catalog.create_table(path, "id STRING, name STRING")
    for statement in (f"SELECT * FROM {path}", f"INSERT INTO {path} VALUES (1, 'a')"):
        assert "it has id bigint and it lacks id string" in _run(ours.spark, statement)
    assert _rows(ours, path) == []


def test_create_table_using_fluss_says_what_to_use(ours: Backend, catalog: Catalog) -> None:
    path, spark = _table(ours, catalog, "kept"), ours.spark
    options = f"OPTIONS (`bootstrap.servers` '{ours.address}', `table` '{path}')"
    where = f"{ours.database}.made"
    for statement in (
        f"CREATE TABLE {where} USING fluss {options}",
        f"CREATE TABLE {where} USING fluss",
        f"CREATE TABLE {where} USING fluss AS SELECT 1L AS id, 'a' AS name",
        f"CREATE TABLE {where} USING fluss {options} AS SELECT 1L AS id, 'a' AS name",
    ):
        assert re.search(NO_TABLE, _run(spark, statement)), statement
        assert not spark.catalog.tableExists(where)
    with pytest.raises(PySparkException, match=NO_TABLE):
        spark.catalog.createTable(where, source="fluss", table=str(path), **{"bootstrap.servers": ours.address})
    # With columns Spark asks nobody. The name is free for the table all the same.
    spark.sql(f"CREATE TABLE {where} (id BIGINT, name STRING) USING fluss {options}")
    for statement in (f"SELECT * FROM {where}", f"INSERT INTO {where} VALUES (1, 'a')"):
        assert re.search(NO_TABLE, _run(spark, statement)), statement
    catalog.attach(path, view=where)
    assert spark.table(where).count() == 2
    # A temporary view has its options, and the rows of the moment at which it was read first.
    spark.sql(f"CREATE TEMPORARY VIEW fixed USING fluss {options}")
    assert spark.table("fixed").count() == 2
    spark.sql("INSERT INTO fixed VALUES (3, 'c')")
    assert (spark.table("fixed").count(), spark.table(where).count()) == (2, 3)
    spark.catalog.dropTempView("fixed")


def test_names_with_options_of_writes(ours: Backend, catalog: Catalog) -> None:
    path = _table(ours, catalog, "keyed", key="id")
    gone = catalog.attach(path, view=f"{ours.database}.gone", write_mode="delete")
    partial = catalog.attach(path, view=f"{ours.database}.partial", target_columns="id, name")
    ours.spark.sql(f"INSERT INTO {gone} (id) VALUES (1)")
    ours.spark.sql(f"INSERT INTO {partial} VALUES (2, 'b2')")
    assert [tuple(row) for row in ours.spark.table(gone).collect()] == _rows(ours, path) == [(2, "b2")]


def test_a_table_of_sparks_own_that_took_a_name_is_left_alone(ours: Backend, catalog: Catalog) -> None:
    path = _table(ours, catalog, "kept")
    ours.spark.sql("SELECT 5L AS id").write.mode("overwrite").saveAsTable(str(path))
    with pytest.raises(InvalidRequestError, match="Spark has a table of its own under the name"):
        catalog.attach(path)
    assert ours.spark.table(str(path)).count() == 1
    assert _rows(ours, path) == [(1, "a"), (2, "b")]
    ours.spark.sql(f"DROP TABLE {path}")
    catalog.attach(path)


def test_two_tables_of_one_name_are_told_apart_without_their_comments(ours: Backend, catalog: Catalog) -> None:
    for table in ("my-orders", "my_orders"):
        catalog.create_table(f"{ours.database}.{table}", "id BIGINT")
    name = catalog.attach(f"{ours.database}.my-orders")
    ours.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('a' = 'b')")
    with pytest.raises(InvalidRequestError, match="another Fluss table under the name"):
        catalog.attach(f"{ours.database}.my_orders")
    assert catalog.attach(f"{ours.database}.my-orders") == name
