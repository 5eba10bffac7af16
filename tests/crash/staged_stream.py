"""A stream of batches through staged writes to tables of three kinds, and what these must hold in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from fluss.sync import (
    AggFunction,
    Column,
    Config,
    DataTypes,
    FlussConnection,
    FlussError,
    FlussTable,
    Schema,
    TableDescriptor,
    TablePath,
)

BUCKETS: Final = 2
TASKS: Final = 2
KEYS: Final = 7
ROWS_PER_TASK: Final = 40
END_S_MAX: Final = 120.0
LOG, ROWS, SUMS = (TablePath("fluss", name) for name in ("staged_log", "staged_rows", "staged_sums"))
_COLUMNS = [Column("id", DataTypes.bigint().not_null()), Column("value", DataTypes.bigint())]
_TABLES = {
    LOG: TableDescriptor(Schema.of(_COLUMNS, []), bucket_count=BUCKETS),
    ROWS: TableDescriptor(Schema.of(_COLUMNS, ["id"]), bucket_count=BUCKETS),
    SUMS: TableDescriptor(
        Schema.of([_COLUMNS[0], Column("value", DataTypes.bigint(), None, AggFunction("sum"))], ["id"]),
        bucket_count=BUCKETS,
        properties={"table.merge-engine": "aggregation"},
    ),
}


def rows_of(path: TablePath, batch_id: int, task: int) -> pa.RecordBatch:
    """What a task writes. Tasks of a batch have no keys in common, as their order would not matter then."""
    first = (batch_id * TASKS + task) * ROWS_PER_TASK
    values = range(first, first + ROWS_PER_TASK)
    ids = values if path == LOG else [value % KEYS + task * KEYS for value in values]
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "value": pa.array(values, pa.int64())})


def connect(address: str, settings: Mapping[str, str] | None = None) -> FlussConnection:
    return FlussConnection.create(Config({"bootstrap.servers": address, **(settings or {})}))


def make_tables(address: str) -> None:
    with connect(address) as connection:
        for path, descriptor in _TABLES.items():
            connection.get_admin().create_table(path, descriptor, ignore_if_exists=True)


class StagedStream(threading.Thread):
    """Writes batches in order; each is tried with new attempts until it is committed."""

    def __init__(self, address: str, batches: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(name="staged-stream", daemon=True)
        self._address = address
        self._settings = settings or {}
        self._batches = batches
        self._deadline = time.monotonic() + END_S_MAX
        self._attempt = 0
        self.committed = 0  # batches, of all tables
        self.failures = 0  # that the client could not repair by itself
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with connect(self._address, self._settings) as connection:
                tables = [connection.get_table(path) for path in _TABLES]
                for batch_id in range(self._batches):
                    for table in tables:
                        self._until_committed(table, batch_id)
                    self.committed += 1
        except BaseException as error:
            self.error = error

    def _until_committed(self, table: FlussTable, batch_id: int) -> None:
        while True:
            try:
                self._write(table, batch_id)
            except FlussError as error:
                self.failures += 1
                if time.monotonic() > self._deadline or not error.is_retriable:
                    raise
            else:
                return

    def _write(self, table: FlussTable, batch_id: int) -> None:
        write = table.new_staged_write("a stream", batch_id)
        staged = []
        for task in range(TASKS):
            self._attempt += 1
            with write.create_writer(task, self._attempt) as writer:
                rows = rows_of(table.table_path, batch_id, task)
                for start in range(0, rows.num_rows, ROWS_PER_TASK // 2):
                    writer.write_arrow_batch(rows.slice(start, ROWS_PER_TASK // 2))
                staged.append(writer.finish())
        write.commit(staged)

    def finish(self) -> None:
        """Wait for the last batch; raises what went wrong."""
        self.join(max(0.0, self._deadline - time.monotonic()))
        if self.error is not None:
            raise self.error
        assert not self.is_alive(), "the stream did not come to its end"


def check(address: str, batches: int) -> None:
    """Every row of every batch is stored once."""
    with connect(address) as connection:
        for path in _TABLES:
            written = pa.concat_tables(
                pa.Table.from_batches([rows_of(path, batch_id, task)])
                for batch_id in range(batches)
                for task in range(TASKS)
            )
            stored = connection.get_table(path).new_scan().to_arrow()
            if path == LOG:
                assert sorted(stored.column("value").to_pylist()) == written.column("value").to_pylist()
                continue
            how = "sum" if path == SUMS else "max"  # the last value of a key is its largest
            expected = written.group_by("id").aggregate([("value", how)]).to_pydict()
            found = dict(zip(*stored.select(["id", "value"]).to_pydict().values(), strict=True))
            assert found == dict(zip(expected["id"], expected[f"value_{how}"], strict=True))
