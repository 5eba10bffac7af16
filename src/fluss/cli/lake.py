"""The command `fluss lake`: upkeep of tables in the lake."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.names import open_table, pairs, seconds

if TYPE_CHECKING:
    from fluss.model.config import Config

Function = TypeVar("Function", bound=Callable[..., Any])


def _options(command: Function) -> Function:
    """Which tables, and where their lake is."""
    given = [
        click.option("--table", "tables", multiple=True, required=True, metavar="DB.TABLE", help="A table."),
        click.option("--warehouse", metavar="FOLDER", help="Where the lake is.  [default: as the server says]"),
        click.option("--catalog", multiple=True, callback=pairs, metavar="KEY=VALUE", help="Its catalog: type, ..."),
        connection_options,
    ]
    for option in reversed(given):
        command = option(command)
    return command


@click.group()
def lake() -> None:
    """Keep tables in the lake in order: compact small files, expire old snapshots, clean up files of neither.

    Example: fluss lake compact --table shop.orders
    """


@lake.command()
@_options
def compact(tables: tuple[str, ...], warehouse: str | None, catalog: dict[str, str], settings: Config) -> None:
    """Join small files of a bucket into one. The rows stay the same.

    Example: fluss lake compact --table shop.orders
    """
    from fluss.lake.compaction import compact as run

    with connected(settings) as connection:
        for name in tables:
            done = run(
                connection, open_table(connection, name).table_path, warehouse=warehouse, catalog=catalog or None
            )
            click.echo(f"{name}: {done.files_removed} files became {done.files_added}, {done.row_count:,} rows")


@lake.command()
@_options
@click.option("--older-than", callback=seconds, default="5d", show_default=True, metavar="DURATION")
@click.option("--keep", type=click.IntRange(min=1), default=10, show_default=True, help="The last ones always stay.")
def expire(
    tables: tuple[str, ...],
    warehouse: str | None,
    catalog: dict[str, str],
    settings: Config,
    older_than: float,
    keep: int,
) -> None:
    """Forget old snapshots, but none that the server knows. Their files are for `fluss lake clean`.

    Example: fluss lake expire --table shop.orders
    """
    from fluss.lake.maintenance import expire as run

    with connected(settings) as connection:
        for name in tables:
            gone = run(
                connection,
                open_table(connection, name).table_path,
                warehouse=warehouse,
                catalog=catalog or None,
                older_than_s=older_than,
                keep_min=keep,
            )
            click.echo(f"{name}: {len(gone)} snapshots expired")


@lake.command()
@_options
@click.option("--older-than", callback=seconds, default="1d", show_default=True, metavar="DURATION")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def clean(
    tables: tuple[str, ...],
    warehouse: str | None,
    catalog: dict[str, str],
    settings: Config,
    older_than: float,
    dry_run: bool,
) -> None:
    """Remove files that no snapshot has. A job that writes for longer than --older-than would lose its files.

    Example: fluss lake clean --table shop.orders --dry-run
    """
    from fluss.lake.maintenance import clean_orphans

    with connected(settings) as connection:
        for name in tables:
            found = clean_orphans(
                connection,
                open_table(connection, name).table_path,
                warehouse=warehouse,
                catalog=catalog or None,
                older_than_s=older_than,
                dry_run=dry_run,
            )
            for location in found.locations if dry_run else ():
                click.echo(location)
            what = "to be removed" if dry_run else "removed"
            click.echo(f"{name}: {len(found.locations)} files {what}, {found.size_bytes:,} bytes")
