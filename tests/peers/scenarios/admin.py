"""Databases, server nodes, lake snapshots."""

from __future__ import annotations

from tests.peers.samples import SMALL
from tests.peers.scenarios.world import World, check, scenario


@scenario("Databases")
async def databases(world: World) -> None:
    api, admin, name = world.api, world.admin, world.database + "_other"
    await admin.create_database(name, api.DatabaseDescriptor("about", {"team": "web", "key": ""}))
    check(await admin.database_exists(name), True)
    check(name in await admin.list_databases(), True)
    info = await admin.get_database_info(name)
    check(info.database_name, name)
    check(info.get_database_descriptor().comment, "about")
    check(info.get_database_descriptor().get_custom_properties(), {"team": "web", "key": ""})
    check(info.created_time > 0, True)
    check(info.modified_time >= info.created_time, True)
    check(await world.error_code(admin.create_database(name)), api.ErrorCode.DATABASE_ALREADY_EXIST)
    await admin.create_database(name, None, True)
    await admin.drop_database(name)
    check(await admin.database_exists(name), False)
    check(await world.error_code(admin.drop_database(name)), api.ErrorCode.DATABASE_NOT_EXIST)
    check(await world.error_code(admin.get_database_info(name)), api.ErrorCode.DATABASE_NOT_EXIST)
    check(await world.error_code(admin.list_tables(name)), api.ErrorCode.DATABASE_NOT_EXIST)
    await admin.drop_database(name, True)


@scenario("Databases")
async def a_database_without_descriptor(world: World) -> None:
    info = await world.admin.get_database_info(world.database)
    check(info.get_database_descriptor().comment, None)
    check(info.get_database_descriptor().get_custom_properties(), {})


@scenario("Databases")
async def a_database_with_tables_goes_only_with_cascade(world: World) -> None:
    name = world.database + "_full"
    await world.admin.create_database(name)
    schema = (await world.create("model", SMALL)).arrow_schema
    descriptor = world.api.TableDescriptor(world.api.Schema(schema))
    await world.admin.create_table(world.api.TablePath(name, "kept"), descriptor, False)
    await world.await_leaders(name, "kept", None)
    code = await world.error_code(world.admin.drop_database(name, False, False))
    check(code, world.api.ErrorCode.DATABASE_NOT_EMPTY)
    check(await world.admin.list_tables(name), ["kept"])
    await world.admin.drop_database(name, False, True)
    check(await world.admin.database_exists(name), False)


@scenario("Server nodes")
async def server_nodes(world: World) -> None:
    nodes = await world.admin.get_server_nodes()
    check(sorted(node.server_type for node in nodes), ["CoordinatorServer", "TabletServer"])
    for node in nodes:
        prefix = "cs" if node.server_type == "CoordinatorServer" else "ts"
        check(node.uid, f"{prefix}-{node.id}")
        check(node.host, "127.0.0.1")
        check(0 < node.port < 65536, True)


@scenario("Lake snapshot of a table that has none")
async def no_lake_snapshot(world: World) -> None:
    await world.create("dry", SMALL)
    admin = world.admin
    code = await world.error_code(admin.get_latest_lake_snapshot(world.path("dry")))
    check(code, world.api.ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)
    code = await world.error_code(admin.get_latest_lake_snapshot(world.path("nowhere")))
    check(code, world.api.ErrorCode.TABLE_NOT_EXIST)
