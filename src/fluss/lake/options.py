"""Where a lake is: its catalog and its warehouse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote, urlparse

from fluss.lake.layout import CATALOG_NAME, LAKE_PROPERTIES
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo

SQL: Final = "sql"
JDBC: Final = "jdbc"  # what the JVM calls a catalog in an SQL database
REST: Final = "rest"
TYPES: Final = (SQL, JDBC, REST)

_SQLITE: Final = "jdbc:sqlite:"
_CATALOG_FILE: Final = "catalog.db"


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """A catalog of Iceberg tables. Plain values, so that tasks can be sent it."""

    type: str = SQL
    warehouse: str | None = None
    uri: str | None = None
    name: str = CATALOG_NAME
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, info: TableInfo, warehouse: str | None = None, catalog: Mapping[str, str] | None = None) -> Self:
        """The lake of a table: what is given here, otherwise what its server says.

        A `warehouse` alone is a folder with a catalog of its own in SQLite; `catalog` has the keys that a server's
        `datalake.iceberg.` settings have: type, uri, warehouse, name and those of the catalog.
        """
        if catalog is not None:
            given = dict(catalog)
            if warehouse is not None:
                given["warehouse"] = warehouse
            return cls.from_properties(given)
        if warehouse is not None:
            return cls.from_properties({"type": SQL, "warehouse": warehouse})
        found = {
            key.removeprefix(LAKE_PROPERTIES): value
            for key, value in info.properties.items()
            if key.startswith(LAKE_PROPERTIES)
        }
        if not found:
            raise InvalidRequestError(
                f"{info.table_path} has no lake: its server says nothing of one. Set 'table.datalake.enabled' = 'true' "
                "on the table, or name a warehouse."
            )
        return cls.from_properties(found)

    @classmethod
    def from_properties(cls, given: Mapping[str, str]) -> Self:
        """From keys without a prefix: type, warehouse, uri, name; the others go to the catalog as they are."""
        rest = dict(given)
        kind = rest.pop("type", rest.pop("catalog-type", SQL)).lower()
        if kind not in TYPES:
            raise InvalidRequestError(f"A lake catalog of type {kind!r} can't be used; there are {', '.join(TYPES)}.")
        name, warehouse, uri = rest.pop("name", CATALOG_NAME), rest.pop("warehouse", None), rest.pop("uri", None)
        if uri is None and (kind != SQL or warehouse is None):
            what = "a warehouse" if kind == SQL else "an uri"
            raise InvalidRequestError(f"A lake catalog of type {kind!r} needs {what}.")
        return cls(kind, warehouse, uri, name, rest)

    def table_properties(self) -> dict[str, str]:
        """The properties of a Fluss table that name this lake."""
        own = {"type": self.type, "warehouse": self.warehouse, "uri": self.uri}
        if self.name != CATALOG_NAME:
            own["name"] = self.name
        return {LAKE_PROPERTIES + key: value for key, value in {**own, **self.properties}.items() if value is not None}

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


def local_path(location: str) -> Path:
    """The path of a folder or file on this machine; raises for other storage."""
    parsed = urlparse(location)
    if parsed.scheme not in ("", "file"):
        raise InvalidRequestError(f"{location} is not on this machine: name the catalog's type and uri, too.")
    return Path(unquote(parsed.path)) if parsed.scheme else Path(location)


def is_local(location: str) -> bool:
    """Whether a folder or file is on this machine."""
    return urlparse(location).scheme in ("", "file")
