"""The command `fluss table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.names import missing_database, missing_table, open_table, pairs, split_columns, table_path
from fluss.cli.text.output import output_option, write_rows
from fluss.model.config import Config
from fluss.model.errors import NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath

if TYPE_CHECKING:
    from fluss.model.descriptor import TableDescriptor


@click.group()
def table() -> None:
    """List, create, describe, alter and drop tables.

    A table is named database.table, or by its plain name if its database is fluss.

    Example: fluss table create shop.orders --schema 'id bigint, total decimal(10,2)'
    """


@table.command(name="list")
@click.argument("databases", nargs=-1, metavar="[DATABASE]...")
@connection_options
@output_option
def list_tables(databases: tuple[str, ...], settings: Config, output: str) -> None:
    """List the tables of all databases, or of some.

    Example: fluss table list shop
    """
    import pyarrow as pa

    with connected(settings) as connection:
        admin = connection.get_admin()
        known = admin.list_databases()
        for name in databases:
            if name not in known:
                raise missing_database(name, known)
        rows = []
        for database in sorted(databases or known):
            for name in sorted(admin.list_tables(database)):
                try:
                    rows.append(_listed(admin.get_table_info(TablePath(database, name))))
                except NotFoundError:
                    pass  # it was dropped meanwhile
    if not rows and output == "table":
        click.echo("no tables; 'fluss table create --help' shows how to make one")
        return
    schema = [
        ("table", pa.string()),
        ("columns", pa.int64()),
        ("primary key", pa.string()),
        ("partitioned by", pa.string()),
        ("buckets", pa.int64()),
        ("comment", pa.string()),
    ]
    write_rows(schema, rows, output)


def _listed(info: TableInfo) -> dict[str, Any]:
    return {
        "table": str(info.table_path),
        "columns": info.get_column_count(),
        "primary key": ", ".join(info.primary_keys) or None,
        "partitioned by": ", ".join(info.partition_keys) or None,
        "buckets": info.num_buckets,
        "comment": info.comment,
    }


@table.command()
@click.argument("name", metavar="TABLE")
@click.option("--schema", metavar="COLUMNS", help="'id bigint not null, name string, primary key (id)'")
@click.option(
    "--file", type=click.Path(path_type=Path), help="A definition, TOML or JSON, as 'table define' prints it."
)
@click.option("--from", "like", metavar="FILE", help="Columns as in a Parquet, CSV, JSON lines or Arrow file.")
@click.option("--primary-key", callback=split_columns, metavar="A,B,...", help="Rows are updated by these columns.")
@click.option("--partition-key", callback=split_columns, metavar="A,B,...", help="Columns that choose the partition.")
@click.option("--bucket-key", callback=split_columns, metavar="A,B,...", help="Columns that choose the bucket.")
@click.option("--buckets", type=click.IntRange(1), metavar="N", help="Number of buckets, of each partition if any.")
@click.option("--property", "properties", multiple=True, callback=pairs, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--comment", metavar="TEXT", help="What it is for.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
@connection_options
def create(
    name: str,
    schema: str | None,
    file: Path | None,
    like: str | None,
    if_not_exists: bool,
    settings: Config,
    **more: Any,
) -> None:
    """Create a table from the text of its columns, from a definition, or with the columns of a data file.

    \b
    Examples:
      fluss table create shop.orders --schema 'id bigint, day string, total decimal(10,2)' --buckets 4
      fluss table create shop.customers --from customers.parquet --primary-key id
      fluss table create shop.orders --file orders.toml
    """
    if sum(given is not None for given in (schema, file, like)) != 1:
        raise click.UsageError("Give one of --schema, --file and --from.")
    from fluss.cli.commands.create import defined, descriptor_like

    path = table_path(name)
    descriptor: TableDescriptor = defined(file, more) if file is not None else descriptor_like(schema, like, more)
    with connected(settings) as connection:
        admin = connection.get_admin()
        try:
            admin.create_table(path, descriptor, ignore_if_exists=if_not_exists)
        except NotFoundError:
            raise missing_database(path.database_name, admin.list_databases()) from None
    click.echo(f"table {path} created")


@table.command()
@click.argument("name", metavar="TABLE")
@connection_options
@output_option
def describe(name: str, settings: Config, output: str) -> None:
    """Print a table's columns, keys, buckets, properties and number of rows.

    Example: fluss table describe shop.orders
    """
    with connected(settings) as connection:
        opened = open_table(connection, name)
        from fluss.cli.commands.describe import description, print_description

        found = description(connection, opened)
    print_description(found, output)


@table.command()
@click.argument("name", metavar="TABLE")
@click.option("--json", "as_json", is_flag=True, help="JSON, not TOML.")
@connection_options
def define(name: str, as_json: bool, settings: Config) -> None:
    """Print a table's definition as a file from which it can be created again.

    \b
    Example:
      fluss table define shop.orders > orders.toml
      fluss table create test.orders --file orders.toml
    """
    from fluss.cli.commands.definition import definition_of, to_toml

    with connected(settings) as connection:
        definition = definition_of(open_table(connection, name).get_table_info())
    click.echo(json.dumps(definition, indent=2, ensure_ascii=False) if as_json else to_toml(definition))


@table.command()
@click.argument("name", metavar="TABLE")
@click.option("--add-column", "columns", multiple=True, metavar="'NAME TYPE'", help="May be repeated.")
@click.option("--set", "properties", multiple=True, callback=pairs, metavar="KEY=VALUE", help="Set a property.")
@click.option("--reset", "resets", multiple=True, metavar="KEY", help="Give a property its default.")
@connection_options
def alter(
    name: str, columns: tuple[str, ...], properties: dict[str, str], resets: tuple[str, ...], settings: Config
) -> None:
    """Add columns at the end, or change properties.

    \b
    Examples:
      fluss table alter shop.orders --add-column "note string comment 'by the clerk'"
      fluss table alter shop.orders --set table.log.ttl=7d
    """
    if not (columns or properties or resets):
        raise click.UsageError("Give --add-column, --set or --reset.")
    if columns and (properties or resets):
        raise click.UsageError("Columns and properties are altered one after the other: make two calls.")
    from fluss.model.forms.type_text import parse_schema

    added = parse_schema(", ".join(columns)).columns if columns else []
    with connected(settings) as connection:
        path = open_table(connection, name).table_path
        connection.get_admin().alter_table(
            path,
            add_columns=[(column.name, column.data_type, column.comment) for column in added] or None,
            set_properties=properties or None,
            reset_properties=list(resets) or None,
        )
    click.echo(f"table {path} altered")


@table.command()
@click.argument("name", metavar="TABLE")
@click.option("--yes", is_flag=True, help="Don't ask.")
@connection_options
def drop(name: str, yes: bool, settings: Config) -> None:
    """Drop a table and its rows.

    Example: fluss table drop shop.orders --yes
    """
    with connected(settings) as connection:
        admin = connection.get_admin()
        path = table_path(name)
        if not (admin.database_exists(path.database_name) and admin.table_exists(path)):
            raise missing_table(connection, path)
        if not yes:
            click.confirm(f"Drop table {path} with all its rows?", abort=True, err=True)
        admin.drop_table(path)
    click.echo(f"table {path} dropped")
