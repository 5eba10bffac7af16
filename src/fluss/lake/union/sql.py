"""SQL on tables of a server: DuckDB over the union of lake and log, each statement as of its own start."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fluss.lake.union.reader import load_duckdb, quoted
from fluss.lake.union.sql_writes import NAME, SqlWriter, Statement, check_no_database, unquoted
from fluss.lake.union.virtual import virtual_table
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.sync import FlussConnection

if TYPE_CHECKING:
    from fluss.client.client import ClientCore
    from fluss.sync import FlussAdmin


NEAR_NAMES_MAX: Final = 3
DATABASES_SEARCHED_MAX: Final = 100


class TableNames:
    """The tables of a server as they are listed once; the server is asked for a database when it is named."""

    def __init__(self, admin: FlussAdmin, database: str) -> None:
        self._admin = admin
        self._database = database
        self._listed: dict[str, list[str]] = {}

    def paths(self, text: str) -> set[TablePath]:
        """All that may name a table in a text, with the database that is meant where none is named."""
        return {self.path_of(match) for match in NAME.finditer(text)}

    def path(self, name: str) -> TablePath | None:
        """What a name stands for; None if it is not the name of a table."""
        match = NAME.fullmatch(name.strip())
        return None if match is None else self.path_of(match)

    def path_of(self, match: re.Match[str]) -> TablePath:
        """The table of a match of NAME."""
        first, second = match.groups()
        if second is None:
            return TablePath(self._database, unquoted(first))
        return TablePath(unquoted(first), unquoted(second))

    def find(self, path: TablePath) -> TablePath | None:
        """The table of a name; case counts only where names differ in nothing else, as SQL has it."""
        names = self._tables(path.database_name)
        if path.table_name in names:
            return path
        virtual = virtual_table(path)
        if virtual is not None:
            base = self.find(virtual.base)
            return None if base is None else virtual.named_after(base)
        alike = [name for name in names if name.lower() == path.table_name.lower()]
        return TablePath(path.database_name, alike[0]) if len(alike) == 1 else None

    def unknown(self, path: TablePath) -> NotFoundError:
        """The error for a table that does not exist, with names that are near."""
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
    """The error for a database that does not exist, with names that are near."""
    near = _near(name, admin.list_databases())
    return NotFoundError(f"There is no database {name!r}{near}.", ErrorCode.DATABASE_NOT_EXIST)


def _near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), NEAR_NAMES_MAX)
    return f"; near are {', '.join(found)}" if found else ""


DATABASE: Final = "fluss"

# Statements of which DuckDB tells the tables; of others each word is compared with the tables there are.
_TOLD: Final = ("SELECT", "EXPLAIN")


_PLACE: Final = re.compile(r"\n\s*LINE (\d+): (.*)\n( *)\^")


class SqlSession:
    """Runs statements. A table is found when a statement names it, as `table` or `database.table`."""

    def __init__(
        self,
        connection: FlussConnection,
        database: str = DATABASE,
        *,
        warehouse: str | None = None,
        catalog: Mapping[str, str] | None = None,
    ) -> None:
        duckdb = load_duckdb()
        self.error: type[Exception] = duckdb.Error
        self._syntax_error: type[Exception] = duckdb.ParserException
        self._catalog_error: type[Exception] = duckdb.CatalogException
        self._connection = connection
        self._lake: dict[str, Any] = {"warehouse": warehouse, "catalog": catalog}
        self._admin = connection.get_admin()
        if not self._admin.database_exists(database):
            raise unknown_database(database, self._admin)
        self._database = database
        self._attached: list[TablePath] = []
        self._duck = duckdb.connect()
        # A name in a statement is a table, never a variable of this program.
        self._duck.execute("SET python_enable_replacements = false")
        # Times are read and shown in UTC here, wherever the reader is, as by the other commands.
        self._duck.execute("SET TimeZone = 'UTC'")
        self._use(database)
        self._tokenizer = duckdb
        self._writer = SqlWriter(connection, self._duck)
        self._statement: Statement | None = None

    def run(self, text: str) -> Iterator[pa.RecordBatchReader]:
        """The result of each statement of a text; it is to be read before the next."""
        self._statement = None
        for statement in self._duck.extract_statements(text):
            yield self._run(statement)

    @contextmanager
    def plain_errors(self) -> Iterator[None]:
        """DuckDB's errors as this package's, in one line that says where."""
        try:
            yield
        except self.error as error:
            raise FlussError(self._in_a_line(str(error))) from error

    def _in_a_line(self, text: str) -> str:
        """An error of DuckDB's with its hints, and the place that its last lines draw."""
        place = _PLACE.search(text)
        if place is None:
            return " ".join(text.split())
        number, line, indent = place.groups()
        column = len(indent) - len(f"LINE {number}: ") + 1
        if self._statement is not None:
            column = self._statement.column(int(number), column)
        where = f"line {number}" if line.startswith("...") else f"line {number}, column {column}"
        return f"{' '.join(text[: place.start()].split()).rstrip('.')} ({where})."

    def is_complete(self, text: str) -> bool:
        """Whether a text ends where a statement does."""
        if not text.rstrip().endswith(";"):
            return False
        try:
            self._duck.extract_statements(text)
        except self._syntax_error as error:
            return "unterminated" not in str(error)
        return True

    def tables(self) -> list[TablePath]:
        """All tables of the server."""
        found = []
        for database in sorted(self._admin.list_databases()):
            found += [TablePath(database, name) for name in sorted(self._admin.list_tables(database))]
        return found

    def describe(self, name: str) -> TableInfo:
        """The table of a name; raises when there is none."""
        names = TableNames(self._admin, self._database)
        path = names.path(name) or TablePath(self._database, name)
        found = names.find(path)
        if found is None:
            raise names.unknown(path)
        virtual = virtual_table(found)
        if virtual is not None:
            raise InvalidRequestError(
                f"{found} is made of the log of {virtual.base} when it is read; FROM {name} LIMIT 0 shows its columns."
            )
        return self._admin.get_table_info(found)

    def close(self) -> None:
        """Drop what the session holds."""
        self._duck.close()

    def _run(self, parsed: Any) -> pa.RecordBatchReader:
        self._detach()
        names = TableNames(self._admin, self._database)
        self._statement = statement = Statement(self._tokenizer, parsed.type.name, parsed.query)
        check_no_database(statement)
        listed = self._listed(statement)
        if listed is not None:
            return pa.table({"name": pa.array(listed, pa.string())}).to_reader()
        target = self._target(statement, names)
        missing = self._attach_named(statement, statement.query if target is None else statement.on(target), names)
        try:
            if target is not None:
                return self._writer.run(statement, target)
            relation = self._duck.sql(statement.query)
        except self._catalog_error as error:
            # What is not the server's may be DuckDB's own, so it is asked first.
            unknown = next((path for path in missing if path.table_name in str(error)), None)
            if unknown is None:
                raise
            raise names.unknown(unknown) from error
        if relation is None:  # as older versions answer a statement without a result
            return pa.RecordBatchReader.from_batches(pa.schema([]), [])
        return pa.RecordBatchReader.from_stream(relation)

    def _listed(self, statement: Statement) -> list[str] | None:
        """What SHOW TABLES [FROM database] or SHOW DATABASES lists."""
        match statement.words:
            case ["SHOW", "TABLES"]:
                return sorted(self._admin.list_tables(self._database))
            case ["SHOW", "TABLES", "FROM" | "IN", _]:
                return sorted(self._admin.list_tables(unquoted(statement.tokens[3].text)))
            case ["SHOW", "DATABASES" | "SCHEMAS"]:
                return sorted(self._admin.list_databases())
        return None

    def _target(self, statement: Statement, names: TableNames) -> TablePath | None:
        """The server's table that a statement writes; None: DuckDB's own, or none."""
        match = statement.target()
        if match is None:
            return None
        path = names.path_of(match)
        found = names.find(path)
        if found is not None:
            statement.check_done_here(found)
        return found or (path if statement.kind == "CREATE" else None)

    def _attach_named(self, statement: Statement, query: str, names: TableNames) -> list[TablePath]:
        """Make the tables known that a query names; returns what may be a table and is none."""
        missing = []
        for path in sorted(self._named(statement.kind, query, names)):
            found = names.find(path)
            if found is None:
                missing.append(path)
            else:
                self._attach(found)
        return missing

    def _named(self, kind: str, query: str, names: TableNames) -> set[TablePath]:
        """What may be tables in a statement."""
        if kind in _TOLD:
            try:
                told = self._duck.get_table_names(query, qualified=True)
            except self.error:
                pass  # it can't be told without the columns
            else:
                return {path for name in told if (path := names.path(name)) is not None}
        return names.paths(query)

    def _attach(self, path: TablePath) -> None:
        """Make a table's rows as of now known by its name."""
        virtual = virtual_table(path)
        if virtual is not None:
            relation = self._duck.from_arrow(virtual.read(self._connection, virtual.base))
        else:
            relation = self._connection.get_table(path).new_scan().union(**self._lake).to_duckdb(self._duck)
        self._use(path.database_name)
        try:
            relation.create_view(path.table_name, replace=True)
        finally:
            self._use(self._database)
        self._attached.append(path)

    def _detach(self) -> None:
        """Forget the rows of the last statement."""
        for path in self._attached:
            self._duck.execute(f"DROP VIEW IF EXISTS {quoted(path.database_name)}.{quoted(path.table_name)}")
        self._attached = []

    def _use(self, database: str) -> None:
        self._duck.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(database)}")
        self._duck.execute(f"USE {quoted(database)}")


def run_sql(core: ClientCore, query: str, database: str) -> pa.Table:
    """What the last statement of a text answers, over a client's connection; blocks."""
    session = SqlSession(FlussConnection(core), database)
    try:
        with session.plain_errors():
            answers = [reader.read_all() for reader in session.run(query)]
        return answers[-1] if answers else pa.table({})
    finally:
        session.close()
