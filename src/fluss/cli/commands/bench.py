"""The command `fluss bench`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from fluss.bench.bench import WORKLOADS
from fluss.cli.connecting import connected, connection_options
from fluss.model.config import Config

if TYPE_CHECKING:
    from fluss.bench.bench import Result, Size
    from fluss.sync import FlussConnection

ROWS_MAX: Final = 10_000_000
SECONDS_MAX: Final = 3_600
_NAME_WIDTH: Final = 14
# What the columns of the table show, and how wide they are: eighty characters in all.
_COLUMNS: Final = (
    ("rows", 11, "{:,}", "rows"),
    ("rows/s", 11, "{:,.0f}", "rows_per_second"),
    ("MB/s", 7, "{:,.1f}", "megabytes_per_second"),
    ("median ms", 9, "{:,.3f}", "median_ms"),
    ("p99 ms", 8, "{:,.3f}", "p99_ms"),
    ("CPU s", 6, "{:,.2f}", "cpu_seconds"),
)
_GAP: Final = "  "
_NOTE: Final = """
All rows were compared with what was written. MB are of uncompressed Arrow data,
ms of single operations (p99 of at least 100), CPU s of this process while the
clock ran."""


class _Command(click.Command):
    """Its help has a list of the workloads."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Workloads"):
            formatter.write_dl([(name, workload.text) for name, workload in WORKLOADS.items()])
        super().format_options(ctx, formatter)


@click.command(cls=_Command)
@click.argument("workloads", nargs=-1, type=click.Choice(tuple(WORKLOADS)), metavar="[WORKLOAD]...")
@click.option(
    "--rows",
    type=click.IntRange(1, ROWS_MAX),
    default=100_000,
    metavar="N",
    help="Rows of a table; row by row at most 1,000,000.  [default: 100000]",
)
@click.option(
    "--batch-rows",
    type=click.IntRange(1, ROWS_MAX),
    default=10_000,
    metavar="N",
    help="Rows of an Arrow batch.  [default: 10000]",
)
@click.option("--buckets", type=click.IntRange(1), default=1, metavar="N", help="Of each table.  [default: 1]")
@click.option(
    "--seconds",
    type=click.FloatRange(0, SECONDS_MAX),
    default=2.0,
    metavar="N",
    help="Repeat each workload for so long; 0: run it once.  [default: 2]",
)
@connection_options
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="[default: table]")
def bench(
    workloads: tuple[str, ...],
    rows: int,
    batch_rows: int,
    buckets: int,
    seconds: float,
    settings: Config,
    output: str,
) -> None:
    """Time workloads, all or those named, against a server or an Apache Fluss cluster.

    They make a database of their own, bench_..., and drop it at the end, also after Ctrl-C. All rows are compared with
    what was written; the exit code is 1 if some are wrong or a workload fails.

    \b
    Examples:
      fluss bench --bootstrap memory:
      fluss bench append scan --rows 1000000 --buckets 4
      fluss bench lookup ack --seconds 10 -o json
    """
    names = list(dict.fromkeys(workloads)) or list(WORKLOADS)
    with connected(settings) as connection:
        from fluss.bench.bench import Size, bench_on

        size = Size(rows, batch_rows, buckets, seconds)
        report = _Json(connection, size) if output == "json" else _Table(connection, size)
        with bench_on(connection, size) as running:
            for number, name in enumerate(names, 1):
                with _spinner(f"{name} ({number} of {len(names)})"):
                    results = running.run(name)
                report.write(results)
        report.close()
    sys.exit(report.exit_code)


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    """Shows what is going on, and is gone before something is printed."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


class _Report:
    def __init__(self, connection: FlussConnection, size: Size) -> None:
        from fluss.api.operations import ClusterOperations
        from fluss.formats import kernel

        self.exit_code = 0
        self._size = size
        self._address = connection.config.bootstrap_servers
        is_ours = ClusterOperations(connection).server_kind().is_flussbett
        self._server = "Flussbett server" if is_ours else "Apache Fluss cluster"
        self._kernels = "compiled" if kernel.COMPILED else "plain Python"

    def write(self, results: Sequence[Result]) -> None:
        for result in results:
            if result.status == "failed":
                self.exit_code = 1
            self._print(result)

    def _print(self, result: Result) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class _Json(_Report):
    """A line for each result, with everything that it depends on."""

    def _print(self, result: Result) -> None:
        from dataclasses import asdict

        import fluss

        given = {"table_rows": self._size.rows, "batch_rows": self._size.batch_rows, "buckets": self._size.buckets}
        setting = {"server": self._server, "address": self._address, "client": fluss.__version__}
        click.echo(json.dumps({**asdict(result), **given, **setting, "kernels": self._kernels}))
        sys.stdout.flush()


class _Table(_Report):
    """A line for each result as it comes, under a few that say what is measured."""

    def __init__(self, connection: FlussConnection, size: Size) -> None:
        import fluss

        super().__init__(connection, size)
        click.echo(f"server  {self._server} at {self._address}")
        click.echo(f"client  flussbett {fluss.__version__}, {self._kernels} kernels")
        rows, buckets = _counted(size.rows, "row"), _counted(size.buckets, "bucket")
        click.echo(f"tables  {rows}, in batches of {size.batch_rows:,}; {buckets}\n")
        names = [f"{'workload':<{_NAME_WIDTH}}", *(f"{name:>{width}}" for name, width, _, _ in _COLUMNS)]
        click.echo(click.style(_GAP.join(names), bold=True))
        widths = [_NAME_WIDTH, *(width for _, width, _, _ in _COLUMNS)]
        click.echo(click.style(_GAP.join("─" * width for width in widths), dim=True))
        self._measured = False

    def _print(self, result: Result) -> None:
        name = f"{result.workload} {result.part or ''}".rstrip()
        line = f"{name:<{_NAME_WIDTH}}"
        if result.status == "ok":
            self._measured = True
            for _, width, form, field in _COLUMNS:
                value = getattr(result, field)
                line += f"{_GAP}{'' if value is None else form.format(value):>{width}}"
        elif result.status == "failed":
            line += f"{_GAP}{click.style('FAILED', fg='red')}: {result.reason}"
        else:
            line += f"{_GAP}{click.style('not possible here', fg='yellow')}: {result.reason}"
        click.echo(line.rstrip())
        sys.stdout.flush()

    def close(self) -> None:
        if self._measured:
            click.echo(click.style(_NOTE, dim=True))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
