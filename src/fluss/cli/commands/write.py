"""The commands `fluss append`, `fluss upsert` and `fluss delete`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from fluss.cli.commands.scan import projected
from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import key_pairs, open_table, split_columns
from fluss.doors import clock, threads
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.cli.text.inputs import Input
    from fluss.sync import FlussTable, Lookuper, WriteResultHandle

BATCHES_UNDER_WAY_MAX: Final = 16
# After so long without an acknowledgement it is said what is waited for.
SILENCE_S_MAX: Final = 5.0
_FORMATS: Final = ("parquet", "csv", "tsv", "json", "arrow")

Function = TypeVar("Function", bound=Callable[..., Any])


def _input_options(command: Function) -> Function:
    format_help = "Of the files or of standard input.  [default: by the file's ending]"
    command = click.option("--delimiter", metavar="CHARACTER", help="Between the values of a CSV file.")(command)
    command = click.option("--format", type=click.Choice(_FORMATS), help=format_help)(command)
    return click.argument("files", nargs=-1, metavar="[FILE]...")(command)


_CREATE_PARTITIONS = click.option("--create-partitions", is_flag=True, help="Create partitions that are missing.")


@click.command()
@click.argument("table")
@_input_options
@click.option("--skip", type=click.IntRange(0), default=0, metavar="N", help="Leave out the first N rows.")
@_CREATE_PARTITIONS
@connection_options
def append(
    table: str,
    files: tuple[str, ...],
    format: str | None,
    delimiter: str | None,
    skip: int,
    create_partitions: bool,
    settings: Config,
) -> None:
    """Append rows to a log table, from files or from standard input.

    Files are Parquet, CSV with a header, JSON lines or Arrow; values are converted to the table's types. Columns that
    a file does not have become null. A command that fails says how many rows are stored: --skip goes on behind them.

    \b
    Examples:
      fluss append shop.orders january.parquet february.csv.gz
      tail -f orders.jsonl | fluss append shop.orders --format json
    """
    from fluss.cli.text.inputs import check_inputs

    inputs = check_inputs(files, format, delimiter)
    settings.writer_dynamic_create_partition_enabled = create_partitions
    with connected(settings) as connection:
        opened = open_table(connection, table)
        if opened.has_primary_key():
            raise FlussError(f"Table {opened.table_path} has a primary key: use 'fluss upsert {table}'.")
        writer = opened.new_append().create_writer()
        _write_all(opened, inputs, opened.arrow_schema, writer.write_arrow_batch, "appended to", skip)


@click.command()
@click.argument("table")
@_input_options
@click.option("--columns", callback=split_columns, metavar="A,B,...", help="Update these only, the key's among them.")
@_CREATE_PARTITIONS
@connection_options
def upsert(
    table: str,
    files: tuple[str, ...],
    format: str | None,
    delimiter: str | None,
    columns: list[str] | None,
    create_partitions: bool,
    settings: Config,
) -> None:
    """Insert rows into a primary-key table, or update those with the same key.

    Rows come from files or from standard input, as with 'fluss append'. With --columns all other columns keep their
    values.

    \b
    Examples:
      fluss upsert shop.customers customers.csv
      fluss upsert shop.customers emails.jsonl --columns id,email
    """
    from fluss.cli.text.inputs import check_inputs

    inputs = check_inputs(files, format, delimiter)
    settings.writer_dynamic_create_partition_enabled = create_partitions
    with connected(settings) as connection:
        opened = open_table(connection, table)
        _check_primary_key(opened, "append")
        schema = opened.arrow_schema if columns is None else projected(opened, columns)
        writer = opened.new_upsert(columns).create_writer()
        _write_all(opened, inputs, schema, writer.write_arrow_batch, "upserted to")


@click.command()
@click.argument("table")
@_input_options
@click.option("--key", "keys", multiple=True, metavar="COLUMN=VALUE,...", help="A key to delete; may be repeated.")
@connection_options
def delete(
    table: str,
    files: tuple[str, ...],
    format: str | None,
    delimiter: str | None,
    keys: tuple[str, ...],
    settings: Config,
) -> None:
    """Delete rows of a primary-key table: by --key, or by the keys in files or standard input.

    Files have the key's columns only. A key that is not there is no error, and is not counted.

    \b
    Examples:
      fluss delete shop.customers --key id=5 --key id=6
      fluss delete shop.customers gone.csv
    """
    from fluss.cli.text.inputs import check_inputs

    if keys and (files or format):
        raise click.UsageError("Give --key, or files with keys, not both.")
    inputs = [] if keys else check_inputs(files, format, delimiter)
    with connected(settings) as connection:
        opened = open_table(connection, table)
        _check_primary_key(opened, None)
        writer = opened.new_upsert().create_writer()
        schema = projected(opened, opened.get_table_info().primary_keys)
        sources: list[Any] = [KeyRows(keys)] if keys else list(inputs)
        lookuper = opened.new_lookup().create_lookuper()
        _write_all(
            opened, [_Present(source, lookuper) for source in sources], schema, writer.delete_arrow, "deleted from"
        )


class KeyRows:
    """Keys of the command line, where files would be."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.name = "--key"
        self._keys = list(keys)

    def row_count(self) -> int | None:
        return len(self._keys)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield key_batch([key_pairs(key, schema.names) for key in self._keys], schema)


class _Present:
    """Those keys of a source that have a row."""

    def __init__(self, source: Input | KeyRows, lookuper: Lookuper) -> None:
        self.name = source.name
        self._source = source
        self._lookuper = lookuper

    def row_count(self) -> int | None:
        return self._source.row_count()

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in self._source.batches(schema):
            rows = self._lookuper.lookup_many(batch)
            yield batch.filter(rows.column(schema.names[0]).combine_chunks().is_valid())


def key_batch(keys: list[dict[str, str]], schema: pa.Schema) -> pa.RecordBatch:
    """Keys as a batch of a schema's types, each with a value for each column."""
    import pyarrow as pa

    from fluss.cli.text.coerce import MisfitError, check_names, fit

    for key in keys:
        check_names(list(key), schema)
        if len(key) != len(schema.names):
            raise FlussError(f"A key has a value for each of {', '.join(schema.names)}.")
    columns = {name: pa.array([key[name] for key in keys], pa.string()) for name in schema.names}
    try:
        return fit(pa.record_batch(columns), schema)
    except MisfitError as error:
        raise FlussError(f"{error.message}.") from None


def _check_primary_key(table: FlussTable, instead: str | None) -> None:
    if not table.has_primary_key():
        advice = f": use 'fluss {instead} {table.table_path}'" if instead else ", so its rows can't be deleted"
        raise FlussError(f"Table {table.table_path} has no primary key{advice}.")


def _write_all(
    table: FlussTable,
    inputs: Iterable[Input | KeyRows | _Present],
    schema: pa.Schema,
    write: Callable[[pa.RecordBatch], WriteResultHandle],
    verb: str,
    skip: int | None = None,
) -> None:
    """Write all batches, a few at a time; whatever ends it, how many rows are stored is said, and how to go on."""
    started_s = clock.monotonic()
    stored = _Stored()
    left = skip or 0
    try:
        for source in inputs:
            with _progress(source) as advance:
                for batch in source.batches(schema):
                    part = batch.slice(min(left, batch.num_rows))
                    left -= batch.num_rows - part.num_rows
                    if part.num_rows:
                        stored.add(write, part)
                    advance(batch.num_rows)
        stored.wait()
    except (FlussError, KeyboardInterrupt) as error:
        stored.wait_quietly()
        text = f"{stored.said()} {verb} {table.table_path} before that."
        if skip is not None and stored.row_count:
            text += f" --skip {skip + stored.first_rows} leaves out what is stored{stored.doubt}."
        if isinstance(error, FlussError):
            raise FlussError(f"{_advised(error)} {text}", error.error_code) from error
        click.echo(text, err=True)
        raise
    noun = "row" if stored.row_count == 1 else "rows"
    took_s = clock.monotonic() - started_s
    click.echo(f"{stored.row_count:,} {noun} {verb} {table.table_path} in {took_s:.1f} s")


def _advised(error: FlussError) -> str:
    """What is wrong, and what to do about it here."""
    if error.error_code == ErrorCode.PARTITION_NOT_EXISTS:
        return f"{error.message.partition(': create it')[0]}; --create-partitions creates those that are missing."
    return f"{error.message.rstrip('.')}."


class _Stored:
    """Batches under way, and how many rows the server has acknowledged."""

    def __init__(self) -> None:
        self.row_count = 0
        self.first_rows = 0
        """So many rows of the input, from its first, are stored"""
        self.failed = False
        self._under_way: deque[tuple[WriteResultHandle, int]] = deque()

    def said(self) -> str:
        """How many rows were stored; a batch that failed may have been stored all the same."""
        return f"{'At least ' if self.failed else ''}{self.row_count:,} rows were"

    @property
    def doubt(self) -> str:
        return " for certain; rows behind that which were stored, too, are stored twice then" if self.failed else ""

    def add(self, write: Callable[[pa.RecordBatch], WriteResultHandle], batch: pa.RecordBatch) -> None:
        with _saying_what_is_waited_for():
            handle = write(batch)
        self._under_way.append((handle, batch.num_rows))
        self.wait(BATCHES_UNDER_WAY_MAX)

    def wait(self, left: int = 0) -> None:
        while len(self._under_way) > left:
            handle, row_count = self._under_way.popleft()
            try:
                with _saying_what_is_waited_for():
                    handle.wait()
            except FlussError:
                self.failed = True
                raise
            self.row_count += row_count
            self.first_rows += 0 if self.failed else row_count

    def wait_quietly(self) -> None:
        """Count what was stored after a failure."""
        while self._under_way:
            try:
                self.wait()
            except FlussError:
                pass


@contextmanager
def _saying_what_is_waited_for() -> Iterator[None]:
    """A line on standard error when it takes long."""
    done = threads.event()

    def watch() -> None:
        if not done.wait(SILENCE_S_MAX):
            click.echo(f"The server has not answered for {SILENCE_S_MAX:g} s; waiting for it.", err=True)

    threads.daemon(watch, name="fluss-watch").start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def _progress(source: Input | KeyRows | _Present) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda row_count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} rows"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(source.name, total=source.row_count())
        yield lambda row_count: progress.advance(task, row_count)
