"""What Spark is told for merge-on-read: the catalog and the statement."""

from __future__ import annotations

import pyarrow as pa
import pytest
from click.testing import CliRunner

from fluss.cli.commands.lake import tier
from fluss.lake.options import LakeOptions
from fluss.lake.parquet import FileTarget
from fluss.lake.tiering.task import ChangesPart, TieredTable
from fluss.model.descriptor import TableDescriptor
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Schema
from fluss.spark.tiering import catalog_settings, merge_statement

PATH = TablePath("shop", "orders")


def test_the_command_does_it_in_spark_alone() -> None:
    done = CliRunner().invoke(tier, ["--bootstrap", "127.0.0.1:1", "--local", "--merge-on-read"])
    assert done.exit_code == 2
    assert "--local" in done.output


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"warehouse": "/lake"}, {"type": "jdbc", "uri": "jdbc:sqlite:/lake/catalog.db", "warehouse": "/lake"}),
        ({"type": "sql", "uri": "sqlite:////a%20b/c.db"}, {"type": "jdbc", "uri": "jdbc:sqlite:/a b/c.db"}),
        ({"type": "jdbc", "uri": "jdbc:postgresql://db/x"}, {"type": "jdbc", "uri": "jdbc:postgresql://db/x"}),
        ({"type": "sql", "uri": "postgresql://db/x"}, {"type": "jdbc", "uri": "jdbc:postgresql://db/x"}),
        ({"type": "rest", "uri": "http://c:1", "token": "t"}, {"type": "rest", "uri": "http://c:1", "token": "t"}),
    ],
)
def test_catalogs_as_the_jvm_is_told(given: dict[str, str], expected: dict[str, str]) -> None:
    found = catalog_settings(LakeOptions.from_properties({**given, "name": "mine"}))
    assert found["spark.sql.catalog.mine"] == "org.apache.iceberg.spark.SparkCatalog"
    assert found["spark.sql.catalog.mine.cache-enabled"] == "false"
    assert {key: found[f"spark.sql.catalog.mine.{key}"] for key in expected} == expected


def test_the_statement_names_keys_and_where_changes_are() -> None:
    columns = pa.schema([pa.field("a`b", pa.int64(), False), pa.field("part", pa.string(), False), ("v", pa.string())])
    schema = Schema(columns, primary_keys=["a`b", "part"])
    descriptor = TableDescriptor(schema, partition_keys=["part"], bucket_count=3)
    table = TieredTable(PATH, 7, ("a`b", "part", "v"), FileTarget("", pa.schema([]), ("part",)))
    tasks = [
        ChangesPart(table, TableBucket(7, bucket), (part,), 0, 1)
        for bucket, part in ((2, "it's"), (0, "x\\"), (2, "x\\"))
    ]
    found = merge_statement(TableInfo(PATH, 7, 1, descriptor, 3, 0, 0), "`c`.`t`", tasks)
    condition = found.partition(" ON ")[2].partition(" WHEN ")[0]
    assert condition.split(" AND ") == [
        "t.`a``b` = s.`a``b`",
        "t.`part` = s.`part`",
        "t.`__bucket` IN (0, 2)",
        r"t.`part` IN ('it\'s', 'x\\')",
    ]
