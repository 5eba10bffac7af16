"""Our own client in the shape of a peer, so that one suite drives all clients alike."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import fluss.sync as fluss
from fluss.model.aggregation import AggFunction
from tests.peers.columns import arrow_schema, arrow_type
from tests.peers.peer import DEFAULT_TIMEOUT_S, Record, Row

POLL_MS = 200


class OurPeer:
    """`fluss.sync` with the calls of tests.peers.Peer."""

    def __init__(self, bootstrap_servers: str, config: Mapping[str, str] | None = None) -> None:
        self.conn = fluss.FlussConnection.create(
            fluss.Config({"bootstrap.servers": bootstrap_servers, **(config or {})})
        )
        self.admin = self.conn.get_admin()

    def create_database(self, database: str, *, ignore_if_exists: bool = True) -> None:
        self.admin.create_database(database, ignore_if_exists=ignore_if_exists)

    def create_table(
        self,
        database: str,
        table: str,
        columns: Mapping[str, str],
        *,
        primary_keys: list[str] | None = None,
        auto_increment: str | None = None,
        aggregations: Mapping[str, tuple[str, dict[str, str]]] | None = None,
        **options: Any,
    ) -> None:
        functions = {name: AggFunction(*function) for name, function in (aggregations or {}).items()}
        schema = fluss.Schema(arrow_schema(columns), primary_keys, auto_increment, functions)
        self.admin.create_table(fluss.TablePath(database, table), fluss.TableDescriptor(schema, **options))

    def alter_table(
        self,
        database: str,
        table: str,
        *,
        add_columns: Mapping[str, str] | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] | None = None,
    ) -> None:
        added = [(name, arrow_type(kind)) for name, kind in (add_columns or {}).items()]
        path = fluss.TablePath(database, table)
        self.admin.alter_table(
            path, add_columns=added or None, set_properties=set_properties, reset_properties=reset_properties
        )

    def reopen_table(self, database: str, table: str) -> None:
        """Nothing to forget: every call opens the table."""

    def drop_table(self, database: str, table: str) -> None:
        self.admin.drop_table(fluss.TablePath(database, table))

    def list_tables(self, database: str) -> list[str]:
        return self.admin.list_tables(database)

    def table_stats(self, database: str, table: str) -> int:
        return self.admin.get_table_stats(fluss.TablePath(database, table)).row_count

    def create_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        self.admin.create_partition(fluss.TablePath(database, table), dict(spec))

    def drop_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        self.admin.drop_partition(fluss.TablePath(database, table), dict(spec))

    def list_partitions(self, database: str, table: str, spec: Mapping[str, str] | None = None) -> dict[str, int]:
        infos = self.admin.list_partition_infos(fluss.TablePath(database, table), spec and dict(spec))
        return {info.partition_name: info.partition_id for info in infos}

    def append_rows(self, database: str, table: str, rows: Sequence[Row]) -> None:
        writer = self.table(database, table).new_append().create_writer()
        for row in rows:
            writer.append(row)
        writer.flush()

    def append_arrow(self, database: str, table: str, data: pa.Table) -> None:
        writer = self.table(database, table).new_append().create_writer()
        writer.write_arrow(data)
        writer.flush()

    def upsert_rows(
        self,
        database: str,
        table: str,
        rows: Sequence[Row],
        *,
        columns: Sequence[str] | None = None,
        overwrite: bool = False,
    ) -> None:
        with self._upserter(database, table, columns, overwrite) as writer:
            for row in rows:
                writer.upsert(row)

    def delete_rows(
        self, database: str, table: str, keys: Sequence[Row], *, columns: Sequence[str] | None = None
    ) -> None:
        with self._upserter(database, table, columns) as writer:
            for key in keys:
                writer.delete(key)

    def _upserter(
        self, database: str, table: str, columns: Sequence[str] | None, overwrite: bool = False
    ) -> fluss.UpsertWriter:
        builder = self.table(database, table).new_upsert()
        builder = builder if columns is None else builder.partial_update_by_name(columns)
        return (builder.merge_mode(fluss.MergeMode.OVERWRITE) if overwrite else builder).create_writer()

    def lookup(
        self, database: str, table: str, keys: Sequence[Row], *, insert_if_not_exists: bool = False
    ) -> list[Row | None]:
        builder = self.table(database, table).new_lookup()
        lookuper = (builder.enable_insert_if_not_exists() if insert_if_not_exists else builder).create_lookuper()
        return [lookuper.lookup(key) for key in keys]

    def prefix_lookup(
        self, database: str, table: str, prefixes: Sequence[Row], *, columns: Sequence[str]
    ) -> list[list[Row]]:
        lookuper = self.table(database, table).new_lookup().lookup_by(columns).create_lookuper()
        return [lookuper.lookup(prefix) for prefix in prefixes]

    def read_table(self, database: str, table: str) -> list[Row]:
        """The current rows of a primary-key table."""
        rows: list[Row] = self.table(database, table).new_scan().to_arrow().to_pylist()
        return rows

    def scan_arrow(self, database: str, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        found = self.table(database, table)
        scan = found.new_scan() if columns is None else found.new_scan().project_by_name(list(columns))
        with scan.create_record_batch_log_scanner() as scanner:
            self._subscribe(scanner, found, fluss.EARLIEST_OFFSET)
            return scanner.to_arrow()

    def scan_rows(self, database: str, table: str, *, columns: Sequence[str] | None = None) -> list[Row]:
        rows: list[Row] = self.scan_arrow(database, table, columns).to_pylist()
        return rows

    def scan_records(self, database: str, table: str) -> list[Record]:
        """All records of a table without empty batches, also of one that has no Arrow batches."""
        info = self.table(database, table).get_table_info()
        partitions: list[str | None] = list(self.list_partitions(database, table)) if info.is_partitioned() else [None]
        ends = [self.list_offsets(database, table, partition=partition) for partition in partitions]
        tail = self.start_tail(database, table)
        records = tail.take(sum(sum(found.values()) for found in ends))
        tail.stop()
        return records

    def scan_batches(self, database: str, table: str, *, fixed_schema: bool, count: int) -> list[dict[str, Any]]:
        found = self.table(database, table)
        with found.new_scan().with_fixed_schema(fixed_schema).create_record_batch_log_scanner() as scanner:
            self._subscribe(scanner, found, fluss.EARLIEST_OFFSET)
            batches: list[Any] = []
            while sum(batch.batch.num_rows for batch in batches) < count:
                batches += scanner.poll_record_batch(POLL_MS)
        return [{"columns": batch.batch.schema.names, "rows": batch.batch.to_pylist()} for batch in batches]

    def limit_scan(
        self,
        database: str,
        table: str,
        limit: int,
        *,
        bucket: int = 0,
        partition_id: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[Row]:
        found = self.table(database, table)
        scan = found.new_scan().limit(limit)
        place = fluss.TableBucket(found.get_table_info().table_id, bucket, partition_id)
        scanner = (scan if columns is None else scan.project_by_name(list(columns))).create_bucket_batch_scanner(place)
        rows: list[Row] = scanner.to_arrow().to_pylist()
        return rows

    def start_tail(self, database: str, table: str, start: str = "earliest") -> OurTail:
        found = self.table(database, table)
        scanner = found.new_scan().create_log_scanner()
        self._subscribe(scanner, found, fluss.EARLIEST_OFFSET if start == "earliest" else fluss.LATEST_OFFSET)
        return OurTail(scanner)

    def list_offsets(
        self, database: str, table: str, spec: str | int = "latest", *, partition: str | None = None
    ) -> dict[int, int]:
        path = fluss.TablePath(database, table)
        buckets = list(range(self.admin.get_table_info(path).num_buckets))
        wanted = fluss.OffsetSpec.timestamp(spec) if isinstance(spec, int) else getattr(fluss.OffsetSpec, spec)()
        if partition is None:
            return self.admin.list_offsets(path, buckets, wanted)
        return self.admin.list_partition_offsets(path, partition, buckets, wanted)

    def close(self) -> None:
        self.conn.close()

    def table(self, database: str, table: str) -> fluss.FlussTable:
        return self.conn.get_table(fluss.TablePath(database, table))

    def _subscribe(self, scanner: Any, table: fluss.FlussTable, offset: int) -> None:
        info = table.get_table_info()
        buckets = range(info.num_buckets)
        if not info.is_partitioned():
            scanner.subscribe_buckets(dict.fromkeys(buckets, offset))
            return
        infos = self.admin.list_partition_infos(info.table_path)
        places = [(found.partition_id, bucket) for found in infos for bucket in buckets]
        scanner.subscribe_partition_buckets(dict.fromkeys(places, offset))


class OurTail:
    """A record scanner that runs in a thread until it is stopped."""

    def __init__(self, scanner: Any) -> None:
        self._scanner = scanner
        self._records: queue.Queue[Record | Exception] = queue.Queue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Record]:
        taken: list[Record] = []
        while len(taken) < count or not self._records.empty():
            item = self._records.get(timeout=timeout_s)
            if isinstance(item, Exception):
                raise item
            taken.append(item)
        return taken

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._scanner.close()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                for bucket, records in self._scanner.poll(POLL_MS).items():
                    for r in records:
                        place = (bucket.bucket_id, bucket.partition_id, r.offset, r.timestamp)
                        self._records.put(Record(*place, r.change_type.short_string(), r.row))
        except Exception as error:
            self._records.put(error)
