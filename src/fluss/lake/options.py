"""Options of a lake: where its catalog and its warehouse are, and which tables are tiered to it."""

from __future__ import annotations

import re
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote, unquote

from fluss.lake.format import CATALOG_NAME, DEFAULT_FORMAT, FORMATS, LakeCatalog
from fluss.model.errors import InvalidRequestError, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.tables.options import DATALAKE_ENABLED, DATALAKE_FORMAT, DATALAKE_PREFIX, choice, is_true
from fluss.model.trust import Trust, is_inside, is_local, local_path_of, warn_once

if TYPE_CHECKING:
    from fluss.sync import FlussConnection


SQL: Final = "sql"
JDBC: Final = "jdbc"  # what the JVM calls a catalog in an SQL database
REST: Final = "rest"
TYPES: Final = (SQL, JDBC, REST)

_JDBC: Final = "jdbc:"
_SQLITE: Final = "jdbc:sqlite:"
_POSTGRES: Final = ("postgresql", "postgresql+psycopg2", "postgresql+psycopg", "postgresql+pg8000")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
# What a server may say of the lake.
_SERVER_KEYS: Final = ("type", "catalog-type", "uri", "warehouse", "name", "client.region", "s3.region")
_STORAGE: Final = ("s3.", "client.")  # a server's choice of catalog is not sent any other credential
_CATALOG_FILE: Final = "catalog.db"


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """A catalog of tables, and how it and its storage are reached. Plain values, so that tasks can be sent it."""

    type: str = SQL
    warehouse: str | None = None
    uri: str | None = None
    name: str = CATALOG_NAME
    properties: Mapping[str, str] = field(default_factory=dict)
    trust: Trust = field(default_factory=Trust)
    is_named_by_server: bool = False
    format: str = DEFAULT_FORMAT

    @classmethod
    def of(
        cls,
        info: TableInfo | None,
        warehouse: str | None = None,
        catalog: Mapping[str, str] | None = None,
        trust: Trust | None = None,
    ) -> Self:
        """The lake of a table: what is given here, otherwise what its server says and `trust` allows.

        A `warehouse` alone is a folder with a catalog of its own in SQLite; `catalog` has the keys that a server's
        `datalake.iceberg.` settings have: type, uri, warehouse, name and those of the catalog. With `s3.` keys alone it
        says how the storage of the server's lake is reached.
        """
        trust = trust or Trust()
        lake_format = DEFAULT_FORMAT if info is None else format_of(info)
        if catalog is not None and is_lake_named(warehouse, catalog):
            given = dict(catalog)
            if warehouse is not None:
                given["warehouse"] = warehouse
            return replace(cls.from_properties(given), trust=trust, format=lake_format)
        if warehouse is not None:
            named = cls.from_properties({"type": SQL, "warehouse": warehouse})
            return replace(named, trust=trust, format=lake_format)
        assert info is not None, "without a table the lake has to be named"
        found = told_settings(info)
        if not found:
            raise InvalidRequestError(
                f"{info.table_path} has no lake: its server says nothing of one. Set 'table.datalake.enabled' = 'true' "
                "on the table, or name a warehouse."
            )
        named = cls.from_properties(server_properties(found))
        check_server_lake(named, trust)
        properties = {**named.properties, **(catalog or {})}
        return replace(named, properties=properties, trust=trust, is_named_by_server=True, format=lake_format)

    @classmethod
    def from_properties(cls, given: Mapping[str, str]) -> Self:
        """Options from keys without a prefix: type, warehouse, uri, name; the others go to the catalog as they are."""
        rest = dict(given)
        kind = rest.pop("type", rest.pop("catalog-type", SQL)).lower()
        if kind not in TYPES:
            raise InvalidRequestError(f"A lake catalog of type {kind!r} can't be used; there are {', '.join(TYPES)}.")
        name, warehouse, uri = rest.pop("name", CATALOG_NAME), rest.pop("warehouse", None), rest.pop("uri", None)
        if uri is None and (kind != SQL or warehouse is None):
            what = "a warehouse" if kind == SQL else "an uri"
            raise InvalidRequestError(f"A lake catalog of type {kind!r} needs {what}.")
        return cls(kind, warehouse, uri, name, rest)

    def open(self) -> LakeCatalog:
        """The catalog's tables. Nothing is asked or made before they are."""
        module, _, name = FORMATS[self.format].partition(":")
        catalog: LakeCatalog = getattr(import_module(module), name)(self)
        return catalog

    @property
    def places(self) -> tuple[str, ...]:
        """Places where files of the lake may lie, whatever its catalog says: the warehouse, and listed ones."""
        found = self.warehouse if self.warehouse is not None and self._is_warehouse_a_place else None
        if self.warehouse is None and not self.is_named_by_server and self.sqlite_path is not None:
            found = str(self.sqlite_path.parent)  # the user named the catalog alone
        if found is not None and is_local(found):
            found = str(local_path(found).absolute())  # tasks may have another working directory
        return (*([] if found is None else [found]), *self.trust.places)

    @property
    def _is_warehouse_a_place(self) -> bool:
        """The warehouse of a catalog service may be the name of one."""
        assert self.warehouse is not None
        return self.type != REST or self.warehouse.startswith("/") or ":/" in self.warehouse

    @property
    def sqlite_path(self) -> Path | None:
        """The file of a catalog that is in SQLite."""
        if self.type == REST:
            return None
        if self.uri is None:
            assert self.warehouse is not None
            return local_path(self.warehouse) / _CATALOG_FILE
        if self.uri.startswith(_SQLITE):
            return Path(self.uri.removeprefix(_SQLITE).removeprefix("file:").partition("?")[0])
        if self.uri.startswith("sqlite:///"):
            return Path(unquote(self.uri.removeprefix("sqlite:///").partition("?")[0]))
        return None

    @property
    def sqlalchemy_uri(self) -> str:
        """How Python names the database of an SQL catalog; the JVM's spelling of it is understood."""
        path = self.sqlite_path
        if path is not None:
            return f"sqlite:///{quote(str(path.absolute()))}"
        assert self.uri is not None
        return self.uri.removeprefix("jdbc:")


def format_of(info: TableInfo) -> str:
    """The format of a table's lake; where the table names none that there is, the one of lakes without a table."""
    found = choice(info.properties, DATALAKE_FORMAT)
    return found if found in FORMATS else DEFAULT_FORMAT


def told_settings(info: TableInfo) -> dict[str, str]:
    """What a server says of the lake of a table that it describes; nothing of one that is not tiered."""
    prefix = f"{DATALAKE_PREFIX}{format_of(info).lower()}."
    return {key.removeprefix(prefix): value for key, value in info.properties.items() if key.startswith(prefix)}


def is_lake_named(warehouse: str | None, catalog: Mapping[str, str] | None) -> bool:
    """Whether a caller names a lake, and not only how the storage of the server's is reached."""
    return warehouse is not None or any(not key.startswith(_STORAGE) for key in catalog or ())


def local_path(location: str) -> Path:
    """The path of a folder or file on this machine; raises for other storage."""
    if not is_local(location):
        raise InvalidRequestError(f"{location} is not on this machine: name the catalog's type and uri, too.")
    return Path(local_path_of(location))


def server_properties(given: Mapping[str, str]) -> dict[str, str]:
    """What is taken of the lake's settings that come from a server: nothing that chooses code or a credential."""
    taken = {key: value for key, value in given.items() if key in _SERVER_KEYS}
    if dropped := sorted(set(given) - set(taken)):
        warn_once(
            f"The server's settings of the lake have {', '.join(dropped)}; a client takes {', '.join(_SERVER_KEYS)} "
            "from a server. Name what else is needed in your own settings of the lake."
        )
    if not _NAME.fullmatch(taken.get("name", CATALOG_NAME)):
        raise InvalidRequestError(f"The server names a lake catalog {taken['name']!r}, which is not a name.")
    if _is_postgres(uri := taken.get("uri", "")):
        taken["uri"] = _without_login(uri)
    return taken


def check_server_lake(named: LakeOptions, trust: Trust) -> None:
    """Raise unless a client may use the catalog and the warehouse that its server names."""
    wanted = []
    warehouse = named.warehouse
    sqlite = named.sqlite_path
    if sqlite is not None:
        if not trust.allows_path(str(sqlite)):
            wanted.append(str(sqlite))
        elif not is_inside(str(sqlite), trust.places):
            _check_sqlite_file(sqlite)
    else:
        assert named.uri is not None
        if not (named.uri.startswith(("http://", "https://")) if named.type == REST else _is_postgres(named.uri)):
            raise InvalidRequestError(
                f"The server names a lake catalog at {named.uri[:200]!r}. A client takes http, SQLite and PostgreSQL "
                "from a server; name the catalog in your own settings of the lake."
            )
        wanted += [] if trust.allows_host(named.uri.removeprefix(_JDBC)) else [named.uri.removeprefix(_JDBC)]
    if warehouse is not None and named._is_warehouse_a_place:
        allowed = trust.allows_path(warehouse) if is_local(warehouse) else trust.allows_bucket(warehouse)
        wanted = [item for item in wanted if allowed or not is_inside(item, [warehouse])]
        wanted += [] if allowed else [warehouse]
    if wanted:
        raise trust.untrusted("The server", wanted)


def _check_sqlite_file(path: Path) -> None:
    """Raise for a catalog file that a server names and that is something else."""
    try:
        status = path.lstat()
    except OSError:
        # It is made by the first round of tiering, in a folder that is new or has nothing else.
        others = [item for item in path.parent.iterdir() if path.name not in item.name] if path.parent.is_dir() else []
        if not others:
            return
        problem = "is not there, and its folder has other files"
    else:
        if stat.S_ISREG(status.st_mode) and _is_catalog(path):
            return
        problem = "is not such a file"
    raise InvalidRequestError(
        f"The server names {path} as the lake's catalog in SQLite, and it {problem}. If that is right, name the "
        "warehouse in your own settings of the lake."
    )


def _is_catalog(path: Path) -> bool:
    """Whether a file is empty, or a database with an Iceberg catalog in it; it is not changed."""
    if not path.stat().st_size:
        return True
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone() is not None
    except sqlite3.DatabaseError:
        return False


def _is_postgres(uri: str) -> bool:
    return uri.removeprefix(_JDBC).partition("://")[0] in _POSTGRES


def _without_login(uri: str) -> str:
    """The address of a database; who logs in is for the client's own settings, or for libpq's PGUSER and PGPASSWORD."""
    prefix, separator, rest = uri.partition("://")
    address = rest.partition("?")[0].rpartition("@")[2]
    if address != rest:
        warn_once("The server's address of the lake's catalog has a login or parameters; they are left out.")
    return prefix + separator + address


class NoLakeError(InvalidRequestError):
    """Neither the server nor the caller says where a lake is."""


def is_tiered(info: TableInfo) -> bool:
    """Whether a table is meant to be in a lake of a format that there is."""
    return is_true(info.properties, DATALAKE_ENABLED) and choice(info.properties, DATALAKE_FORMAT) in FORMATS


def check_tiered(info: TableInfo) -> None:
    """Raise unless a table is meant to be in a lake of a format that there is."""
    if is_tiered(info):
        return
    lake_format = info.properties.get(DATALAKE_FORMAT)
    if lake_format is None:
        why = f"it was made without a lake; make it with {DATALAKE_ENABLED}=true"
    elif lake_format.upper() not in FORMATS:
        why = f"its {DATALAKE_FORMAT} is {lake_format}, and this job writes {' or '.join(FORMATS).lower()}"
    else:
        why = f"set its property {DATALAKE_ENABLED}=true with admin.alter_table(..., set_properties=...)"
    raise InvalidRequestError(f"{info.table_path} is not tiered: {why}.")


def named_lake(
    info: TableInfo | None, warehouse: str | None, catalog: Mapping[str, str] | None, trust: Trust | None = None
) -> LakeOptions:
    """The lake of a table, or the one that is named here, with paths that mean the same in every directory."""
    options = LakeOptions.of(info, warehouse, catalog, trust)
    if options.type == REST:
        return options
    place = options.warehouse
    if place is not None and is_local(place):
        place = str(local_path(place).absolute())
    absolute = replace(options, warehouse=place)
    return absolute if absolute.uri is not None else replace(absolute, uri=absolute.sqlalchemy_uri)


def find_lake(
    connection: FlussConnection, info: TableInfo | None, warehouse: str | None, catalog: Mapping[str, str] | None
) -> LakeOptions:
    """The lake that is named here, or that of the server.

    A server tells where its lake is with each table that is tiered. Of others, and of tables that were dropped, nothing
    is told, so any table that is tiered is asked for.
    """
    trust = Trust.of(connection.config)
    if not is_lake_named(warehouse, catalog) and not _says_where(info):
        info = next(filter(_says_where, table_infos(connection)), None)
        if info is None:
            raise NoLakeError(
                "The server has no table that is tiered, so it does not say where its lake is: name the warehouse. "
                "Unless its settings name another, that is the folder 'lake' of the server's data directory."
            )
    return named_lake(info, warehouse, catalog, trust)


def _says_where(info: TableInfo | None) -> bool:
    return info is not None and bool(told_settings(info))


def table_infos(connection: FlussConnection, database: str | None = None) -> Iterator[TableInfo]:
    """All tables of the server, or of a database, but for those that are dropped meanwhile."""
    admin = connection.get_admin()
    for name in admin.list_databases() if database is None else [database]:
        try:
            tables = admin.list_tables(name)
        except NotFoundError:
            continue
        for table in tables:
            try:
                yield admin.get_table_info(TablePath(name, table))
            except NotFoundError:
                continue


def warn_of_other_lake(info: TableInfo, options: LakeOptions) -> None:
    """Say that readers will not find a lake by themselves, if it is not the one that the server names."""
    try:
        if _place(named_lake(info, None, None, options.trust)) == _place(options):
            return
    except InvalidRequestError:
        pass  # there is none yet, or it is not for this client
    where = options.warehouse or options.uri
    warn_once(
        f"{info.table_path} is tiered to {where}, which is not the lake that its server names: readers have to name "
        f"it, too, unless the server's operator sets datalake.{options.format.lower()}."
        f"{'warehouse' if options.warehouse else 'uri'} in fluss.toml."
    )


def _place(options: LakeOptions) -> tuple[str | None, str | None, str]:
    """What makes a lake the same; properties are about how it is reached."""
    if options.type == REST:
        return options.uri, options.warehouse, options.name
    return options.sqlalchemy_uri, options.warehouse, options.name
