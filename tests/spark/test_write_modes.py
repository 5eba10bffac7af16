"""Batch writes into primary-key tables and partitioned ones: every mode and option."""

from __future__ import annotations

import random
import re
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from fluss.spark import Catalog
from fluss.sync import DataTypes, Schema, TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

T = DataTypes
ACCOUNTS = (
    Schema.builder()
    .column("id", T.bigint())
    .column("name", T.string())
    .column("balance", T.int())
    .primary_key(["id"])
    .build()
)
ROW = "id bigint, name string, balance int"
CHANGE = f"_change_type string, {ROW}"


def _frame(backend: Backend, rows: list[tuple[Any, ...]], schema: str, partitions: int = 1) -> DataFrame:
    return backend.spark.createDataFrame(rows, schema).coalesce(partitions)


def _rows(backend: Backend, path: TablePath) -> list[tuple[Any, ...]]:
    table = backend.connection.get_table(path).new_scan().to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def _filled(backend: Backend, schema: Schema = ACCOUNTS, bucket_count: int = 2) -> TablePath:
    path = backend.create("accounts", schema, bucket_count)
    backend.save(_frame(backend, [(1, "a", 10), (2, "b", 20), (3, "c", 30)], ROW), path)
    return path


def test_upsert_is_the_default_with_a_primary_key(ours: Backend) -> None:
    path = _filled(ours)
    ours.save(_frame(ours, [(20, "b2", 2), (40, "d", 4)], "balance int, name string, id bigint"), path)
    ours.save(_frame(ours, [(2, "b3", 21)], ROW), path, **{"write.mode": "upsert"})
    assert _rows(ours, path) == [(1, "a", 10), (2, "b3", 21), (3, "c", 30), (4, "d", 40)]


def test_upserts_of_a_key_in_one_partition_keep_their_order(ours: Backend) -> None:
    path = ours.create("accounts", ACCOUNTS, 3)
    frame = ours.spark.range(0, 30_000, 1, 1).selectExpr("id % 100 AS id", "string(id) AS name", "int(id) AS balance")
    ours.save(frame, path)
    assert _rows(ours, path) == [(key, str(29_900 + key), 29_900 + key) for key in range(100)]


def test_delete_takes_keys_with_or_without_other_columns(ours: Backend) -> None:
    path = _filled(ours)
    ours.save(_frame(ours, [(1,), (99,)], "id int"), path, **{"write.mode": "delete"})
    assert _rows(ours, path) == [(2, "b", 20), (3, "c", 30)]
    ours.save(_frame(ours, [("whatever", 3)], "name string, id bigint"), path, **{"write.mode": "DELETE"})
    assert _rows(ours, path) == [(2, "b", 20)]


def test_partial_update_writes_the_target_columns_only(ours: Backend) -> None:
    path = _filled(ours)
    targets = {"target.columns": "id, balance"}
    ours.save(_frame(ours, [(11, 1), (40, 4)], "balance int, id bigint"), path, **targets)
    # The table's other columns may be there and are not written.
    ours.save(_frame(ours, [(2, "ignored", 22)], ROW), path, **targets)
    assert _rows(ours, path) == [(1, "a", 11), (2, "b", 22), (3, "c", 30), (4, None, 40)]
    # A partial delete takes the target columns away, and the row when nothing is left.
    ours.save(_frame(ours, [(1,), (4,)], "id bigint"), path, **targets, **{"write.mode": "delete"})
    assert _rows(ours, path) == [(1, "a", None), (2, "b", 22), (3, "c", 30)]


def test_changelog_applies_change_types(ours: Backend) -> None:
    path = _filled(ours)
    changes = [
        ("-U", 1, "a", 10),
        ("+U", 1, "a2", 11),
        ("-D", 2, None, None),
        ("+I", 4, "d", 40),
        ("-D", 4, "d", 40),
        ("-D", 3, "c", 30),
        ("+I", 3, "c2", 31),
        ("+A", 5, "e", 50),
    ]
    ours.save(_frame(ours, changes, CHANGE), path, **{"write.mode": "changelog"})
    assert _rows(ours, path) == [(1, "a2", 11), (3, "c2", 31), (5, "e", 50)]


def test_changelog_of_many_changes_equals_a_replay(ours: Backend) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    expected: dict[int, tuple[Any, ...]] = {}
    changes = []
    for number in range(25_000):
        key = draw.randrange(2_000)
        if key not in expected:
            changes.append(("+I", key, str(number), number))
        elif draw.random() < 0.3:
            changes.append(("-D", *expected.pop(key)))
            continue
        else:
            changes += [("-U", *expected[key]), ("+U", key, str(number), number)]
        expected[key] = (key, str(number), number)
    path = ours.create("accounts", ACCOUNTS, 3)
    schema = pa.schema(
        [("_change_type", pa.string()), ("id", pa.int64()), ("name", pa.string()), ("balance", pa.int32())]
    )
    table = pa.Table.from_arrays([list(column) for column in zip(*changes, strict=True)], schema=schema)
    ours.save(ours.spark.createDataFrame(table).coalesce(1), path, **{"write.mode": "changelog"})
    assert _rows(ours, path) == sorted(expected.values())


def test_changelog_can_leave_deletes_out_and_write_some_columns(ours: Backend) -> None:
    path = _filled(ours)
    options = {"write.mode": "changelog", "ignore.delete": "true", "target.columns": "id,balance"}
    columns = "_log_offset bigint, id bigint, balance int, _change_type string, _commit_timestamp timestamp"
    changes = [(0, 1, 11, "+U", None), (1, 2, 20, "-D", None), (2, 4, 40, "+I", None)]
    ours.save(_frame(ours, changes, columns), path, **options)
    assert _rows(ours, path) == [(1, "a", 11), (2, "b", 20), (3, "c", 30), (4, None, 40)]


def test_change_types_nobody_knows_fail_the_write(ours: Backend) -> None:
    path = _filled(ours)
    with pytest.raises(Exception, match=r"'_change_type' of changes of \S+\.accounts has 'I'; it may have \+I, \+U"):
        ours.save(_frame(ours, [("I", 7, "x", 1)], CHANGE), path, **{"write.mode": "changelog"})
    assert len(_rows(ours, path)) == 3


def test_a_column_that_the_server_numbers_is_left_out(ours: Backend) -> None:
    builder = Schema.builder().column("email", T.string()).column("n", T.bigint()).column("city", T.string())
    path = ours.create("people", builder.primary_key(["email"]).enable_auto_increment("n").build())
    ours.save(_frame(ours, [("x@a", "Ulm"), ("y@a", "Bonn")], "email string, city string"), path)
    assert {row[1] for row in _rows(ours, path)} == {1, 2}
    with pytest.raises(Exception, match=r"column 'n' of \S+\.people is numbered by the server: leave it out"):
        ours.save(_frame(ours, [("x@a", 1, "Ulm")], "email string, n bigint, city string"), path)
    with Catalog(ours.spark, ours.address) as catalog:
        with pytest.raises(Exception, match=r"attach\(\.\.\., target_columns='\.\.\.'\)"):
            ours.spark.sql(f"INSERT INTO {catalog.attach(path)} (email) VALUES ('z@a')")
        name = catalog.attach(path, target_columns="email, city")
        ours.spark.sql(f"INSERT INTO {name} (email, city) VALUES ('z@a', 'Kiel')")
        assert [tuple(row) for row in ours.spark.table(name).where("n = 3").collect()] == [("z@a", 3, "Kiel")]
        catalog.detach(path)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        (
            "1L AS id, 'x' AS name",
            {},
            r"lacks the column 'balance' of \S+; .* keep the others, use \.option\('target.columns', 'id, name'\)",
        ),
        ("'x' AS name, 1 AS balance", {}, r"lacks the column 'id' of \S+\.accounts; columns match by name\.$"),
        ("1L AS id, 1 AS n", {"target.columns": "id, balance"}, "lacks the column 'balance'"),
        ("1L AS id, 1 AS n", {"target.columns": "id, n"}, "has no column 'n'; its columns are id, name, balance"),
        ("1L AS id, 1 AS balance", {"target.columns": "balance"}, "needs all columns of the primary key; 'id' is not"),
        ("'x' AS name", {"write.mode": "delete"}, r"lacks the column 'id' of \S+\.accounts; columns match by name"),
        ("1L AS id, 1 AS x", {"write.mode": "delete"}, r"has the column 'x', which \S+\.accounts does not have"),
        ("'x' AS id", {"write.mode": "delete"}, "'id' of .* is of type bigint NOT NULL; the DataFrame has string"),
        ("1L AS id, 'x' AS name, 1 AS balance", {"write.mode": "append"}, "primary key, so rows are upserted: leave"),
        ("1L AS id, 'x' AS name, 1 AS balance", {"write.mode": "merge"}, "is one of append, upsert, delete, changelog"),
        ("1L AS id, 'x' AS name, 1 AS balance", {"write.mode": "changelog"}, "'_change_type' says what becomes of a"),
        ("1L AS id, 'x' AS name, 1 AS balance", {"ignore.delete": "true"}, r"is for \.option\('write.mode', 'chang"),
        ("1L AS id, 'x' AS name, 1 AS balance", {"exactly.once": "true"}, "'exactly.once' is for streams"),
        (
            "'+I' AS _change_type, 1L AS id, 'x' AS name, 1 AS balance",
            {},
            r"has the column '_change_type', .* use \.option\('write.mode', 'changelog'\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_any_row(
    ours: Backend, query: str, options: dict[str, str], message: str
) -> None:
    path = ours.create("accounts", ACCOUNTS)
    with pytest.raises(PySparkException) as caught:
        ours.save(ours.spark.sql(f"SELECT {query}"), path, **options)
    last_line = next(line for line in reversed(str(caught.value).splitlines()) if "Error: " in line)
    assert re.search(message, last_line), last_line
    assert _rows(ours, path) == []


@pytest.mark.parametrize("options", [{"write.mode": "upsert"}, {"write.mode": "delete"}, {"target.columns": "id"}])
def test_log_tables_take_appends_only(ours: Backend, options: dict[str, str]) -> None:
    path = ours.create("log", pa.schema([("id", pa.int64())]))
    with pytest.raises(Exception, match=r"\.log has no primary key: "):
        ours.save(ours.spark.range(1), path, **options)


def test_overwriting_a_primary_key_table_is_refused(ours: Backend) -> None:
    path = _filled(ours)
    with pytest.raises(Exception, match=r"accounts can't be overwritten: use \.mode\('append'\), which .* upserts"):
        ours.save(_frame(ours, [(9, "x", 9)], ROW), path, mode="overwrite")
    assert len(_rows(ours, path)) == 3


@pytest.mark.compat
def test_all_modes_on_apache_fluss(apache: Backend) -> None:
    path = _filled(apache)
    apache.save(_frame(apache, [(2, "b2", 20), (4, "d", 40)], ROW), path)
    apache.save(_frame(apache, [(1, 11), (5, 50)], "id bigint, balance int"), path, **{"target.columns": "id,balance"})
    apache.save(_frame(apache, [(3,)], "id bigint"), path, **{"write.mode": "delete"})
    changes = [("-U", 4, "d", 40), ("+U", 4, "d2", 41), ("-D", 2, "b2", 20), ("+I", 6, "f", 60), ("-D", 6, "f", 60)]
    apache.save(_frame(apache, changes, CHANGE), path, **{"write.mode": "changelog"})
    assert _rows(apache, path) == [(1, "a", 11), (4, "d2", 41), (5, None, 50)]
