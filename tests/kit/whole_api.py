"""A program that uses the whole API for log tables; `test_whole_api.py` type-checks it strictly and runs it."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import sys

import pyarrow as pa

import fluss
import fluss.aio
import fluss.sync
from fluss import DataField, DataTypes, col

PATH = fluss.TablePath("whole", "events")
REGIONS = fluss.TablePath("whole", "regions")
USERS = fluss.TablePath("whole", "users")
TAGS = fluss.TablePath("whole", "tags")
VISITS = fluss.TablePath("whole", "visits")
MOMENT = dt.datetime(2026, 2, 28, 12, tzinfo=dt.UTC)


def values() -> fluss.TableDescriptor:
    every_type: list[fluss.DataType] = [
        *(DataTypes.boolean(), DataTypes.tinyint(), DataTypes.smallint(), DataTypes.int(), DataTypes.bigint()),
        *(DataTypes.float(), DataTypes.double(), DataTypes.decimal(10, 2), DataTypes.char(2), DataTypes.string()),
        *(DataTypes.binary(2), DataTypes.bytes(), DataTypes.date(), DataTypes.time(3), DataTypes.timestamp(6)),
        *(
            DataTypes.timestamp_ltz(3),
            DataTypes.array(DataTypes.int()),
            DataTypes.map(DataTypes.int(), DataTypes.int()),
        ),
        DataTypes.row([DataField("x", DataTypes.int(), "a field")]),
    ]
    builder = fluss.Schema.builder().column("id", DataTypes.int().not_null(), "number")
    for number, data_type in enumerate(every_type):
        builder = builder.column(f"c{number}", data_type)
    schema: fluss.Schema = builder.build()
    columns: list[fluss.Column] = schema.columns
    assert columns[0].name == schema.column_names[0] == schema.get_column_names()[0] == "id"
    assert columns[0].data_type.nullable is False
    assert columns[0].comment == "number"
    assert len(schema.get_columns()) == len(schema.get_column_types()) == len(schema.field_ids) == 20
    assert schema.primary_key is None
    assert not schema.primary_key_indexes
    assert not schema.get_primary_keys()
    assert schema.get_auto_increment_columns() == []
    descriptor = (
        fluss.TableDescriptor.builder()
        .schema(schema)
        .log_format(fluss.LogFormat.ARROW)
        .kv_format(fluss.KvFormat.COMPACTED)
        .property("table.log.arrow.compression.type", "LZ4_FRAME")
        .custom_property("a", "1")
        .custom_properties({"b": "2"})
        .distributed_by(2, ["id"])
        .comment("all")
        .build()
    )
    assert descriptor.schema is descriptor.get_schema() is schema
    assert not descriptor.has_primary_key
    assert descriptor.partition_keys == []
    assert descriptor.properties["table.log.arrow.compression.type"] == "LZ4_FRAME"
    assert (descriptor.custom_properties, descriptor.comment) == ({"a": "1", "b": "2"}, "all")
    assert (descriptor.bucket_count, descriptor.bucket_keys) == (2, ["id"])
    return descriptor


def row() -> fluss.GenericRow:
    made = fluss.GenericRow(20)
    fields: list[object] = [1, True, -1, 2, 3, 4, 1.5, 2.5, decimal.Decimal("9.90"), "ab", "text", b"ab", b"bytes"]
    fields += [MOMENT.date(), MOMENT.time(), MOMENT.replace(tzinfo=None), MOMENT, [1, None], {1: 2}, {"x": 5}]
    for position, value in enumerate(fields):
        made.set_field(position, value)
    assert made.get_int(0) == 1
    assert made.get_boolean(1)
    assert made.get_byte(2) == -1
    assert made.get_short(3) == 2
    assert made.get_long(5) == 4
    assert made.get_float(6) == 1.5
    assert made.get_double(7) == 2.5
    assert made.get_decimal(8, 10, 2) == decimal.Decimal("9.90")
    assert made.get_char(9, 2) == "ab"
    assert made.get_string(10) == "text"
    assert made.get_binary(11, 2) == b"ab"
    assert made.get_bytes(12) == b"bytes"
    assert made.get_date(13) == MOMENT.date()
    assert made.get_time(14) == MOMENT.time()
    assert made.get_timestamp_ntz(15, 6).tzinfo is None
    assert made.get_timestamp_ltz(16, 3) == MOMENT
    assert not made.is_null_at(0)
    assert fluss.GenericRow.from_data(fields) == made
    return made


def configured(address: str) -> fluss.Config:
    config = fluss.Config({"bootstrap.servers": address, "writer.batch-size": "1048576"})
    config.writer_request_max_size = 8 << 20
    config.writer_acks = "all"
    config.writer_retries = 10
    config.writer_batch_timeout_ms = 50
    config.writer_bucket_no_key_assigner = "round_robin"
    config.writer_dynamic_create_partition_enabled = False
    config.scanner_log_max_poll_records = 1000
    config.connect_timeout_ms = 30_000
    assert config.copy() == config
    assert config.to_dict()["writer.retries"] == 10
    return config


async def databases(admin: fluss.FlussAdmin) -> None:
    about = fluss.DatabaseDescriptor.builder().comment("c").custom_property("k", "v").custom_properties({}).build()
    await admin.create_database("whole", about, ignore_if_exists=True)
    info: fluss.DatabaseInfo = await admin.get_database_info("whole")
    assert info.get_database_descriptor().comment == info.database_descriptor.comment == "c"
    assert info.database_descriptor.get_custom_properties() == about.custom_properties == {"k": "v"}
    assert info.database_name in await admin.list_databases()
    assert info.created_time <= info.modified_time
    assert await admin.database_exists("whole")


async def tables(admin: fluss.FlussAdmin, descriptor: fluss.TableDescriptor) -> None:
    await admin.create_table(PATH, descriptor)
    assert await admin.list_tables("whole") == [PATH.table_name]
    assert await admin.table_exists(PATH)
    info: fluss.TableInfo = await admin.get_table_info(PATH)
    assert info.table_path == PATH
    assert f"{PATH.database}.{PATH.table}" == PATH.table_path_str()
    assert info.get_schema() == info.schema
    assert (info.num_buckets, info.comment, info.get_bucket_keys()) == (2, "all", ["id"])
    assert not info.has_primary_key()
    assert not info.is_partitioned()
    assert info.get_column_count() == 20
    assert info.get_primary_keys() == info.primary_keys == info.get_partition_keys() == info.partition_keys == []
    assert info.get_properties() == info.properties
    assert info.get_custom_properties() == info.custom_properties
    assert info.created_time <= info.modified_time
    assert info.get_column_names()[0] == "id"
    assert (await admin.get_table(PATH)).table_id == info.table_id
    nodes: list[fluss.ServerNode] = await admin.get_server_nodes()
    assert {node.server_type for node in nodes} == set(fluss.ServerType) - {fluss.ServerType.UNKNOWN}
    assert all(node.uid and node.host and node.port and node.id >= 0 for node in nodes)
    settings: list[fluss.ConfigEntry] = await admin.describe_cluster_configs()
    assert all(setting.key and setting.source for setting in settings)
    code = 0
    try:
        await admin.get_latest_lake_snapshot(PATH)
    except fluss.FlussError as error:
        code = error.error_code if error.message and not error.is_retriable else 0
    assert code == fluss.ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    snapshot = fluss.LakeSnapshot(1, {fluss.TableBucket(1, 0): 5})
    assert snapshot.get_table_buckets() == list(snapshot.table_buckets_offset)
    assert snapshot.snapshot_id == 1
    assert snapshot.get_bucket_offset(fluss.TableBucket(1, 0)) == 5


async def writes(table: fluss.FlussTable) -> None:
    async with table.new_append().create_writer() as writer:
        handle: fluss.WriteResultHandle = writer.append(row())
        await handle
        await writer.append({"id": 2}).wait()
        batch = pa.RecordBatch.from_pylist([{"id": 3}], schema=table.arrow_schema)
        await writer.write_arrow_batch(batch).wait()
        await writer.append_arrow_batch(batch.slice(0, 0)).wait()
        writer.write_arrow(pa.Table.from_pylist([{"id": 4}], schema=table.arrow_schema))
        writer.write_pandas(pa.table({"id": [5]}).to_pandas())
        await writer.drain()
        await writer.flush()
    await (await table.new_append_writer()).flush()


async def polls(table: fluss.FlussTable, admin: fluss.FlussAdmin) -> None:
    records = await table.new_scan().project([0, 1]).create_log_scanner()
    records.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    seen: list[fluss.ScanRecord] = []
    while len(seen) < 5:
        found: fluss.ScanRecords = records.poll(timeout_ms=5000)
        assert found.count() == len(found)
        assert found.is_empty() == (len(found) == 0)
        assert found.keys() == found.buckets() == list(found.records_by_buckets())
        assert sum(map(len, found.values())) == sum(len(found.records(bucket)) for bucket, _ in found.items())
        seen += list(found)
    assert {record.row["id"] for record in seen} == {1, 2, 3, 4, 5}
    assert all(record.change_type is fluss.ChangeType.AppendOnly and record.timestamp > 0 for record in seen)
    assert seen[0].change_type.short_string() == "+A"
    assert seen[0].offset >= 0
    positions: fluss.Positions = records.positions()
    assert dict(records.get_subscribed_buckets()) == positions
    assert not records.is_partitioned()
    again = await table.new_scan().create_log_scanner()
    again.subscribe_positions(fluss.Positions.from_json(positions.to_json()))
    assert again.poll(0).is_empty()
    again.unsubscribe(0)
    latest = await table.new_scan().create_record_batch_log_scanner()
    latest.subscribe(0, fluss.LATEST_OFFSET)
    assert latest.poll_arrow(0).num_rows == 0
    assert latest.poll_batches(0) == latest.poll_record_batch(0) == []
    for scanner in (records, again, latest):
        scanner.close()


async def reads(table: fluss.FlussTable, admin: fluss.FlussAdmin) -> None:
    scan: fluss.TableScan = table.new_scan().project_by_name(["id", "c9"]).with_fixed_schema(True)
    small: fluss.Predicate = (col("id") < 3).and_(col("id") >= 0) | (col("id") == 9).or_(col("c9").is_not_null())
    scanner = await scan.filter(small & (col("id") == 7).not_()).create_batch_scanner()
    scanner.subscribe_buckets(dict.fromkeys([0, 1], fluss.EARLIEST_OFFSET))
    assert sorted(scanner.to_arrow()["id"].to_pylist()) == [1, 2] == sorted(scanner.to_pandas()["id"])
    assert sorted(scanner.to_polars()["id"].to_list()) == [1, 2] == sorted(r[0] for r in scanner.to_duckdb().fetchall())
    reader = scanner.to_arrow_batch_reader()
    assert sum(batch.num_rows for batch in reader) == 2
    scanner.close()
    name: fluss.ColumnRef = col("c9")
    others: list[fluss.Predicate] = [
        *(name.equal("a"), name.not_equal("a"), name.less_than("a"), name.less_or_equal("a"), name.greater_than("a")),
        *(name.greater_or_equal("a"), name.is_null(), name.starts_with("a"), name.ends_with("a"), name.contains("a")),
        *(name.is_in(["a"]), name.not_in(["a"])),
    ]
    assert name.name == "c9"
    assert len({repr(other) for other in others}) == len(others)
    info = table.get_table_info()
    bucket = fluss.TableBucket(info.table_id, 0)
    limited: fluss.BatchScanner = table.new_scan().limit(10).create_bucket_batch_scanner(bucket)
    first: fluss.RecordBatch | None = limited.next_batch()
    assert first is not None
    assert first.bucket == limited.bucket == bucket
    assert first.num_records == first.batch.num_rows
    assert first.last_offset >= first.base_offset
    assert first.commit_timestamp > 0
    assert limited.collect_all_batches() == []
    whole = table.new_scan().limit(10)
    assert whole.create_bucket_batch_scanner(bucket).to_arrow().num_rows == first.num_records
    assert table.new_scan().head(1).num_rows == 1
    assert len(whole.create_bucket_batch_scanner(bucket).to_pandas()) == first.num_records
    assert len(whole.create_bucket_batch_scanner(bucket).to_polars()) == first.num_records
    assert len(whole.create_bucket_batch_scanner(bucket).to_duckdb().fetchall()) == first.num_records
    stats: fluss.TableStats = await admin.get_table_stats(PATH)
    assert stats.row_count == sum(stats.bucket_row_counts.values()) == 5
    ends = await admin.list_offsets(PATH, [0, 1], fluss.OffsetSpec.latest())
    starts = await admin.list_offsets(PATH, [0, 1], offset_type="earliest")
    assert sum(ends.values()) == 5
    assert starts == {0: 0, 1: 0}
    assert await admin.list_offsets(PATH, [0, 1], fluss.OffsetSpec.timestamp(0)) == starts
    assert table.get_table_path() == table.table_path == PATH
    assert not table.has_primary_key()


async def changes(conn: fluss.FlussConnection, admin: fluss.FlussAdmin) -> None:
    await admin.alter_table(PATH, add_columns=[("extra", DataTypes.string(), "new"), pa.field("more", pa.int64())])
    await admin.alter_table(PATH, set_properties={"c": "3"}, reset_properties=["a"])
    schema: fluss.SchemaInfo = await admin.get_table_schema(PATH)
    assert schema.schema_id == 2
    assert schema.schema.column_names[-2:] == ["extra", "more"]
    assert (await admin.get_table_schema(PATH, 1)).schema.column_names[-1] == "c18"
    assert (await conn.get_table(PATH)).get_table_info().custom_properties == {"b": "2", "c": "3"}


async def partitions(conn: fluss.FlussConnection, admin: fluss.FlussAdmin) -> None:
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("region", pa.string())]))
    await admin.create_table(REGIONS, fluss.TableDescriptor.builder().schema(schema).partitioned_by(["region"]).build())
    spec = fluss.PartitionSpec({"region": "EU"})
    await admin.create_partition(REGIONS, spec)
    await admin.create_partition(REGIONS, {"region": "US"}, ignore_if_exists=True)
    found: list[fluss.PartitionInfo] = await admin.list_partition_infos(REGIONS, {"region": "EU"})
    assert found == await admin.list_partition_infos_with_spec(REGIONS, spec)
    (eu,) = found
    assert (eu.partition_name, eu.partition_id) == (eu.get_partition_name(), eu.get_partition_id())
    assert eu.partition_spec.get_spec_map() == spec.get_spec_map()
    table = await conn.get_table(REGIONS)
    writer = table.new_append().create_writer()
    writer.append([1, "EU"])
    await writer.flush()
    assert await admin.list_partition_offsets(REGIONS, "EU", [0], fluss.OffsetSpec.Latest) == {0: 1}
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_partition(eu.partition_id, 0, fluss.EARLIEST_OFFSET)
    scanner.subscribe_partition_buckets({(eu.partition_id, 0): fluss.EARLIEST_OFFSET})
    assert scanner.to_arrow().num_rows == 1
    (bucket, _), *_ = scanner.get_subscribed_buckets()
    assert bucket == fluss.TableBucket.with_partition(table.get_table_info().table_id, eu.partition_id, 0)
    assert bucket == fluss.TableBucket.new_with_partition(bucket.table_id, bucket.partition_id, bucket.bucket_id)
    scanner.unsubscribe_partition(eu.partition_id, 0)
    scanner.close()
    await admin.drop_partition(REGIONS, spec)
    await admin.drop_table(REGIONS)


async def upserts(conn: fluss.FlussConnection, admin: fluss.FlussAdmin) -> None:
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("age", pa.int32())]), ["id"])
    properties = {"table.merge-engine": "first_row"}
    await admin.create_table(USERS, fluss.TableDescriptor(schema, bucket_count=1, properties=properties))
    table = await conn.get_table(USERS)
    builder: fluss.TableUpsert = table.new_upsert()
    handle: fluss.WriteResultHandle = builder.upsert({"id": 1, "name": "a"})
    await handle
    await builder.merge_mode(fluss.MergeMode.OVERWRITE).upsert([1, "b", 2]).wait()
    await admin.drop_table(USERS)
    await admin.create_table(USERS, fluss.TableDescriptor(schema, bucket_count=1))
    table = await conn.get_table(USERS)
    async with table.new_upsert().create_writer() as writer:
        await writer.upsert((1, "a", 1)).wait()
        await writer.delete([1]).wait()
        writer.write_arrow(pa.table({"id": [2], "name": ["b"]}))
        await writer.write_arrow_batch(pa.record_batch({"id": [3], "age": [3]})).wait()
        writer.write_pandas(pa.table({"id": [4]}).to_pandas())
        await writer.delete_arrow(pa.table({"id": [2]})).wait()
        await writer.drain()
    whole = table.new_upsert()
    partial: list[fluss.TableUpsert] = [
        *(table.new_upsert(columns=["id", "age"]), whole.partial_update_by_name(["id", "age"])),
        *(whole.partial_update_by_index([0, 2]), whole.partial_update([0, 2])),
        whole.partial_update_with_column_names(["id", "age"]),
    ]
    for age, update in enumerate(partial):
        update.upsert([3, age])
        await update.flush()
    await lookups(table)
    await follows(table)


async def aggregates(conn: fluss.FlussConnection, admin: fluss.FlussAdmin) -> None:
    listed = fluss.AggFunction("listagg", {"delimiter": "|"})
    assert fluss.AggFunction.from_json(listed.to_json()) == fluss.AggFunction.of(listed)
    assert (listed.type, listed.parameters, listed.delimiter) == ("listagg", {"delimiter": "|"}, "|")
    listed.check("tags", DataTypes.string())
    schema = (
        fluss.Schema.builder()
        .column("key", DataTypes.string())
        .column("number", DataTypes.bigint())
        .column("tags", DataTypes.string(), agg_function=listed)
        .primary_key(["key"])
        .enable_auto_increment("number")
        .build()
    )
    assert schema.columns[2].agg_function == listed
    assert schema.get_auto_increment_columns() == ["number"]
    descriptor = fluss.TableDescriptor(schema, properties={"table.merge-engine": "aggregation"})
    assert descriptor.physical_primary_keys == ["key"]
    await admin.create_table(TAGS, descriptor)
    table = await conn.get_table(TAGS)
    assert table.get_table_info().physical_primary_keys == ["key"]
    writer = table.new_upsert()
    writer.upsert({"key": "k", "tags": "a"})
    writer.upsert({"key": "k", "tags": "b"})
    await writer.flush()
    assert await table.new_lookup().lookup(["k"]) == {"key": "k", "number": 1, "tags": "a|b"}
    await admin.drop_table(TAGS)


async def follows(table: fluss.FlussTable) -> None:
    """Current rows of a primary-key table, and its changes."""
    scan = table.new_scan()
    rows, offsets = scan.to_arrow_with_offsets()
    assert rows == scan.to_arrow()
    assert len(scan.to_pandas()) == rows.num_rows == 3
    union: fluss.UnionScan = scan.union()
    assert union.to_arrow_batch_reader().read_all().num_rows == union.to_arrow().num_rows == 3
    assert scan.bucket_offsets(fluss.OffsetSpec.latest()) == offsets
    assert sum(batch.num_rows for bucket in offsets for batch in scan.read_bucket_at(bucket, offsets[bucket])) == 3
    assert all(scan.batch_starts(bucket, [0]) == [0] for bucket in offsets)
    batches = [batch for bucket in offsets for batch in scan.read_bucket(bucket, 0, offsets[bucket], changelog=True)]
    assert sum(batch.num_rows for batch in batches) == sum(offsets.values())
    scanner: fluss.LogScanner = await scan.create_changelog_batch_scanner()
    scanner.subscribe_positions(dict.fromkeys(offsets, 0))
    assert scanner.to_arrow()["_change_type"].to_pylist()[0] == "+I"
    scanner.close()
    changes: fluss.Changes = table.changes(start="snapshot")
    found: pa.Table = changes.poll(10_000)
    assert found.schema == changes.arrow_schema
    position: fluss.ChangesPosition = changes.position
    assert position.snapshot
    assert position.buckets[0].bucket in offsets
    assert position == fluss.ChangesPosition.from_json(position.to_json())
    changes.close()
    with table.changes(position) as resumed:
        assert resumed.poll(0).num_rows == 0


async def lookups(table: fluss.FlussTable) -> None:
    builder: fluss.TableLookup = table.new_lookup()
    lookuper: fluss.Lookuper = builder.create_lookuper()
    found: dict[str, object] | None = await lookuper.lookup({"id": 3})
    assert found == await builder.lookup([3]) == {"id": 3, "name": None, "age": 4}
    many: pa.Table = await lookuper.lookup_many([(3,), (1,)])
    assert many == await builder.lookup_many(pa.table({"id": [3, 1]}))
    assert many.to_pylist() == [found, {"id": None, "name": None, "age": None}]
    assert await builder.enable_insert_if_not_exists().lookup((9,)) == {"id": 9, "name": None, "age": None}


async def prefix_lookups(conn: fluss.FlussConnection, admin: fluss.FlussAdmin) -> None:
    schema = fluss.Schema(pa.schema([("a", pa.int32()), ("b", pa.int32()), ("v", pa.string())]), ["a", "b"])
    await admin.create_table(VISITS, fluss.TableDescriptor(schema, bucket_count=2, bucket_keys=["a"]))
    table = await conn.get_table(VISITS)
    async with table.new_upsert().create_writer() as writer:
        writer.upsert([1, 2, "x"])
    by_prefix: fluss.TablePrefixLookup = table.new_lookup().lookup_by(["a"])
    lookuper: fluss.PrefixLookuper = by_prefix.create_lookuper()
    rows: list[dict[str, object]] = await lookuper.lookup([1])
    as_arrow: pa.Table = await lookuper.lookup_arrow({"a": 1})
    assert rows == as_arrow.to_pylist() == [{"a": 1, "b": 2, "v": "x"}]


async def staged(conn: fluss.FlussConnection, admin: fluss.FlussAdmin) -> None:
    path = fluss.TablePath("whole", "staged")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int64())]), ["id"])))
    table = await conn.get_table(path)
    try:
        await table.check_staged_writes()
    except fluss.InvalidRequestError:
        return  # Apache Fluss has none
    write: fluss.StagedWrite = table.new_staged_write("query", 0)
    writer: fluss.StagedWriter = write.create_writer(task=0, attempt=7)
    await writer.write_arrow_batch(pa.record_batch({"id": [1, 2]}))
    await writer.delete_arrow_batch(pa.record_batch({"id": [2]}))
    await writer.pass_over_deletes(pa.record_batch({"id": [3]}))
    done: fluss.StagedTask = await writer.finish()
    assert (done.task, done.attempt, done.request_count > 0) == (0, 7, True)
    assert (done.row_count, done.digest is None) == (4, False)
    assert await write.commit([done])
    assert not write.is_repeated
    await write.abort()  # nothing: it is committed
    assert (write.query_id, write.batch_id) == ("query", 0)
    current: pa.Table = table.new_scan().to_arrow()
    assert current["id"].to_pylist() == [1]
    assert (await conn.sql("SELECT 1 AS one")).to_pylist() == [{"one": 1}]
    assert conn.reachable_config().bootstrap_servers


async def awaited(config: fluss.Config) -> None:
    """The facade in which scans are awaited too."""
    async with await fluss.aio.FlussConnection.create(config) as conn:
        table: fluss.aio.FlussTable = await conn.get_table(PATH)
        scanner: fluss.aio.LogScanner = await table.new_scan().create_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
        count = 0
        async for record in scanner:
            count += isinstance(record, fluss.ScanRecord)
            if count == 5:
                break
        scanner.close()


def blocking(config: fluss.Config) -> None:
    """The facade in which nothing is awaited."""
    with fluss.sync.FlussConnection.create(config) as conn:
        table: fluss.sync.FlussTable = conn.get_table(PATH)
        with table.new_append().create_writer() as writer:
            writer.append({"id": 6}).wait()
        union: fluss.sync.UnionScan = table.new_scan().union(mode="auto")
        assert union.to_arrow().num_rows == len(union.to_duckdb().fetchall()) == 6
        scanner: fluss.sync.LogScanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys([0, 1], fluss.EARLIEST_OFFSET))
        assert scanner.to_arrow().num_rows == 6
        scanner.close()


async def main(address: str) -> None:
    config = configured(address)
    async with fluss.connect(address) as short:
        assert short.config.bootstrap_servers == address
        conn = await fluss.FlussConnection.create(config)
        admin = await conn.get_admin()
        await databases(admin)
        await tables(admin, values())
        table = await conn.get_table(PATH)
        await writes(table)
        await polls(table, admin)
        await reads(table, admin)
        await awaited(config)
        await asyncio.to_thread(blocking, config)
        await changes(conn, admin)
        await partitions(conn, admin)
        await upserts(conn, admin)
        await aggregates(conn, admin)
        await prefix_lookups(conn, admin)
        await staged(conn, admin)
        await admin.drop_database("whole", ignore_if_not_exists=True, cascade=True)
        conn.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
