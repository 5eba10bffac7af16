"""The command `fluss tier`: tables to the lake, once or as a service."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.failures import EXIT_FAILED
from fluss.cli.text.names import open_table, pairs, seconds
from fluss.cli.text.output import output_option, write_rows
from fluss.model.errors import FlussError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fluss.lake.report import TieringEvent, TieringReport
    from fluss.model.config import Config
    from fluss.sync import TablePath


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
    """Of tables that are there, which is known before Spark is started."""
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
        from fluss.lake.tiering.executors import LocalExecutor
        from fluss.lake.tiering.service import tier as run

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
    stop = threading.Event()

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
