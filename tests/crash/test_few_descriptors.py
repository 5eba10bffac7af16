"""A server that runs out of file descriptors: writers wait or are told to try again, and nothing stays read-only."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import fluss
from fluss.model.errors import ErrorCode
from tests.crash.servers import SEGMENT_SIZE_BYTES, new_server
from tests.kit.rows import Row, descriptor, wire_batch
from tests.kit.wire import Wire

TABLE = fluss.TablePath("fluss", "t")


@contextmanager
def few_descriptors(pid: int, free: int) -> Iterator[None]:
    """Let a process open so many files more."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    unused = [number for number in range(len(used) + free + 1) if number not in used]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (unused[free], limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def test_writes_go_on_when_descriptors_are_free_again(tmp_path: Path) -> None:
    rows = [Row(0, sequence) for sequence in range(4 * SEGMENT_SIZE_BYTES // 100)]
    with new_server(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        with Wire(server.bootstrap_servers) as wire, Wire(server.bootstrap_servers) as other:
            table_id = wire.create_table(TABLE, descriptor(3))
            assert wire.produce(table_id, 0, wire_batch(rows[:1])).error_code == 0
            with few_descriptors(server.pid, 0):
                # The open segment takes rows until it is full; a new one can't be made, neither here nor there.
                stored = fill(wire, table_id, rows)
                refused = wire.produce(table_id, 1, wire_batch([Row(1, 0)]))
                assert refused.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
                assert "Too many open files" in refused.error_message
            with few_descriptors(server.pid, 1):
                # One is enough for the segment, and not for the sync of its directory.
                waiting = pool.submit(other.produce, table_id, 2, wire_batch([Row(2, 0)]))
                wait_for_segment(server.pid, f"tables/{table_id}/2/")
            assert waiting.result().error_code == 0
            assert wire.produce(table_id, 0, wire_batch(rows[stored : stored + 1])).error_code == 0
            assert wire.produce(table_id, 1, wire_batch([Row(1, 0)])).error_code == 0
        server.restart(graceful=False)
        with Wire(server.bootstrap_servers) as wire:
            assert read(wire, table_id, 0) == rows[: stored + 1]
            assert read(wire, table_id, 1) == [Row(1, 0)]
            assert read(wire, table_id, 2) == [Row(2, 0)]


def fill(wire: Wire, table_id: int, rows: list[Row]) -> int:
    """Write rows, of which the first is there, one by one until one is refused; how many are stored."""
    for number, row in enumerate(rows[1:], start=1):
        answer = wire.produce(table_id, 0, wire_batch([row]))
        if answer.error_code:
            assert answer.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
            assert "read-only" not in answer.error_message
            return number
    raise AssertionError("no segment was full")


def wait_for_segment(pid: int, directory: str) -> None:
    """Return when a file of a bucket is open."""
    while True:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                if directory in os.readlink(f"/proc/{pid}/fd/{number}"):
                    return
            except FileNotFoundError:
                pass


def read(wire: Wire, table_id: int, bucket: int) -> list[Row]:
    return [row for batch in wire.read(table_id, bucket) for row in batch.rows]
