"""Partitions: admin calls, writes, scans, offsets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.peers.columns import arrow_schema
from tests.peers.scenarios.world import World, check, scenario

COLUMNS = {"id": "INT", "region": "STRING", "day": "STRING"}


async def _created(world: World, *specs: tuple[str, str], **options: Any) -> Any:
    handle = await world.create("t", COLUMNS, partition_keys=["region", "day"], **options)
    for region, day in specs:
        await world.create_partition("t", {"region": region, "day": day})
    return handle


@scenario("Partitions: create, list, drop")
async def partition_admin(world: World) -> None:
    admin, path, codes = world.admin, world.path("t"), world.api.ErrorCode
    await _created(world, ("eu", "mon"), ("eu", "tue"), ("us", "mon"))
    info = await admin.get_table_info(path)
    check((info.is_partitioned(), info.get_partition_keys()), (True, ["region", "day"]))
    found = await admin.list_partition_infos(path)
    check(sorted(p.partition_name for p in found), ["eu$mon", "eu$tue", "us$mon"])
    check(len({p.partition_id for p in found}), 3)
    for spec, names in (
        ({"region": "eu"}, ["eu$mon", "eu$tue"]),
        ({"day": "mon"}, ["eu$mon", "us$mon"]),
        ({"region": "us", "day": "mon"}, ["us$mon"]),
        ({"region": "none"}, []),
    ):
        check(sorted(p.partition_name for p in await admin.list_partition_infos(path, spec)), names)
    again = {"region": "us", "day": "mon"}
    check(await world.error_code(admin.create_partition(path, again)), codes.PARTITION_ALREADY_EXISTS)
    await admin.create_partition(path, again, True)
    for wrong in ({"region": "us"}, {"region": "us", "hour": "1"}):
        code = await world.error_code(admin.create_partition(path, wrong))
        check(code, codes.PARTITION_SPEC_INVALID_EXCEPTION)
    await admin.drop_partition(path, again)
    check(await world.error_code(admin.drop_partition(path, again)), codes.PARTITION_NOT_EXISTS)
    await admin.drop_partition(path, again, True)
    check(sorted(p.partition_name for p in await admin.list_partition_infos(path)), ["eu$mon", "eu$tue"])


@scenario("Partitions: create, list, drop")
async def partition_names_are_checked(world: World) -> None:
    await _created(world)
    for value in ("", "a b", "a/b", ".", "__a"):
        code = await world.error_code(world.admin.create_partition(world.path("t"), {"region": value, "day": "mon"}))
        check((value, code), (value, world.api.ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION))


@scenario("Partitions: create, list, drop")
async def a_plain_table_has_no_partitions(world: World) -> None:
    await world.create("plain", {"id": "INT"})
    code = world.api.ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
    check(await world.error_code(world.admin.list_partition_infos(world.path("plain"))), code)
    check(await world.error_code(world.admin.create_partition(world.path("plain"), {"id": "1"})), code)


@scenario("Partitions: rows and offsets")
async def partition_rows(world: World) -> None:
    api, path = world.api, world.path("t")
    handle = await _created(world, ("eu", "mon"), ("us", "mon"), bucket_count=2, bucket_keys=["id"])
    ids = {p.partition_name: p.partition_id for p in await world.admin.list_partition_infos(path)}
    writer = handle.new_append().create_writer()
    for number in range(30):
        writer.append({"id": number, "region": "eu", "day": "mon"})
    rows = [{"id": number, "region": "us", "day": "mon"} for number in range(10)]
    writer.write_arrow_batch(pa.RecordBatch.from_pylist(rows, schema=arrow_schema(COLUMNS)))
    await writer.flush()
    latest = await world.admin.list_partition_offsets(path, "us$mon", [0, 1], api.OffsetSpec.latest())
    check(sum(latest.values()), 10)
    earliest = await world.admin.list_partition_offsets(path, "us$mon", [0, 1], api.OffsetSpec.earliest())
    check(earliest, {0: 0, 1: 0})
    since = await world.admin.list_partition_offsets(path, "eu$mon", [0, 1], api.OffsetSpec.timestamp(0))
    check(since, {0: 0, 1: 0})
    code = await world.error_code(world.admin.list_partition_offsets(path, "xx$mon", [0], api.OffsetSpec.latest()))
    check(code, api.ErrorCode.PARTITION_NOT_EXISTS)

    scanner = await handle.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_partition_buckets({(ids["eu$mon"], b): api.EARLIEST_OFFSET for b in (0, 1)})
    check(sorted((await scanner.to_arrow()).column("id").to_pylist()), list(range(30)))

    records = await handle.new_scan().create_log_scanner()
    for bucket, end in latest.items():
        records.subscribe_partition(ids["us$mon"], bucket, 1)
        latest[bucket] = end - 1
    seen: list[tuple[Any, Any]] = []
    while len(seen) < sum(latest.values()):
        for bucket, found in (await records.poll(500)).items():
            seen += [(bucket.partition_id, record.row["region"]) for record in found]
    check(set(seen), {(ids["us$mon"], "us")})
    records.unsubscribe_partition(ids["us$mon"], 0)


@scenario("Partitions: rows and offsets")
async def a_scanner_without_a_partition_is_refused(world: World) -> None:
    handle = await _created(world, ("eu", "mon"))
    scanner = await handle.new_scan().create_log_scanner()
    try:
        scanner.subscribe(0, 0)
    except world.api.FlussError as error:
        check(error.error_code, world.api.ErrorCode.CLIENT_ERROR)
    else:
        raise AssertionError("a bucket without its partition was taken")
