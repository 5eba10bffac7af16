"""The command `fluss scan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fluss.cli.commands.reading import chosen, partition_ids, projected, reading_options
from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.names import open_table, partitions
from fluss.cli.text.output import limit_option, output_option, write_batches
from fluss.model.config import Config
from fluss.model.errors import FlussError
from fluss.model.offsets import OffsetSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussConnection, FlussTable, TableScan


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
