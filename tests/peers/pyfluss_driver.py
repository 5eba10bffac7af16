"""Runs pyfluss commands that arrive as JSON lines; see `peer.py` for their meaning. Not imported by tests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import fluss  # type: ignore[import-not-found, unused-ignore]

# Behind pyfluss's own packages: only `tests` is to be found there, not this project's `fluss`.
sys.path.append(str(Path(__file__).parents[2]))

from tests.peers.scenarios.run import run_scenario
from tests.peers.values import decode, encode

POLL_MS = 200
STDOUT_FD = 1
STDERR_FD = 2


class Driver:
    """The state behind the commands: each public coroutine method is one."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._connection: Any = None
        self._admin: Any = None
        self._tables: dict[tuple[str, str], Any] = {}
        self._writers: dict[tuple[str, str], dict[tuple[str, ...] | None, Any]] = {}
        self._unacknowledged: list[Any] = []
        self._tails: dict[str, asyncio.Task[None]] = {}

    async def connect(self, config: dict[str, str]) -> None:
        self._connection = await fluss.FlussConnection.create(fluss.Config(config))
        self._admin = self._connection.get_admin()

    async def create_database(self, database: str, ignore_if_exists: bool, **options: Any) -> None:
        await self._admin.create_database(database, fluss.DatabaseDescriptor(**options), ignore_if_exists)

    async def drop_database(self, database: str) -> None:
        await self._admin.drop_database(database)

    async def list_databases(self) -> list[str]:
        return list(await self._admin.list_databases())

    async def create_table(
        self,
        database: str,
        table: str,
        schema: str,
        primary_keys: list[str] | None = None,
        auto_increment: str | None = None,
        **options: Any,
    ) -> None:
        arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
        descriptor = fluss.TableDescriptor(fluss.Schema(arrow, primary_keys, auto_increment), **options)
        await self._admin.create_table(fluss.TablePath(database, table), descriptor, False)

    async def reopen_table(self, database: str, table: str) -> None:
        self._tables.pop((database, table), None)
        self._writers.pop((database, table), None)

    async def drop_table(self, database: str, table: str) -> None:
        await self.reopen_table(database, table)
        await self._admin.drop_table(fluss.TablePath(database, table), False)

    async def list_tables(self, database: str) -> list[str]:
        return list(await self._admin.list_tables(database))

    async def table_info(self, database: str, table: str) -> dict[str, Any]:
        info = await self._admin.get_table_info(fluss.TablePath(database, table))
        return {
            "table_id": info.table_id,
            "schema_id": info.schema_id,
            "bucket_count": info.num_buckets,
            "columns": dict(info.get_schema().get_columns()),
            "primary_keys": info.get_primary_keys(),
            "bucket_keys": info.get_bucket_keys(),
            "partition_keys": info.get_partition_keys(),
            "comment": info.comment,
            "properties": info.get_properties(),
            "custom_properties": info.get_custom_properties(),
        }

    async def create_partition(self, database: str, table: str, spec: dict[str, str]) -> None:
        await self._admin.create_partition(fluss.TablePath(database, table), spec, False)

    async def drop_partition(self, database: str, table: str, spec: dict[str, str]) -> None:
        await self._admin.drop_partition(fluss.TablePath(database, table), spec, False)

    async def list_partitions(self, database: str, table: str, spec: dict[str, str] | None) -> dict[str, int]:
        infos = await self._admin.list_partition_infos(fluss.TablePath(database, table), spec)
        return {info.partition_name: info.partition_id for info in infos}

    async def append_rows(self, database: str, table: str, rows: list[dict[str, Any]], flush: bool) -> None:
        writer = await self._writer(database, table, "new_append")
        self._unacknowledged += [writer.append(row) for row in rows]
        if flush:
            await self.flush()

    async def append_arrow(self, database: str, table: str, path: str, flush: bool) -> None:
        writer = await self._writer(database, table, "new_append")
        with pa.OSFile(path) as source:
            batches = pa.ipc.open_file(source).read_all().to_batches()
        self._unacknowledged += [writer.write_arrow_batch(batch) for batch in batches]
        if flush:
            await self.flush()

    async def upsert_rows(
        self, database: str, table: str, rows: list[dict[str, Any]], columns: list[str] | None
    ) -> None:
        writer = await self._writer(database, table, "new_upsert", columns)
        self._unacknowledged += [writer.upsert(row) for row in rows]
        await self.flush()

    async def delete_rows(
        self, database: str, table: str, rows: list[dict[str, Any]], columns: list[str] | None
    ) -> None:
        writer = await self._writer(database, table, "new_upsert", columns)
        self._unacknowledged += [writer.delete(row) for row in rows]
        await self.flush()

    async def lookup(self, database: str, table: str, rows: list[dict[str, Any]]) -> list[Any]:
        handle = await self._table(database, table)
        return await self._lookup(handle, lambda: handle.new_lookup().create_lookuper(), rows)

    async def prefix_lookup(
        self, database: str, table: str, rows: list[dict[str, Any]], columns: list[str]
    ) -> list[list[dict[str, Any]]]:
        handle = await self._table(database, table)
        return await self._lookup(handle, lambda: handle.new_lookup().lookup_by(columns).create_lookuper(), rows)

    async def _lookup(self, handle: Any, lookuper: Callable[[], Any], rows: list[dict[str, Any]]) -> list[Any]:
        partition_keys = handle.get_table_info().get_partition_keys()
        if partition_keys:
            # pyfluss may forget one of two partitions that it meets at the same time, and then has no row for its key.
            for row in {tuple(map(row.get, partition_keys)): row for row in rows}.values():
                await lookuper().lookup(row)
        # A lookuper waits for company before it asks; one for each key keeps that to once.
        return list(await asyncio.gather(*(lookuper().lookup(row) for row in rows)))

    async def flush(self) -> None:
        for writers in self._writers.values():
            for writer in writers.values():
                await writer.flush()
        # A write that failed must not pass for acknowledged: its own handle knows.
        handles, self._unacknowledged = self._unacknowledged, []
        for handle in handles:
            await handle.wait()

    async def scan_arrow(self, database: str, table: str, path: str, columns: list[str] | None) -> int:
        handle = await self._table(database, table)
        scan = _scan(handle, columns)
        scanner = await scan.create_record_batch_log_scanner()
        self._subscribe(scanner, dict.fromkeys(await self._buckets(handle), fluss.EARLIEST_OFFSET))
        data = await scanner.to_arrow()
        with pa.ipc.new_file(path, data.schema) as writer:
            writer.write_table(data)
        return int(data.num_rows)

    async def scan_records(
        self, database: str, table: str, columns: list[str] | None, fixed_schema: bool = True
    ) -> list[dict[str, Any]]:
        handle = await self._table(database, table)
        scan = _scan(handle, columns, fixed_schema)
        ends = await self._offsets(handle, "latest")
        starts = await self._offsets(handle, "earliest")
        missing = {bucket: end for bucket, end in ends.items() if end > max(starts[bucket], 0)}
        if not missing:
            return []
        scanner = await scan.create_log_scanner()
        self._subscribe(scanner, dict.fromkeys(missing, fluss.EARLIEST_OFFSET))
        found: list[dict[str, Any]] = []
        while missing:
            for record in _describe(await scanner.poll(POLL_MS)):
                bucket = (record["partition"], record["bucket"])
                if record["offset"] < ends[bucket]:
                    found.append(record)
                if record["offset"] >= ends[bucket] - 1:
                    missing.pop(bucket, None)
        return found

    async def scan_batches(self, database: str, table: str, fixed_schema: bool, count: int) -> list[dict[str, Any]]:
        handle = await self._table(database, table)
        scanner = await handle.new_scan().with_fixed_schema(fixed_schema).create_record_batch_log_scanner()
        self._subscribe(scanner, dict.fromkeys(await self._buckets(handle), fluss.EARLIEST_OFFSET))
        batches: list[Any] = []
        while sum(found.batch.num_rows for found in batches) < count:
            batches += await scanner.poll_record_batch(POLL_MS)
        return [{"columns": found.batch.schema.names, "rows": found.batch.to_pylist()} for found in batches]

    async def limit_scan(
        self,
        database: str,
        table: str,
        limit: int,
        bucket: int,
        partition_id: int | None,
        columns: list[str] | None,
    ) -> list[dict[str, Any]]:
        handle = await self._table(database, table)
        scan = handle.new_scan().limit(limit)
        table_id = handle.get_table_info().table_id
        place = fluss.TableBucket(table_id, bucket)
        if partition_id is not None:
            place = fluss.TableBucket.with_partition(table_id, partition_id, bucket)
        scanner = (scan if columns is None else scan.project_by_name(columns)).create_bucket_batch_scanner(place)
        rows: list[dict[str, Any]] = (await scanner.to_arrow()).to_pylist()
        return rows

    async def start_tail(self, tail: str, database: str, table: str, start: str) -> None:
        handle = await self._table(database, table)
        scanner = await handle.new_scan().create_log_scanner()
        self._subscribe(scanner, await self._offsets(handle, start))

        async def follow() -> None:
            while True:
                if records := list(_describe(await scanner.poll(POLL_MS))):
                    self._send({"event": tail, "items": encode(records)})

        self._tails[tail] = asyncio.create_task(follow())

    async def stop_tail(self, tail: str) -> None:
        task = self._tails.pop(tail)
        if task.done():
            task.result()
        task.cancel()

    async def list_offsets(self, database: str, table: str, spec: str | int, partition: str | None) -> dict[int, int]:
        handle = await self._table(database, table)
        return await self._list_offsets(handle, spec, partition)

    async def lake_snapshot(self, database: str, table: str) -> dict[str, Any]:
        found = await self._admin.get_latest_lake_snapshot(fluss.TablePath(database, table))
        offsets = [
            (bucket.partition_id, bucket.bucket_id, offset) for bucket, offset in found.table_buckets_offset.items()
        ]
        return {"snapshot_id": found.snapshot_id, "offsets": offsets}

    async def run_scenario(self, name: str, database: str, expected: dict[str, Any], ports: list[int]) -> None:
        await run_scenario(name, fluss, self._connection, database, expected, ports)

    async def close(self) -> None:
        for tail in list(self._tails):
            await self.stop_tail(tail)
        self._writers.clear()
        self._tables.clear()
        await self._connection.close()

    async def _table(self, database: str, table: str) -> Any:
        if (database, table) not in self._tables:
            self._tables[database, table] = await self._connection.get_table(fluss.TablePath(database, table))
        return self._tables[database, table]

    async def _writer(self, database: str, table: str, builder: str, columns: list[str] | None = None) -> Any:
        writers = self._writers.setdefault((database, table), {})
        key = None if columns is None else tuple(columns)
        if key not in writers:
            handle = await self._table(database, table)
            found = getattr(handle, builder)()
            writers[key] = (found if columns is None else found.partial_update_by_name(columns)).create_writer()
        return writers[key]

    async def _partitions(self, handle: Any) -> dict[str | None, int | None]:
        if not handle.get_table_info().is_partitioned():
            return {None: None}
        infos = await self._admin.list_partition_infos(handle.get_table_path())
        return {info.partition_name: info.partition_id for info in infos}

    async def _buckets(self, handle: Any) -> list[tuple[int | None, int]]:
        count = handle.get_table_info().num_buckets
        return [
            (partition, bucket) for partition in (await self._partitions(handle)).values() for bucket in range(count)
        ]

    async def _offsets(self, handle: Any, spec: str) -> dict[tuple[int | None, int], int]:
        offsets = {}
        for name, partition in (await self._partitions(handle)).items():
            for bucket, offset in (await self._list_offsets(handle, spec, name)).items():
                offsets[partition, bucket] = offset
        return offsets

    async def _list_offsets(self, handle: Any, spec: str | int, partition: str | None) -> dict[int, int]:
        wanted = getattr(fluss.OffsetSpec, spec)() if isinstance(spec, str) else fluss.OffsetSpec.timestamp(spec)
        path, buckets = handle.get_table_path(), list(range(handle.get_table_info().num_buckets))
        if partition is None:
            return dict(await self._admin.list_offsets(path, buckets, wanted))
        return dict(await self._admin.list_partition_offsets(path, partition, buckets, wanted))

    def _subscribe(self, scanner: Any, offsets: dict[tuple[int | None, int], int]) -> None:
        for (partition, bucket), offset in offsets.items():
            if partition is None:
                scanner.subscribe(bucket, offset)
            else:
                scanner.subscribe_partition(partition, bucket, offset)


def _scan(handle: Any, columns: list[str] | None, fixed_schema: bool = True) -> Any:
    """Rows of all schemas in the newest one; otherwise pyfluss fails on records that lack a column."""
    scan = handle.new_scan().with_fixed_schema(fixed_schema)
    return scan if columns is None else scan.project_by_name(columns)


def _describe(records: Any) -> Iterable[dict[str, Any]]:
    for bucket in records.buckets():
        for record in records.records(bucket):
            yield {
                "bucket": bucket.bucket_id,
                "partition": bucket.partition_id,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "change": record.change_type.short_string(),
                "row": record.row,
            }


async def _answer(driver: Driver, message: dict[str, Any]) -> dict[str, Any]:
    answer_id, timeout_s = message.pop("id"), message.pop("timeout_s")
    command: Callable[..., Awaitable[Any]] = getattr(driver, message.pop("command"))
    try:
        result = await asyncio.wait_for(command(**decode(message)), timeout_s)
    except Exception as error:
        traceback.print_exc()
        details = {"type": type(error).__name__, "message": str(error), "code": getattr(error, "error_code", None)}
        return {"id": answer_id, "error": details}
    return {"id": answer_id, "result": encode(result)}


async def main() -> None:
    # What a library prints must not get between the answers.
    output = os.fdopen(os.dup(STDOUT_FD), "w", buffering=1)
    os.dup2(STDERR_FD, STDOUT_FD)

    def send(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")

    driver = Driver(send)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        send(await _answer(driver, json.loads(line)))


asyncio.run(main())
