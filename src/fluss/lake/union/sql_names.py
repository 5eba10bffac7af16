"""Names of tables in SQL, and the tables of a server that they mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fluss.model.errors import ErrorCode, FlussError, NotFoundError
from fluss.model.paths import TablePath

if TYPE_CHECKING:
    from fluss.sync import FlussAdmin

NEAR_NAMES_MAX: Final = 3
DATABASES_SEARCHED_MAX: Final = 100

_WORD: Final = r'(?:"(?:[^"]|"")+"|\w+)'
_NAME: Final = re.compile(rf"({_WORD})(?:\s*\.\s*({_WORD}))?")


class TableNames:
    """The tables of a server as they are listed once; the server is asked for a database when it is named."""

    def __init__(self, admin: FlussAdmin, database: str) -> None:
        self._admin = admin
        self._database = database
        self._listed: dict[str, list[str]] = {}

    def paths(self, text: str) -> set[TablePath]:
        """All that may name a table in a text, with the database that is meant where none is named."""
        return {self._path(match) for match in _NAME.finditer(text)}

    def path(self, name: str) -> TablePath | None:
        """What a name stands for; None if it is none of a table."""
        match = _NAME.fullmatch(name.strip())
        return None if match is None else self._path(match)

    def _path(self, match: re.Match[str]) -> TablePath:
        first, second = match.groups()
        if second is None:
            return TablePath(self._database, _unquoted(first))
        return TablePath(_unquoted(first), _unquoted(second))

    def find(self, path: TablePath) -> TablePath | None:
        """The table of a name; case counts only where names differ in nothing else, as SQL has it."""
        names = self._tables(path.database_name)
        if path.table_name in names:
            return path
        alike = [name for name in names if name.lower() == path.table_name.lower()]
        return TablePath(path.database_name, alike[0]) if len(alike) == 1 else None

    def unknown(self, path: TablePath) -> NotFoundError:
        """That there is no such table, and which are near."""
        databases = self._admin.list_databases()
        if path.database_name not in databases:
            return unknown_database(path.database_name, self._admin)
        near = _near(path.table_name, self._tables(path.database_name))
        if not near:
            others = [name for name in databases[:DATABASES_SEARCHED_MAX] if path.table_name in self._tables(name)]
            near = "".join(f"; there is {name}.{path.table_name}" for name in others[:1])
        return NotFoundError(
            f"There is no table {path.table_name!r} in database {path.database_name!r}{near}.",
            ErrorCode.TABLE_NOT_EXIST,
        )

    def _tables(self, database: str) -> list[str]:
        if database not in self._listed:
            try:
                self._listed[database] = self._admin.list_tables(database)
            except FlussError as error:
                # Not each word before a dot is a database, or could be one.
                if error.error_code not in (ErrorCode.DATABASE_NOT_EXIST, ErrorCode.INVALID_DATABASE_EXCEPTION):
                    raise
                self._listed[database] = []
        return self._listed[database]


def unknown_database(name: str, admin: FlussAdmin) -> NotFoundError:
    """That there is no such database, and which are near."""
    near = _near(name, admin.list_databases())
    return NotFoundError(f"There is no database {name!r}{near}.", ErrorCode.DATABASE_NOT_EXIST)


def _near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), NEAR_NAMES_MAX)
    return f"; near are {', '.join(found)}" if found else ""


def _unquoted(word: str) -> str:
    return word[1:-1].replace('""', '"') if word.startswith('"') else word
