"""Statistics, settings, and the lake that there is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.users import add_user
from tests.kit.thread_server import RunningServer, Wire, WireError, batch, create_table, path, produce
from tests.unit.server.calls import login


def stats_request(table_id: int, *buckets: int) -> pb.GetTableStatsRequest:
    request = pb.GetTableStatsRequest(table_id=table_id)
    for bucket in buckets:
        request.buckets_req.add(bucket_id=bucket)
    return request


def test_row_counts(wire: Wire) -> None:
    table_id = create_table(wire, buckets=3)
    produce(wire, table_id, batch(3), bucket=0)
    produce(wire, table_id, batch(4), bucket=0)
    produce(wire, table_id, batch(5), bucket=2)
    response = wire.call(api_keys.GET_TABLE_STATS, stats_request(table_id, 0, 1, 2, 7))
    counts = [(entry.bucket_id, entry.row_count) for entry in response.buckets_resp[:3]]
    assert counts == [(0, 7), (1, 0), (2, 5)]
    assert all(
        entry.HasField("row_count") and not entry.HasField("partition_id") for entry in response.buckets_resp[:3]
    )
    assert response.buckets_resp[3].error_code == 21


def test_settings_without_paths_or_secrets(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ada", "secret")
    settings = {"default_bucket_number": 4, "sasl_users": tmp_path / "users"}
    with RunningServer(tmp_path / "data", **settings) as server, server.connect() as wire:
        login(wire, "ada", "secret")
        response = wire.call(api_keys.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest())
    found = {entry.config_key: entry.config_value for entry in response.configs}
    assert found["default.bucket.number"] == "4"
    assert found["durability"] == "fsync"
    assert found["limits.connections_max"] == "10000"
    assert {entry.config_source for entry in response.configs} == {"INITIAL_SERVER_CONFIG"}
    text = str(response)
    assert str(tmp_path) not in text
    assert "secret" not in text


def test_no_lake_snapshot(wire: Wire) -> None:
    create_table(wire)
    for name, code, text in (("t", 53, "no lake snapshot"), ("missing", 7, "does not exist")):
        with pytest.raises(WireError, match=text) as raised:
            wire.call(api_keys.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest(table_path=path(name)))
        assert raised.value.code == code
