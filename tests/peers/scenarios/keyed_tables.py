"""Primary-key tables read other than by key, and tables with rules of their own."""

from __future__ import annotations

import time
from typing import Any

from tests.peers.scenarios.upserts import rows, user, users
from tests.peers.scenarios.world import World, check, scenario

EVENTS = {"device": "INT", "kind": "STRING", "at": "BIGINT", "value": "INT"}


def event(device: int, kind: str, at: int) -> dict[str, Any]:
    return {"device": device, "kind": kind, "at": at, "value": device * 100 + at}


async def changes(world: World, handle: Any, count: int, bucket: int = 0, scan: Any = None) -> list[Any]:
    """The first changes of a bucket as (offset, change type, row)."""
    scanner = await (scan or handle.new_scan()).create_log_scanner()
    scanner.subscribe(bucket, world.api.EARLIEST_OFFSET)
    found: list[Any] = []
    while len(found) < count:
        found += list(await scanner.poll(500))
    return [(record.offset, record.change_type.short_string(), record.row) for record in found]


@scenario("Primary keys: prefix lookup")
async def prefixes(world: World) -> None:
    keys = ["device", "kind", "at"]
    handle = await world.create("t", EVENTS, primary_keys=keys, bucket_count=3, bucket_keys=["device", "kind"])
    writer = handle.new_upsert().create_writer()
    for number in range(60):
        writer.upsert(event(number % 4, "ab"[number % 2], number))
    await writer.flush()
    lookuper = handle.new_lookup().lookup_by(["device", "kind"]).create_lookuper()
    expected = [event(1, "b", at) for at in range(1, 60, 4)]
    for prefix in ({"device": 1, "kind": "b"}, [1, "b"], (1, "b")):
        check(await lookuper.lookup(prefix), expected)
    check(await lookuper.lookup({"device": 1, "kind": "a"}), [])
    await writer.delete({"device": 1, "kind": "b", "at": 1}).wait()
    check(await lookuper.lookup([1, "b"]), expected[1:])


@scenario("Primary keys: prefix lookup")
async def prefixes_of_partitions(world: World) -> None:
    columns = {"region": "STRING", **EVENTS}
    options: dict[str, Any] = {"partition_keys": ["region"], "bucket_count": 2, "bucket_keys": ["device"]}
    handle = await world.create("t", columns, primary_keys=["region", "device", "kind", "at"], **options)
    for region in ("eu", "us"):
        await world.create_partition("t", {"region": region})
    writer = handle.new_upsert().create_writer()
    for number in range(40):
        writer.upsert({"region": ("eu", "us")[number % 2], **event(number % 3, "k", number)})
    await writer.flush()
    lookuper = handle.new_lookup().lookup_by(["region", "device"]).create_lookuper()
    expected = [{"region": "us", **event(2, "k", at)} for at in range(5, 40, 6)]
    check(await lookuper.lookup({"region": "us", "device": 2}), expected)
    check(await lookuper.lookup(["nowhere", 2]), [])


@scenario("Primary keys: prefix lookup")
async def prefixes_that_are_refused(world: World) -> None:
    keys = ["device", "kind", "at"]
    handle = await world.create("t", EVENTS, primary_keys=keys, bucket_keys=["device"], bucket_count=1)
    for columns in (["kind"], ["device", "kind"], ["device", "nobody"], ["value"], []):
        world.refused(lambda columns=columns: handle.new_lookup().lookup_by(columns).create_lookuper())  # type: ignore[misc]
    lookuper = handle.new_lookup().lookup_by(["device"]).create_lookuper()

    async def look(prefix: Any) -> Any:
        return await lookuper.lookup(prefix)

    for prefix in ({}, {"device": None}, {"device": "one"}, [], [1, "a"]):
        await world.error_code(look(prefix))


@scenario("Primary keys: changelog")
async def changes_of_rows(world: World) -> None:
    before = time.time_ns() // 1_000_000
    handle = await users(world)
    writer = handle.new_upsert().create_writer()
    await writer.upsert(user(1, "a", 1)).wait()
    await writer.upsert(user(1, "b", 1)).wait()
    await writer.upsert(user(1, "b", 1)).wait()
    await writer.delete({"id": 9}).wait()
    await writer.delete({"id": 1}).wait()
    await writer.upsert(user(2)).wait()
    expected = [
        (0, "+I", user(1, "a", 1)),
        (1, "-U", user(1, "a", 1)),
        (2, "+U", user(1, "b", 1)),
        (3, "-U", user(1, "b", 1)),
        (4, "+U", user(1, "b", 1)),
        # The delete of nothing took an offset.
        (6, "-D", user(1, "b", 1)),
        (7, "+I", user(2)),
    ]
    check(await changes(world, handle, 7), expected)
    names = [(offset, change, {"name": row["name"]}) for offset, change, row in expected]
    check(await changes(world, handle, 7, scan=handle.new_scan().project_by_name(["name"])), names)
    scanner = await handle.new_scan().create_log_scanner()
    scanner.subscribe(0, 4)
    found: list[Any] = []
    while len(found) < 3:
        found += list(await scanner.poll(500))
    kinds = world.api.ChangeType
    check([record.change_type for record in found], [kinds.UpdateAfter, kinds.Delete, kinds.Insert])
    check(before <= found[0].timestamp <= found[-1].timestamp <= time.time_ns() // 1_000_000, True)
    await world.error_code(handle.new_scan().create_record_batch_log_scanner())


@scenario("Primary keys: limit scan")
async def the_first_rows_of_a_bucket(world: World) -> None:
    handle = await users(world, bucket_count=2)
    writer = handle.new_upsert().create_writer()
    for number in range(100):
        writer.upsert(user(number, "old"))
    await writer.flush()
    for number in range(50):
        writer.upsert(user(number, "new", number))
        writer.delete({"id": number + 50})
    await writer.flush()
    table_id = handle.get_table_info().table_id
    found: list[Any] = []
    for bucket in (0, 1):
        place = world.api.TableBucket(table_id, bucket)
        scanner = handle.new_scan().limit(1_000).create_bucket_batch_scanner(place)
        found += (await scanner.to_arrow()).to_pylist()
        few = handle.new_scan().limit(3).project_by_name(["age"]).create_bucket_batch_scanner(place)
        data = await few.to_arrow()
        check((data.column_names, data.num_rows), (["age"], 3))
    check(sorted(found, key=lambda row: row["id"]), [user(number, "new", number) for number in range(50)])


@scenario("Primary keys: merge engines")
async def the_first_row_stays(world: World) -> None:
    handle = await users(world, properties={"table.merge-engine": "first_row"})
    writer = handle.new_upsert().create_writer()
    await writer.upsert(user(0, "first")).wait()
    await writer.upsert(user(0, "second")).wait()
    await writer.delete({"id": 0}).wait()
    await writer.upsert(user(1, "last")).wait()
    check(await rows(handle, 2), [user(0, "first"), user(1, "last")])
    check(await changes(world, handle, 2), [(0, "+I", user(0, "first")), (3, "+I", user(1, "last"))])


@scenario("Primary keys: merge engines")
async def the_newest_version_stays(world: World) -> None:
    properties = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "age"}
    handle = await users(world, properties=properties)
    writer = handle.new_upsert().create_writer()
    for name, age in (("null", None), ("five", 5), ("older", 3), ("same", 5), ("newer", 6), ("null again", None)):
        await writer.upsert(user(0, name, age)).wait()
    check(await rows(handle, 1), [user(0, "newer", 6)])
    found = await changes(world, handle, 7)
    check([(change, row["name"]) for _, change, row in found[-2:]], [("-U", "same"), ("+U", "newer")])


@scenario("Primary keys: merge engines")
async def rows_are_combined(world: World) -> None:
    """Without functions: the last value that is not null."""
    handle = await users(world, properties={"table.merge-engine": "aggregation"})
    writer = handle.new_upsert().create_writer()
    for name, age in (("a", 1), (None, 2), ("b", None)):
        await writer.upsert(user(0, name, age)).wait()
    check(await rows(handle, 1), [user(0, "b", 2)])


@scenario("Primary keys: merge engines")
async def engines_that_are_refused(world: World) -> None:
    wrong = world.api.ErrorCode.INVALID_CONFIG_EXCEPTION
    for properties in (
        {"table.merge-engine": "versioned"},
        {"table.merge-engine": "first_row", "table.delete.behavior": "allow"},
        {"table.merge-engine": "aggregation", "table.changelog.image": "wal"},
    ):
        check((properties, await world.error_code(users(world, properties=properties))), (properties, wrong))


@scenario("Primary keys: delete behaviour")
async def deletes_are_ignored_or_refused(world: World) -> None:
    handle = await users(world, properties={"table.delete.behavior": "ignore"})
    writer = handle.new_upsert().create_writer()
    await writer.upsert(user(0)).wait()
    await writer.delete({"id": 0}).wait()
    check(await rows(handle, 1), [user(0)])
    strict = await world.create(
        "strict", {"id": "INT"}, primary_keys=["id"], properties={"table.delete.behavior": "disable"}
    )
    writer = strict.new_upsert().create_writer()
    await writer.upsert({"id": 0}).wait()

    async def delete() -> None:
        await writer.delete({"id": 0}).wait()

    check(await world.error_code(delete()), world.api.ErrorCode.DELETION_DISABLED_EXCEPTION)
    check(await rows(strict, 1), [{"id": 0}])


@scenario("Primary keys: WAL image")
async def updates_without_what_was_before(world: World) -> None:
    handle = await users(world, properties={"table.changelog.image": "wal"})
    writer = handle.new_upsert().create_writer()
    for name in ("a", "b"):
        await writer.upsert(user(0, name)).wait()
    await writer.delete({"id": 0}).wait()
    check(await changes(world, handle, 3), [(0, "+U", user(0, "a")), (1, "+U", user(0, "b")), (2, "-D", user(0, "b"))])


@scenario("Primary keys: auto-increment")
async def numbered_rows(world: World) -> None:
    columns = {"id": "INT", "number": "BIGINT", "name": "STRING"}
    handle = await world.create("t", columns, primary_keys=["id"], auto_increment="number")
    check(handle.get_table_info().get_schema().get_auto_increment_columns(), ["number"])
    if world.expected["numbered_tables_take_plain_writers"]:
        await handle.new_upsert().create_writer().upsert({"id": 9, "name": "plain"}).wait()
    else:
        world.refused(lambda: handle.new_upsert().create_writer())
    writer = handle.new_upsert().partial_update_by_name(["id", "name"]).create_writer()
    for number in range(4):
        await writer.upsert({"id": number, "name": "first"}).wait()
    await writer.upsert({"id": 2, "name": "second"}).wait()
    found = await rows(handle, 4)
    numbers = [row["number"] for row in found]
    check(numbers, sorted(set(numbers)))
    check(found[2]["name"], "second")


@scenario("Primary keys: kv formats")
async def indexed_values(world: World) -> None:
    handle = await users(world, properties={"table.kv.format": "INDEXED"})
    if not world.expected["indexed_values_are_read_and_written"]:
        world.refused(lambda: handle.new_upsert().create_writer())
        return
    writer = handle.new_upsert().create_writer()
    await writer.upsert(user(0, "indexed", 5)).wait()
    await writer.upsert(user(1, None)).wait()
    check(await rows(handle, 2), [user(0, "indexed", 5), user(1, None)])
