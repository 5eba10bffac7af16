"""Options of the data source: which table, where, how it is reached; and a table opened by them.

Options of reads and writes are in `fluss.spark.read.options` and `fluss.spark.write.plan`. Spark hands all options over
in one mapping, in lower case, before it says whether it will read or write.

`host:port` means the same on every machine. `file:///directory` means a directory of the driver's machine: tasks join
the server there by themselves, and start it if it has left meanwhile. `memory:` means a server of one Python process,
whose name nobody else knows; `fluss.spark.options(connection)` has where it is.

Besides what a program gave, Spark hands over these of its own accord, and only these, from 4.0 to 4.3 and over Spark
Connect alike:

| option | comes with |
|---|---|
| `path` | the argument of `load`, `save` and `start`, which names the table |
| `paths` | a list of several arguments of `load` |
| `checkpointLocation`, `queryName` | streams that are written, `toTable` and declarative pipelines among them |
| `provider`, `owner` and properties of a table | `CREATE TABLE ... USING`, where the source is asked for columns |

Triggers, output modes, save modes, partitioning and the session's settings are not handed over. Options that other
sources have are refused with advice.
"""

from __future__ import annotations

import difflib
import socket
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluss.model.config import Config
from fluss.model.errors import ConnectError, ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath, check_database_name, check_table_name
from fluss.model.trust import FILE_SCHEME, MEMORY_SCHEME, directory_of
from fluss.spark.waiting import check_packages, note_answer, waiting_config

if TYPE_CHECKING:
    from fluss.api.connect import FlussConnectionBase
    from fluss.model.infos import TableInfo
    from fluss.sync import FlussConnection, FlussTable


def check_directory(address: str) -> None:
    """Raise for a data directory that is not on this machine, where a server would be started on an empty one."""
    if not address.strip().startswith(FILE_SCHEME):
        return
    directory = directory_of(address.strip())
    if not directory.is_dir() or next(directory.iterdir(), None) is None:
        raise InvalidRequestError(
            f"There is no data directory {directory} on this machine. Tasks on other machines than the driver's need "
            "the address of a running server, host:port, as bootstrap.servers."
        )


def options(connection: FlussConnectionBase) -> dict[str, str]:
    """The options for the server of a connection, whatever its address; passwords are among them.

    Those of a server in memory, whose name means nothing to other processes, are good as long as it runs.
    """
    config, address = connection.config, connection.config.bootstrap_servers.strip()
    if address.startswith(FILE_SCHEME):
        # By its path: a port is gone when the server has left after its last connection.
        servers = directory_of(address).as_uri()
    else:
        config = connection.reachable_config()
        servers = config.bootstrap_servers
    return {**{key: str(value) for key, value in config.to_dict().items()}, "bootstrap.servers": servers}


# What a stream that is written is called, and where it keeps its position, are Spark's affair.
STREAM_OPTIONS = ("checkpointLocation", "queryName")
# The property of a table of Spark's catalog that names its data source.
PROVIDER = "provider"

_SESSION_PREFIX = "spark."
_BEGIN = "say where a stream begins by scan.startup.mode, scan.startup.timestamp or scan.start.offsets"
_END = "say where a batch read ends by scan.end.offsets or scan.incremental.end.timestamp"
_LIMIT = "limit micro-batches by maxRowsPerTrigger or maxBytesPerTrigger"
_TABLE = "name the table as database.table, by the option 'table' or as the argument of load(), save() or start()"
_COLUMNS = "a write does not change a table's columns; add them first, as `fluss table alter --add-column` does"
_DAMAGE = "rows that can't be read are never left out"
_ONCE = "a stream (df.writeStream) is stored once with exactly.once=true, a batch write is not"
_ADVICE = {
    "dbtable": _TABLE,
    "endingOffsets": _END,
    "endingTimestamp": _END,
    "endingVersion": _END,
    "failOnDataLoss": "a stream fails when rows that it has not read have expired; to go on with the rest, start it "
    "with a new checkpoint and scan.startup.mode=earliest",
    "ignoreCorruptFiles": _DAMAGE,
    "ignoreMissingFiles": _DAMAGE,
    "maxFilesPerTrigger": _LIMIT,
    "maxOffsetsPerTrigger": _LIMIT,
    "mergeSchema": _COLUMNS,
    "minPartitions": "set scan.maxRecordsPerPartition",
    "mode": "call .mode('append'); what becomes of the rows is said by write.mode",
    "outputMode": "call .outputMode(...)",
    "overwriteSchema": _COLUMNS,
    "partitionBy": "a table has the partition keys that it was created with",
    "partitionOverwriteMode": "a write does not overwrite partitions; drop them first, as `fluss partition drop` does, "
    "then append",
    "paths": "load one table at a time, and combine them by union",
    "readChangeFeed": "set changelog=true",
    "replaceWhere": "a write does not replace rows by a condition; delete them with write.mode=delete, then append",
    "schema": "call .schema(...), or set columns",
    "startingOffsets": _BEGIN,
    "startingTimestamp": _BEGIN,
    "startingVersion": _BEGIN,
    "subscribe": _TABLE,
    "timestampAsOf": _END,
    "topic": _TABLE,
    "trigger": "call .trigger(...)",
    "txnAppId": _ONCE,
    "txnVersion": _ONCE,
    "versionAsOf": _END,
}
_NAMES = {name.lower(): name for name in _ADVICE}
# Values that ask for what happens anyway.
_GRANTED = {
    "failondataloss": "true",
    "ignorecorruptfiles": "false",
    "ignoremissingfiles": "false",
    "mergeschema": "false",
    "overwriteschema": "false",
    "partitionoverwritemode": "static",
    "readchangefeed": "false",
}


def is_granted(key: str, value: str) -> bool:
    """Whether an option of another source asks for what happens here anyway."""
    return _GRANTED.get(key.lower()) == value.strip().lower()


def advice(key: str) -> str | None:
    """Why an option can't be used here, and what to do instead; None if nothing is known of it."""
    if key.startswith(_SESSION_PREFIX):
        return f"{key!r} is a setting of the session: call spark.conf.set({key!r}, ...) or set it where Spark starts."
    name = _NAMES.get(key.lower())
    return None if name is None else f"The option {name!r} can't be used with the data source 'fluss': {_ADVICE[name]}."


BOOTSTRAP_SERVERS = "bootstrap.servers"
TABLE = "table"
# Where Spark puts the argument of `load` and `save`.
PATH = "path"
LAKE_MODE = "lake.mode"
LAKE_WAREHOUSE = "lake.warehouse"
# And any key of an Iceberg catalog behind it; for reading, too.
LAKE_CATALOG = "lake.catalog."

CHANGELOG = "changelog"

READ_OPTIONS = (
    "columns",
    "filter",
    "partitions",
    CHANGELOG,
    "scan.startup.mode",
    "scan.startup.timestamp",
    "scan.start.offsets",
    "scan.end.offsets",
    "scan.incremental.start.timestamp",
    "scan.incremental.end.timestamp",
    "scan.maxRecordsPerPartition",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    LAKE_MODE,
    LAKE_WAREHOUSE,
)
WRITE_OPTIONS = (
    "write.mode",
    "target.columns",
    "ignore.delete",
    "exactly.once",
    "write.new.partitions.max",
)
OWN_OPTIONS = {key.lower(): key for key in (*READ_OPTIONS, *WRITE_OPTIONS, *STREAM_OPTIONS)}
_CLIENT_KEYS = {key.lower(): key for key in Config.OPTIONS}


@dataclass(frozen=True)
class SourceOptions:
    """Checked options. Plain values only: they travel to the executors, where each task connects by itself."""

    table_path: TablePath
    client: Mapping[str, str]
    own: Mapping[str, str]
    """Those of READ_OPTIONS, WRITE_OPTIONS and STREAM_OPTIONS that were given, by their names there"""
    host: str | None = None
    """Of a `file:` address: the machine that has the directory"""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check options as Spark passes them."""
        given = {key.lower(): value for key, value in options.items() if not is_granted(key, value)}
        _check_named(given)
        path, named = given.pop(PATH, None), given.pop(TABLE, None)
        own = {name: given.pop(key) for key in list(given) if (name := own_name(key)) is not None}
        client = {_client_key(key): value for key, value in given.items()}
        host = _check_address(client.get(BOOTSTRAP_SERVERS, "").strip())
        Config(client)
        table, is_changelog = without_suffix(_table_name(named, path))
        if is_changelog and own.setdefault(CHANGELOG, "true").strip().lower() != "true":
            raise bad_option(f"{table}$changelog is the changelog of {table}: leave out the option {CHANGELOG!r}.")
        return cls(parse_table_path(table), client, own, host)

    def config(self) -> Config:
        """The client's configuration."""
        if self.host is not None and self.host != socket.gethostname():
            # Here the address would mean another directory, in which a new, empty server would start.
            raise ConnectError(
                f"{self.client[BOOTSTRAP_SERVERS]} is a directory of {self.host}, and this task runs on "
                f"{socket.gethostname()}: start a server there (`fluss server`) and use its host:port."
            )
        return Config(self.client)

    def refuse(self, names: Container[str], purpose: str) -> None:
        """Raise if one of these options was given; `purpose` says what they are for."""
        for name in self.own:
            if (LAKE_MODE if name.startswith(LAKE_CATALOG) else name) in names:
                raise bad_option(f"The option {name!r} is for {purpose}.")

    def flag(self, name: str) -> bool:
        """The value of an option that is true or false; false if it was not given."""
        text = self.own.get(name, "false").strip().lower()
        if text not in ("true", "false"):
            raise bad_option(f"The option {name!r} is true or false, not {self.own[name]!r}.")
        return text == "true"

    def count(self, name: str) -> int | None:
        """The value of an option that is a positive number; None if it was not given."""
        text = self.own.get(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            number = 0
        if number < 1:
            raise bad_option(f"The option {name!r} is a positive number, not {text!r}.")
        return number

    def names(self, name: str) -> tuple[str, ...] | None:
        """The value of an option that lists columns, separated by commas; None if it was not given."""
        text = self.own.get(name)
        if text is None:
            return None
        names = tuple(item.strip() for item in text.split(","))
        if not all(names) or len(set(names)) != len(names):
            raise bad_option(f"The option {name!r} must name each column once, separated by commas, not {text!r}.")
        return names


def own_name(key: str) -> str | None:
    """An option of reads or writes as it is spelled, whatever its case; None if there is no such option."""
    lower = key.lower()
    return lower if lower.startswith(LAKE_CATALOG) else OWN_OPTIONS.get(lower)


def is_place(key: str) -> bool:
    """Whether an option says which table is meant or how its server is reached."""
    lower = key.lower()
    return lower in (TABLE, PATH) or lower.removeprefix("client.") in _CLIENT_KEYS


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Options given as keywords; a name may have underscores for dots: `scan_startup_mode="latest"`."""
    names = {key.replace(".", "_").lower(): key for key in OWN_OPTIONS.values()}
    return {names.get(key.lower(), key): text_of(value) for key, value in options.items()}


def text_of(value: Any) -> str:
    """A value of an option as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def bad_option(message: str) -> InvalidRequestError:
    """What a wrong option raises."""
    return InvalidRequestError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)


def _client_key(key: str) -> str:
    plain = key.removeprefix("client.")
    if plain not in _CLIENT_KEYS:
        raise bad_option(advice(key) or _unknown(key, plain))
    return _CLIENT_KEYS[plain]


def _unknown(key: str, plain: str) -> str:
    close = difflib.get_close_matches(plain, [TABLE, *OWN_OPTIONS, *_CLIENT_KEYS], n=1)
    hint = f" Did you mean {OWN_OPTIONS.get(close[0], close[0])!r}?" if close else ""
    return f"Unknown option {key!r} for the data source 'fluss'.{hint}"


def _check_named(given: Container[str]) -> None:
    """Raise for a table that Spark's CREATE TABLE makes: Spark hands its options to none who read or write it."""
    catalog = "fluss.spark.Catalog(spark, 'host:port')"
    if PROVIDER in given:
        raise bad_option(
            "CREATE TABLE ... USING fluss makes no table that can be used, because Spark keeps its OPTIONS to itself. "
            f"Use catalog = {catalog}: catalog.attach('database.table') makes a table known to SQL, and "
            "catalog.create_table(...) creates one."
        )
    if not any(key in given for key in (BOOTSTRAP_SERVERS, f"client.{BOOTSTRAP_SERVERS}", TABLE, PATH)):
        raise bad_option(
            f"The data source 'fluss' needs .option({BOOTSTRAP_SERVERS!r}, 'host:port') and a table. A name that was "
            "made by CREATE TABLE ... USING fluss has neither, whatever its OPTIONS: drop it, and make the table known "
            f"to SQL by {catalog}.attach('database.table')."
        )


def _check_address(servers: str) -> str | None:
    """The machine on which alone the address means the server; None if it means the same everywhere."""
    if not servers:
        raise bad_option(f"The data source 'fluss' needs .option({BOOTSTRAP_SERVERS!r}, 'host:port').")
    if servers.startswith(MEMORY_SCHEME):
        raise bad_option(
            f"The server of {servers!r} belongs to one Python process; give Spark .options(**fluss.spark.options("
            "connection)) with that process's connection."
        )
    if not servers.startswith(FILE_SCHEME):
        return None
    if not servers.startswith(f"{FILE_SCHEME}/"):
        raise bad_option(
            f"The path of {servers!r} must be absolute, because Spark's processes may have another working directory; "
            f"for this one it would be {directory_of(servers).as_uri()!r}."
        )
    directory_of(servers)
    return socket.gethostname()


def without_suffix(name: str) -> tuple[str, bool]:
    """The table that `database.table$changelog` is of, and whether it is one."""
    table, mark, suffix = name.rpartition("$")
    if mark and suffix.lower() == "binlog":
        raise bad_option(f"Spark reads no {name}; {table}$changelog has each change with its image before.")
    return (table, True) if mark and suffix.lower() == CHANGELOG else (name, False)


def _table_name(table: str | None, path: str | None) -> str:
    if table is not None and path is not None and table != path:
        raise bad_option(f"Two tables are named: {table!r} by the option, {path!r} by load() or save().")
    name = table or path
    if not name:
        raise bad_option(
            f"The data source 'fluss' needs a table: .option({TABLE!r}, 'database.table'). A name in toTable() or "
            "saveAsTable() is one of Spark's catalog: fluss.spark.Catalog(spark, 'host:port').attach('database.table') "
            "puts a table there."
        )
    return name


def parse_table_path(name: str) -> TablePath:
    """The table that `database.table` names."""
    database, dot, table_name = name.partition(".")
    if not dot:
        raise bad_option(f"The table must be named as database.table, not {name!r}.")
    check_database_name(database)
    check_table_name(table_name)
    return TablePath(database, table_name)


@dataclass(frozen=True)
class OpenTable:
    """A table and the connection it is reached through."""

    connection: FlussConnection
    table: FlussTable

    @property
    def info(self) -> TableInfo:
        return self.table.get_table_info()


@contextmanager
def open_table(options: SourceOptions, *, waits: bool = True) -> Iterator[OpenTable]:
    """Connect, look the table up, and close the connection in the end. Connections are never shipped.

    A server that is away is waited for, here and in all that the connection is used for; without `waits`, only one that
    has not answered before.
    """
    check_packages()
    # Here and not above, so that Spark can load this package to look around without loading pyarrow.
    from fluss.sync import FlussConnection

    config = waiting_config(options.config(), waits=waits)
    check_directory(config.bootstrap_servers)
    with FlussConnection.create(config) as connection:
        note_answer(config)
        yield OpenTable(connection, connection.get_table(options.table_path))
