"""The command `fluss offsets`."""

from __future__ import annotations

import click

from fluss.cli.commands.reading import moment_ms, partition_ids
from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.names import open_table, partitions
from fluss.cli.text.output import output_option, write_rows
from fluss.model.config import Config
from fluss.model.offsets import OffsetSpec


@click.command()
@click.argument("table")
@click.option("--at", metavar="TIME", help="Also the first offset at or after '2026-01-31 12:30', or 10min ago.")
@click.option("--partition", multiple=True, metavar="NAME", help="This partition only; may be repeated.")
@connection_options
@output_option
def offsets(table: str, at: str | None, partition: tuple[str, ...], settings: Config, output: str) -> None:
    """Print the earliest and the latest offset of each of a table's buckets.

    The latest is the one that the next row gets; a primary-key table's offsets are those of its changes.

    \b
    Examples:
      fluss offsets shop.orders
      fluss offsets shop.orders --at 10min
    """
    import pyarrow as pa

    specs = {"earliest": OffsetSpec.earliest(), "latest": OffsetSpec.latest()}
    if at is not None:
        specs["at"] = OffsetSpec.timestamp(moment_ms(at))
    with connected(settings) as connection:
        opened = open_table(connection, table)
        found = partitions(connection, opened, partition)
        ids = partition_ids(opened, found)
        columns = {name: opened.new_scan().bucket_offsets(spec, ids) for name, spec in specs.items()}
    names: dict[int | None, str] = {item.partition_id: item.partition_name for item in found}
    rows = []
    for bucket, latest in columns["latest"].items():
        row = {name: values.get(bucket) for name, values in columns.items()}
        kept = latest - (row["earliest"] or 0)
        rows.append({"partition": names.get(bucket.partition_id), "bucket": bucket.bucket, **row, "kept": kept})
    schema = [("bucket", pa.int64()), *((name, pa.int64()) for name in specs), ("kept", pa.int64())]
    if opened.get_table_info().is_partitioned():
        schema.insert(0, ("partition", pa.string()))
        rows.sort(key=lambda row: str(row["partition"]))
    write_rows(schema, rows, output)
