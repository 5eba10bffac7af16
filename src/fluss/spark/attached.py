"""Fluss tables under names of Spark's own catalog, so that SQL and `spark.table` find them.

Spark hands the OPTIONS of a catalog table to `schema()` alone, not to readers and writers. So each attached table gets
a data source of its own that knows its options, and the catalog's table is one that uses this source.

Spark's ALTER TABLE, CREATE OR REPLACE and DROP change the entry of its catalog and ask nobody. The source knows the
columns that the entry had when it was attached, so the next use of a changed one is an error that says what to do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.paths import TablePath
from fluss.spark.foreign_options import PROVIDER
from fluss.spark.source import FlussDataSource
from fluss.spark.source_options import TABLE, WRITE_OPTIONS, SourceOptions, bad_option, is_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluss.spark.read.reader import FlussReader
    from fluss.spark.stream.reader import FlussStreamReader
    from fluss.spark.write.stream_writer import FlussStreamWriter
    from fluss.spark.write.writer import FlussWriter

_TABLE_COMMENT = "Fluss table "
_DATABASE_COMMENT = "Fluss database "
_NAME = re.compile(r"(?:\w+\.)?\w+", re.ASCII)
_COLUMNS_SHOWN = 5


def attach(spark: SparkSession, path: TablePath, name: str, options: Mapping[str, str]) -> None:
    """Make a table known to Spark as `name`; one that was attached under this name before is replaced."""
    if spark.catalog.tableExists(_quoted(name)):
        _check_ours(spark, name, path)
    # What is wrong with the options is known before anything is replaced.
    source = _bound_source(path, name, {key.lower(): value for key, value in {**options, TABLE: str(path)}.items()})
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
    # Spark lists temporary views, which are in no database, with those of each.
    if not database or not all(row.isTemporary for row in spark.sql(f"SHOW TABLES IN {_quoted(database)}").collect()):
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
    entry = _entry(spark, name)
    provider, plain = entry.get("Provider", ""), FlussDataSource.name()
    # Made by CREATE TABLE ... USING fluss: it has no rows, and nobody can use it.
    if provider == plain:
        return
    is_attached = provider.startswith(f"{plain}_")
    if not is_attached or (path is not None and not provider.startswith(_provider_prefix(path))):
        # Spark loses the comment when properties are set.
        what = entry.get("Comment", "another Fluss table") if is_attached else "a table of its own"
        raise InvalidRequestError(f"Spark has {what} under the name {name!r}; choose another by view='...'.")


def _check_given(options: Mapping[str, str]) -> None:
    """Raise if where an attached table is used says that it is another one, or is reached in another way."""
    for key in filter(is_place, options):
        raise bad_option(
            f"The option {key!r} of an attached table is that of Catalog.attach(...): attach the table again with it."
        )


def _entry(spark: SparkSession, name: str) -> dict[str, str]:
    """What Spark's catalog says of a table; `catalog.getTable` does not have all of one with a Python data source."""
    database, _, table = name.rpartition(".")
    where = f"IN {_quoted(database)} " if database else ""
    found: dict[str, str] = {}
    for row in spark.sql(f"SHOW TABLE EXTENDED {where}LIKE '{table}'").collect():
        for line in row["information"].splitlines():
            key, _, value = line.partition(": ")
            found.setdefault(key, value)
    return found


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


def _provider_prefix(path: TablePath) -> str:
    return f"{FlussDataSource.name()}_{_digest(str(path))}_"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Attached:
    """What is known of a table since it was attached."""

    path: TablePath
    name: str
    options: Mapping[str, str]
    schema: Any = None

    @property
    def provider(self) -> str:
        """The name of its data source."""
        return _provider_prefix(self.path) + _digest(repr((self.name, sorted(self.options.items()))))

    def differs(self, difference: str) -> SchemaMismatchError:
        """What is raised when Spark's entry and the table have other columns."""
        view = "" if self.name == spark_name(self.path) else f", view={self.name!r}"
        return SchemaMismatchError(
            f"Spark's table {self.name} has other columns than the Fluss table {self.path}: {difference}. Spark's "
            f"ALTER TABLE does not reach a Fluss table: catalog.attach({str(self.path)!r}{view}) gives the name the "
            f"table's columns, and `fluss table alter {self.path} --add-column ...` adds one to the table."
        )


class AttachedTable(FlussDataSource):
    """One table; options given where it is used go before those it was attached with."""

    attached: ClassVar[Attached]

    def __init__(self, options: Mapping[str, str]) -> None:
        # When Spark's catalog asks for the columns of the new table, these are that table's properties.
        given = {} if PROVIDER in options else options
        _check_given(given)
        super().__init__({**self.attached.options, **{key.lower(): value for key, value in given.items()}})

    @classmethod
    def name(cls) -> str:
        """What comes after USING."""
        return cls.attached.provider

    @property
    def _reading(self) -> SourceOptions:
        """The options without those of writes, which a name may be attached with, too."""
        own = {name: value for name, value in self._parsed.own.items() if name not in WRITE_OPTIONS}
        return replace(self._parsed, own=own)

    def reader(self, schema: Any) -> FlussReader:
        """A batch reader for the columns of Spark's entry."""
        self._check_entry(schema)
        return super().reader(schema)

    def streamReader(self, schema: Any) -> FlussStreamReader:  # noqa: N802
        """A reader of micro-batches with the columns of Spark's entry."""
        self._check_entry(schema)
        return super().streamReader(schema)

    def writer(self, schema: Any, overwrite: bool) -> FlussWriter:
        """A writer of rows that have the columns of Spark's entry."""
        known = _types(self.attached.schema)
        # By their names: Spark has cast the rows to the types of its entry, but what may be null inside is the query's.
        given = {field.name: known.get(field.name, field.dataType.simpleString()) for field in schema.fields}
        self._check(given, known)
        with self._explained():
            return super().writer(schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> FlussStreamWriter:  # noqa: N802
        """A writer of micro-batches, which have the columns of the query."""
        with self._explained():
            return super().streamWriter(schema, overwrite)

    def _check_entry(self, entry: Any) -> None:
        """Raise if Spark's entry was changed, or if the table has not the columns any more that it had.

        Columns that the table has got meanwhile are not read.
        """
        known, present = _types(self.attached.schema), self._present()
        self._check(_types(entry), {name: present[name] for name in known if name in present})

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Rows that do not fit the table do not because its columns have changed, if they have."""
        try:
            yield
        except SchemaMismatchError:
            self._check(_types(self.attached.schema), self._present())
            raise

    def _present(self) -> dict[str, str]:
        """The columns that the name would have if it were attached now."""
        return _types(type(self)({}).schema())

    def _check(self, entry: Mapping[str, str], table: Mapping[str, str]) -> None:
        if list(entry.items()) != list(table.items()):
            raise self.attached.differs(_difference(entry, table))


def _bound_source(path: TablePath, name: str, options: Mapping[str, str]) -> type[AttachedTable]:
    """A data source for one table. Defined in a function, so it is shipped whole, with the options it closes over."""

    class Bound(AttachedTable):
        """The table."""

        attached = Attached(path, name, options)

    Bound.attached = replace(Bound.attached, schema=Bound({}).schema())
    return Bound


def _types(schema: Any) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _difference(entry: Mapping[str, str], table: Mapping[str, str]) -> str:
    parts = []
    for verb, these, those in (("has", entry, table), ("lacks", table, entry)):
        found = [f"{name} {kind}" for name, kind in these.items() if those.get(name) != kind]
        if found:
            parts.append(f"it {verb} {', '.join(found[:_COLUMNS_SHOWN])}" + (", ..." * (len(found) > _COLUMNS_SHOWN)))
    return " and ".join(parts) or "they are in another order"
