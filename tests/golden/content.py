"""The tables of a golden data directory, what is written to them, and all of it as a client reads it.

`fill` is for the program that makes a golden directory, once for each format. What it writes may change with later
formats; what earlier directories hold is in the JSON beside them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

import fluss
from fluss import DataField, DataTypes
from fluss.api.operations import LakeRegistry
from fluss.model.forms.arrow_types import arrow_schema
from fluss.sync import FlussConnection, FlussTable

DATABASE: Final = "golden"
KEEP: Final = {"table.log.ttl": "0 s"}
QUERY: Final = "golden query"
_LAKE_PLACE: Final = "table.datalake.iceberg."
READ_S_MAX: Final = 20.0
BATCHES: Final = 12
_COLUMNS: Final = (("id", DataTypes.int()), ("name", DataTypes.string()), ("score", DataTypes.double()))
_EVERYTHING: Final[tuple[tuple[str, fluss.DataType, Any, Any], ...]] = (
    ("id", DataTypes.int(), 1, 2),
    ("boolean", DataTypes.boolean(), True, None),
    ("tinyint", DataTypes.tinyint(), -128, None),
    ("smallint", DataTypes.smallint(), -32768, 32767),
    ("bigint", DataTypes.bigint(), -(2**63), 2**63 - 1),
    ("float", DataTypes.float(), 0.5, None),
    ("double", DataTypes.double(), 1e300, -0.0),
    ("string", DataTypes.string(), "Fluß 🌊", ""),
    ("char", DataTypes.char(4), "abcd", None),
    ("bytes", DataTypes.bytes(), b"\x00\xff", b""),
    ("binary", DataTypes.binary(2), b"\x01\x02", None),
    ("decimal", DataTypes.decimal(38, 10), Decimal("1234567890.0123456789"), Decimal("-0.0000000001")),
    ("money", DataTypes.decimal(10, 2), Decimal("12.50"), None),
    ("date", DataTypes.date(), date(2024, 2, 29), date(1969, 12, 31)),
    ("time", DataTypes.time(3), time_of_day(23, 59, 59, 999_000), None),
    ("timestamp", DataTypes.timestamp(6), datetime(2024, 1, 2, 3, 4, 5, 678_901), None),
    ("seconds", DataTypes.timestamp(0), datetime(1960, 1, 1), None),
    ("instant", DataTypes.timestamp_ltz(3), datetime(2024, 1, 2, 3, 4, 5, 678_000, UTC), None),
    ("array", DataTypes.array(DataTypes.string()), ["a", None, "b"], []),
    ("map", DataTypes.map(DataTypes.string(), DataTypes.bigint()), [("k", 1), ("l", None)], None),
    (
        "row",
        DataTypes.row([DataField("x", DataTypes.int()), DataField("deep", DataTypes.array(DataTypes.double()))]),
        {"x": 1, "deep": [1.5, None]},
        None,
    ),
)


def fill(connection: FlussConnection) -> None:
    """Make all tables but those that need several starts, and write to them."""
    connection.get_admin().create_database(DATABASE, ignore_if_exists=True)
    _fill_logs(connection)
    _fill_partitions(connection)
    _fill_keys(connection)
    _fill_engines(connection)
    _fill_staged(connection)
    _fill_lake(connection)
    dropped = _create(connection, "dropped", _COLUMNS)
    connection.get_admin().drop_table(dropped.get_table_path())


def fill_more(connection: FlussConnection, round_number: int) -> None:
    """What comes between and after the snapshots of primary-key tables."""
    for name in ("keys", "numbered"):
        table = connection.get_table(fluss.TablePath(DATABASE, name))
        first = round_number * 10
        rows = [{"id": first + number, "name": f"round {round_number}"} for number in range(5)]
        upsert(table, rows, ["id", "name"])


def fill_last(connection: FlussConnection) -> None:
    """Changes of the catalog, which after a kill are in its write-ahead log alone."""
    admin = connection.get_admin()
    append(_create(connection, "late", _COLUMNS), rows_from(0, 3))
    parts = connection.get_table(fluss.TablePath(DATABASE, "parts"))
    admin.create_partition(parts.get_table_path(), {"day": "late"})
    append(parts, [{"day": "late", **row} for row in rows_from(0, 2)])
    path = fluss.TablePath(DATABASE, "altered")
    admin.alter_table(path, add_columns=[("late", DataTypes.int(), None)])
    append(connection.get_table(path), [{"id": 20, "late": 1}])


def _create(
    connection: FlussConnection,
    name: str,
    columns: Iterable[tuple[str, fluss.DataType]],
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    **options: Any,
) -> FlussTable:
    increment = options.pop("auto_increment_column", None)
    functions = options.pop("functions", {})
    made = [fluss.Column(column, kind, None, functions.get(column)) for column, kind in columns]
    schema = fluss.Schema.of(made, keys, increment)
    descriptor = fluss.TableDescriptor(schema, properties={**KEEP, **(properties or {})}, **options)
    path = fluss.TablePath(DATABASE, name)
    connection.get_admin().create_table(path, descriptor)
    return connection.get_table(path)


def append(table: FlussTable, rows: Iterable[Mapping[str, Any]], times: int = 1) -> None:
    """Each time is a batch of its own."""
    writer = table.new_append().create_writer()
    kept = list(rows)
    for _ in range(times):
        for row in kept:
            writer.append(row)
        writer.flush()


def upsert(table: FlussTable, rows: Iterable[Mapping[str, Any]], columns: list[str] | None = None) -> None:
    writer = table.new_upsert(columns).create_writer()
    for row in rows:
        writer.upsert(row)
    writer.flush()


def _delete(table: FlussTable, key: Mapping[str, Any]) -> None:
    writer = table.new_upsert().create_writer()
    writer.delete(key)
    writer.flush()


def rows_from(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"id": number, "name": f"name {number}" if number % 3 else None, "score": number / 2}
        for number in range(first, first + count)
    ]


def _everything() -> tuple[list[tuple[str, fluss.DataType]], list[dict[str, Any]]]:
    columns = [(name, kind) for name, kind, _, _ in _EVERYTHING]
    rows = [{name: values[number] for name, _, *values in _EVERYTHING} for number in (0, 1)]
    return columns, [*rows, {"id": 3}]


def _fill_logs(connection: FlussConnection) -> None:
    for codec in ("NONE", "LZ4_FRAME", "ZSTD"):
        table = _create(connection, f"log_{codec.lower()}", _COLUMNS, (), {"table.log.arrow.compression.type": codec})
        for batch in range(BATCHES):
            append(table, rows_from(batch * 20, 20))
    columns, rows = _everything()
    for log_format in ("ARROW", "INDEXED"):
        append(_create(connection, f"types_{log_format.lower()}", columns, log_format=log_format), rows, 2)
    statistics = {"table.statistics.columns": "*"}
    table = _create(connection, "statistics", _COLUMNS, (), statistics, bucket_count=2)
    for batch in range(BATCHES):
        append(table, rows_from(batch * 5, 5))
    _fill_altered(connection)


def _fill_altered(connection: FlussConnection) -> None:
    admin = connection.get_admin()
    table = _create(connection, "altered", _COLUMNS, (), custom_properties={"mine": "1"})
    path = table.get_table_path()
    append(table, rows_from(0, 3))
    for number in range(2):
        admin.alter_table(path, add_columns=[(f"added_{number}", DataTypes.string(), None)])
        table = connection.get_table(path)
        append(table, [{"id": 10 + number, f"added_{number}": "new"}])
    admin.alter_table(path, set_properties={"mine": "2"})


def _fill_partitions(connection: FlussConnection) -> None:
    columns = [("day", DataTypes.string()), *_COLUMNS]
    for name, keys in (("parts", ()), ("part_keys", ("day", "id"))):
        table = _create(connection, name, columns, keys, partition_keys=["day"], bucket_count=2)
        for day in ("2024-01-01", "2024-01-02", "dropped"):
            connection.get_admin().create_partition(table.get_table_path(), {"day": day})
            rows = [{"day": day, **row} for row in rows_from(0, 6)]
            upsert(table, rows) if keys else append(table, rows)
        connection.get_admin().drop_partition(table.get_table_path(), {"day": "dropped"})
    properties = {
        "table.auto-partition.enabled": "true",
        "table.auto-partition.time-unit": "YEAR",
        "table.auto-partition.num-retention": "1000",
    }
    table = _create(connection, "auto_parts", columns, (), properties, partition_keys=["day"])
    names = [info.partition_name for info in connection.get_admin().list_partition_infos(table.get_table_path())]
    append(table, [{"day": sorted(names)[0], **row} for row in rows_from(0, 4)])


def _fill_keys(connection: FlussConnection) -> None:
    table = _create(connection, "keys", _COLUMNS, ["id"], bucket_count=2)
    upsert(table, rows_from(0, 30))
    upsert(table, [{"id": number, "score": -1.0} for number in range(5)], ["id", "score"])
    _delete(table, {"id": 7})
    connection.get_admin().alter_table(table.get_table_path(), add_columns=[("added", DataTypes.string(), None)])
    upsert(connection.get_table(table.get_table_path()), [{"id": 100, "added": "new"}, {"id": 1, "added": "newer"}])
    columns, rows = _everything()
    for row_format in ("COMPACTED", "INDEXED"):
        options = {"table.kv.format": row_format}
        upsert(_create(connection, f"key_types_{row_format.lower()}", columns, ["id"], options), rows)
    numbered = [*_COLUMNS[:2], ("number", DataTypes.bigint())]
    table = _create(connection, "numbered", numbered, ["id"], auto_increment_column="number")
    upsert(table, [{"id": number, "name": "first"} for number in range(6)], ["id", "name"])
    table = _create(connection, "wal", _COLUMNS, ["id"], {"table.changelog.image": "WAL"})
    upsert(table, [*rows_from(0, 4), *rows_from(0, 2)])
    _delete(table, {"id": 3})


def _fill_engines(connection: FlussConnection) -> None:
    for engine, more in (
        ("first_row", {}),
        ("versioned", {"table.merge-engine.versioned.ver-column": "score"}),
    ):
        columns = [*_COLUMNS[:2], ("score", DataTypes.bigint())]
        table = _create(connection, engine, columns, ["id"], {"table.merge-engine": engine, **more})
        for name, score in (("a", 5), ("b", 4), ("c", 6)):
            upsert(table, [{"id": number, "name": name, "score": score} for number in range(3)])
        upsert(table, [{"id": 9, "name": "last", "score": 1}])  # so that a log ends with a record
    functions = {"total": "sum", "most": "max", "words": "listagg", "every": "bool_and", "last": "last_value"}
    kinds = (DataTypes.bigint(), DataTypes.decimal(10, 2), DataTypes.string(), DataTypes.boolean(), DataTypes.int())
    columns = [("id", DataTypes.int()), *zip(functions, kinds, strict=True)]
    properties = {"table.merge-engine": "aggregation"}
    made = {name: fluss.AggFunction(function) for name, function in functions.items()}
    table = _create(connection, "aggregation", columns, ["id"], properties, functions=made)
    for step in range(1, 4):
        row = {"total": step, "most": Decimal(step) / 4, "words": f"w{step}", "every": step != 2, "last": step}
        upsert(table, [{"id": number, **row} for number in range(2)])


def _fill_staged(connection: FlussConnection) -> None:
    for name, keys in (("staged", ()), ("staged_keys", ("id",))):
        table = _create(connection, name, _COLUMNS, keys)
        for batch_id in (0, 1, 2):
            write = table.new_staged_write(QUERY, batch_id)
            staged = []
            for task in range(2):
                writer = write.create_writer(task, 0)
                rows = rows_from(batch_id * 10 + task * 3, 3)
                writer.write_arrow_batch(pa.RecordBatch.from_pylist(rows, arrow_schema(table.get_table_info().schema)))
                staged.append(writer.finish())
            if batch_id < 2:  # the last one stays undecided
                write.commit(staged)


def _fill_lake(connection: FlussConnection) -> None:
    table = _create(connection, "lake", _COLUMNS, (), {"table.datalake.enabled": "true"}, bucket_count=1)
    info = table.get_table_info()
    registry = LakeRegistry(connection)
    for snapshot_id in (11, 12):
        append(table, rows_from(snapshot_id, 5))
        offsets = {fluss.TableBucket(info.table_id, 0): (snapshot_id - 10) * 5}
        registry.commit(info, snapshot_id, registry.prepare(info, offsets), offsets, keep_all=True)
    registry.prepare(info, {fluss.TableBucket(info.table_id, 0): 10})


# --- reading


def describe(connection: FlussConnection) -> dict[str, Any]:
    """All that a client can read, as JSON has it."""
    admin = connection.get_admin()
    found = {name: _describe(connection, name) for name in sorted(admin.list_tables(DATABASE))}
    return json.loads(json.dumps(found, default=_plain))  # type: ignore[no-any-return]


def _describe(connection: FlussConnection, name: str) -> dict[str, Any]:
    admin = connection.get_admin()
    path = fluss.TablePath(DATABASE, name)
    table, info = connection.get_table(path), admin.get_table_info(path)
    partitions = _partitions(connection, path) if info.partition_keys else {}
    content: dict[str, Any] = {
        "table_id": info.table_id,
        "schema_id": info.schema_id,
        "columns": {column.name: str(column.data_type) for column in info.schema.columns},
        "schemas": [_columns(connection, path, schema_id) for schema_id in range(1, info.schema_id + 1)],
        # Where the lake is, is the server's to say: it moves with the directory.
        "properties": {key: value for key, value in info.properties.items() if not key.startswith(_LAKE_PLACE)},
        "custom_properties": dict(info.custom_properties),
        "partitions": partitions,
        "log": _read_log(connection, table, partitions),
    }
    if info.schema.get_primary_keys():
        rows = table.new_scan().to_arrow().to_pylist()
        content["rows"] = sorted(rows, key=lambda row: (str(row.get("day")), row["id"]))
        lookuper = table.new_lookup().create_lookuper()
        keys = [{key: row[key] for key in info.schema.get_primary_keys()} for row in content["rows"]]
        assert [lookuper.lookup(key) for key in keys] == content["rows"]
    if "table.datalake.enabled" in info.properties:
        snapshot = admin.get_latest_lake_snapshot(path)
        content["lake"] = [snapshot.snapshot_id, sorted(snapshot.table_buckets_offset.values())]
    return content


def _partitions(connection: FlussConnection, path: fluss.TablePath) -> dict[str, int]:
    infos = connection.get_admin().list_partition_infos(path)
    return {info.partition_name: info.partition_id for info in infos}


def _columns(connection: FlussConnection, path: fluss.TablePath, schema_id: int) -> list[str]:
    schema = connection.get_admin().get_table_schema(path, schema_id).schema
    return [column.name for column in schema.columns]


def _read_log(connection: FlussConnection, table: FlussTable, partitions: Mapping[str, int]) -> dict[str, Any]:
    """By bucket: where it begins and ends, and [offset, time, change, row] of each record."""
    ends = _ends(connection, table, partitions)
    found: dict[str, Any] = {place: {"start": start, "end": end, "records": []} for place, start, end in ends.values()}
    scanner = table.new_scan().create_log_scanner()
    for bucket, (_, start, end) in ends.items():
        if end == start:
            continue
        if bucket.partition_id is None:
            scanner.subscribe(bucket.bucket_id, fluss.EARLIEST_OFFSET)
        else:
            scanner.subscribe_partition(bucket.partition_id, bucket.bucket_id, fluss.EARLIEST_OFFSET)
    waited = {bucket: end for bucket, (_, start, end) in ends.items() if end > start}
    deadline_s = time.monotonic() + READ_S_MAX
    while waited:
        assert time.monotonic() < deadline_s, f"{table} has no rows up to {waited}"
        polled = scanner.poll(1_000)
        for bucket in polled.buckets():
            for record in polled.records(bucket):
                change = record.change_type.short_string()
                line = [record.offset, record.timestamp, change, record.row]
                found[ends[bucket][0]]["records"].append(line)
                if record.offset + 1 == waited.get(bucket):
                    del waited[bucket]
    scanner.close()
    return found


def _ends(
    connection: FlussConnection, table: FlussTable, partitions: Mapping[str, int]
) -> dict[fluss.TableBucket, tuple[str, int, int]]:
    """By bucket: its name, its first offset, and the one behind its last."""
    admin, info, path = connection.get_admin(), table.get_table_info(), table.get_table_path()
    numbers = list(range(info.num_buckets))
    specs = (fluss.OffsetSpec.earliest(), fluss.OffsetSpec.latest())
    found = {}
    for name, partition_id in partitions.items() or [("", None)]:
        if partition_id is None:
            first, last = (admin.list_offsets(path, numbers, spec) for spec in specs)
        else:
            first, last = (admin.list_partition_offsets(path, name, numbers, spec) for spec in specs)
        for number in numbers:
            bucket = fluss.TableBucket(info.table_id, number, partition_id)
            found[bucket] = (f"{name}/{number}", first[number], last[number])
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat()
