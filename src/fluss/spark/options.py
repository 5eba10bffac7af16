"""Options of the data source.

| option | meaning |
|---|---|
| `bootstrap.servers` | server addresses, `host:port`, comma-separated; required |
| `table` | `database.table`; required, or given as the argument of `load` and `save` |
| `columns` | columns to read, comma-separated; all if left out |
| `client.*` | settings of the client, see `fluss.Config`; the prefix may be left out |
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from fluss.model.config import Config
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath, check_database_name, check_table_name

BOOTSTRAP_SERVERS = "bootstrap.servers"
TABLE = "table"
COLUMNS = "columns"
# Where Spark puts the argument of `load` and `save`.
PATH = "path"

# Spark hands option names over in lower case.
_CLIENT_KEYS = {key.lower(): key for key in Config.OPTIONS}


@dataclass(frozen=True)
class SourceOptions:
    """Checked options. Plain values only: they travel to the executors, where each task connects by itself."""

    table_path: TablePath
    client: Mapping[str, str]
    columns: tuple[str, ...] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check options as Spark passes them."""
        given = {key.lower(): value for key, value in options.items()}
        path, table, columns = (given.pop(key, None) for key in (PATH, TABLE, COLUMNS))
        client = {_client_key(key): value for key, value in given.items()}
        _check_address(client.get(BOOTSTRAP_SERVERS))
        Config(client)
        return cls(_table_path(table, path), client, None if columns is None else _column_names(columns))

    def config(self) -> Config:
        """The client's configuration."""
        return Config(self.client)


def _client_key(key: str) -> str:
    plain = key.removeprefix("client.")
    if plain not in _CLIENT_KEYS:
        close = difflib.get_close_matches(plain, [TABLE, COLUMNS, *_CLIENT_KEYS], n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise _bad(f"Unknown option {key!r} for the data source 'fluss'.{hint}")
    return _CLIENT_KEYS[plain]


def _check_address(servers: str | None) -> None:
    if not servers:
        raise _bad(f"The data source 'fluss' needs .option({BOOTSTRAP_SERVERS!r}, 'host:port').")
    if "/" in servers or servers.startswith("memory:"):
        # Many executors would each start or look for a server of their own.
        raise _bad(f"Spark needs the address of a running server, host:port, not {servers!r}.")


def _table_path(table: str | None, path: str | None) -> TablePath:
    if table is not None and path is not None and table != path:
        raise _bad(f"Two tables are named: {table!r} by the option, {path!r} by load() or save().")
    name = table or path
    if not name:
        raise _bad(f"The data source 'fluss' needs a table: .option({TABLE!r}, 'database.table').")
    database, dot, table_name = name.partition(".")
    if not dot:
        raise _bad(f"The table must be named as database.table, not {name!r}.")
    check_database_name(database)
    check_table_name(table_name)
    return TablePath(database, table_name)


def _column_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise _bad(f"The option {COLUMNS!r} must name each column once, separated by commas, not {text!r}.")
    return names


def _bad(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
