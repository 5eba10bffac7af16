"""Retention and the disk guard as clients meet them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.storage.log.retention import Retention
from tests.kit.storage.logs import trusted
from tests.kit.thread_server import (
    RunningServer,
    Wire,
    WireError,
    batch,
    create_table,
    eventually,
    fetch,
    headers,
    produce,
)

SEGMENT_BYTES = 1_000
DAY_MS = 86_400_000


def list_offset(wire: Wire, table_id: int, kind: int, timestamp_ms: int | None = None) -> int:
    request = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=kind, table_id=table_id, bucket_id=[0])
    if timestamp_ms is not None:
        request.start_timestamp = timestamp_ms
    (entry,) = wire.call(api_keys.LIST_OFFSETS, request).buckets_resp
    return entry.offset


def row_count(wire: Wire, table_id: int) -> int:
    request = pb.GetTableStatsRequest(table_id=table_id, buckets_req=[pb.PbTableStatsBucketRequest(bucket_id=0)])
    (entry,) = wire.call(api_keys.GET_TABLE_STATS, request).buckets_resp
    return entry.row_count


@pytest.mark.parametrize(
    ("overrides", "ahead_ms"),
    [
        ({"properties": {"table.log.arrow.compression.type": "NONE", "table.log.ttl": "1 d"}}, 2 * DAY_MS),
        ({"custom_properties": {"log.retention.size-bytes": "1"}}, 0),
    ],
)
def test_readers_after_a_removal(tmp_path: Path, overrides: dict[str, dict[str, str]], ahead_ms: int) -> None:
    with RunningServer(tmp_path, segment_size_bytes=SEGMENT_BYTES) as server, server.connect() as wire:
        table_id = create_table(wire, **overrides)
        for _ in range(20):
            produce(wire, table_id, batch(5))
        now_ms = headers(fetch(wire, table_id, 99).records)[-1].commit_timestamp_ms + ahead_ms + 1
        passes = Retention(server.server.context.storage, clock=trusted(lambda: now_ms))
        server.run(passes.run_once())
        start = list_offset(wire, table_id, 0)
        assert 50 < start <= 100
        assert list_offset(wire, table_id, 1) == 100
        assert list_offset(wire, table_id, 2, 0) == start
        assert row_count(wire, table_id) == 100 - start
        with pytest.raises(WireError) as raised:
            fetch(wire, table_id, 0)
        assert raised.value.code == 19
        earliest = fetch(wire, table_id, -2)
        assert earliest.log_start_offset == start
        assert [header.base_offset for header in headers(earliest.records)][:1] == ([start] if start < 100 else [])
        assert produce(wire, table_id, batch(5)) == 100
        assert headers(fetch(wire, table_id, 100).records)[0].base_offset == 100


def test_passes_run_by_themselves(tmp_path: Path) -> None:
    settings = {"segment_size_bytes": SEGMENT_BYTES, "retention_size_bytes": 1, "retention_interval_ms": 5}
    with RunningServer(tmp_path, **settings) as server, server.connect() as wire:
        table_id = create_table(wire)
        while not list_offset(wire, table_id, 0):
            produce(wire, table_id, batch(5))


def test_the_size_of_logs_may_change_while_the_server_runs(tmp_path: Path) -> None:
    settings = {"segment_size_bytes": SEGMENT_BYTES, "retention_interval_ms": 5}
    with RunningServer(tmp_path, **settings) as server, server.connect() as wire:
        table_id = create_table(wire)
        for _ in range(20):
            produce(wire, table_id, batch(5))
        assert list_offset(wire, table_id, 0) == 0
        request = pb.AlterClusterConfigsRequest()
        request.alter_configs.add(config_key="log.retention.size-bytes", config_value="1", op_type=0)
        wire.call(api_keys.ALTER_CLUSTER_CONFIGS, request)
        eventually(lambda: list_offset(wire, table_id, 0) > 0)


def refused(call: Callable[[], object]) -> WireError:
    with pytest.raises(WireError, match="nearly full") as raised:
        call()
    assert raised.value.code == 10
    return raised.value


def test_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    with RunningServer(tmp_path, disk_free_bytes_min=1_000) as server, server.connect() as wire:
        guard = server.server.context.storage.disk_guard
        table_id = create_table(wire)
        produce(wire, table_id, batch(5))
        free_bytes = [10**12]

        def look_now(amount: int) -> None:
            free_bytes[0] = amount
            guard._free_bytes = lambda _: free_bytes[0]
            guard._looked_at_s = float("-inf")

        look_now(999)
        error = refused(lambda: produce(wire, table_id, batch(5)))
        assert str(tmp_path) not in error.text
        refused(lambda: create_table(wire, "another"))
        assert len(headers(fetch(wire, table_id, 0).records)) == 1
        wire.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest())
        look_now(2_000)
        assert produce(wire, table_id, batch(5)) == 5
        create_table(wire, "another")
