"""The commands `fluss lake`, upkeep of tables in the lake, and `fluss tier`: tables to the lake."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.failures import EXIT_FAILED
from fluss.cli.text.coerce import open_table, pairs, seconds, table_path
from fluss.cli.text.output import output_option, write_rows
from fluss.doors import threads
from fluss.model.errors import FlussError
from fluss.model.paths import check_database_name

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fluss.lake.drop import Dropped, Loss
    from fluss.lake.report import TieringEvent, TieringReport
    from fluss.lake.status import TableStatus
    from fluss.model.config import Config
    from fluss.sync import TablePath


Function = TypeVar("Function", bound=Callable[..., Any])


def _options(command: Function) -> Function:
    """Which tables, and where their lake is."""
    return click.option("--table", "tables", multiple=True, required=True, metavar="DB.TABLE", help="A table.")(
        _place_options(command)
    )


def _place_options(command: Function) -> Function:
    """The options that say where the lake is, and the server."""
    given = [
        click.option("--warehouse", metavar="FOLDER", help="Where the lake is.  [default: as the server says]"),
        click.option("--catalog", multiple=True, callback=pairs, metavar="KEY=VALUE", help="Its catalog: type, ..."),
        connection_options,
    ]
    for option in reversed(given):
        command = option(command)
    return command


@click.group()
def lake() -> None:
    """Look after tables in the lake: how far they are, compact, expire, clean up, drop.

    \b
    Examples:
      fluss lake status
      fluss lake compact --table shop.orders
    """


@lake.command()
@_options
def compact(tables: tuple[str, ...], warehouse: str | None, catalog: dict[str, str], settings: Config) -> None:
    """Join small files of a bucket into one. The rows stay the same.

    Example: fluss lake compact --table shop.orders
    """
    from fluss.lake.tiering.round import compact as run

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
                click.echo(_line(location))
            what = "to be removed" if dry_run else "removed"
            click.echo(f"{name}: {len(found.locations)} files {what}, {found.size_bytes:,} bytes")


@lake.command()
@click.argument("name", metavar="TABLE")
@_place_options
@click.option("--start-over", is_flag=True, help="Also if the table is still tiered: the next round begins anew.")
@click.option("--purge", is_flag=True, help="Remove its files, too.")
@click.option("--yes", is_flag=True, help="Don't ask.")
def drop(
    name: str,
    warehouse: str | None,
    catalog: dict[str, str],
    settings: Config,
    start_over: bool,
    purge: bool,
    yes: bool,
) -> None:
    """Drop a table from the lake. Rows that the server does not have any more are lost.

    A table that was dropped and created again can be tiered when the old one is out of the lake. Files stay where they
    are without --purge; then they can't be read by the table's name, and `fluss lake clean` of a new table of that name
    removes them. Files of other tables are never removed.

    \b
    Examples:
      fluss lake drop shop.orders
      fluss lake drop shop.orders --start-over --purge --yes
    """
    from fluss.lake.drop import Drop

    with connected(settings) as connection:
        path = table_path(name)
        wanted = Drop(connection, path, warehouse=warehouse, catalog=catalog or None)
        wanted.check(start_over=start_over, purge=purge)
        if not yes:
            click.confirm(_question(path, wanted.loss(), purge=purge), abort=True, err=True)
        done = wanted.run(start_over=start_over, purge=purge)
    click.echo(f"table {path} dropped from the lake{_files_text(done, purge=purge)}")


def _question(path: TablePath, loss: Loss, *, purge: bool) -> str:
    """What is asked before a table is dropped."""
    totals = loss.totals
    known = [(totals.file_count, "file"), (totals.size_bytes, "byte")]
    known += [(totals.snapshot_count, "snapshot")] if loss.location is not None else []
    what = ", ".join(_counted(count, noun) for count, noun in known if count is not None)
    unread = "" if loss.problem is None else f" Its metadata can't be read: {_line(loss.problem)}."
    files = ", with its files" if purge else ""
    return f"{_lost_text(loss)}{unread} Drop {path}{f' ({what})' if what else ''} from the lake{files}?"


def _lost_text(loss: Loss) -> str:
    """What the server does not have."""
    if loss.on_server in ("missing", "recreated"):
        there = "no such table" if loss.on_server == "missing" else "another table of this name"
        rows = "all rows in the lake" if loss.row_count is None else _counted(loss.row_count, "row")
        return f"The server has {there}, so this loses {rows}."
    if loss.has_primary_key:
        return "The server has the current rows. This loses those of partitions that were dropped there."
    if loss.row_count == 0:
        return "The server's log still has all rows."
    rows = "older rows" if loss.row_count is None else _counted(loss.row_count, "older row")
    return f"This loses {rows}, which the server's log does not have any more."


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _files_text(done: Dropped, *, purge: bool) -> str:
    if done.files_left:
        first = _line(done.files_left[0])
        removed = _counted(done.files_removed, "file")
        return f", {removed} removed, {len(done.files_left):,} could not be: {first}"
    if purge:
        return f", {_counted(done.files_removed, 'file')} removed"
    return "" if done.location is None else f"; its files stay at {_line(done.location)}"


@lake.command()
@click.argument("name", metavar="[DATABASE[.TABLE]]", required=False)
@_place_options
@output_option
def status(name: str | None, warehouse: str | None, catalog: dict[str, str], settings: Config, output: str) -> None:
    """Print how far the lake is behind, how large it is, and why tiering failed.

    Of tables that are tiered and of those that the lake has. 'server' says what the server has under the name:
    'tiered', 'not tiered' (any more), 'recreated' (another table; `fluss lake drop` makes room for it), 'missing'.
    lag_rows is what a round would move, lag_s for how many seconds the oldest of it waits.

    \b
    Examples:
      fluss lake status
      fluss lake status shop.orders -o json
    """
    from fluss.lake.status import lake_status

    database, table = (None, None) if name is None else _names(name)
    with connected(settings) as connection:
        found = lake_status(connection, database, table, warehouse=warehouse, catalog=catalog or None)
    if not found and output == "table":
        click.echo("no table is tiered; --warehouse names a lake to look into")
        return
    _print_status(found, output)


def _names(name: str) -> tuple[str, str | None]:
    if "." not in name:
        check_database_name(name)
        return name, None
    path = table_path(name)
    return path.database_name, path.table_name


def _print_status(found: Sequence[TableStatus], output: str) -> None:
    import pyarrow as pa

    moment = pa.timestamp("ms", "UTC")
    schema = [("table", pa.string()), ("server", pa.string()), ("lag_rows", pa.int64()), ("lag_s", pa.float64())]
    schema += [(name, pa.int64()) for name in ("files", "bytes", "snapshots")]
    schema += [("tiered_at", moment)]
    if output == "table":
        write_rows(schema, [_status_row(status) for status in found], output)
        _print_failures(found)
        return
    schema += [("last_error", pa.string()), ("last_error_at", moment), ("problem", pa.string())]
    write_rows(schema, [_status_row(status) for status in found], output)


def _status_row(status: TableStatus) -> dict[str, Any]:
    totals, error = status.totals, status.last_error
    return {
        "table": str(status.table_path),
        "server": str(status.on_server),
        "lag_rows": status.lag_rows,
        "lag_s": None if status.lag_s is None else round(status.lag_s, 1),
        "files": totals.file_count,
        "bytes": totals.size_bytes,
        "snapshots": totals.snapshot_count,
        "tiered_at": _moment(status.tiered_ms),
        "last_error": error and error.error,
        "last_error_at": _moment(error and error.time_ms),
        "problem": status.problem,
    }


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1_000, UTC)


def _print_failures(found: Sequence[TableStatus]) -> None:
    """Whole texts below the table, and the sum."""
    for status in found:
        if status.last_error is not None:
            when = _moment(status.last_error.time_ms)
            click.echo(f"{status.table_path} failed at {when:%Y-%m-%d %H:%M:%S}Z: {_line(status.last_error.error)}")
        if status.problem is not None:
            click.echo(f"{status.table_path}: {_line(status.problem)}")
    behind = [status for status in found if status.lag_rows]
    rows = sum(status.lag_rows or 0 for status in behind)
    oldest = max((status.lag_s or 0 for status in behind), default=0)
    text = f"{_counted(len(found), 'table')}, {_counted(rows, 'row')} behind"
    text += f", the oldest for {oldest:,.1f} s" if rows else ""
    click.echo(click.style(text, dim=True))


def _line(text: str) -> str:
    """A text of somebody else's in one line that leaves the terminal alone."""
    from fluss.cli.text.output import visible

    return visible(" ".join(text.split()))


@click.command()
@click.option("--warehouse", metavar="FOLDER", help="Where the lake is.  [default: as the server says]")
@click.option("--catalog", multiple=True, callback=pairs, metavar="KEY=VALUE", help="Its catalog: type, uri, ...")
@click.option("--table", "tables", multiple=True, metavar="DB.TABLE", help="A table.  [default: all that are tiered]")
@click.option(
    "--interval", callback=partial(seconds, ms_min=1), metavar="DURATION", help="Go on until Ctrl-C, asking this often."
)
@click.option("--local", is_flag=True, help="Work in this process, without Spark.")
@click.option("--compact/--no-compact", default=None, help="Join small files.  [default: as the table says]")
@click.option("--merge-on-read", is_flag=True, help="Mark changed rows as deleted; needs Spark with Iceberg's runtime.")
@click.option("--spark", "spark_conf", multiple=True, callback=pairs, metavar="KEY=VALUE", help="A setting of Spark.")
@connection_options
@output_option
def tier(
    warehouse: str | None,
    catalog: dict[str, str],
    tables: tuple[str, ...],
    interval: float | None,
    local: bool,
    compact: bool | None,
    merge_on_read: bool,
    spark_conf: dict[str, str],
    settings: Config,
    output: str,
) -> None:
    """Tier tables to the lake: append or merge what is new in them to their Iceberg tables.

    Without --interval each table gets one round. With it, tables are tiered when they are due by their
    table.datalake.freshness, or every so often if they are named; Ctrl-C ends it after the round under way.

    \b
    Examples:
      fluss tier --local --table shop.orders
      fluss tier --interval 30s
    """
    arguments: dict[str, Any] = {
        "warehouse": warehouse,
        "catalog": catalog or None,
        "tables": _paths(settings, tables),
        "interval_s": interval,
        "compact": compact,
    }
    if merge_on_read:
        if local:
            raise click.UsageError("--merge-on-read is done by Spark; leave --local out.")
        arguments["merge_on_read"] = True
    with _executing(settings, local, spark_conf) as run, _stopping() as stop, _Bars() as bars:
        reports = run(**arguments, stop=stop, progress=bars)
    _print(reports, output)
    if any(report.status == "failed" for report in reports):
        sys.exit(EXIT_FAILED)


def _paths(settings: Config, tables: Sequence[str]) -> list[TablePath] | None:
    """Paths of tables that exist; a wrong name is found before Spark is started."""
    if not tables:
        return None
    with connected(settings) as connection:
        return [open_table(connection, name).table_path for name in tables]


@contextmanager
def _executing(
    settings: Config, local: bool, spark_conf: dict[str, Any]
) -> Iterator[Callable[..., list[TieringReport]]]:
    """The function that tiers, in Spark or here."""
    if local:
        from fluss.lake.tiering.service import tier as run
        from fluss.lake.tiering.task import LocalExecutor

        with connected(settings) as connection:
            yield partial(run, connection, LocalExecutor(connection))
        return
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise FlussError("pyspark is not installed; install flussbett[spark], or use --local.") from error
    from fluss.spark import session
    from fluss.spark.tiering import tier as run_in_spark

    with session("fluss tier", **spark_conf) as spark:
        given = {**settings.to_dict(), "bootstrap_servers": settings.bootstrap_servers}
        yield partial(run_in_spark, spark, **given)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM; a second Ctrl-C ends the program at once."""
    stop = threads.event()

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[number])
        click.echo("fluss tier: ends after this round", err=True)

    before = {int(number): signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Bars:
    """A bar for each table that is being tiered; a line for each that is done, on a terminal or in a log."""

    def __init__(self) -> None:
        self._bars: dict[TablePath, TaskID] = {}
        self._progress: Progress | None = None

    def __enter__(self) -> _Bars:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rows]:,} rows"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._progress is not None
        self._progress.stop()

    def __call__(self, event: TieringEvent) -> None:
        from fluss.cli.text.output import visible

        assert self._progress is not None
        path = event.table_path
        if path not in self._bars:
            self._bars[path] = self._progress.add_task(str(path), total=None, rows=0)
        if event.report is not None:
            self._progress.remove_task(self._bars.pop(path))
            if event.report.reason is not None:
                text = visible(f"{path}: {event.report.status}: {event.report.reason}")
                self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif event.task_count:
            self._progress.update(
                self._bars[path], total=event.task_count, completed=event.tasks_done, rows=event.row_count
            )


def _print(reports: Sequence[TieringReport], output: str) -> None:
    import pyarrow as pa

    if not reports and output == "table":
        click.echo("no table is to be tiered: none has table.datalake.enabled=true")
        return
    counts = ("rows", "files_added", "files_removed", "snapshot_id")
    times = ("tasks_s", "commit_s", "register_s")
    schema = [("table", pa.string()), ("status", pa.string()), *((name, pa.int64()) for name in counts)]
    schema += [(name, pa.float64()) for name in times]
    rows = [
        {
            **{name: round(getattr(report, name), 3) for name in times},
            **{name: getattr(report, name) for name in counts[1:]},
            "table": str(report.table_path),
            "status": str(report.status),
            "rows": report.row_count,
        }
        for report in reports
    ]
    write_rows(schema, rows, output)
