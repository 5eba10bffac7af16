"""What `fluss table describe` prints."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.commands.reading import partition_ids
from fluss.cli.text.names import partitions
from fluss.cli.text.output import write_rows
from fluss.model.errors import FlussError
from fluss.model.forms.type_text import type_text
from fluss.model.offsets import OffsetSpec

if TYPE_CHECKING:
    from fluss.sync import FlussConnection, FlussTable


def description(connection: FlussConnection, table: FlussTable) -> dict[str, Any]:
    """All that a server tells of a table."""
    info = table.get_table_info()
    found = partitions(connection, table)
    ids = partition_ids(table, found)
    scan = table.new_scan()
    latest, earliest = (scan.bucket_offsets(spec, ids) for spec in (OffsetSpec.latest(), OffsetSpec.earliest()))
    kept = sum(end - earliest.get(bucket, end) for bucket, end in latest.items())
    columns = [
        {
            "column": column.name,
            "type": type_text(column.data_type),
            "key": _role(column.name, info.primary_keys, info.partition_keys),
            "comment": column.comment,
        }
        for column in info.schema.columns
    ]
    return {
        "table": str(info.table_path),
        "id": info.table_id,
        "comment": info.comment,
        "created": dt.datetime.fromtimestamp(info.created_time / 1000, dt.UTC).isoformat(" ", "seconds"),
        "columns": columns,
        "primary key": info.primary_keys,
        "partitioned by": info.partition_keys,
        "partitions": len(found) if info.is_partitioned() else None,
        "buckets": info.num_buckets,
        "bucket key": info.get_bucket_keys(),
        "rows": _row_count(connection, table) if info.has_primary_key() else kept,
        "changes kept": kept if info.has_primary_key() else None,
        "properties": {**info.properties, **info.custom_properties},
    }


def _role(name: str, primary_keys: list[str], partition_keys: list[str]) -> str | None:
    roles = [role for role, keys in (("primary", primary_keys), ("partition", partition_keys)) if name in keys]
    return ", ".join(roles) or None


def _row_count(connection: FlussConnection, table: FlussTable) -> int | None:
    try:
        return connection.get_admin().get_table_stats(table.table_path).row_count
    except FlussError:
        return None


def print_description(found: dict[str, Any], output: str) -> None:
    """As a list of facts, the columns and the properties; as one JSON object; or the columns, for other programs."""
    import pyarrow as pa

    if output == "json":
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    if output == "table":
        facts = {name: value for name, value in found.items() if name not in ("columns", "properties")}
        _print_pairs({name: _shown(value) for name, value in facts.items() if value not in (None, [])})
        click.echo()
    columns = [("column", pa.string()), ("type", pa.string()), ("key", pa.string()), ("comment", pa.string())]
    used = [item for item in columns if output != "table" or any(row[item[0]] is not None for row in found["columns"])]
    write_rows(used, found["columns"], output)
    if output == "table" and found["properties"]:
        click.echo()
        _print_pairs(found["properties"])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_pairs(values: dict[str, str]) -> None:
    from fluss.cli.text.cells import visible

    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{click.style(visible(name).ljust(width), bold=True)}  {visible(value)}")
