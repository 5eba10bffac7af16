"""SQL on tables of a server: DuckDB over the union of lake and log, each statement as of its own start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from fluss.lake.union.duck import load_duckdb, quoted
from fluss.lake.union.sql_names import TableNames, unknown_database
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.sync import FlussConnection

DATABASE: Final = "fluss"

# Statements of which DuckDB tells the tables; of others each word is compared with the tables there are.
_TOLD: Final = ("SELECT", "EXPLAIN")


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
        self._use(database)

    def run(self, text: str) -> Iterator[pa.RecordBatchReader]:
        """The result of each statement of a text; it is to be read before the next."""
        for statement in self._duck.extract_statements(text):
            yield self._run(statement)

    @contextmanager
    def plain_errors(self) -> Iterator[None]:
        """DuckDB's errors as this package's, without the lines that show where."""
        try:
            yield
        except self.error as error:
            raise FlussError(str(error).strip().partition("\n")[0]) from error

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
        return self._admin.get_table_info(found)

    def close(self) -> None:
        """Drop what the session holds."""
        self._duck.close()

    def _run(self, statement: Any) -> pa.RecordBatchReader:
        self._detach()
        names = TableNames(self._admin, self._database)
        missing = []
        for path in sorted(self._named(statement, names)):
            found = names.find(path)
            if found is None:
                missing.append(path)
            else:
                self._attach(found)
        try:
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

    def _named(self, statement: Any, names: TableNames) -> set[TablePath]:
        """What may be tables in a statement."""
        if statement.type.name in _TOLD:
            try:
                told = self._duck.get_table_names(statement.query, qualified=True)
            except self.error:
                pass  # it can't be told without the columns
            else:
                return {path for name in told if (path := names.path(name)) is not None}
        return names.paths(statement.query)

    def _attach(self, path: TablePath) -> None:
        """Make a table's rows as of now known by its name."""
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
