"""A failed sync: its bucket is read-only, writers are told, others go on; after a restart what was durable is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import fluss
from fluss.storage import failpoints
from tests.crash.servers import new_server
from tests.kit.rows import Row, descriptor, wire_batch
from tests.kit.wire import Wire

TABLE = fluss.TablePath("fluss", "t")
SYNC_FAILED = 10


@pytest.mark.parametrize("error", ["eio", "enospc"])
@pytest.mark.parametrize("kill", [True, False])
def test_one_bucket_stops_and_others_go_on(tmp_path: Path, error: str, kill: bool) -> None:
    # Each acknowledged batch is one sync.
    server = new_server(tmp_path, env={failpoints.ENVIRONMENT_VARIABLE: f"segment.commit.before_sync:4:{error}"})
    with server:
        with Wire(server.bootstrap_servers) as wire:
            table_id = wire.create_table(TABLE, descriptor(2))
            for sequence in range(3):
                assert wire.produce(table_id, 0, wire_batch([Row(0, sequence)])).error_code == 0
            failed = wire.produce(table_id, 0, wire_batch([Row(0, 3)]))
            assert failed.error_code == SYNC_FAILED
            assert "read-only until the server restarts" in failed.error_message
            assert str(tmp_path) not in failed.error_message
            # Never retried into success.
            assert wire.produce(table_id, 0, wire_batch([Row(0, 3)])).error_code == SYNC_FAILED
            assert wire.latest(table_id, 0) == 3
            assert stored(wire, table_id, 0) == [Row(0, 0), Row(0, 1), Row(0, 2)]
            for sequence in range(5):
                assert wire.produce(table_id, 1, wire_batch([Row(1, sequence)])).error_code == 0
            assert len(stored(wire, table_id, 1)) == 5
        server.restart(graceful=not kill, env={})
        with Wire(server.bootstrap_servers) as wire:
            assert stored(wire, table_id, 0) == [Row(0, 0), Row(0, 1), Row(0, 2)]
            assert wire.produce(table_id, 0, wire_batch([Row(0, 3)])).base_offset == 3
            assert stored(wire, table_id, 0)[3:] == [Row(0, 3)]
            assert len(stored(wire, table_id, 1)) == 5


def stored(wire: Wire, table_id: int, bucket: int) -> list[Row]:
    return [row for batch in wire.read(table_id, bucket) for row in batch.rows]
