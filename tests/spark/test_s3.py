"""A lake in S3 from Spark: tasks write and read its files, with the login of whoever runs the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import fluss.spark
from fluss.lake.report import Status, TieringReport
from fluss.sync import FlussConnection, FlussTable, Schema, TableDescriptor, TablePath, connect
from fluss.testing import FlussServer
from tests.kit.lake.hostile import server_settings
from tests.peers.objectstore import ObjectStore, object_store

pytestmark = pytest.mark.spark

WAREHOUSE = "s3://spark/lake"
PATH = TablePath("fluss", "orders")
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as running:
        running.create_bucket("spark")
        running.demand_login()
        yield running


@pytest.fixture
def connection(tmp_path: Path, store: ObjectStore) -> Iterator[FlussConnection]:
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog/catalog.db", "warehouse": WAREHOUSE}
    with (
        FlussServer(tmp_path / "data", args=server_settings(tmp_path, settings)) as server,
        connect(server.bootstrap_servers) as connected,
    ):
        descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=2, properties={"table.datalake.enabled": "true"})
        connected.get_admin().create_table(PATH, descriptor)
        yield connected


def append(table: FlussTable, ids: range) -> None:
    with table.new_append().create_writer() as writer:
        writer.write_arrow(pa.table({"id": list(ids)}, SCHEMA))


def s3_of(store: ObjectStore) -> dict[str, str]:
    login = store.login
    return {"s3.endpoint": store.endpoint, "s3.access-key-id": login.key_id, "s3.secret-access-key": login.secret}


def test_tiering_union_reads_and_streams(
    connection: FlussConnection, store: ObjectStore, spark: SparkSession, tmp_path: Path
) -> None:
    table = connection.get_table(PATH)
    append(table, range(100))
    assert tiered(spark, connection, s3_of(store)).status is Status.TIERED
    append(table, range(100, 105))
    assert sorted(row.id for row in loaded(spark, connection, s3_of(store)).collect()) == list(range(105))
    only = loaded(spark, connection, s3_of(store), **{"lake.mode": "only", "filter": "id < 10"})
    assert only.count() == 10
    stream = spark.readStream.format("fluss").options(**options(connection, s3_of(store))).load(str(PATH))
    query = (
        stream.writeStream.format("memory")
        .queryName("from_s3")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    assert spark.table("from_s3").distinct().count() == 105


def test_a_wrong_login_is_told_in_a_line(connection: FlussConnection, store: ObjectStore, spark: SparkSession) -> None:
    append(connection.get_table(PATH), range(10))
    wrong = {**s3_of(store), "s3.secret-access-key": "no"}
    report = tiered(spark, connection, wrong)
    assert report.status is Status.FAILED
    assert str(report.reason).startswith("S3 refuses access to the bucket spark")
    assert tiered(spark, connection, s3_of(store)).status is Status.TIERED
    with pytest.raises(PySparkException, match="S3 refuses access to the bucket spark"):
        loaded(spark, connection, wrong).collect()


def tiered(spark: SparkSession, connection: FlussConnection, s3: Mapping[str, str]) -> TieringReport:
    address = connection.config.bootstrap_servers
    [report] = fluss.spark.tier(spark, bootstrap_servers=address, tables=[PATH], catalog=s3, lake_trusted=WAREHOUSE)
    return report


def options(connection: FlussConnection, s3: Mapping[str, str]) -> dict[str, str]:
    address = {"bootstrap.servers": connection.config.bootstrap_servers, "lake.trusted": WAREHOUSE}
    return address | {f"lake.catalog.{key}": value for key, value in s3.items()}


def loaded(spark: SparkSession, connection: FlussConnection, s3: Mapping[str, str], **more: str) -> DataFrame:
    return spark.read.format("fluss").options(**options(connection, s3), **more).load(str(PATH))
