"""Databases and tables of a Fluss server for a Spark session, and their names in Spark's own catalog.

An attached table has a name in Spark's own catalog, so that SQL and `spark.table` find it. Spark hands the OPTIONS of a
catalog table to `schema()` alone, not to readers and writers. So each attached table gets a data source of its own that
knows its options, and the catalog's table is one that uses this source.

Spark's ALTER TABLE, CREATE OR REPLACE and DROP change the entry of its catalog and ask nobody. The source knows the
columns that the entry had when it was attached, so the next use of a changed one is an error that says what to do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.spark.columns import spark_type, table_schema
from fluss.spark.sessions import register
from fluss.spark.source import FlussDataSource
from fluss.spark.source_options import (
    CHANGELOG,
    PROVIDER,
    TABLE,
    WRITE_OPTIONS,
    SourceOptions,
    bad_option,
    is_place,
    option_texts,
    parse_table_path,
    text_of,
    without_suffix,
)
from fluss.spark.source_options import options as options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from fluss.api.connect import FlussConnectionBase
    from fluss.model.infos import TableInfo
    from fluss.spark.read.reader import FlussReader
    from fluss.spark.stream.reader import FlussStreamReader
    from fluss.spark.write.writer import FlussStreamWriter, FlussWriter

_TABLE_COMMENT = "Fluss table "
_DATABASE_COMMENT = "Fluss database "
_NAME = re.compile(r"(?:\w+\.)?\w+", re.ASCII)
_COLUMNS_SHOWN = 5
_SPARK_CATALOG = "spark_catalog"


def attach(spark: SparkSession, path: TablePath, name: str, options: Mapping[str, str]) -> None:
    """Make a table known to Spark as `name`; one that was attached under this name before is replaced."""
    _check_current(spark)
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


def _check_current(spark: SparkSession) -> None:
    """Raise unless names are those of Spark's own catalog: others take no table with a data source in Python."""
    current = spark.catalog.currentCatalog()
    if current != _SPARK_CATALOG:
        raise InvalidRequestError(
            f"Tables are attached in Spark's own catalog, and the session's current one is {current!r}: call "
            f"spark.catalog.setCurrentCatalog({_SPARK_CATALOG!r}) first, and name tables of the other one in full."
        )


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
        """A table in Spark's catalog that stands for one of ours."""

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


_TABLE_PROPERTY = "table."


class Catalog:
    """Creates, lists, describes and drops databases and tables, reads them, and makes them known to Spark's SQL.

        catalog = Catalog(spark, "localhost:9123")
        catalog.create_table("shop.orders", "id BIGINT, name STRING", buckets=4)
        catalog.attach("shop.orders")
        spark.sql("INSERT INTO shop.orders VALUES (1, 'rope')")

    `connection` is a connection or an address, `options` are settings of the client for an address, named as for
    `fluss.sync.connect`. Close the catalog, or use it in a `with` statement; attached tables stay attached.
    """

    def __init__(
        self, spark: SparkSession, connection: FlussConnectionBase | str | None = None, **options: Any
    ) -> None:
        from fluss.sync import Config, FlussConnection, connect

        if options and not (connection is None or isinstance(connection, str)):
            raise InvalidRequestError("Settings of the client belong to an address; this connection has its own.")
        register(spark)
        self._spark = spark
        # A connection of another facade awaits; this one blocks.
        self._own = not isinstance(connection, FlussConnection)
        if isinstance(connection, FlussConnection):
            self._connection = connection
        elif connection is None or isinstance(connection, str):
            self._connection = connect(connection, **options)
        else:
            self._connection = FlussConnection.create(Config(options_of(connection)))
        self._admin = self._connection.get_admin()
        self._attached: dict[str, TablePath] = {}

    @property
    def options(self) -> dict[str, str]:
        """What Spark needs to reach the server: `df.write.format("fluss").options(**catalog.options)`."""
        return options_of(self._connection)

    def list_databases(self) -> list[str]:
        """Names of all databases."""
        return sorted(self._admin.list_databases())

    def database_exists(self, name: str) -> bool:
        """Whether there is a database of this name."""
        return self._admin.database_exists(name)

    def create_database(self, name: str, comment: str | None = None, *, if_not_exists: bool = False) -> None:
        """Create a database."""
        descriptor = None if comment is None else DatabaseDescriptor(comment=comment)
        self._admin.create_database(name, descriptor, ignore_if_exists=if_not_exists)

    def drop_database(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:
        """Drop a database that is empty, or with all its tables."""
        self._admin.drop_database(name, ignore_if_not_exists=if_exists, cascade=cascade)
        self._detach_where(lambda path: path.database_name == name)

    def list_tables(self, database: str) -> list[str]:
        """Names of a database's tables."""
        return sorted(self._admin.list_tables(database))

    def table_exists(self, name: str | TablePath) -> bool:
        """Whether there is a table `database.table`."""
        return self._admin.table_exists(_path(name))

    def create_table(
        self,
        name: str | TablePath,
        schema: str | StructType | Schema | DataFrame,
        *,
        primary_key: str | Sequence[str] = (),
        partitioned_by: str | Sequence[str] = (),
        buckets: int | None = None,
        bucket_by: str | Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> None:
        """Create a table with the columns of a DDL text, a Spark schema or a DataFrame.

        Of `properties`, those that begin with `table.` are the server's, the others are yours.
        """
        texts = {key: text_of(value) for key, value in (properties or {}).items()}
        descriptor = TableDescriptor(
            _schema(schema, _names(primary_key)),
            partition_keys=_names(partitioned_by),
            bucket_count=buckets,
            bucket_keys=_names(bucket_by),
            comment=comment,
            properties={key: value for key, value in texts.items() if key.startswith(_TABLE_PROPERTY)},
            custom_properties={key: value for key, value in texts.items() if not key.startswith(_TABLE_PROPERTY)},
        )
        self._admin.create_table(_path(name), descriptor, ignore_if_exists=if_not_exists)

    def drop_table(self, name: str | TablePath, *, if_exists: bool = False) -> None:
        """Drop a table and its rows, and detach it."""
        path = _path(name)
        self._admin.drop_table(path, ignore_if_not_exists=if_exists)
        self._detach_where(lambda attached_path: attached_path == path)

    def info(self, name: str | TablePath) -> TableInfo:
        """A table's schema, keys, buckets and properties."""
        return self._admin.get_table_info(_path(name))

    def describe(self, name: str | TablePath) -> DataFrame:
        """A table's columns: name, type here and in Spark, whether they may be null, which key they belong to."""
        info = self.info(name)
        keys = {"primary": info.primary_keys, "partition": info.partition_keys, "bucket": info.get_bucket_keys()}
        rows = []
        for column in info.schema.columns:
            found = spark_type(column.data_type)
            of_keys = ", ".join(kind for kind, names in keys.items() if column.name in names)
            nullable = column.data_type.nullable
            rows.append(
                (column.name, str(column.data_type), found and found.simpleString(), nullable, of_keys, column.comment)
            )
        columns = "col_name STRING, data_type STRING, spark_type STRING, nullable BOOLEAN, keys STRING, comment STRING"
        return self._spark.createDataFrame(rows, columns)

    def table(self, name: str | TablePath, **options: Any) -> DataFrame:
        """A table as a DataFrame; `options` are those of reads, underscores for dots."""
        reader = self._spark.read.format("fluss").options(**self.options, **option_texts(options))
        return reader.load(str(_path(name)))

    def read_stream(self, name: str | TablePath, **options: Any) -> DataFrame:
        """A table as a streaming DataFrame; `options` are those of reads, underscores for dots."""
        reader = self._spark.readStream.format("fluss").options(**self.options, **option_texts(options))
        return reader.load(str(_path(name)))

    def attach(self, name: str | TablePath, view: str | None = None, **options: Any) -> str:
        """Make a table usable by name in SQL, `spark.table`, `readStream.table` and `INSERT INTO`.

        Returns the name: `view`, or the table's own, in which hyphens become underscores. Every query sees the rows of
        its time. Attach a table again when its columns have changed, or when Spark's ALTER TABLE has changed the name.
        `options` are those of reads and writes, each used where it belongs: `write_mode="delete"` makes a name whose
        INSERT deletes. `shop.orders$changelog` is the changelog of a table, known as `shop.orders_changelog`.
        """
        table, is_changelog = without_suffix(str(name))
        path = _path(table)
        self.info(path)
        known_as = spark_name(view or (f"{path}_{CHANGELOG}" if is_changelog else path))
        changelog = {CHANGELOG: "true"} if is_changelog else {}
        attach(self._spark, path, known_as, {**self.options, **option_texts(options), **changelog})
        self._attached[known_as] = path
        return known_as

    def attach_all(self, database: str) -> list[str]:
        """Attach all tables of a database."""
        return [self.attach(TablePath(database, table)) for table in self.list_tables(database)]

    def detach(self, name: str | TablePath) -> None:
        """Forget what `attach` made known by this name; the table itself stays."""
        known_as = spark_name(name)
        detach(self._spark, known_as)
        self._attached.pop(known_as, None)

    def close(self) -> None:
        """Close the connection, unless it was given."""
        if self._own:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._own:
            self._connection.__exit__(*exception)

    def __repr__(self) -> str:
        return f"Catalog({self._connection!r})"

    def _detach_where(self, matches: Any) -> None:
        for known_as in [known_as for known_as, path in self._attached.items() if matches(path)]:
            try:
                self.detach(known_as)
            except InvalidRequestError:
                del self._attached[known_as]  # a table of Spark's own has the name now, which stays


def _path(name: str | TablePath) -> TablePath:
    return name if isinstance(name, TablePath) else parse_table_path(name)


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _schema(given: str | StructType | Schema | DataFrame, primary_key: list[str]) -> Schema:
    from pyspark.sql.types import StructType

    if isinstance(given, Schema):
        if not primary_key:
            return given
        numbered = given.get_auto_increment_columns()
        return Schema.of(given.columns, primary_key, numbered[0] if numbered else None)
    if isinstance(given, str):
        return table_schema(StructType.fromDDL(given), primary_key)
    return table_schema(given if isinstance(given, StructType) else given.schema, primary_key)
