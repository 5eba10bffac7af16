"""Creating, describing, listing and dropping tables; offsets."""

from __future__ import annotations

import time
from typing import Any

from tests.peers.columns import arrow_schema
from tests.peers.samples import COLUMNS, SMALL
from tests.peers.scenarios.world import World, check, scenario


@scenario("Tables")
async def tables_with_every_option(world: World) -> None:
    admin, path = world.admin, world.path("t")
    options: dict[str, Any] = {
        "bucket_count": 3,
        "bucket_keys": ["id"],
        "comment": "about",
        "log_format": "arrow",
        "properties": {"table.log.arrow.compression.type": "LZ4_FRAME", "table.log.ttl": "3d"},
        "custom_properties": {"owner": "me", "empty": ""},
    }
    check(await admin.table_exists(path), False)
    handle = await world.create("t", SMALL, **options)
    check(await admin.table_exists(path), True)
    check(await admin.list_tables(world.database), ["t"])
    info = await admin.get_table_info(path)
    check((info.table_path, info.num_buckets, info.comment, info.schema_id), (path, 3, "about", 1))
    check(info.table_id >= 0, True)
    check(info.modified_time >= info.created_time > 0, True)
    check((info.get_bucket_keys(), info.get_primary_keys(), info.get_partition_keys()), (["id"], [], []))
    check((info.has_primary_key(), info.is_partitioned()), (False, False))
    check((info.get_column_names(), info.get_column_count()), (["id", "name"], 2))
    check(info.get_schema().get_columns(), [("id", "int"), ("name", "string")])
    properties = info.get_properties()
    check(properties["table.log.arrow.compression.type"], "LZ4_FRAME")
    check(properties["table.log.ttl"], "3d")
    check(properties["table.replication.factor"], "1")
    check(info.get_custom_properties(), {"owner": "me", "empty": ""})
    check(handle.get_table_info().table_id, info.table_id)
    check(handle.get_table_path(), path)
    check(handle.has_primary_key(), False)


@scenario("Tables")
async def schemas_of_every_type(world: World) -> None:
    handle = await world.create("t", COLUMNS)
    check(handle.arrow_schema, arrow_schema(COLUMNS))
    # Six digits are the default of a timestamp and go without saying.
    spelled = [kind.replace(", ", ",").replace("(6)", "").lower() for kind in COLUMNS.values()]
    found = (await world.admin.get_table_info(world.path("t"))).get_schema().get_column_types()
    check([kind.replace(", ", ",").lower() for kind in found], spelled)


@scenario("Tables")
async def table_errors(world: World) -> None:
    api, admin, path, codes = world.api, world.admin, world.path("t"), world.api.ErrorCode
    descriptor = api.TableDescriptor(api.Schema(arrow_schema(SMALL)))
    check(await world.error_code(admin.get_table_info(path)), codes.TABLE_NOT_EXIST)
    check(await world.error_code(admin.drop_table(path)), codes.TABLE_NOT_EXIST)
    await admin.drop_table(path, True)
    await world.create("t", SMALL)
    check(await world.error_code(admin.create_table(path, descriptor, False)), codes.TABLE_ALREADY_EXIST)
    await admin.create_table(path, descriptor, True)
    nowhere = api.TablePath(world.database + "_missing", "t")
    check(await world.error_code(admin.create_table(nowhere, descriptor, False)), codes.DATABASE_NOT_EXIST)
    for property_, value in (("table.nonsense", "1"), ("table.log.ttl", "soon")):
        code = await world.error_code(world.create("u", SMALL, properties={property_: value}))
        check((property_, code), (property_, codes.INVALID_CONFIG_EXCEPTION))
    check(await admin.list_tables(world.database), ["t"])
    code = await world.error_code(world.conn.get_table(world.path("missing")))
    check(code, world.expected["missing_table_code"])


@scenario("Dropped and recreated tables")
async def a_recreated_table_is_a_new_one(world: World) -> None:
    handle = await world.create("t", SMALL)
    writer = handle.new_append().create_writer()
    writer.append({"id": 1, "name": "old"})
    await writer.flush()
    first = handle.get_table_info().table_id
    await world.admin.drop_table(world.path("t"))
    check(await world.admin.list_tables(world.database), [])
    again = await world.create("t", {"id": "INT"})
    check(again.get_table_info().table_id != first, True)
    check(await world.admin.list_offsets(world.path("t"), [0], world.api.OffsetSpec.latest()), {0: 0})


@scenario("Offsets")
async def offsets(world: World) -> None:
    spec = world.api.OffsetSpec
    handle = await world.create("t", SMALL, bucket_count=2, bucket_keys=["id"])
    path = world.path("t")
    check(await world.admin.list_offsets(path, [0, 1], spec.latest()), {0: 0, 1: 0})
    writer = handle.new_append().create_writer()
    for number in range(20):
        writer.append([number, "early"])
    await writer.flush()
    ends = await world.admin.list_offsets(path, [0, 1], spec.latest())
    check(sum(ends.values()), 20)
    check(all(ends.values()), True)
    check(await world.admin.list_offsets(path, [1], spec.latest()), {1: ends[1]})
    check(await world.admin.list_offsets(path, [0, 1], spec.earliest()), {0: 0, 1: 0})
    between = await _next_millisecond()
    for number in range(20):
        writer.append([number, "late"])
    await writer.flush()
    check(await world.admin.list_offsets(path, [0, 1], spec.timestamp(between)), ends)
    check(await world.admin.list_offsets(path, [0, 1], spec.timestamp(0)), {0: 0, 1: 0})
    future = spec.timestamp(time.time_ns() // 1_000_000 + 3_600_000)
    code = await world.error_code(world.admin.list_offsets(path, [0], future))
    check(code, world.api.ErrorCode.INVALID_TIMESTAMP_EXCEPTION)
    code = await world.error_code(world.admin.list_offsets(path, [7], spec.latest()))
    check(code, world.api.ErrorCode.CLIENT_ERROR)


async def _next_millisecond() -> int:
    """A time that is later than all commits so far and earlier than all to come: both servers use this clock."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= now + 1:
        pass
    return now + 1
