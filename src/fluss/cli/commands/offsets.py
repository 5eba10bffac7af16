"""The commands `fluss partition` and `fluss offsets`."""

from __future__ import annotations

import click

from fluss.cli.commands.scan import moment_ms, partition_ids
from fluss.cli.connecting import connected, connection_options
from fluss.cli.text.coerce import open_table, pairs, partitions
from fluss.cli.text.output import output_option, write_rows
from fluss.model.config import Config
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import PartitionSpec

_SPEC = click.argument("spec", nargs=-1, required=True, callback=pairs, metavar="COLUMN=VALUE...")


@click.group()
def partition() -> None:
    """List, create and drop a table's partitions.

    Example: fluss partition create shop.orders day=2026-01-31
    """


@partition.command(name="list")
@click.argument("table")
@connection_options
@output_option
def list_partitions(table: str, settings: Config, output: str) -> None:
    """List a table's partitions.

    Example: fluss partition list shop.orders
    """
    import pyarrow as pa

    with connected(settings) as connection:
        opened = open_table(connection, table)
        keys = _checked(opened.get_table_info()).partition_keys
        found = partitions(connection, opened)
    # A table's own columns keep their names.
    name = "partition_name" if "partition" in keys else "partition"
    number = "partition_id" if "id" in keys else "id"
    rows = [
        {name: item.partition_name, number: item.partition_id, **item.partition_spec.get_spec_map()} for item in found
    ]
    write_rows([(name, pa.string()), (number, pa.int64()), *((key, pa.string()) for key in keys)], rows, output)


@partition.command()
@click.argument("table")
@_SPEC
@click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
@connection_options
def create(table: str, spec: dict[str, str], if_not_exists: bool, settings: Config) -> None:
    """Create a partition: a value for each partition column.

    Example: fluss partition create shop.orders day=2026-01-31 region=EU
    """
    with connected(settings) as connection:
        info = _checked(open_table(connection, table).get_table_info())
        PartitionSpec(spec).check_types(info.schema.columns)
        connection.get_admin().create_partition(info.table_path, spec, ignore_if_exists=if_not_exists)
    click.echo(f"partition {_shown(spec)} of {info.table_path} created")


@partition.command()
@click.argument("table")
@_SPEC
@click.option("--yes", is_flag=True, help="Don't ask.")
@connection_options
def drop(table: str, spec: dict[str, str], yes: bool, settings: Config) -> None:
    """Drop a partition and its rows.

    Example: fluss partition drop shop.orders day=2026-01-31 --yes
    """
    with connected(settings) as connection:
        opened = open_table(connection, table)
        path = _checked(opened.get_table_info()).table_path
        partitions(connection, opened, [_shown(spec)])
        if not yes:
            click.confirm(f"Drop partition {_shown(spec)} of {path} with all its rows?", abort=True, err=True)
        connection.get_admin().drop_partition(path, spec)
    click.echo(f"partition {_shown(spec)} of {path} dropped")


def _checked(info: TableInfo) -> TableInfo:
    if not info.is_partitioned():
        raise FlussError(f"Table {info.table_path} has no partitions; it was created without partition keys.")
    return info


def _shown(spec: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in spec.items())


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
