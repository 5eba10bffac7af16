"""The PySpark data source `fluss`: log tables read and appended to as Arrow batches.

    df = spark.read.format("fluss").option("bootstrap.servers", "localhost:9123").load("shop.orders")
    df.write.format("fluss").option("bootstrap.servers", "localhost:9123").mode("append").save("shop.copy")

Where this package is installed Spark finds the source by itself; `register(spark)` does it by hand. The package must be
importable on the executors too, by the Python that Spark starts there: that is `python3` of the PATH unless the
environment variable PYSPARK_PYTHON names another, so in a virtual environment set it to `sys.executable` before the
session starts (`local_session` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluss.spark.types import table_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session", "register", "table_schema"]


def register(spark: SparkSession) -> None:
    """Register the data source `fluss` in a session, for where Spark's own lookup does not see this package."""
    from fluss.spark.source import FlussDataSource

    spark.dataSource.register(FlussDataSource)


def local_session(app_name: str, cores: int = 2) -> Any:
    """A Spark session on this machine; see `fluss.spark.session`."""
    from fluss.spark.session import local_session

    return local_session(app_name, cores)
