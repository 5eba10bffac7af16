"""Fluss tables under names of Spark's own catalog, so that SQL and `spark.table` find them.

Spark hands the OPTIONS of a catalog table to `schema()` alone, not to readers and writers. So each attached table gets
a data source of its own that knows its options, and the catalog's table is one that uses this source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.model.errors import InvalidRequestError
from fluss.spark.foreign_options import PROVIDER
from fluss.spark.source_options import TABLE, bad_option, is_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluss.model.paths import TablePath
    from fluss.spark.source import FlussDataSource

_TABLE_COMMENT = "Fluss table "
_DATABASE_COMMENT = "Fluss database "
_NAME = re.compile(r"(?:\w+\.)?\w+", re.ASCII)


def attach(spark: SparkSession, path: TablePath, name: str, options: Mapping[str, str]) -> None:
    """Make a table known to Spark as `name`; one that was attached under this name before is replaced."""
    if spark.catalog.tableExists(_quoted(name)):
        _check_ours(spark, name, path)
    source = _bound_source({**options, TABLE: str(path)})
    source({}).schema()  # so that what is wrong with the options is known before anything is replaced
    spark.dataSource.register(source)
    database = name.rpartition(".")[0]
    if database:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)} COMMENT '{_DATABASE_COMMENT}{database}'")
    spark.sql(f"DROP TABLE IF EXISTS {_quoted(name)}")
    spark.sql(f"CREATE TABLE {_quoted(name)} USING {source.name()} COMMENT '{_TABLE_COMMENT}{path}'")


def detach(spark: SparkSession, name: str) -> None:
    """Forget an attached table, and the database in Spark that was made for it when nothing else is in there."""
    if not spark.catalog.tableExists(_quoted(name)):
        return
    _check_ours(spark, name)
    spark.sql(f"DROP TABLE {_quoted(name)}")
    database = name.rpartition(".")[0]
    if not database or spark.sql(f"SHOW TABLES IN {_quoted(database)}").collect():
        return
    if (spark.catalog.getDatabase(_quoted(database)).description or "").startswith(_DATABASE_COMMENT):
        spark.sql(f"DROP DATABASE {_quoted(database)}")


def spark_name(name: str | TablePath) -> str:
    """A name for a table in Spark's catalog, which knows letters, digits and underscores only."""
    found = str(name).replace("-", "_").replace("`", "")
    if not _NAME.fullmatch(found):
        raise InvalidRequestError(f"Spark can't have a table of the name {found!r}; choose another by view='...'.")
    return found


def _check_ours(spark: SparkSession, name: str, path: TablePath | None = None) -> None:
    """Raise unless the table of this name in Spark is an attached one, that of `path` if this is given."""
    found = _comment_of(spark, name)
    is_attached = found.startswith(_TABLE_COMMENT)
    if not is_attached or (path is not None and found != f"{_TABLE_COMMENT}{path}"):
        what = found if is_attached else "a table of its own"
        raise InvalidRequestError(f"Spark has {what} under the name {name!r}; choose another by view='...'.")


def _check_given(options: Mapping[str, str]) -> None:
    """Raise if where an attached table is used says that it is another one, or is reached in another way."""
    for key in filter(is_place, options):
        raise bad_option(
            f"The option {key!r} of an attached table is that of Catalog.attach(...): attach the table again with it."
        )


def _comment_of(spark: SparkSession, name: str) -> str:
    """The comment of a table; `catalog.getTable` does not have that of one with a Python data source."""
    database, _, table = name.rpartition(".")
    where = f"IN {_quoted(database)} " if database else ""
    for row in spark.sql(f"SHOW TABLE EXTENDED {where}LIKE '{table}'").collect():
        for line in row["information"].splitlines():
            if line.startswith("Comment: "):
                return str(line.removeprefix("Comment: "))
    return ""


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


def _bound_source(baked: Mapping[str, str]) -> type[FlussDataSource]:
    """A data source for one table. Defined in a function, so it is shipped whole, with the options it closes over."""
    from fluss.spark.source import FlussDataSource

    digest = hashlib.sha256(repr(sorted(baked.items())).encode()).hexdigest()[:16]

    class AttachedTable(FlussDataSource):
        """One table; options given where it is used go before those it was attached with."""

        def __init__(self, options: Mapping[str, str]) -> None:
            # When Spark's catalog asks for the columns of the new table, these are that table's properties.
            given = {} if PROVIDER in options else options
            _check_given(given)
            super().__init__({key.lower(): value for key, value in (*baked.items(), *given.items())})

        @classmethod
        def name(cls) -> str:
            return f"fluss_{digest}"

    return AttachedTable
