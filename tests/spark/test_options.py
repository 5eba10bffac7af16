"""Options as Spark hands them over: its own beside ours, wherever a program may give them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from fluss.spark import Catalog
from fluss.sync import TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

NUMBERS = pa.table({"id": list(range(10))})


@pytest.fixture
def table(ours: Backend) -> TablePath:
    path = ours.create("numbers", NUMBERS.schema)
    ours.append(path, NUMBERS)
    return path


@pytest.fixture
def name(ours: Backend, table: TablePath) -> str:
    """The table attached under its own name."""
    with Catalog(ours.spark, ours.address) as catalog:
        return catalog.attach(table)


def test_streams_have_names(ours: Backend, table: TablePath, tmp_path: Path) -> None:
    copy = ours.create("copy", NUMBERS.schema)
    writer = _stream(ours, table).writeStream.format("fluss").option("bootstrap.servers", ours.address)
    query = writer.queryName("copy of numbers").option("checkpointLocation", str(tmp_path / "1")).start(str(copy))
    _finish(query)
    assert query.name == "copy of numbers"
    everything = {"bootstrap.servers": ours.address, "table": str(copy), "checkpointLocation": str(tmp_path / "2")}
    stream = _stream(ours, table).writeStream
    _finish(stream.start(format="fluss", outputMode="append", queryName="again", **everything))
    assert ours.rows(copy).num_rows == 20


def test_streams_into_attached_tables_have_names(ours: Backend, table: TablePath, tmp_path: Path, name: str) -> None:
    copy = ours.create("copy", NUMBERS.schema)
    with Catalog(ours.spark, ours.address) as catalog:
        into = catalog.attach(copy)
    stream = ours.spark.readStream.option("maxRowsPerTrigger", 4).table(name)
    writer = stream.writeStream.queryName("by name").option("checkpointLocation", str(tmp_path / "1"))
    _finish(writer.option("exactly.once", "true").toTable(into))
    assert ours.rows(copy).num_rows == 10


def test_options_of_attached_tables_are_checked(ours: Backend, name: str) -> None:
    assert ours.spark.read.option("columns", "id").option("filter", "id < 3").table(name).count() == 3
    with pytest.raises(AnalysisException, match=r"Unknown option 'colums' for the data source 'fluss'. Did you mean"):
        ours.spark.read.option("colums", "id").table(name).collect()
    with pytest.raises(AnalysisException, match=r"Unknown option 'filtr' .* Did you mean 'filter'"):
        ours.spark.sql(f"SELECT * FROM {name} WITH (filtr = 'id < 3')").collect()
    assert ours.spark.sql(f"SELECT * FROM {name} WITH (filter = 'id < 3')").count() == 3
    with pytest.raises(AnalysisException, match="'replaceWhere' can't be used with the data source 'fluss'"):
        ours.spark.range(1).writeTo(name).option("replaceWhere", "id = 1").append()


def test_an_attached_table_is_reached_as_it_was_attached(ours: Backend, name: str) -> None:
    elsewhere = {"table": "some.other", "bootstrap.servers": "elsewhere:9123", "client.security.protocol": "sasl"}
    for option, value in elsewhere.items():
        with pytest.raises(AnalysisException, match=f"The option '{option}' of an attached table is that of"):
            ours.spark.sql(f"SELECT * FROM {name} WITH (`{option}` = '{value}')").collect()
    assert ours.spark.table(name).count() == 10


def test_what_would_not_happen_is_refused(ours: Backend, table: TablePath, tmp_path: Path) -> None:
    frame = ours.spark.range(1)
    for option, value in {"mergeSchema": "true", "partitionOverwriteMode": "dynamic", "replaceWhere": "id = 1"}.items():
        with pytest.raises(AnalysisException, match=f"'{option}' can't be used with the data source 'fluss'"):
            ours.save(frame, table, **{option: value})
    with pytest.raises(AnalysisException, match="'checkpointLocation' is for streams that are written"):
        ours.save(frame, table, checkpointLocation=str(tmp_path / "batch"))
    with pytest.raises(AnalysisException, match=r"'startingOffsets' can't be used .* scan.startup.mode"):
        ours.load(table, startingOffsets="earliest")
    with pytest.raises(AnalysisException, match="load one table at a time"):
        ours.spark.read.format("fluss").option("bootstrap.servers", ours.address).load([str(table), str(table)])
    assert ours.rows(table).num_rows == 10
    ours.save(frame, table, mergeSchema="false")
    assert ours.rows(table).num_rows == 11


def test_a_stream_that_is_read_has_no_checkpoint(ours: Backend, table: TablePath, tmp_path: Path) -> None:
    reader = ours.spark.readStream.format("fluss").option("bootstrap.servers", ours.address)
    reader = reader.option("checkpointLocation", str(tmp_path / "1"))
    with pytest.raises(AnalysisException, match="'checkpointLocation' is for streams that are written"):
        reader.load(str(table))
    writer: DataStreamWriter = reader.schema("id BIGINT").load(str(table)).writeStream.format("noop")
    with pytest.raises(StreamingQueryException, match="'checkpointLocation' is for streams that are written"):
        _finish(writer.option("checkpointLocation", str(tmp_path / "2")).start())


def test_tables_of_sql_that_spark_would_not_know_are_refused(ours: Backend, table: TablePath) -> None:
    options = f"`bootstrap.servers` '{ours.address}', table '{table}'"
    with pytest.raises(AnalysisException, match=r"CREATE TABLE ... USING fluss makes no table"):
        ours.spark.sql(f"CREATE TABLE made_by_sql USING fluss OPTIONS ({options})")
    assert not ours.spark.catalog.tableExists("made_by_sql")
    ours.spark.sql(f"CREATE TEMPORARY VIEW made_by_sql USING fluss OPTIONS ({options})")
    assert ours.spark.table("made_by_sql").count() == 10
    ours.spark.catalog.dropTempView("made_by_sql")


def _stream(ours: Backend, table: TablePath) -> DataFrame:
    return ours.spark.readStream.format("fluss").option("bootstrap.servers", ours.address).load(str(table))


def _finish(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()
