"""Databases and tables of a Fluss server, for a Spark session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.spark import attached
from fluss.spark.addresses import options as options_of
from fluss.spark.sessions import register
from fluss.spark.source_options import option_texts, parse_table_path, text_of
from fluss.spark.types import spark_type, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from fluss.api.connect import FlussConnectionBase
    from fluss.model.infos import TableInfo

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
        INSERT deletes.
        """
        path = _path(name)
        self.info(path)
        known_as = attached.spark_name(view or path)
        attached.attach(self._spark, path, known_as, {**self.options, **option_texts(options)})
        self._attached[known_as] = path
        return known_as

    def attach_all(self, database: str) -> list[str]:
        """Attach all tables of a database."""
        return [self.attach(TablePath(database, table)) for table in self.list_tables(database)]

    def detach(self, name: str | TablePath) -> None:
        """Forget what `attach` made known by this name; the table itself stays."""
        known_as = attached.spark_name(name)
        attached.detach(self._spark, known_as)
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
