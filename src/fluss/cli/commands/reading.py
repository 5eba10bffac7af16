"""What the commands that read share: which columns and rows, and where a table's buckets begin and end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fluss.cli.text.names import check_columns, split_columns
from fluss.model.clock import wall_clock_ms
from fluss.model.errors import FlussError
from fluss.model.offsets import OffsetSpec
from fluss.model.tables.options import duration_ms

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussTable, PartitionInfo, TableScan

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
