"""What every peer can do: one client connection and the commands on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tests.peers.jsonlines import JsonLinesProcess

Row = dict[str, Any]
Columns = Mapping[str, str]

DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Record:
    """One record of a log as a peer saw it."""

    bucket: int
    partition: int | None
    offset: int
    timestamp: int
    change: str
    """`+A`, `+I`, `-U`, `+U` or `-D`."""
    row: Row


@dataclass(frozen=True)
class LakeSnapshot:
    """How far a table is in the lake, as a peer was told."""

    snapshot_id: int
    offsets: dict[tuple[int | None, int], int]
    """By partition id and bucket."""


class Tail:
    """A scanner that runs in the peer until it is stopped."""

    def __init__(self, peer: Peer, name: str) -> None:
        self._peer, self._name = peer, name

    def take(self, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[Record]:
        """Wait until at least `count` records arrived that were not taken yet, and take all."""
        return [Record(**item) for item in self._peer.process.take_events(self._name, count, timeout_s)]

    def stop(self) -> None:
        self._peer.call("stop_tail", tail=self._name)


class Peer:
    """A connected client. Arguments named `timeout_s` bound each call; a peer that hangs is killed."""

    def __init__(self, process: JsonLinesProcess, bootstrap_servers: str, config: Mapping[str, str]) -> None:
        self.process = process
        self._tails = 0
        self.call("connect", config={"bootstrap.servers": bootstrap_servers, **config})

    def call(self, command: str, *, timeout_s: float = DEFAULT_TIMEOUT_S, **arguments: Any) -> Any:
        return self.process.call(command, timeout_s, **arguments)

    def create_database(self, database: str, *, ignore_if_exists: bool = True, **options: Any) -> None:
        """Options: comment, custom_properties."""
        self.call("create_database", database=database, ignore_if_exists=ignore_if_exists, **options)

    def drop_database(self, database: str) -> None:
        self.call("drop_database", database=database)

    def list_databases(self) -> list[str]:
        return list(self.call("list_databases"))

    def create_table(self, database: str, table: str, columns: Columns, **options: Any) -> None:
        """`columns` by Fluss type names; options: primary_keys, auto_increment, partition_keys, bucket_count,
        bucket_keys, comment, log_format, kv_format, properties, custom_properties."""
        self.call("create_table", database=database, table=table, columns=dict(columns), **options)

    def drop_table(self, database: str, table: str) -> None:
        self.call("drop_table", database=database, table=table)

    def list_tables(self, database: str) -> list[str]:
        return list(self.call("list_tables", database=database))

    def table_info(self, database: str, table: str) -> dict[str, Any]:
        """table_id, schema_id, bucket_count, columns, primary_keys, bucket_keys, partition_keys, comment, properties,
        custom_properties."""
        info: dict[str, Any] = self.call("table_info", database=database, table=table)
        return info

    def create_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        self.call("create_partition", database=database, table=table, spec=dict(spec))

    def drop_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        self.call("drop_partition", database=database, table=table, spec=dict(spec))

    def list_partitions(self, database: str, table: str, spec: Mapping[str, str] | None = None) -> dict[str, int]:
        """Partition ids by name, of all partitions or of those that have the values of `spec`."""
        return dict(self.call("list_partitions", database=database, table=table, spec=spec and dict(spec)))

    def reopen_table(self, database: str, table: str) -> None:
        """Forget what is known of a table, as a program that starts now would not know it."""
        self.call("reopen_table", database=database, table=table)

    def append_rows(
        self,
        database: str,
        table: str,
        rows: Sequence[Row],
        *,
        flush: bool = True,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        arguments = {"database": database, "table": table, "rows": list(rows), "flush": flush}
        self.call("append_rows", timeout_s=timeout_s, **arguments)

    def upsert_rows(
        self, database: str, table: str, rows: Sequence[Row], *, columns: Sequence[str] | None = None, **options: Any
    ) -> None:
        """With `columns` a partial update; options: overwrite (Java)."""
        self.call("upsert_rows", database=database, table=table, rows=list(rows), columns=columns, **options)

    def delete_rows(
        self, database: str, table: str, keys: Sequence[Row], *, columns: Sequence[str] | None = None
    ) -> None:
        self.call("delete_rows", database=database, table=table, rows=list(keys), columns=columns)

    def lookup(self, database: str, table: str, keys: Sequence[Row], **options: Any) -> list[Row | None]:
        """The row of each key, None for a key that has none; options: insert_if_not_exists (Java)."""
        return list(self.call("lookup", database=database, table=table, rows=list(keys), **options))

    def prefix_lookup(
        self, database: str, table: str, prefixes: Sequence[Row], *, columns: Sequence[str]
    ) -> list[list[Row]]:
        """The rows of each prefix, which has the values of `columns`."""
        return list(self.call("prefix_lookup", database=database, table=table, rows=list(prefixes), columns=columns))

    def flush(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until all rows appended so far are acknowledged."""
        self.call("flush", timeout_s=timeout_s)

    def scan_records(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> list[Record]:
        """All records of all buckets from the earliest to the latest offset at the time of the call."""
        found = self.call("scan_records", database=database, table=table, columns=columns, timeout_s=timeout_s)
        return [Record(**item) for item in found]

    def scan_rows(self, database: str, table: str, *, columns: Sequence[str] | None = None) -> list[Row]:
        return [record.row for record in self.scan_records(database, table, columns=columns)]

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
        """The last rows of one bucket of a log table; of a primary-key table, rows of one bucket."""
        place: dict[str, Any] = {"bucket": bucket, "partition_id": partition_id}
        return list(self.call("limit_scan", database=database, table=table, limit=limit, columns=columns, **place))

    def start_tail(self, database: str, table: str, start: str = "earliest") -> Tail:
        """Follow a table from `earliest` or `latest`."""
        self._tails += 1
        name = f"tail-{self._tails}"
        self.call("start_tail", tail=name, database=database, table=table, start=start)
        return Tail(self, name)

    def list_offsets(
        self, database: str, table: str, spec: str | int = "latest", *, partition: str | None = None
    ) -> dict[int, int]:
        """Offsets by bucket; `spec` is `earliest`, `latest` or a timestamp in milliseconds."""
        found = self.call("list_offsets", database=database, table=table, spec=spec, partition=partition)
        return {int(bucket): offset for bucket, offset in found.items()}

    def lake_snapshot(self, database: str, table: str) -> LakeSnapshot:
        """The latest snapshot of a table in the lake that the server knows."""
        found = self.call("lake_snapshot", database=database, table=table)
        return LakeSnapshot(
            found["snapshot_id"], {(partition, bucket): offset for partition, bucket, offset in found["offsets"]}
        )

    def close(self) -> None:
        """Close the client's connection as a user would, then end the process."""
        try:
            self.call("close")
        finally:
            self.process.kill()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
