"""Our own client in the shape of a peer, so that one suite drives all clients alike."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import fluss.sync as fluss
from tests.peers.columns import arrow_schema
from tests.peers.peer import DEFAULT_TIMEOUT_S, Record, Row

POLL_MS = 200


class OurPeer:
    """`fluss.sync` with the calls of tests.peers.Peer."""

    def __init__(self, bootstrap_servers: str, config: Mapping[str, str] | None = None) -> None:
        self._conn = fluss.FlussConnection.create(
            fluss.Config({"bootstrap.servers": bootstrap_servers, **(config or {})})
        )
        self._admin = self._conn.get_admin()

    def create_database(self, database: str, *, ignore_if_exists: bool = True) -> None:
        self._admin.create_database(database, ignore_if_exists=ignore_if_exists)

    def create_table(self, database: str, table: str, columns: Mapping[str, str], **options: Any) -> None:
        descriptor = fluss.TableDescriptor(fluss.Schema(arrow_schema(columns)), **options)
        self._admin.create_table(fluss.TablePath(database, table), descriptor)

    def drop_table(self, database: str, table: str) -> None:
        self._admin.drop_table(fluss.TablePath(database, table))

    def list_tables(self, database: str) -> list[str]:
        return self._admin.list_tables(database)

    def append_rows(self, database: str, table: str, rows: Sequence[Row]) -> None:
        writer = self._table(database, table).new_append().create_writer()
        for row in rows:
            writer.append(row)
        writer.flush()

    def append_arrow(self, database: str, table: str, data: pa.Table) -> None:
        writer = self._table(database, table).new_append().create_writer()
        writer.write_arrow(data)
        writer.flush()

    def scan_arrow(self, database: str, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        found = self._table(database, table)
        scan = found.new_scan() if columns is None else found.new_scan().project_by_name(list(columns))
        with scan.create_record_batch_log_scanner() as scanner:
            scanner.subscribe_buckets(dict.fromkeys(range(found.get_table_info().num_buckets), fluss.EARLIEST_OFFSET))
            return scanner.to_arrow()

    def scan_rows(self, database: str, table: str, *, columns: Sequence[str] | None = None) -> list[Row]:
        rows: list[Row] = self.scan_arrow(database, table, columns).to_pylist()
        return rows

    def start_tail(self, database: str, table: str, start: str = "earliest") -> OurTail:
        return OurTail(self._table(database, table), start)

    def list_offsets(self, database: str, table: str, spec: str | int = "latest") -> dict[int, int]:
        path = fluss.TablePath(database, table)
        buckets = list(range(self._admin.get_table_info(path).num_buckets))
        if isinstance(spec, int):
            return self._admin.list_offsets(path, buckets, fluss.OffsetSpec.timestamp(spec))
        return self._admin.list_offsets(path, buckets, offset_type=spec)

    def close(self) -> None:
        self._conn.close()

    def _table(self, database: str, table: str) -> fluss.FlussTable:
        return self._conn.get_table(fluss.TablePath(database, table))


class OurTail:
    """A record scanner that runs in a thread until it is stopped."""

    def __init__(self, table: fluss.FlussTable, start: str) -> None:
        self._scanner = table.new_scan().create_log_scanner()
        offset = fluss.EARLIEST_OFFSET if start == "earliest" else fluss.LATEST_OFFSET
        self._scanner.subscribe_buckets(dict.fromkeys(range(table.get_table_info().num_buckets), offset))
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
