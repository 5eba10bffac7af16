"""Threads that write until told to stop, and note what became of each row.

`RowWriter` and `BatchWriter` use the client and expect it to heal whatever happens to the server. `PlainWriter` uses a
bare socket and never repeats a batch, so that what was in flight at a crash stays unknown.
"""

from __future__ import annotations

import random
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fluss
import fluss.sync
from fluss.model.errors import FlussError
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from tests.kit.loads.oracle import Fate, WriterLog
from tests.kit.rows import Row, arrow_batch, values, wire_batch
from tests.kit.wire import ConnectionLostError, Wire, parsed, produce_request, produced

POLL_INTERVAL_S = 0.01
OPEN_S_MAX = 30.0
_CLIENT_OPTIONS: dict[str, Any] = {
    # Small batches that leave at once: many of them are under way when the server dies.
    "writer.batch-size": 2 << 10,
    "writer.batch-timeout": 1,
    "request-timeout-ms": 10_000,
}


def client_config(address: str, options: Mapping[str, Any]) -> fluss.Config:
    return fluss.Config({"bootstrap.servers": address, **_CLIENT_OPTIONS, **options})


@contextmanager
def opened_table(config: fluss.Config, path: fluss.TablePath) -> Iterator[fluss.sync.FlussTable]:
    """A table through the client. Its server may be down at first: only an open connection must heal by itself."""
    deadline = time.monotonic() + OPEN_S_MAX
    while True:
        connection: fluss.sync.FlussConnection | None = None
        try:
            connection = fluss.sync.FlussConnection.create(config)
            table = connection.get_table(path)
            break
        except fluss.ConnectError:
            if connection is not None:
                connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_INTERVAL_S)
    with connection:
        yield table


class WriterThread(threading.Thread):
    """Ends after `stop`, or after `rows_max` rows, when all its rows are settled; `failure` says why it ended early."""

    def __init__(
        self, config: fluss.Config, path: fluss.TablePath, log: WriterLog, seed: str, rows_max: int | None = None
    ) -> None:
        super().__init__(name=f"{type(self).__name__}-{log.number}", daemon=True)
        self.config = config
        self.path = path
        self.log = log
        self.chance = random.Random(f"{seed}/{log.number}")
        self.failure: BaseException | None = None
        self.pause_s = 0.0
        """Before each write; a long test would otherwise have more to compare than to do."""
        self._rows_max = rows_max
        self._stop_asked = threading.Event()

    def stop(self) -> None:
        self._stop_asked.set()

    @property
    def wanted(self) -> bool:
        """Whether to write more."""
        return not self._stop_asked.is_set() and (self._rows_max is None or self.log.count < self._rows_max)

    def next_rows(self, count_max: int) -> list[Row]:
        if self.pause_s:
            self._stop_asked.wait(self.pause_s)
        count = self.chance.randint(1, count_max)
        if self._rows_max is not None:
            count = min(count, self._rows_max - self.log.count)
        return self.log.begin(count)

    def run(self) -> None:
        try:
            self.write()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def write(self) -> None:
        """Write until nothing more is wanted, and settle what was written."""


class RowWriter(WriterThread):
    """Appends row by row; `flush` acknowledges."""

    ROWS_MAX = 80

    def write(self) -> None:
        with opened_table(self.config, self.path) as table:
            writer = table.new_append().create_writer()
            while self.wanted:
                rows = self.next_rows(self.ROWS_MAX)
                for row in rows:
                    writer.append(values(row))
                writer.flush()
                self.log.settle(rows, Fate.ACKNOWLEDGED)


class BatchWriter(WriterThread):
    """Writes Arrow batches, several under way; each handle acknowledges its own."""

    ROWS_MAX = 60
    UNDER_WAY_MAX = 8

    def write(self) -> None:
        under_way: deque[tuple[list[Row], fluss.sync.WriteResultHandle]] = deque()
        with opened_table(self.config, self.path) as table:
            writer = table.new_append().create_writer()
            while self.wanted or under_way:
                if self.wanted:
                    rows = self.next_rows(self.ROWS_MAX)
                    under_way.append((rows, writer.write_arrow_batch(arrow_batch(rows))))
                if len(under_way) > self.UNDER_WAY_MAX or not self.wanted:
                    rows, handle = under_way.popleft()
                    handle.wait()
                    self.log.settle(rows, Fate.ACKNOWLEDGED)


class PlainWriter(WriterThread):
    """Keeps many batches in flight on one connection and gives them up when it breaks; then begins as a new writer."""

    ROWS_MAX = 20
    IN_FLIGHT_MAX = 48

    def __init__(
        self,
        config: fluss.Config,
        path: fluss.TablePath,
        log: WriterLog,
        seed: str,
        rows_max: int | None = None,
        *,
        buckets: int = 1,
    ) -> None:
        super().__init__(config, path, log, seed, rows_max)
        self._buckets = buckets
        self._give_up_at = 0.0

    def write(self) -> None:
        self._give_up_at = time.monotonic() + OPEN_S_MAX
        while self.wanted:
            try:
                self._write_until_lost()
            except ConnectionLostError:
                if self.wanted and time.monotonic() > self._give_up_at:
                    raise
                self._stop_asked.wait(POLL_INTERVAL_S)

    def _write_until_lost(self) -> None:
        with Wire(self.config.bootstrap_servers) as wire:
            table_id, writer_id = wire.table_id(self.path), wire.new_writer_id()
            sequences = [0] * self._buckets
            in_flight: dict[int, list[Row]] = {}
            while self.wanted or in_flight:
                # A burst in one write: the server appends all of it before its first sync can end.
                burst = bytearray()
                while self.wanted and len(in_flight) < self.IN_FLIGHT_MAX:
                    bucket = self.chance.randrange(self._buckets)
                    rows = self.next_rows(self.ROWS_MAX)
                    batch = wire_batch(rows, writer_id, sequences[bucket])
                    sequences[bucket] += 1
                    request_id, frame = wire.frame(
                        api_keys.PRODUCE_LOG.key, produce_request(table_id, bucket, batch).SerializeToString()
                    )
                    in_flight[request_id] = rows
                    burst += frame
                wire.send_bytes(burst)
                for _ in range(min(len(in_flight), self.chance.randint(1, self.IN_FLIGHT_MAX))):
                    self._settle(wire.receive(), in_flight)

    def _settle(self, response: frames.Response, in_flight: dict[int, list[Row]]) -> None:
        assert response.request_id is not None
        rows = in_flight.pop(response.request_id)
        if response.kind != frames.SUCCESS:
            raise AssertionError(f"a batch of {len(rows)} rows got an error frame")
        result = produced(parsed(pb.ProduceLogResponse, response))
        if result.error_code:
            raise FlussError(result.error_message, result.error_code)
        self.log.settle(rows, Fate.ACKNOWLEDGED)
        self._give_up_at = time.monotonic() + OPEN_S_MAX
