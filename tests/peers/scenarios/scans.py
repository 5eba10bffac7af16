"""Projections, filters, positions, limits and the shapes in which rows come back."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from tests.peers.columns import arrow_schema
from tests.peers.samples import COLUMNS, EMPTY, FULL, NESTED, NESTED_FULL
from tests.peers.scenarios.types import poll_rows
from tests.peers.scenarios.world import World, check, scenario

NUMBERED = {"id": "INT", "name": "STRING", "score": "DOUBLE"}


def _row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"name {number}", "score": number / 2}


async def _filled(world: World, batches: int = 3, rows_per_batch: int = 10, **options: Any) -> Any:
    """A table whose batches hold consecutive ids."""
    handle = await world.create("t", NUMBERED, **options)
    writer = handle.new_append().create_writer()
    for first in range(0, batches * rows_per_batch, rows_per_batch):
        rows = [_row(number) for number in range(first, first + rows_per_batch)]
        await writer.write_arrow_batch(pa.RecordBatch.from_pylist(rows, schema=handle.arrow_schema)).wait()
    return handle


async def _to_arrow(world: World, scan: Any, offset: int | None = None) -> pa.Table:
    scanner = await scan.create_record_batch_log_scanner()
    scanner.subscribe(0, world.api.EARLIEST_OFFSET if offset is None else offset)
    return await scanner.to_arrow()


@scenario("Projection by index and name")
async def projection(world: World) -> None:
    handle = await _filled(world)
    for names in (["name"], ["id", "score"], ["score", "id"], ["id", "name", "score"]):
        expected = [{name: _row(number)[name] for name in names} for number in range(30)]
        indices = [list(NUMBERED).index(name) for name in names]
        for method, columns in (("project_by_name", names), ("project", indices)):
            data = await _to_arrow(world, getattr(handle.new_scan(), method)(columns))
            check(data.column_names, names)
            check(data.to_pylist(), expected)
            scan = getattr(handle.new_scan(), method)(columns)
            check([record.row for record in await poll_rows(world, handle, 30, scan)], expected)


@scenario("Projection by index and name")
async def projection_of_every_type(world: World) -> None:
    for table, columns, row in (("flat", COLUMNS, FULL), ("nested", NESTED, NESTED_FULL)):
        handle = await world.create(table, columns)
        writer = handle.new_append().create_writer()
        empty = dict.fromkeys(columns)
        await writer.write_arrow_batch(pa.RecordBatch.from_pylist([row, empty], schema=arrow_schema(columns))).wait()
        for name in columns:
            data = await _to_arrow(world, handle.new_scan().project_by_name([name]))
            check(data.to_pylist(), [{name: row[name]}, {name: None}])


@scenario("Projection by index and name")
async def wrong_projections_are_refused(world: World) -> None:
    handle = await _filled(world, batches=1)

    async def scanner(method: str, columns: list[Any]) -> Any:
        return await getattr(handle.new_scan(), method)(columns).create_log_scanner()

    wrong: list[tuple[str, list[Any]]] = [("project_by_name", ["nobody"]), ("project", [7])]
    wrong += [("project_by_name", []), ("project", [])]
    for method, columns in wrong:
        check(await world.error_code(scanner(method, columns)), world.api.ErrorCode.CLIENT_ERROR)


@scenario("Filters")
async def filters_keep_every_matching_row(world: World) -> None:
    """A filter may leave other rows in: how many is the server's affair and the next scenario's."""
    handle = await _filled(world)
    col = world.api.col
    for predicate, wanted in (
        (col("id") == 15, [15]),
        (col("id") != 3, [n for n in range(30) if n != 3]),
        (col("id") < 5, range(5)),
        (col("id") <= 5, range(6)),
        (col("id") > 25, range(26, 30)),
        (col("id") >= 25, range(25, 30)),
        (col("id").equal(15), [15]),
        (col("id").is_in([1, 29]), [1, 29]),
        (col("id").not_in([0, 1]), range(2, 30)),
        (col("name").starts_with("name 2"), [2, *range(20, 30)]),
        (col("name").ends_with("7"), [7, 17, 27]),
        (col("name").contains("e 1"), [1, *range(10, 20)]),
        (col("name").is_null(), []),
        (col("score").is_not_null(), range(30)),
        ((col("id") >= 10) & (col("score") < 6.0), [10, 11]),
        ((col("id") < 1) | (col("id") > 28), [0, 29]),
    ):
        found = (await _to_arrow(world, handle.new_scan().filter(predicate))).column("id").to_pylist()
        check((str(predicate), sorted(set(wanted) - set(found))), (str(predicate), []))
        check(len(set(found)), len(found))
        if world.expected["filter_is_exact"]:
            check((str(predicate), found), (str(predicate), list(wanted)))


@scenario("Filters")
async def statistics_prune_batches(world: World) -> None:
    """Ten rows to a batch: where the server has statistics, batches without a match stay there."""
    properties = {"table.statistics.columns": "*"}
    if not world.expected["statistics"]:
        code = await world.error_code(world.create("t", NUMBERED, properties=properties))
        check(code, world.api.ErrorCode.INVALID_CONFIG_EXCEPTION)
        return
    handle = await _filled(world, properties=properties)
    col = world.api.col
    # The last batch may come all the same: pyfluss needs it to see that it has arrived at the end.
    last = set(range(20, 30))
    for predicate, batches in ((col("id") >= 25, last), (col("id") < 5, set(range(10))), (col("id") > 100, set())):
        found = set((await _to_arrow(world, handle.new_scan().filter(predicate))).column("id").to_pylist())
        check((str(predicate), sorted(found - last - batches)), (str(predicate), []))


@scenario("Limit scan")
async def limit_scan(world: World) -> None:
    handle = await _filled(world)
    bucket = world.api.TableBucket(handle.get_table_info().table_id, 0)
    scanner = handle.new_scan().limit(5).create_bucket_batch_scanner(bucket)
    check(scanner.bucket, bucket)
    check((await scanner.to_arrow()).to_pylist(), [_row(number) for number in range(25, 30)])
    check(await scanner.next_batch(), None)
    whole = handle.new_scan().limit(1_000).create_bucket_batch_scanner(bucket)
    check(len(await whole.to_pandas()), 30)
    one = handle.new_scan().project_by_name(["score", "id"]).limit(12).create_bucket_batch_scanner(bucket)
    batch = await one.next_batch()
    check(batch.batch.to_pylist(), [{"score": n / 2, "id": n} for n in range(18, 30)])
    check(batch.bucket, bucket)
    check(await one.next_batch(), None)
    batches = await handle.new_scan().limit(3).create_bucket_batch_scanner(bucket).collect_all_batches()
    check([row["id"] for found in batches for row in found.batch.to_pylist()], [27, 28, 29])
    await world.create("empty", NUMBERED)
    empty = await world.conn.get_table(world.path("empty"))
    place = world.api.TableBucket(empty.get_table_info().table_id, 0)
    check((await empty.new_scan().limit(3).create_bucket_batch_scanner(place).to_arrow()).num_rows, 0)


@scenario("Limit scan")
async def limit_scan_of_a_partition(world: World) -> None:
    handle = await world.create("t", {"id": "INT", "region": "STRING"}, partition_keys=["region"])
    for region in ("eu", "us"):
        await world.create_partition("t", {"region": region})
    writer = handle.new_append().create_writer()
    for number in range(10):
        writer.append([number, "eu"])
        writer.append([100 + number, "us"])
    await writer.flush()
    info = handle.get_table_info()
    for partition in await world.admin.list_partition_infos(world.path("t")):
        bucket = world.api.TableBucket.with_partition(info.table_id, partition.partition_id, 0)
        data = await handle.new_scan().limit(2).create_bucket_batch_scanner(bucket).to_arrow()
        first = 0 if partition.partition_name == "eu" else 100
        check(data.column("id").to_pylist(), [first + 8, first + 9])


@scenario("Limit scan")
async def limits_where_they_make_no_sense_are_refused(world: World) -> None:
    handle = await _filled(world, batches=1)
    bucket = world.api.TableBucket(handle.get_table_info().table_id, 0)

    async def log_scanner() -> Any:
        return await handle.new_scan().limit(5).create_log_scanner()

    async def without_limit() -> Any:
        return handle.new_scan().create_bucket_batch_scanner(bucket)

    async def zero() -> Any:
        return handle.new_scan().limit(0).create_bucket_batch_scanner(bucket)

    async def filtered() -> Any:
        scan = handle.new_scan().limit(5).filter(world.api.col("id") > 1)
        return await scan.create_bucket_batch_scanner(bucket).to_arrow()

    async def other_table() -> Any:
        wrong = world.api.TableBucket(bucket.table_id + 1, 0)
        return handle.new_scan().limit(5).create_bucket_batch_scanner(wrong)

    async def no_such_bucket() -> Any:
        return handle.new_scan().limit(5).create_bucket_batch_scanner(world.api.TableBucket(bucket.table_id, 9))

    for build in (log_scanner, without_limit, zero, filtered, other_table, no_such_bucket):
        check((build.__name__, await world.error_code(build())), (build.__name__, world.api.ErrorCode.CLIENT_ERROR))


@scenario("Batch reader, record batches, pandas")
async def shapes_of_a_scan(world: World) -> None:
    handle = await _filled(world)
    expected = [_row(number) for number in range(30)]
    scanner = await handle.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, world.api.EARLIEST_OFFSET)
    reader = scanner.to_arrow_batch_reader()
    check(reader.schema, arrow_schema(NUMBERED))
    check(reader.read_all().to_pylist(), expected)

    scanner = await handle.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 5)
    batches: list[Any] = []
    while sum(found.batch.num_rows for found in batches) < 25:
        batches += await scanner.poll_record_batch(500)
    check(batches[0].base_offset, 5)
    check(batches[-1].last_offset, 29)
    check({found.bucket.bucket_id for found in batches}, {0})
    check([row for found in batches for row in found.batch.to_pylist()], expected[5:])

    scanner = await handle.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 10)
    polled: list[Any] = []
    while len(polled) < 20:
        polled += (await scanner.poll_arrow(500)).to_pylist()
    check(polled, expected[10:])
    check((await scanner.poll_arrow(10)).num_rows, 0)

    scanner = await handle.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 28)
    check((await scanner.to_pandas())["id"].tolist(), [28, 29])


@scenario("Iteration over scanners")
async def async_iteration(world: World) -> None:
    handle = await _filled(world)
    scanner = await handle.new_scan().create_log_scanner()
    scanner.subscribe(0, world.api.EARLIEST_OFFSET)
    seen: list[Any] = []
    async for record in scanner:
        seen.append((record.offset, record.change_type.short_string(), record.row))
        if len(seen) == 30:
            break
    check(seen, [(number, "+A", _row(number)) for number in range(30)])
    batches = await handle.new_scan().create_record_batch_log_scanner()
    batches.subscribe(0, 12)
    rows: list[Any] = []
    async for batch in batches:
        rows += batch.batch.to_pylist()
        if len(rows) == 18:
            break
    check(rows, [_row(number) for number in range(12, 30)])


@scenario("Record scanner: offsets, timestamps, change types")
async def records(world: World) -> None:
    before = time.time_ns() // 1_000_000
    handle = await _filled(world)
    after = time.time_ns() // 1_000_000
    scanner = await handle.new_scan().create_log_scanner()
    scanner.subscribe(0, 3)
    found: list[Any] = []
    while len(found) < 27:
        polled = await scanner.poll(500)
        check((polled.is_empty(), polled.count()), (len(polled) == 0, len(polled)))
        for bucket in polled.buckets():
            check((bucket.bucket_id, bucket.partition_id), (0, None))
            check(bucket.table_id, handle.get_table_info().table_id)
            check(bucket in polled, True)
            check(len(polled[bucket]), len(polled.records(bucket)))
        found += list(polled)
    check([record.offset for record in found], list(range(3, 30)))
    times = [record.timestamp for record in found]
    check(times, sorted(times))
    check(before <= times[0] <= times[-1] <= after, True)
    check(all(record.change_type == world.api.ChangeType.AppendOnly for record in found), True)


@scenario("Subscriptions")
async def subscriptions(world: World) -> None:
    handle = await world.create("t", NUMBERED, bucket_count=3, bucket_keys=["id"])
    writer = handle.new_append().create_writer()
    for number in range(60):
        writer.append(_row(number))
    await writer.flush()
    ends = await world.admin.list_offsets(world.path("t"), [0, 1, 2], world.api.OffsetSpec.latest())
    scanner = await handle.new_scan().create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(ends, world.api.EARLIEST_OFFSET))
    scanner.unsubscribe(1)
    found: dict[int, int] = {}
    while sum(found.values()) < ends[0] + ends[2]:
        for bucket, polled in (await scanner.poll(500)).items():
            found[bucket.bucket_id] = found.get(bucket.bucket_id, 0) + len(polled)
    check(found, {0: ends[0], 2: ends[2]})
    scanner.subscribe(1, ends[1] - 1)
    while not (polled := await scanner.poll(500)):
        pass
    check([record.offset for record in polled], [ends[1] - 1])


@scenario("Subscriptions")
async def wrong_offsets_are_errors(world: World) -> None:
    handle = await _filled(world, batches=1)
    scanner = await handle.new_scan().create_log_scanner()
    scanner.subscribe(0, 1_000)

    async def poll() -> Any:
        while not (found := await scanner.poll(500)):
            pass
        return found

    check(await world.error_code(poll()), world.expected["offset_out_of_range_code"])


@scenario("INDEXED log format")
async def indexed_log(world: World) -> None:
    handle = await world.create("t", COLUMNS, log_format="indexed")
    writer = handle.new_append().create_writer()
    if world.expected["indexed_log_is_read_and_written"]:
        writer.append(FULL)
        writer.append(EMPTY)
        await writer.flush()
        check([record.row for record in await poll_rows(world, handle, 2)], [FULL, EMPTY])
        return
    code = await world.error_code(handle.new_scan().create_log_scanner())
    check(code, world.api.ErrorCode.CLIENT_ERROR)
    write = writer.append(FULL)
    if world.expected["arrow_into_an_indexed_log_is_refused"]:
        check(await world.error_code(write.wait()), world.api.ErrorCode.UNSUPPORTED_VERSION)
    else:
        await write.wait()
