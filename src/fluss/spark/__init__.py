"""The PySpark data source `fluss`: tables read and written as Arrow batches, in batches and in streams.

    df = spark.read.format("fluss").option("bootstrap.servers", "localhost:9123").load("shop.orders")
    df.write.format("fluss").option("bootstrap.servers", "localhost:9123").mode("append").save("shop.copy")

`session()` makes a session for one machine, `Catalog(spark, address)` creates tables and makes them known to SQL,
`options(connection)` has what Spark needs to reach the server of a connection, `tier(spark, ...)` moves tables to the
lake.

Where this package is installed Spark finds the source by itself; `register(spark)` does it by hand. The package must be
importable on the executors too, by the Python that Spark starts there: that is `python3` of the PATH unless the
environment variable PYSPARK_PYTHON names another, so in a virtual environment set it to `sys.executable` before the
session starts (`fluss.spark.session()` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from fluss.spark.columns import table_schema
    from fluss.spark.sessions import register, session
    from fluss.spark.source_options import options
except ModuleNotFoundError as error:
    if error.name not in ("pyspark", "pandas"):
        raise
    raise ModuleNotFoundError(f"{error.name} is not installed; install flussbett[spark].", name=error.name) from error

if TYPE_CHECKING:
    from fluss.spark.catalog import Catalog
    from fluss.spark.tiering import tier

__all__ = ["Catalog", "options", "register", "session", "table_schema", "tier"]


def __getattr__(name: str) -> Any:
    # Spark's workers load this package for every task; what only programs use is loaded by them.
    if name == "Catalog":
        from fluss.spark.catalog import Catalog

        return Catalog
    if name == "tier":
        from fluss.spark.tiering import tier

        return tier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
