"""The command `fluss scan`, and options that all reading commands share."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.names import check_columns, open_table, partitions, split_columns
from fluss.cli.text.output import limit_option, output_option, write_batches
from fluss.model.clock import wall_clock_ms
from fluss.model.config import Config
from fluss.model.errors import FlussError
from fluss.model.offsets import OffsetSpec
from fluss.model.tables.options import duration_ms

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussConnection, FlussTable, PartitionInfo, TableScan

Function = TypeVar("Function", bound=Callable[..., Any])


def reading_options(command: Function) -> Function:
    """Add --columns, --filter and --partition; the command gets `columns`, `filter` and `partition`."""
    command = click.option(
        "--partition", multiple=True, metavar="NAME", help="Read this partition only; may be repeated."
    )(command)
    command = click.option("--filter", metavar="SQL", help="Rows to read: \"id > 5 and name like 'a%'\".")(command)
    return click.option("--columns", callback=split_columns, metavar="A,B,...", help="Columns to read.")(command)


def chosen(table: FlussTable, columns: list[str] | None, filter: str | None) -> TableScan:
    """A scan of the columns and rows that were asked for."""
    scan = table.new_scan()
    if columns is not None:
        scan = scan.project_by_name(check_columns(table, columns))
    if filter is not None:
        from fluss.model.forms.predicate_text import parse_predicate

        scan = scan.filter(parse_predicate(filter, table.get_table_info().schema))
    return scan


def projected(table: FlussTable, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns, all of which the table has."""
    import pyarrow as pa

    return pa.schema([table.arrow_schema.field(name) for name in check_columns(table, columns)])


def partition_ids(table: FlussTable, found: Sequence[PartitionInfo]) -> list[int | None]:
    """Ids for `bucket_offsets`: of partitions, or None for a table that has none."""
    return [item.partition_id for item in found] if table.get_table_info().is_partitioned() else [None]


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of a time: `2026-01-31 12:30` (local, if it names no zone), or `10min` ago."""
    ago_ms = duration_ms(text) if not text.isdigit() else None
    if ago_ms is not None:
        return wall_clock_ms() - ago_ms
    try:
        return int(dt.datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except ValueError:
        raise FlussError(f"{text!r} is no time like '2026-01-31 12:30', and no duration like 10min.") from None


def start_of(text: str) -> OffsetSpec | int:
    """Where to begin: earliest, latest, an offset, or a time."""
    if text in ("earliest", "latest"):
        return OffsetSpec.earliest() if text == "earliest" else OffsetSpec.latest()
    return int(text) if text.isdigit() else OffsetSpec.timestamp(moment_ms(text))


@click.command()
@click.argument("table")
@reading_options
@limit_option
@connection_options
@output_option
def scan(
    table: str,
    columns: list[str] | None,
    filter: str | None,
    partition: tuple[str, ...],
    limit: int | None,
    settings: Config,
    output: str,
) -> None:
    """Print the rows of a table as they are now.

    Of a primary-key table these are the current rows, of a log table all rows that are kept.

    \b
    Examples:
      fluss scan shop.orders --filter "total > 100 and region = 'EU'" --columns id,total
      fluss scan shop.orders -o csv > orders.csv
    """
    with connected(settings) as connection:
        opened = open_table(connection, table)
        plan = chosen(opened, columns, filter)
        schema = opened.arrow_schema if columns is None else projected(opened, columns)
        ids = partition_ids(opened, partitions(connection, opened, partition))
        total = None if filter or output != "table" else _row_count(connection, opened, plan, ids, bool(partition))
        write_batches(schema, _batches(opened, plan, ids), output, limit=limit, total=total, count_rest=False)


def _batches(table: FlussTable, plan: TableScan, ids: list[int | None]) -> Iterator[pa.RecordBatch]:
    """Bucket by bucket, in bounded memory; ends are those of the first moment."""
    ends = plan.bucket_offsets(OffsetSpec.latest(), ids)
    if table.has_primary_key():
        for bucket in ends:
            yield from plan.read_bucket_at(bucket, None)
        return
    starts = plan.bucket_offsets(OffsetSpec.earliest(), ids)
    for bucket, end in ends.items():
        yield from plan.read_bucket(bucket, starts.get(bucket, end), end)


def _row_count(
    connection: FlussConnection, table: FlussTable, plan: TableScan, ids: list[int | None], some: bool
) -> int | None:
    """How many rows there are, if that is known without reading them."""
    if not table.has_primary_key():
        ends, starts = (plan.bucket_offsets(spec, ids) for spec in (OffsetSpec.latest(), OffsetSpec.earliest()))
        return sum(end - starts.get(bucket, end) for bucket, end in ends.items())
    if some:
        return None
    try:
        return connection.get_admin().get_table_stats(table.table_path).row_count
    except FlussError:
        return None
