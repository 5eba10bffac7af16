"""Statements of SQL that write: `fluss sql` and `conn.sql`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

import fluss
import fluss.aio
import fluss.sync as fs


@pytest.fixture(scope="module")
def server() -> Iterator[fs.FlussConnection]:
    with fs.connect("memory:") as connection:
        yield connection


@pytest.fixture
def database(server: fs.FlussConnection, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"d{abs(hash(request.node.nodeid))}"
    server.get_admin().create_database(name)
    yield name
    server.get_admin().drop_database(name)


@pytest.fixture
def sql(server: fs.FlussConnection, database: str) -> Any:
    return lambda query: server.sql(query, database).to_pylist()


KEYED = "CREATE TABLE k (id INT, region VARCHAR, n BIGINT, PRIMARY KEY (id, region))"


def test_tables_are_made_and_filled(sql: Any, server: fs.FlussConnection, database: str) -> None:
    assert sql("CREATE TABLE x AS SELECT 1 AS a, 'ü' AS b") == [{"Count": 1}]
    assert sql("SHOW TABLES") == [{"name": "x"}]
    assert sql("INSERT INTO x(b) SELECT b || '!' FROM x") == [{"Count": 1}]
    assert sql(f"WITH w AS (SELECT 3 AS a) INSERT INTO {database}.X BY NAME SELECT a /* ( */ FROM w;") == [{"Count": 1}]
    assert sql("FROM x ORDER BY ALL") == [{"a": 1, "b": "ü"}, {"a": 3, "b": None}, {"a": None, "b": "ü!"}]
    assert sql("CREATE TABLE IF NOT EXISTS x AS SELECT 5") == []
    assert sql("CREATE TABLE type AS SELECT 1 AS view; SHOW TABLES") == [{"name": "type"}, {"name": "x"}]
    sql("CREATE TABLE y (a INT NOT NULL, b VARCHAR, PRIMARY KEY (b))")
    info = server.get_admin().get_table_info(fluss.TablePath(database, "y"))
    assert info.primary_keys == ["b"]
    assert [column.data_type.nullable for column in info.schema.columns] == [False, False]
    assert [column["column_name"] for column in sql("DESCRIBE y")] == ["a", "b"]


def test_values_of_all_types(sql: Any) -> None:
    sql(
        "CREATE TABLE t (b BOOLEAN, i TINYINT, f FLOAT, c DECIMAL(5, 2), s VARCHAR, r BLOB, d DATE, t TIME, "
        "m TIMESTAMP, z TIMESTAMPTZ, l INT[], o STRUCT(a INT), p MAP(VARCHAR, INT))"
    )
    sql(
        "INSERT INTO t VALUES (true, 3, 0.5, 1.25, 'x', 'ab'::BLOB, '2026-01-31', '12:30', '2026-01-31 01:02:03.5', "
        "'2026-01-31 00:00:00+01', [1, NULL], {'a': 1}, MAP {'k': 1})"
    )
    (row,) = sql("FROM t")
    assert row.pop("z").isoformat() == "2026-01-30T23:00:00+00:00"
    assert row == {
        "b": True,
        "i": 3,
        "f": 0.5,
        "c": Decimal("1.25"),
        "s": "x",
        "r": b"ab",
        "d": date(2026, 1, 31),
        "t": time(12, 30),
        "m": datetime(2026, 1, 31, 1, 2, 3, 500_000),
        "l": [1, None],
        "o": {"a": 1},
        "p": [("k", 1)],
    }


def test_rows_are_changed_by_key(sql: Any) -> None:
    sql(KEYED)
    sql("INSERT INTO k VALUES (1, 'EU', 10), (2, 'US', 20)")
    assert sql("UPDATE k SET n = n + 1 WHERE k.region = upper('eu') AND id = (0 + 1)") == [{"Count": 1}]
    assert sql("UPDATE k SET n = 0 WHERE id = 1 AND region = 'EU' AND n > 100") == [{"Count": 0}]
    assert sql("UPDATE k SET n = 5 WHERE id = 2 AND region = 'US' RETURNING n") == [{"n": 5}]
    assert sql("DELETE FROM k WHERE id = 3 AND region = 'EU'") == [{"Count": 0}]
    assert sql("FROM k ORDER BY id") == [{"id": 1, "region": "EU", "n": 11}, {"id": 2, "region": "US", "n": 5}]
    assert sql("DELETE FROM k WHERE id = 2 AND region = 'US';") == [{"Count": 1}]
    assert sql("INSERT INTO k VALUES (1, 'EU', 12)") == [{"Count": 1}]
    assert sql("FROM k") == [{"id": 1, "region": "EU", "n": 12}]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("UPDATE k SET n = 1", "UPDATE takes one row, by its whole key: WHERE id = ? AND region = ?."),
        ("UPDATE k SET n = 1 WHERE id = 1", "by its whole key"),
        ("UPDATE k SET n = 1 WHERE id = 1 AND region = 'EU' OR true", "by its whole key"),
        ("UPDATE k SET n = 1 WHERE id = 1 AND region = 'EU' IS NULL", "by its whole key"),
        ("DELETE FROM k WHERE id = (SELECT 1) AND region = 'EU'", "by its whole key"),
        ("UPDATE k SET id = 7 WHERE id = 1 AND region = 'EU'", "UPDATE can't change the key"),
        ("DELETE FROM x WHERE a = 1", "x has no primary key: its rows can't be changed or deleted."),
        ("DROP TABLE x", "'fluss table drop {database}.x' drops it."),
        ("ALTER TABLE x ADD COLUMN z INT", "'fluss table alter {database}.x'"),
        ("TRUNCATE k", "'fluss table drop {database}.k' drops it with its rows."),
        ("COPY x FROM 'a.csv'", "'fluss append {database}.x FILE'"),
        ("MERGE INTO k USING x ON (k.id = x.a) WHEN MATCHED THEN DELETE", "INSERT INTO a table with a primary key"),
        ("CREATE SCHEMA s", "'fluss database create'"),
        ("CREATE TABLE x (a INT)", "exists already"),
        ("CREATE OR REPLACE TABLE x AS SELECT 1", "'fluss table drop {database}.x'"),
        ("INSERT INTO xx VALUES (1)", "There is no table 'xx' in database '{database}'; near are x."),
        ("INSERT INTO x VALUES ('abc')", "Could not convert string 'abc' to INT32 (line 1, column 23)."),
        ("INSERT INTO x VALUES (1, 2)", "2 values were supplied"),
        ("INSERT INTO k(n) VALUES (1)", "NOT NULL constraint failed"),
        ("SELECT 1;\nSELEC 1", 'syntax error at or near "SELEC" (line 2, column 1).'),
    ],
)
def test_mistakes(sql: Any, database: str, query: str, problem: str) -> None:
    sql(KEYED)
    sql("CREATE TABLE x AS SELECT 1 AS a")
    sql("INSERT INTO k VALUES (1, 'EU', 10)")
    with pytest.raises(fluss.FlussError) as caught:
        sql(query)
    assert problem.format(database=database) in caught.value.message
    assert "\n" not in caught.value.message
    assert sql("FROM k") == [{"id": 1, "region": "EU", "n": 10}]
    assert sql("FROM x") == [{"a": 1}]


@pytest.mark.parametrize("query", ["SELECT error('late')", "SELECT INTERVAL 1 DAY AS a", "FROM nothing"])
def test_a_table_whose_rows_fail_is_not_left(sql: Any, query: str) -> None:
    with pytest.raises(fluss.FlussError):
        sql(f"CREATE TABLE y AS {query}")
    assert sql("SHOW TABLES") == []


def test_tables_of_the_session_are_duckdbs(sql: Any) -> None:
    assert sql("CREATE TEMP TABLE t AS SELECT 1 AS a; INSERT INTO t VALUES (2); UPDATE t SET a = 5; FROM t") == [
        {"a": 5},
        {"a": 5},
    ]
    assert sql("SHOW TABLES") == []


async def test_it_can_be_awaited(server: fs.FlussConnection) -> None:
    for facade in (fluss, fluss.aio):
        async with facade.connect("memory:") as connection:
            assert (await connection.sql("SELECT 1 AS one")).to_pylist() == [{"one": 1}]
