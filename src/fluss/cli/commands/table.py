"""The command `fluss table`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fluss.cli.commands.definition import descriptor_of, read_definition, split_properties
from fluss.cli.commands.scan import partition_ids
from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import (
    missing_database,
    missing_table,
    open_table,
    pairs,
    partitions,
    split_columns,
    table_path,
)
from fluss.cli.text.output import output_option, write_rows
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import FlussError, NotFoundError
from fluss.model.forms.type_text import parse_schema, type_text
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.model.tables.options import DATALAKE_ENABLED, LOG_TTL, TTL_DEFAULT, duration_ms, is_true

if TYPE_CHECKING:
    from fluss.model.descriptor import TableDescriptor
    from fluss.sync import FlussConnection, FlussTable

# Options, by what a definition calls them.
_KEYS: Final = {
    "primary_key": "primary_key",
    "partition_key": "partition_keys",
    "bucket_key": "bucket_keys",
    "buckets": "buckets",
    "comment": "comment",
}


def defined(file: Path, options: Mapping[str, Any]) -> TableDescriptor:
    """The table of a definition, which says everything."""
    for name, value in options.items():
        if value:
            option = "property" if name == "properties" else name.replace("_", "-")
            raise FlussError(f"--{option} belongs into the definition, {file}.")
    return read_definition(file)


def descriptor_like(schema_text: str | None, data_file: str | None, options: Mapping[str, Any]) -> TableDescriptor:
    """A table with the columns of a text or of a data file, and the keys and properties of the options."""
    schema = _file_schema(str(data_file)) if schema_text is None else parse_schema(schema_text)
    definition: dict[str, Any] = {
        "columns": [
            {"name": column.name, "type": type_text(column.data_type)}
            | ({} if column.comment is None else {"comment": column.comment})
            for column in schema.columns
        ],
        "primary_key": schema.get_primary_keys(),
    }
    if options["primary_key"] and schema.get_primary_keys():
        raise FlussError("The primary key is given twice: in --schema, and by --primary-key.")
    definition |= {key: options[name] for name, key in _KEYS.items() if options[name]}
    definition["properties"], definition["custom_properties"] = split_properties(options["properties"])
    return descriptor_of(definition)


def _file_schema(path: str) -> Schema:
    """The columns of a data file, each of a type that holds all values that the file's type does."""
    import pyarrow as pa

    from fluss.cli.text.inputs import Input

    wider = {
        pa.null(): pa.string(),
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
    }
    given = Input(path).schema()
    return Schema(pa.schema([field.with_type(wider.get(field.type, field.type)) for field in given]))


def description(connection: FlussConnection, table: FlussTable) -> dict[str, Any]:
    """All that a server tells of a table."""
    info = table.get_table_info()
    found = partitions(connection, table)
    ids = partition_ids(table, found)
    scan = table.new_scan()
    latest, earliest = (scan.bucket_offsets(spec, ids) for spec in (OffsetSpec.latest(), OffsetSpec.earliest()))
    kept = sum(end - earliest.get(bucket, end) for bucket, end in latest.items())
    columns = [
        {
            "column": column.name,
            "type": type_text(column.data_type),
            "key": _role(column.name, info.primary_keys, info.partition_keys),
            "comment": column.comment,
        }
        for column in info.schema.columns
    ]
    return {
        "table": str(info.table_path),
        "id": info.table_id,
        "comment": info.comment,
        "created": dt.datetime.fromtimestamp(info.created_time / 1000, dt.UTC).isoformat(" ", "seconds"),
        "columns": columns,
        "primary key": info.primary_keys,
        "partitioned by": info.partition_keys,
        "partitions": len(found) if info.is_partitioned() else None,
        "buckets": info.num_buckets,
        "bucket key": info.get_bucket_keys(),
        "rows": _row_count(connection, table) if info.has_primary_key() else kept,
        "changes kept": kept if info.has_primary_key() else None,
        "changes expire" if info.has_primary_key() else "rows expire": _expiry(info.properties),
        "properties": {**info.properties, **info.custom_properties},
    }


def _expiry(properties: Mapping[str, str]) -> str:
    """When rows of the log go by their age."""
    ttl = properties.get(LOG_TTL, TTL_DEFAULT)
    if not duration_ms(ttl):
        return "never"
    tiered = ", once they are in the lake" if is_true(properties, DATALAKE_ENABLED) else ""
    return f"after {ttl}{tiered}"


def _role(name: str, primary_keys: list[str], partition_keys: list[str]) -> str | None:
    roles = [role for role, keys in (("primary", primary_keys), ("partition", partition_keys)) if name in keys]
    return ", ".join(roles) or None


def _row_count(connection: FlussConnection, table: FlussTable) -> int | None:
    try:
        return connection.get_admin().get_table_stats(table.table_path).row_count
    except FlussError:
        return None


def print_description(found: dict[str, Any], output: str) -> None:
    """Print a table for people, as one JSON object, or its columns alone, for other programs."""
    import pyarrow as pa

    if output == "json":
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    if output == "table":
        facts = {name: value for name, value in found.items() if name not in ("columns", "properties")}
        _print_pairs({name: _shown(value) for name, value in facts.items() if value not in (None, [])})
        click.echo()
    columns = [("column", pa.string()), ("type", pa.string()), ("key", pa.string()), ("comment", pa.string())]
    used = [item for item in columns if output != "table" or any(row[item[0]] is not None for row in found["columns"])]
    write_rows(used, found["columns"], output)
    if output == "table" and found["properties"]:
        click.echo()
        _print_pairs(found["properties"])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_pairs(values: dict[str, str]) -> None:
    from fluss.cli.text.output import visible

    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{click.style(visible(name).ljust(width), bold=True)}  {visible(value)}")


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
