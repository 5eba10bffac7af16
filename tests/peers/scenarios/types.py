"""Every type, nested ones included, by every way of writing and reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tests.peers.columns import arrow_schema
from tests.peers.samples import COLUMNS, EMPTY, FULL, NESTED, NESTED_EMPTY, NESTED_FULL, NESTED_HOLLOW
from tests.peers.scenarios.world import World, check, scenario

Row = dict[str, Any]


async def _write_and_read(world: World, columns: Mapping[str, str], rows: list[Row]) -> None:
    """Written as dicts, as lists and as Arrow; read as records, batches and an Arrow table."""
    handle = await world.create("t", columns)
    schema = arrow_schema(columns)
    writer = handle.new_append().create_writer()
    for row in rows:
        writer.append(row)
    await writer.flush()
    for row in rows:
        writer.append(list(row.values()))
    await writer.flush()
    await writer.write_arrow_batch(pa.RecordBatch.from_pylist(rows, schema=schema)).wait()
    expected = rows * 3
    check([record.row for record in await poll_rows(world, handle, len(expected))], expected)
    scanner = await handle.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, world.api.EARLIEST_OFFSET)
    data = await scanner.to_arrow()
    check(data.schema, schema)
    check(data.to_pylist(), expected)


async def poll_rows(world: World, handle: Any, count: int, scan: Any = None) -> list[Any]:
    """The first records of bucket 0."""
    scanner = await (scan or handle.new_scan()).create_log_scanner()
    scanner.subscribe(0, world.api.EARLIEST_OFFSET)
    records: list[Any] = []
    while len(records) < count:
        records += list(await scanner.poll(500))
    return records


@scenario("Scalar types")
async def scalar_types(world: World) -> None:
    await _write_and_read(world, COLUMNS, [FULL, EMPTY])


@scenario("Nested types: ARRAY, MAP, ROW")
async def nested_types(world: World) -> None:
    await _write_and_read(world, NESTED, [NESTED_FULL, NESTED_EMPTY, NESTED_HOLLOW])


@scenario("Compression: none, LZ4, ZSTD")
async def codecs(world: World) -> None:
    rows = [{"id": number, "name": f"the same words {number % 7}"} for number in range(3_000)]
    for codec in ("NONE", "LZ4_FRAME", "ZSTD"):
        name = codec.lower()
        properties = {"table.log.arrow.compression.type": codec}
        handle = await world.create(name, {"id": "INT", "name": "STRING"}, properties=properties)
        writer = handle.new_append().create_writer()
        writer.write_arrow(pa.Table.from_pylist(rows, schema=handle.arrow_schema))
        await writer.flush()
        scanner = await handle.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, world.api.EARLIEST_OFFSET)
        check((await scanner.to_arrow()).to_pylist(), rows)
