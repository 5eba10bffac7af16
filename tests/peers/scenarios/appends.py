"""Ways of writing rows, and what a writer refuses."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from tests.peers.scenarios.types import poll_rows
from tests.peers.scenarios.world import World, check, scenario

COLUMNS = {"id": "INT", "name": "STRING"}


@scenario("Appends: rows, Arrow, data frames")
async def every_way_of_writing(world: World) -> None:
    handle = await world.create("t", COLUMNS)
    async with handle.new_append().create_writer() as writer:
        await writer.append({"id": 0, "name": "dict"}).wait()
        await writer.append({"id": 1}).wait()
        await writer.append([2, "list"]).wait()
        await writer.append((3, "tuple")).wait()
        arrow = pa.Table.from_pylist([{"id": 4, "name": "arrow"}], schema=handle.arrow_schema)
        writer.write_arrow(arrow)
        await writer.flush()
        await writer.write_arrow_batch(arrow.to_batches()[0]).wait()
        writer.write_pandas(pd.DataFrame({"id": pd.Series([6], dtype="int32"), "name": ["pandas"]}))
    found = [(r.offset, r.row["id"], r.row["name"]) for r in await poll_rows(world, handle, 7)]
    names = ["dict", None, "list", "tuple", "arrow", "arrow", "pandas"]
    check(found, [(i, i if i != 5 else 4, name) for i, name in enumerate(names)])


@scenario("Appends: rows, Arrow, data frames")
async def bad_rows_are_refused_at_once(world: World) -> None:
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])
    handle = await world.create("t", schema)
    writer = handle.new_append().create_writer()
    world.refused(lambda: writer.append({"id": "one", "name": "x"}))
    world.refused(lambda: writer.append({"id": 1, "nobody": "x"}))
    world.refused(lambda: writer.append([1]))
    world.refused(lambda: writer.append({"id": 2**40, "name": "x"}))
    world.refused(lambda: writer.append({"name": "no id"}))
    writer.append({"id": 1, "name": "good"})
    await writer.flush()
    check(await world.admin.list_offsets(world.path("t"), [0], world.api.OffsetSpec.latest()), {0: 1})


@scenario("Appends: bucket keys and sticky buckets")
async def a_key_keeps_its_bucket(world: World) -> None:
    handle = await world.create("t", COLUMNS, bucket_count=4, bucket_keys=["id"])
    writer = handle.new_append().create_writer()
    for name in ("first", "second"):
        for number in range(50):
            writer.append({"id": number, "name": name})
        await writer.flush()
    scanner = await handle.new_scan().create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(4), world.api.EARLIEST_OFFSET))
    places: dict[int, list[int]] = {}
    while sum(map(len, places.values())) < 100:
        for bucket, records in (await scanner.poll(500)).items():
            for record in records:
                places.setdefault(record.row["id"], []).append(bucket.bucket_id)
    check([number for number, found in places.items() if len(found) != 2 or len(set(found)) != 1], [])
    check({bucket for found in places.values() for bucket in found}, {0, 1, 2, 3})
