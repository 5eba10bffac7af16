"""The command `fluss sql`: statements over the lake and the fresh rows, once or at a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import pairs
from fluss.cli.text.output import limit_option, output_option, write_batches, write_rows
from fluss.doors import clock
from fluss.model.config import Config
from fluss.model.errors import FlussError

if TYPE_CHECKING:
    from fluss.lake.union.sql import SqlSession

HISTORY_LINES_MAX: Final = 1_000
HELP: Final = r"\d lists tables, \d NAME describes one, \q leaves; a statement ends with ;"
# Words of other shells, too: psql's, DuckDB's and SQLite's, MySQL's.
_LEAVE: Final = (r"\q", "exit", "quit", ".exit", ".quit")
_HELP: Final = (r"\?", r"\h", "help", ".help", "?")
_DESCRIBE: Final = (r"\d", r"\dt", r"\d+", ".tables", ".schema")


@click.command()
@click.argument("query", required=False)
@connection_options
@click.option("-d", "--database", default="fluss", show_default=True, metavar="NAME", help="Of tables without one.")
@click.option("--warehouse", metavar="FOLDER", help="Where the lake is.  [default: as the server says]")
@click.option("--catalog", multiple=True, callback=pairs, metavar="KEY=VALUE", help="Its catalog: type, uri, ...")
@output_option
@limit_option
def sql(
    query: str | None,
    settings: Config,
    database: str,
    warehouse: str | None,
    catalog: dict[str, str],
    output: str,
    limit: int | None,
) -> None:
    """Query tables with SQL: what the lake has of them, and the rows that came since, up to the query's start.

    INSERT INTO, CREATE TABLE, and UPDATE and DELETE of a row by its key write. Tables are named as table or
    database.table. Without a QUERY statements are read from the terminal, or from standard input. The dialect is
    DuckDB's.

    \b
    Examples:
      fluss sql "SELECT country, count(*) FROM shop.customers GROUP BY country"
      fluss sql --database shop -o csv "FROM orders LIMIT 10"
      fluss sql
    """
    from fluss.lake.union.sql import SqlSession

    with connected(settings) as connection:
        session = SqlSession(connection, database, warehouse=warehouse, catalog=catalog or None)
        try:
            shell = _Shell(session, output, limit)
            if query is not None:
                shell.run(query)
            elif sys.stdin.isatty():
                shell.prompt()
            else:
                shell.read(sys.stdin)
        finally:
            session.close()


class _Shell:
    def __init__(self, session: SqlSession, output: str, limit: int | None) -> None:
        self._session = session
        self._output = output
        self._limit = limit

    def run(self, text: str) -> None:
        """Run statements and print their results."""
        began = clock.monotonic()
        with self._session.plain_errors():
            for reader in self._session.run(text):
                if reader.schema.names:
                    write_batches(reader.schema, reader, self._output, limit=self._limit)
                click.echo(f"{clock.monotonic() - began:.2f} s", err=True)
                began = clock.monotonic()

    def prompt(self) -> None:
        """Ask for statements; what is wrong with one is told, and the next is asked for."""
        click.echo(HELP, err=True)
        with _history():
            text = ""
            while True:
                try:
                    line = input("   ... " if text else "fluss> ")
                    rest = self._take(text, line)
                except EOFError:
                    click.echo(err=True)
                    return
                except KeyboardInterrupt:
                    click.echo(err=True)
                    rest = ""
                except (FlussError, OSError) as error:
                    click.echo(f"fluss sql: {error}", err=True)
                    rest = ""
                if rest is None:
                    return
                text = rest

    def read(self, lines: Iterator[str]) -> None:
        """Run the statements of a file or pipe; the first mistake is the end."""
        text: str | None = ""
        for line in lines:
            text = self._take(text or "", line.rstrip("\n"))
            if text is None:
                return
        if text and text.strip():
            self.run(text)

    def _take(self, text: str, line: str) -> str | None:
        """Take a line more; returns what waits for its end, None when there shall be no more."""
        command = line.strip()
        if not text and command.rstrip(";") in _LEAVE:
            return None
        if not text and (command.startswith(("\\", ".")) or command.rstrip(";") in _HELP):
            self._run_command(command)
            return ""
        text = f"{text}{line}\n" if text or command else ""
        if not self._session.is_complete(text):
            return text
        self.run(text)
        return ""

    def _run_command(self, command: str) -> None:
        word, _, name = command.partition(" ")
        if word.rstrip(";") in _HELP:
            click.echo(HELP, err=True)
            return
        if word.rstrip(";") not in _DESCRIBE:
            raise FlussError(f"There is no command {word}: {HELP}.")
        if name.strip():
            self._print_columns(name.strip().rstrip(";"))
        else:
            import pyarrow as pa

            found = [{"database": path.database_name, "table": path.table_name} for path in self._session.tables()]
            write_rows([("database", pa.string()), ("table", pa.string())], found, self._output)

    def _print_columns(self, name: str) -> None:
        import pyarrow as pa

        info = self._session.describe(name)
        keys = {"primary key": info.primary_keys, "partition": info.partition_keys}
        rows = [
            {
                "column": column.name,
                "type": str(column.data_type),
                "key": ", ".join(key for key, names in keys.items() if column.name in names),
                "comment": column.comment,
            }
            for column in info.schema.columns
        ]
        write_rows([(title, pa.string()) for title in ("column", "type", "key", "comment")], rows, self._output)


@contextmanager
def _history() -> Iterator[None]:
    """Lines that were typed before can be had again, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "flussbett" / "sql_history"
    try:
        readline.read_history_file(path)
    except OSError:
        pass  # there is none yet
    try:
        yield
    finally:
        readline.set_history_length(HISTORY_LINES_MAX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
        except OSError:
            pass  # a home that can't be written is no reason to fail
