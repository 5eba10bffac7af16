"""Writers and a reader under load, and the check that each row arrived once and in the order of its writer."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any

import fluss.sync as fluss

PATH = fluss.TablePath("fluss", "load")
BUCKETS = 2
WRITERS = 2
POLL_MS = 100
# A row waits for its acknowledgement before the next thousand: enough in flight, and memory stays small.
ROWS_UNACKNOWLEDGED_MAX = 1_000
FINISH_S_MAX = 60.0


class Load:
    """Starts on entering; `finish` stops the writers, waits for the reader and compares."""

    def __init__(self, address: str, **options: Any) -> None:
        defaults: dict[str, Any] = {"writer_batch_size": 16_000, "writer_batch_timeout_ms": 5}
        self._connection = fluss.connect(address, **{**defaults, **options})
        schema = (
            fluss.Schema.builder()
            .column("writer", fluss.DataTypes.int())
            .column("sequence", fluss.DataTypes.bigint())
            .build()
        )
        descriptor = fluss.TableDescriptor(schema, bucket_count=BUCKETS)
        self._connection.get_admin().create_table(PATH, descriptor, ignore_if_exists=True)
        self._stop = threading.Event()
        self._acknowledged = [0] * WRITERS
        self._read: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # by bucket: offset, writer, sequence
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=(self._write, n)) for n in range(WRITERS)]
        self._reader = threading.Thread(target=self._guarded, args=(self._poll,))

    def __enter__(self) -> Load:
        for thread in (*self._threads, self._reader):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in (*self._threads, self._reader):
            thread.join(FINISH_S_MAX)
        self._connection.close()

    @property
    def acknowledged(self) -> int:
        return sum(self._acknowledged)

    @property
    def rows_read(self) -> int:
        return sum(map(len, self._read.values()))

    def await_progress(self, within_s: float) -> float:
        """Wait until every writer got an acknowledgement and the reader a row; returns how long it took."""
        began = time.monotonic()
        acknowledged, read = list(self._acknowledged), self.rows_read
        while self.rows_read == read or any(a == b for a, b in zip(acknowledged, self._acknowledged, strict=True)):
            self._check()
            assert time.monotonic() - began < within_s, f"no progress within {within_s} s"
            time.sleep(0.005)
        return time.monotonic() - began

    def finish(self) -> int:
        """Stop, and check every row; returns how many there are."""
        self._stop.set()
        for thread in (*self._threads, self._reader):
            thread.join(FINISH_S_MAX)
            assert not thread.is_alive(), f"{thread} hangs"
        self._check()
        stored = self._stored()
        for rows, where in ((self._read, "read"), (stored, "stored")):
            by_writer: dict[int, list[int]] = defaultdict(list)
            for bucket in rows.values():
                offsets = [offset for offset, _, _ in bucket]
                assert offsets == list(range(len(offsets))), f"{where}: offsets are not dense"
                order: dict[int, int] = {}
                for _, writer, sequence in bucket:
                    assert sequence > order.get(writer, -1), f"{where}: {writer} out of order at {sequence}"
                    order[writer] = sequence
                    by_writer[writer].append(sequence)
            for writer, count in enumerate(self._acknowledged):
                assert sorted(by_writer[writer]) == list(range(count)), f"{where}: rows of writer {writer}"
        return self.acknowledged

    def _check(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self._failures.append(error)

    def _write(self, number: int) -> None:
        writer = self._connection.get_table(PATH).new_append().create_writer()
        sequence = 0
        while not self._stop.is_set():
            for _ in range(ROWS_UNACKNOWLEDGED_MAX):
                writer.append([number, sequence])
                sequence += 1
            writer.flush()
            self._acknowledged[number] = sequence

    def _poll(self) -> None:
        scanner = self._connection.get_table(PATH).new_scan().create_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        deadline = 0.0
        while True:
            try:
                polled = scanner.poll(POLL_MS)
            except fluss.FlussError as error:
                # Said once the trouble lasts longer than a request may; the scanner keeps its place.
                if not error.is_retriable:
                    raise
                continue
            for bucket, records in polled.items():
                rows = self._read[bucket.bucket_id]
                for record in records:
                    rows.append((record.offset, record.row["writer"], record.row["sequence"]))
            if self._stop.is_set() and not any(thread.is_alive() for thread in self._threads):
                deadline = deadline or time.monotonic() + FINISH_S_MAX
                if self.rows_read >= self.acknowledged:
                    return
                assert time.monotonic() < deadline, f"read {self.rows_read} of {self.acknowledged} rows"

    def _stored(self) -> dict[int, list[tuple[int, int, int]]]:
        """All rows, by a new connection's own scan."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        with fluss.FlussConnection.create(self._connection.config) as connection:
            for bucket in range(BUCKETS):
                scanner = connection.get_table(PATH).new_scan().create_record_batch_log_scanner()
                scanner.subscribe_buckets({bucket: fluss.EARLIEST_OFFSET})
                table = scanner.to_arrow()
                columns = [table[name].to_pylist() for name in ("writer", "sequence")]
                found[bucket] = [(n, *pair) for n, pair in enumerate(zip(*columns, strict=True))]
        return found
