"""Rows by primary key: upserts, deletes, partial updates, and what a writer refuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.peers.samples import COLUMNS, EMPTY, FULL, NESTED, NESTED_EMPTY, NESTED_FULL, NESTED_HOLLOW
from tests.peers.scenarios.world import World, check, scenario

USERS = {"id": "INT", "name": "STRING", "age": "BIGINT"}
# A floating-point key would be a bad idea, and no client needs it.
KEYS = [name for name in COLUMNS if name not in ("single", "exact")]


async def users(world: World, **options: Any) -> Any:
    return await world.create("users", USERS, primary_keys=["id"], **options)


def user(number: int, name: str | None = "x", age: int | None = None) -> dict[str, Any]:
    return {"id": number, "name": name, "age": age}


async def rows(handle: Any, count: int = 10) -> list[Any]:
    """What a lookup finds for the keys 0, 1, 2 ..."""
    lookuper = handle.new_lookup().create_lookuper()
    return [await lookuper.lookup({"id": number}) for number in range(count)]


@scenario("Primary keys: upsert and delete")
async def every_way_of_upserting(world: World) -> None:
    handle = await users(world)
    check((handle.has_primary_key(), handle.get_table_info().get_primary_keys()), (True, ["id"]))
    check(handle.get_table_info().get_schema().get_primary_keys(), ["id"])
    async with handle.new_upsert().create_writer() as writer:
        await writer.upsert({"id": 0, "name": "dict", "age": 1}).wait()
        await writer.upsert({"id": 1}).wait()
        await writer.upsert([2, "list", 3]).wait()
        await writer.upsert((3, "tuple", None)).wait()
        writer.upsert({"id": 4, "name": "left to the end"})
    check(
        await rows(handle, 6),
        [user(0, "dict", 1), user(1, None), user(2, "list", 3), user(3, "tuple"), user(4, "left to the end"), None],
    )


@scenario("Primary keys: upsert and delete")
async def rows_are_replaced_and_deleted(world: World) -> None:
    handle = await users(world)
    writer = handle.new_upsert().create_writer()
    for number in range(5):
        writer.upsert(user(number, "old", number))
    await writer.flush()
    # Later writes of one flush see earlier ones.
    writer.upsert(user(0, "new"))
    writer.delete({"id": 1})
    writer.delete([2])
    writer.delete((3,))
    writer.upsert(user(3, "again"))
    writer.upsert(user(5, "short-lived"))
    writer.delete({"id": 5})
    writer.delete({"id": 6})
    await writer.flush()
    check(await rows(handle, 7), [user(0, "new"), None, None, user(3, "again"), user(4, "old", 4), None, None])


@scenario("Primary keys: types")
async def keyed_rows_of_every_type(world: World) -> None:
    columns = {"id": "INT", **COLUMNS, **NESTED}
    handle = await world.create("t", columns, primary_keys=["id"])
    written = [{"id": 0, **FULL, **NESTED_FULL}, {"id": 1, **EMPTY, **NESTED_EMPTY}, {"id": 2, **FULL, **NESTED_HOLLOW}]
    writer = handle.new_upsert().create_writer()
    for row in written:
        writer.upsert(row)
    await writer.flush()
    check(await rows(handle, 3), written)
    for row in written:
        writer.upsert(list(row.values()))
    await writer.flush()
    check(await rows(handle, 3), written)


@scenario("Primary keys: types")
async def keys_of_every_type(world: World) -> None:
    handle = await world.create("t", {**COLUMNS, "v": "INT"}, primary_keys=KEYS)
    writer = handle.new_upsert().create_writer()
    await writer.upsert({**FULL, "v": 1}).wait()
    lookuper = handle.new_lookup().create_lookuper()
    key = {name: FULL[name] for name in KEYS}
    check(await lookuper.lookup(key), {**FULL, "v": 1})
    check(await lookuper.lookup(list(key.values())), {**FULL, "v": 1})
    check(await lookuper.lookup({**key, "text": "another"}), None)
    await writer.delete(key).wait()
    check(await lookuper.lookup(key), None)


@scenario("Primary keys: bad input")
async def bad_rows_of_keyed_tables_are_refused(world: World) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int32()), pa.field("must", pa.int32(), nullable=False), ("name", pa.string())]
    )
    handle = await world.create("t", schema, primary_keys=["id"])
    writer = handle.new_upsert().create_writer()
    for row in (
        {"id": None, "must": 1},
        {"must": 1},
        {"id": "one", "must": 1},
        {"id": 2**40, "must": 1},
        {"id": 1, "must": 1, "nobody": "x"},
        {"id": 1, "name": "no must"},
        [1, 1],
        [1, 1, "x", "y"],
    ):
        world.refused(lambda row=row: writer.upsert(row))  # type: ignore[misc]
    for key in ({}, {"id": None}, {"name": "x"}, {"id": "one"}, [], [None]):
        world.refused(lambda key=key: writer.delete(key))  # type: ignore[misc]
    writer.upsert({"id": 1, "must": 1, "name": "good"})
    await writer.flush()
    check(await world.admin.list_offsets(world.path("t"), [0], world.api.OffsetSpec.latest()), {0: 1})
    world.refused(lambda: handle.new_append().create_writer())
    plain = await world.create("plain", USERS)
    world.refused(lambda: plain.new_upsert().create_writer())
    world.refused(lambda: plain.new_lookup().create_lookuper())


@scenario("Primary keys: partial update")
async def partial_updates(world: World) -> None:
    handle = await users(world)
    whole = handle.new_upsert().create_writer()
    await whole.upsert(user(0, "name", 10)).wait()
    by_name = handle.new_upsert().partial_update_by_name(["id", "age"]).create_writer()
    await by_name.upsert({"id": 0, "age": 11}).wait()
    await by_name.upsert({"id": 1, "age": 12}).wait()
    check(await rows(handle, 2), [user(0, "name", 11), user(1, None, 12)])
    by_index = handle.new_upsert().partial_update_by_index([0, 1]).create_writer()
    await by_index.upsert({"id": 0, "name": "other"}).wait()
    await by_index.upsert([1, "list"]).wait()
    check(await rows(handle, 2), [user(0, "other", 11), user(1, "list", 12)])
    # A partial delete forgets its columns; the row goes with the last of them.
    await by_name.delete({"id": 0}).wait()
    check(await rows(handle, 1), [user(0, "other", None)])
    await by_index.delete({"id": 0}).wait()
    check(await rows(handle, 1), [None])


@scenario("Primary keys: partial update")
async def partial_updates_that_are_refused(world: World) -> None:
    handle = await users(world)
    for columns in (["name"], ["id", "nobody"], ["name", "age"]):
        world.refused(lambda columns=columns: handle.new_upsert().partial_update_by_name(columns).create_writer())  # type: ignore[misc]
    world.refused(lambda: handle.new_upsert().partial_update_by_index([1, 2]).create_writer())
    world.refused(lambda: handle.new_upsert().partial_update_by_index([0, 9]).create_writer())


@scenario("Primary keys: several buckets")
async def keys_are_spread_over_buckets(world: World) -> None:
    handle = await users(world, bucket_count=4)
    writer = handle.new_upsert().create_writer()
    for number in range(400):
        writer.upsert(user(number, str(number), number))
    await writer.flush()
    ends = await world.admin.list_offsets(world.path("users"), [0, 1, 2, 3], world.api.OffsetSpec.latest())
    check(sum(ends.values()), 400)
    check(all(ends.values()), True)
    lookuper = handle.new_lookup().create_lookuper()
    for number in range(0, 400, 57):
        check(await lookuper.lookup([number]), user(number, str(number), number))
        writer.delete({"id": number})
    await writer.flush()
    check(await lookuper.lookup({"id": 57}), None)


@scenario("Primary keys: partitions")
async def keyed_partitions(world: World) -> None:
    columns = {"user": "INT", "region": "STRING", "score": "BIGINT"}
    options: dict[str, Any] = {"primary_keys": ["user", "region"], "partition_keys": ["region"], "bucket_count": 2}
    handle = await world.create("t", columns, **options)
    for region in ("eu", "us"):
        await world.create_partition("t", {"region": region})
    writer = handle.new_upsert().create_writer()
    for number in range(20):
        writer.upsert({"user": number, "region": "eu", "score": number})
        writer.upsert({"user": number, "region": "us", "score": -number})
    writer.delete({"user": 7, "region": "us"})
    await writer.flush()
    lookuper = handle.new_lookup().create_lookuper()
    check(await lookuper.lookup({"user": 7, "region": "eu"}), {"user": 7, "region": "eu", "score": 7})
    check(await lookuper.lookup([8, "us"]), {"user": 8, "region": "us", "score": -8})
    check(await lookuper.lookup({"user": 7, "region": "us"}), None)
    check(await lookuper.lookup({"user": 7, "region": "nowhere"}), None)
    world.refused(lambda: writer.upsert({"user": 1, "score": 1}))
