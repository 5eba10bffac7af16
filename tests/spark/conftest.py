"""One Spark session and one server for all Spark tests: Spark takes longer to start than most tests to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from fluss.spark import session as spark_session
from fluss.sync import Config, FlussConnection, FlussTable, Schema, TableDescriptor, TablePath
from fluss.testing import ApacheFluss, FlussServer
from tests.spark.connect_server import remote_session


@dataclass(frozen=True)
class Backend:
    """A server with a database for one test, and Spark next to it."""

    spark: SparkSession
    server: FlussServer | ApacheFluss
    connection: FlussConnection
    database: str

    @property
    def address(self) -> str:
        return self.server.bootstrap_servers

    def create(self, name: str, schema: Schema | pa.Schema, bucket_count: int = 1) -> TablePath:
        """A new table, ready for rows."""
        path = TablePath(self.database, name)
        table_schema = schema if isinstance(schema, Schema) else Schema(schema)
        self.connection.get_admin().create_table(path, TableDescriptor(table_schema, bucket_count=bucket_count))
        if isinstance(self.server, ApacheFluss):
            self.server.await_table(path.database_name, path.table_name)
        return path

    def append(self, path: TablePath, rows: pa.Table) -> None:
        """Append with the client."""
        with self.connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(rows)

    def rows(self, path: TablePath) -> pa.Table:
        """Everything in a table, read with the client."""
        table: FlussTable = self.connection.get_table(path)
        with table.new_scan().create_record_batch_log_scanner() as scanner:
            scanner.subscribe_buckets(dict.fromkeys(range(table.get_table_info().num_buckets), 0))
            return scanner.to_arrow()

    def load(self, path: TablePath, schema: str | None = None, **options: str) -> DataFrame:
        """The table as a DataFrame."""
        reader = self.spark.read.format("fluss").option("bootstrap.servers", self.address).options(**options)
        return (reader if schema is None else reader.schema(schema)).load(str(path))

    def save(self, frame: DataFrame, path: TablePath, mode: str = "append", **options: str) -> None:
        """Write a DataFrame."""
        writer = frame.write.format("fluss").option("bootstrap.servers", self.address).options(**options)
        writer.mode(mode).save(str(path))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark's own variable, which says the same to it.
    is_remote = os.environ.get("SPARK_API_MODE") == "connect"
    with remote_session(tmp_path_factory.mktemp("connect")) if is_remote else spark_session("fluss tests") as session:
        yield session


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("spark") / "data") as server:
        yield server


@pytest.fixture
def ours(spark: SparkSession, spark_server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Backend]:
    """Our server."""
    yield from _backend(spark, spark_server, new_name("spark"))


@pytest.fixture
def apache(spark: SparkSession, apache_fluss: ApacheFluss, new_name: Callable[[str], str]) -> Iterator[Backend]:
    """The real Apache Fluss."""
    yield from _backend(spark, apache_fluss, new_name("spark"))


def _backend(spark: SparkSession, server: FlussServer | ApacheFluss, database: str) -> Iterator[Backend]:
    with FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers})) as connection:
        connection.get_admin().create_database(database)
        yield Backend(spark, server, connection, database)
        connection.get_admin().drop_database(database, cascade=True)
