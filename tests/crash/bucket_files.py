"""The files of one bucket, looked at and damaged while no server runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import fluss
from fluss.formats.batches.log_batch import walk
from fluss.testing import FlussServer
from tests.crash.servers import new_server
from tests.kit.loads.oracle import Fate, WriterLog
from tests.kit.rows import Row, StoredBatch, descriptor, stored_batches, wire_batch
from tests.kit.wire import Wire

PATH = fluss.TablePath("fluss", "damaged")


class BatchPlace(NamedTuple):
    """Where a batch lies in its segment file."""

    start: int
    end: int
    base_offset: int


class WrittenBucket:
    """A server with one table, written batch by batch through one idempotent writer, and then killed."""

    def __init__(self, server: FlussServer, buckets: int) -> None:
        self.server = server
        self.log = WriterLog(0, PATH.table_name)
        with self.wire() as wire:
            self.table_id = wire.create_table(PATH, descriptor(buckets))
            self.writer_id = wire.new_writer_id()
        self._sequences = [0] * buckets

    def wire(self) -> Wire:
        return Wire(self.server.bootstrap_servers)

    def append(self, wire: Wire, rows: int, bucket: int = 0) -> list[Row]:
        """Write one batch as the idempotent writer; returns its rows."""
        begun = self.log.begin(rows)
        batch = wire_batch(begun, self.writer_id, self._sequences[bucket])
        answer = wire.produce(self.table_id, bucket, batch)
        assert answer.error_code == 0, answer
        self._sequences[bucket] += 1
        self.log.settle(begun, Fate.ACKNOWLEDGED)
        return begun

    def next_sequence(self, bucket: int = 0) -> int:
        return self._sequences[bucket]

    def directory(self, bucket: int = 0) -> Path:
        return self.server.data_dir / "tables" / str(self.table_id) / str(bucket)

    def segments(self, bucket: int = 0) -> list[Path]:
        return sorted(self.directory(bucket).glob("*.log"))

    def read(self, bucket: int = 0) -> list[StoredBatch]:
        with self.wire() as wire:
            return wire.read(self.table_id, bucket)


def places(segment: Path) -> list[BatchPlace]:
    """The batches of a segment file; all of it must be whole batches."""
    data = segment.read_bytes()
    found = [BatchPlace(at, at + header.size_bytes, header.base_offset) for at, header in walk(data)]
    assert found[-1].end == len(data)
    assert len(stored_batches(data)) == len(found)
    return found


def rows_in(batches: list[StoredBatch]) -> list[Row]:
    """Rows in order of offset, which must be dense from 0."""
    rows: list[Row] = []
    for batch in batches:
        assert batch.base_offset == len(rows)
        rows += batch.rows
    return rows


@contextmanager
def written_bucket(directory: Path, batch_rows: list[int], *, buckets: int = 1) -> Iterator[WrittenBucket]:
    """A bucket with one batch of each size in every bucket, its server killed."""
    with new_server(directory) as server:
        written = WrittenBucket(server, buckets)
        with written.wire() as wire:
            for rows in batch_rows:
                for bucket in range(buckets):
                    written.append(wire, rows, bucket)
        server.kill()
        yield written
