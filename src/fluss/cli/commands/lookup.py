"""The command `fluss lookup`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fluss.cli.commands.scan import projected
from fluss.cli.commands.write import key_batch
from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import check_columns, open_table, pairs
from fluss.cli.text.output import output_option, printing, write_batches
from fluss.model.config import Config
from fluss.model.errors import FlussError, NotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussTable


@click.command()
@click.argument("table")
@click.argument("key", nargs=-1, callback=pairs, metavar="[COLUMN=VALUE]...")
@click.option("--prefix", is_flag=True, help="All rows whose key begins with these columns, the bucket key.")
@click.option(
    "--file", metavar="FILE", help="Keys from a file: Parquet, CSV, JSON lines or Arrow; - is standard input."
)
@click.option("--format", help="Of the file.  [default: by its ending]")
@connection_options
@output_option
def lookup(
    table: str, key: dict[str, str], prefix: bool, file: str | None, format: str | None, settings: Config, output: str
) -> None:
    """Look rows up by primary key. The exit code is 1 if a row is not there.

    \b
    Examples:
      fluss lookup shop.customers id=5
      fluss lookup shop.orders region=EU --prefix
      fluss lookup shop.customers --file ids.csv -o json
    """
    if bool(key) == bool(file) or (prefix and file):
        raise click.UsageError("Give the columns of a key (id=5), or --file with keys.")
    with connected(settings) as connection:
        opened = open_table(connection, table)
        if not opened.has_primary_key():
            raise FlussError(f"Table {opened.table_path} has no primary key; use 'fluss scan {table} --filter ...'.")
        if file is not None:
            _print_many(opened, _file_keys(opened, file, format), output)
        elif prefix:
            _print_prefix(opened, key, output)
        else:
            keys = key_batch([key], projected(opened, opened.get_table_info().primary_keys))
            _print_one(opened, keys, key, output)


def _print_one(table: FlussTable, keys: pa.RecordBatch, key: dict[str, str], output: str) -> None:
    import pyarrow as pa

    found = table.new_lookup().lookup_many(pa.Table.from_batches([keys]))
    if _missing(table, found):
        shown = ", ".join(f"{name}={value}" for name, value in key.items())
        raise NotFoundError(f"There is no row with {shown} in {table.table_path}.")
    with printing(found.schema, output) as printer:
        for batch in found.to_batches():
            printer.write(batch)
        printer.flush()


def _print_prefix(table: FlussTable, key: dict[str, str], output: str) -> None:
    columns = check_columns(table, key)
    typed = key_batch([key], projected(table, columns)).to_pylist()[0]
    found = table.new_lookup().lookup_by(columns).create_lookuper().lookup_arrow(typed)
    if not found.num_rows:
        shown = ", ".join(f"{name}={value}" for name, value in key.items())
        raise NotFoundError(f"There is no row whose key begins with {shown} in {table.table_path}.")
    write_batches(found.schema, found.to_batches(), output, limit=0)


def _print_many(table: FlussTable, keys: pa.Table, output: str) -> None:
    found = table.new_lookup().lookup_many(keys)
    missing = _missing(table, found)
    there = found.filter(found.column(table.get_table_info().primary_keys[0]).is_valid())
    write_batches(there.schema, there.to_batches(), output, limit=0)
    if missing:
        raise NotFoundError(f"{missing:,} of {found.num_rows:,} keys have no row in {table.table_path}.")


def _missing(table: FlussTable, found: pa.Table) -> int:
    """Rows that are all null: a key column never is."""
    return int(found.column(table.get_table_info().primary_keys[0]).null_count)


def _file_keys(table: FlussTable, file: str, format: str | None) -> pa.Table:
    import pyarrow as pa

    from fluss.cli.text.file_process import STDIN
    from fluss.cli.text.inputs import check_inputs

    schema = projected(table, table.get_table_info().primary_keys)
    (source,) = check_inputs(() if file == STDIN else (file,), format, None)
    return pa.Table.from_batches(list(source.batches(schema)), schema)
