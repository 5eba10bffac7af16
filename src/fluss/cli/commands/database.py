"""The command `fluss database`."""

from __future__ import annotations

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import missing_database, pairs
from fluss.cli.text.output import output_option, write_rows
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, InvalidRequestError, NotFoundError


@click.group()
def database() -> None:
    """List, create, describe and drop databases.

    Example: fluss database create shop --comment 'orders and customers'
    """


@database.command(name="list")
@connection_options
@output_option
def list_databases(settings: Config, output: str) -> None:
    """List all databases and how many tables they have.

    Example: fluss database list
    """
    import pyarrow as pa

    with connected(settings) as connection:
        admin = connection.get_admin()
        rows = [{"database": name, "tables": len(admin.list_tables(name))} for name in sorted(admin.list_databases())]
    write_rows([("database", pa.string()), ("tables", pa.int64())], rows, output)


@database.command()
@click.argument("name")
@click.option("--comment", metavar="TEXT", help="What it is for.")
@click.option("--property", "properties", multiple=True, callback=pairs, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
@connection_options
def create(name: str, comment: str | None, properties: dict[str, str], if_not_exists: bool, settings: Config) -> None:
    """Create a database.

    Example: fluss database create shop
    """
    from fluss.model.descriptor import DatabaseDescriptor

    with connected(settings) as connection:
        descriptor = DatabaseDescriptor(comment, properties)
        connection.get_admin().create_database(name, descriptor, ignore_if_exists=if_not_exists)
    click.echo(f"database {name} created")


@database.command()
@click.argument("name")
@connection_options
@output_option
def describe(name: str, settings: Config, output: str) -> None:
    """Print a database's comment, properties and tables.

    Example: fluss database describe shop
    """
    import pyarrow as pa

    with connected(settings) as connection:
        admin = connection.get_admin()
        try:
            info = admin.get_database_info(name)
        except NotFoundError:
            raise missing_database(name, admin.list_databases()) from None
        row = {
            "database": name,
            "comment": info.database_descriptor.comment,
            "created": info.created_time,
            "properties": list(info.database_descriptor.custom_properties.items()),
            "tables": sorted(admin.list_tables(name)),
        }
    schema = [
        ("database", pa.string()),
        ("comment", pa.string()),
        ("created", pa.timestamp("ms", "UTC")),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("tables", pa.list_(pa.string())),
    ]
    write_rows(schema, [row], output)


@database.command()
@click.argument("name")
@click.option("--cascade", is_flag=True, help="Drop its tables too.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@connection_options
def drop(name: str, cascade: bool, yes: bool, settings: Config) -> None:
    """Drop a database; with --cascade its tables and their rows too.

    Example: fluss database drop shop --cascade --yes
    """
    with connected(settings) as connection:
        admin = connection.get_admin()
        if not admin.database_exists(name):
            raise missing_database(name, admin.list_databases())
        tables = admin.list_tables(name)
        if tables and not cascade:
            raise InvalidRequestError(
                f"Database {name} has {len(tables)} tables; --cascade drops them too.", ErrorCode.DATABASE_NOT_EMPTY
            )
        if not yes:
            click.confirm(f"Drop database {name} with {len(tables)} tables and all their rows?", abort=True, err=True)
        admin.drop_database(name, cascade=cascade)
    gone = "" if not tables else " with 1 table" if len(tables) == 1 else f" with {len(tables):,} tables"
    click.echo(f"database {name} dropped{gone}")
