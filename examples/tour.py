"""A tour of log tables and primary-key tables, in one program that type-checkers understand.

python examples/tour.py [ADDRESS]     # default: a private server in memory; or file:///path, or host:port
"""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import sys

import pyarrow as pa

import fluss
from fluss import DataField, DataTypes, col


def descriptor() -> fluss.TableDescriptor:
    """Tables are described with builders, or from a PyArrow schema as in `partitioned`."""
    schema = (
        fluss.Schema.builder()
        .column("id", DataTypes.bigint().not_null())
        .column("name", DataTypes.string(), "who")
        .column("amount", DataTypes.decimal(10, 2))
        .column("at", DataTypes.timestamp_ltz(3))
        .column("tags", DataTypes.array(DataTypes.string()))
        .column("attrs", DataTypes.map(DataTypes.string(), DataTypes.int()))
        .column("place", DataTypes.row([DataField("lat", DataTypes.double()), DataField("lon", DataTypes.double())]))
        .build()
    )
    return (
        fluss.TableDescriptor.builder()
        .schema(schema)
        .distributed_by(2, ["id"])
        .log_format(fluss.LogFormat.ARROW)
        .property("table.log.arrow.compression.type", "ZSTD")
        .custom_property("owner", "tour")
        .comment("orders as they come in")
        .build()
    )


async def administer(admin: fluss.FlussAdmin, path: fluss.TablePath) -> None:
    about = fluss.DatabaseDescriptor.builder().comment("for the tour").custom_property("kind", "example").build()
    await admin.create_database(path.database_name, about, ignore_if_exists=True)
    info = await admin.get_database_info(path.database_name)
    print("database:", info.database_name, "-", info.get_database_descriptor().comment)
    await admin.drop_table(path, ignore_if_not_exists=True)
    await admin.create_table(path, descriptor())
    table_info = await admin.get_table_info(path)
    print("table:", table_info.table_path, table_info.get_schema().get_columns())
    for node in await admin.get_server_nodes():
        print("server:", node.uid, f"{node.host}:{node.port}", node.server_type)


async def write(table: fluss.FlussTable) -> None:
    async with table.new_append().create_writer() as writer:
        now = dt.datetime.now(dt.UTC)
        handle = writer.append({"id": 1, "name": "Ada", "amount": decimal.Decimal("9.99"), "at": now, "tags": ["new"]})
        await handle.wait()
        writer.append([2, "Bob", None, None, [], {"age": 30}, {"lat": 48.1, "lon": 11.6}])
        row = fluss.GenericRow(7)
        row.set_field(0, 3)
        row.set_field(1, "Cyd")
        writer.append(row)
        rows = [{"id": i, "name": f"n{i}"} for i in range(4, 104)]
        writer.write_arrow(pa.Table.from_pylist(rows, schema=table.arrow_schema))
        await writer.drain()
        await writer.flush()


async def read(table: fluss.FlussTable, admin: fluss.FlussAdmin) -> None:
    path, info = table.get_table_path(), table.get_table_info()
    buckets = list(range(info.num_buckets))
    latest = await admin.list_offsets(path, buckets, fluss.OffsetSpec.latest())
    print("rows by bucket:", latest, "in all:", (await admin.get_table_stats(path)).row_count)

    scanner = await table.new_scan().project_by_name(["id", "name"]).create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(buckets, fluss.EARLIEST_OFFSET))
    print("all rows:", scanner.to_arrow().num_rows, "first:", scanner.to_pandas().head(1).to_dict("records"))
    print("lazily:", sum(batch.num_rows for batch in scanner.to_arrow_batch_reader()))
    scanner.close()

    records = await table.new_scan().filter((col("id") < 4) & col("name").is_not_null()).create_log_scanner()
    records.subscribe_buckets(dict.fromkeys(buckets, fluss.EARLIEST_OFFSET))
    seen = 0
    while seen < 3:
        for bucket, found in records.poll(timeout_ms=5000).items():
            for record in found:
                seen += 1
                print(bucket.bucket_id, record.offset, record.change_type.short_string(), record.row)
    positions = records.positions()
    records.close()
    print("stored positions:", positions)

    last = table.new_scan().limit(2).create_bucket_batch_scanner(fluss.TableBucket(info.table_id, 0))
    print("the last two of bucket 0:", last.to_arrow()["id"].to_pylist())


async def evolve(conn: fluss.FlussConnection, admin: fluss.FlussAdmin, path: fluss.TablePath) -> None:
    await admin.alter_table(path, add_columns=[("channel", DataTypes.string(), "where it came from")])
    await admin.alter_table(path, set_properties={"owner": "everybody"})
    table = await conn.get_table(path)
    print("now with", table.get_table_info().get_column_names()[-1], "in schema", table.get_table_info().schema_id)


async def partitioned(conn: fluss.FlussConnection, admin: fluss.FlussAdmin, path: fluss.TablePath) -> None:
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("region", pa.string())]))
    await admin.drop_table(path, ignore_if_not_exists=True)
    await admin.create_table(path, fluss.TableDescriptor(schema, partition_keys=["region"], bucket_count=1))
    for region in ("EU", "US"):
        await admin.create_partition(path, {"region": region}, ignore_if_exists=True)
    table = await conn.get_table(path)
    writer = table.new_append().create_writer()
    writer.append({"id": 1, "region": "EU"})
    writer.append({"id": 2, "region": "US"})
    await writer.flush()
    scanner = await table.new_scan().create_record_batch_log_scanner()
    for partition in await admin.list_partition_infos(path, {"region": "EU"}):
        scanner.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
    print("EU:", scanner.to_arrow().to_pylist())
    scanner.close()


async def keyed(conn: fluss.FlussConnection, admin: fluss.FlussAdmin, path: fluss.TablePath) -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])
    await admin.drop_table(path, ignore_if_not_exists=True)
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(columns, primary_keys=["id"]), bucket_count=2))
    table = await conn.get_table(path)
    writer = table.new_upsert().create_writer()
    writer.upsert({"id": 1, "name": "Alice", "age": 25})
    writer.write_arrow(pa.table({"id": [2, 3], "name": ["Bob", "Carol"], "age": [30, 35]}))
    writer.delete({"id": 3})
    await writer.flush()
    ages = table.new_upsert(columns=["id", "age"])  # a partial update: names stay
    await ages.upsert({"id": 1, "age": 26}).wait()
    lookuper = table.new_lookup().create_lookuper()
    print("looked up:", await lookuper.lookup({"id": 1}), await lookuper.lookup({"id": 3}))
    print("many:", (await lookuper.lookup_many([(2,), (1,)])).to_pylist())
    rows, offsets = table.new_scan().to_arrow_with_offsets()
    print(rows.num_rows, "current rows as of", sorted(offsets.values()))
    with table.changes(start="earliest") as changes:
        print("changes:", changes.poll(timeout_ms=10_000).select(["_change_type", "id", "age"]).to_pylist())


async def errors(admin: fluss.FlussAdmin, path: fluss.TablePath) -> None:
    try:
        await admin.create_table(path, descriptor())
    except fluss.AlreadyExistsError as error:
        print("as expected:", error.message, error.error_code, error.is_retriable)


async def main(address: str) -> None:
    async with fluss.connect(address) as conn:
        admin = await conn.get_admin()
        path = fluss.TablePath("tour", "orders")
        await administer(admin, path)
        table = await conn.get_table(path)
        await write(table)
        await read(table, admin)
        await errors(admin, path)
        await evolve(conn, admin, path)
        await partitioned(conn, admin, fluss.TablePath("tour", "by_region"))
        await keyed(conn, admin, fluss.TablePath("tour", "users"))
        await admin.drop_database("tour", cascade=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory:"))
