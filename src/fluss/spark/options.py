"""Options of the data source: which table, where, and how it is reached. See `read_options` and `write_options`, too.

Spark hands all options over in one mapping, in lower case, before it says whether it will read or write.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fluss.model.config import Config
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath, check_database_name, check_table_name

BOOTSTRAP_SERVERS = "bootstrap.servers"
TABLE = "table"
# Where Spark puts the argument of `load` and `save`.
PATH = "path"

READ_OPTIONS = (
    "columns",
    "filter",
    "partitions",
    "changelog",
    "scan.startup.mode",
    "scan.startup.timestamp",
    "scan.start.offsets",
    "scan.end.offsets",
    "scan.incremental.start.timestamp",
    "scan.incremental.end.timestamp",
    "scan.maxRecordsPerPartition",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
)
WRITE_OPTIONS = (
    "write.mode",
    "target.columns",
    "ignore.delete",
    "exactly.once",
)
_OWN = {key.lower(): key for key in (*READ_OPTIONS, *WRITE_OPTIONS)}
_CLIENT_KEYS = {key.lower(): key for key in Config.OPTIONS}


@dataclass(frozen=True)
class SourceOptions:
    """Checked options. Plain values only: they travel to the executors, where each task connects by itself."""

    table_path: TablePath
    client: Mapping[str, str]
    own: Mapping[str, str]
    """Those of READ_OPTIONS and WRITE_OPTIONS that were given, by their names there"""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check options as Spark passes them."""
        given = {key.lower(): value for key, value in options.items()}
        path, table = given.pop(PATH, None), given.pop(TABLE, None)
        own = {_OWN[key]: given.pop(key) for key in list(given) if key in _OWN}
        client = {_client_key(key): value for key, value in given.items()}
        _check_address(client.get(BOOTSTRAP_SERVERS))
        Config(client)
        return cls(_table_path(table, path), client, own)

    def config(self) -> Config:
        """The client's configuration."""
        return Config(self.client)

    def refuse(self, names: Iterable[str], purpose: str) -> None:
        """Raise if one of these options was given; `purpose` says what they are for."""
        for name in names:
            if name in self.own:
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


def bad_option(message: str) -> InvalidRequestError:
    """What a wrong option raises."""
    return InvalidRequestError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)


def _client_key(key: str) -> str:
    plain = key.removeprefix("client.")
    if plain not in _CLIENT_KEYS:
        close = difflib.get_close_matches(plain, [TABLE, *_OWN, *_CLIENT_KEYS], n=1)
        hint = f" Did you mean {_OWN.get(close[0], close[0])!r}?" if close else ""
        raise bad_option(f"Unknown option {key!r} for the data source 'fluss'.{hint}")
    return _CLIENT_KEYS[plain]


def _check_address(servers: str | None) -> None:
    if not servers:
        raise bad_option(f"The data source 'fluss' needs .option({BOOTSTRAP_SERVERS!r}, 'host:port').")
    if "/" in servers or servers.startswith("memory:"):
        # Many executors would each start or look for a server of their own.
        raise bad_option(f"Spark needs the address of a running server, host:port, not {servers!r}.")


def _table_path(table: str | None, path: str | None) -> TablePath:
    if table is not None and path is not None and table != path:
        raise bad_option(f"Two tables are named: {table!r} by the option, {path!r} by load() or save().")
    name = table or path
    if not name:
        raise bad_option(f"The data source 'fluss' needs a table: .option({TABLE!r}, 'database.table').")
    database, dot, table_name = name.partition(".")
    if not dot:
        raise bad_option(f"The table must be named as database.table, not {name!r}.")
    check_database_name(database)
    check_table_name(table_name)
    return TablePath(database, table_name)
