"""Requests about the cluster as a whole: settings at run time, tags, rebalancing, health, offsets of producers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fluss.model.errors import ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys as apis
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import RunningServer, Wire, WireError, create_table, descriptor, eventually, path

SET, DELETE, APPEND = 0, 1, 2
DAY_MS = 86_400_000


def refusal(wire: Wire, api: apis.Api[Any, Any], request: Any) -> int:
    with pytest.raises(WireError) as raised:
        wire.call(api, request)
    return raised.value.code


def changes(*items: tuple[str, str | None, int]) -> pb.AlterClusterConfigsRequest:
    request = pb.AlterClusterConfigsRequest()
    for key, value, operation in items:
        request.alter_configs.add(config_key=key, config_value=value, op_type=operation)
    return request


def settings(wire: Wire) -> dict[str, tuple[str, str]]:
    answer = wire.call(apis.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest())
    return {item.config_key: (item.config_value, item.config_source) for item in answer.configs}


def bucket_count(wire: Wire, name: str) -> int:
    table_json = descriptor().replace(b'"bucket_count":1,', b"")
    assert b"bucket_count" not in table_json
    wire.call(
        apis.CREATE_TABLE, pb.CreateTableRequest(table_path=path(name), table_json=table_json, ignore_if_exists=False)
    )
    answer = wire.call(apis.METADATA, pb.MetadataRequest(table_path=[path(name)]))
    return len(answer.table_metadata[0].bucket_metadata)


def test_settings_change_at_run_time_and_are_kept(tmp_path: Path) -> None:
    with RunningServer(tmp_path, default_bucket_number=2) as server, server.connect() as wire:
        assert settings(wire)["default.bucket.number"] == ("2", "INITIAL_SERVER_CONFIG")
        assert bucket_count(wire, "before") == 2
        wire.call(
            apis.ALTER_CLUSTER_CONFIGS, changes(("default.bucket.number", "3", SET), ("datalake.format", "paimon", SET))
        )
        assert bucket_count(wire, "after") == 3
        wire.call(apis.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest())
    with RunningServer(tmp_path, default_bucket_number=5) as server, server.connect() as wire:
        assert settings(wire)["default.bucket.number"] == ("3", "DYNAMIC_SERVER_CONFIG")
        assert settings(wire)["datalake.format"] == ("paimon", "DYNAMIC_SERVER_CONFIG")
        assert bucket_count(wire, "again") == 3
        wire.call(apis.ALTER_CLUSTER_CONFIGS, changes(("default.bucket.number", None, DELETE)))
        assert settings(wire)["default.bucket.number"] == ("5", "INITIAL_SERVER_CONFIG")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("data-dir", "/elsewhere", SET), ErrorCode.INVALID_CONFIG_EXCEPTION),
        (("server.tag.0", "1", SET), ErrorCode.INVALID_CONFIG_EXCEPTION),
        (("default.bucket.number", "2", APPEND), ErrorCode.INVALID_CONFIG_EXCEPTION),
        (("default.bucket.number", None, SET), ErrorCode.INVALID_CONFIG_EXCEPTION),
        (("default.bucket.number", "0", SET), ErrorCode.INVALID_CONFIG_EXCEPTION),
        (("default.bucket.number", "many", SET), ErrorCode.INVALID_CONFIG_EXCEPTION),
        (("datalake.format", "tape", SET), ErrorCode.INVALID_CONFIG_EXCEPTION),
    ],
)
def test_a_wrong_setting_changes_nothing(wire: Wire, wrong: tuple[str, str | None, int], code: int) -> None:
    before = settings(wire)
    request = changes(("log.retention.size-bytes", "77", SET), wrong)
    assert refusal(wire, apis.ALTER_CLUSTER_CONFIGS, request) == code
    assert settings(wire) == before


def test_a_kept_setting_that_is_not_right_any_more_is_passed_over(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server:
        server.run(server.server.context.storage.catalog.change_settings({"default.bucket.number": "many"}))
    with RunningServer(tmp_path, default_bucket_number=2) as server, server.connect() as wire:
        assert bucket_count(wire, "t") == 2


def test_tags_of_the_only_server(tmp_path: Path) -> None:
    def tag(*servers: int, tag: int = 0) -> pb.AddServerTagRequest:
        return pb.AddServerTagRequest(server_ids=servers, server_tag=tag)

    def remove(*servers: int, tag: int = 0) -> pb.RemoveServerTagRequest:
        return pb.RemoveServerTagRequest(server_ids=servers, server_tag=tag)

    with RunningServer(tmp_path) as server, server.connect() as wire:
        wire.call(apis.REMOVE_SERVER_TAG, remove(0, 5))
        assert refusal(wire, apis.ADD_SERVER_TAG, tag(0, 1)) == ErrorCode.SERVER_NOT_EXIST_EXCEPTION
        assert refusal(wire, apis.ADD_SERVER_TAG, tag(0, tag=7)) == ErrorCode.INVALID_CONFIG_EXCEPTION
        wire.call(apis.ADD_SERVER_TAG, tag(0, tag=1))
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert refusal(wire, apis.ADD_SERVER_TAG, tag(0)) == ErrorCode.SEVER_TAG_ALREADY_EXIST_EXCEPTION
        assert refusal(wire, apis.REMOVE_SERVER_TAG, remove(0)) == ErrorCode.SEVER_TAG_NOT_EXIST_EXCEPTION
        wire.call(apis.ADD_SERVER_TAG, tag(0, tag=1))
        wire.call(apis.REMOVE_SERVER_TAG, remove(0, tag=1))
        wire.call(apis.ADD_SERVER_TAG, tag(0))


def test_a_rebalance_is_done_at_once(wire: Wire) -> None:
    def progress(rebalance_id: str | None = None) -> pb.ListRebalanceProgressResponse:
        request = pb.ListRebalanceProgressRequest(rebalance_id=rebalance_id)
        return wire.call(apis.LIST_REBALANCE_PROGRESS, request)

    assert not progress().HasField("rebalance_id")
    wire.call(apis.CANCEL_REBALANCE, pb.CancelRebalanceRequest())
    begun = wire.call(apis.REBALANCE, pb.RebalanceRequest(goals=[0, 1])).rebalance_id
    for asked in (None, begun):
        assert (progress(asked).rebalance_id, progress(asked).rebalance_status) == (begun, 3)
        wire.call(apis.CANCEL_REBALANCE, pb.CancelRebalanceRequest(rebalance_id=asked))
    for api, request in (
        (apis.LIST_REBALANCE_PROGRESS, pb.ListRebalanceProgressRequest(rebalance_id="other")),
        (apis.CANCEL_REBALANCE, pb.CancelRebalanceRequest(rebalance_id="other")),
    ):
        assert refusal(wire, api, request) == ErrorCode.NO_REBALANCE_IN_PROGRESS_EXCEPTION


def test_health_counts_all_buckets(wire: Wire) -> None:
    create_table(wire, "a", buckets=3)
    create_table(wire, "b")
    health = wire.call(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())
    assert (health.num_replicas, health.in_sync_replicas) == (4, 4)
    assert (health.num_leader_replicas, health.active_leader_replicas, health.status) == (4, 4, 0)


# ---- producers


def register(wire: Wire, producer: str, offsets: dict[TableBucket, int], ttl_ms: int | None = None) -> int:
    request = pb.RegisterProducerOffsetsRequest(producer_id=producer, ttl_ms=ttl_ms)
    for bucket, offset in offsets.items():
        table = request.table_offsets.add(table_id=bucket.table_id)
        table.bucket_offsets.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket, log_end_offset=offset)
    return wire.call(apis.REGISTER_PRODUCER_OFFSETS, request).result


def registered(wire: Wire, producer: str) -> dict[TableBucket, int] | None:
    answer = wire.call(apis.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id=producer))
    if not answer.HasField("producer_id"):
        assert not answer.table_offsets
        return None
    assert answer.producer_id == producer
    return {
        TableBucket(table.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None): (
            item.log_end_offset
        )
        for table in answer.table_offsets
        for item in table.bucket_offsets
    }


def test_offsets_of_a_producer_are_registered_once_and_survive_a_restart(tmp_path: Path) -> None:
    offsets = {TableBucket(1, 0): 5, TableBucket(1, 1): 0, TableBucket(2, 0, 9): 7}
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert registered(wire, "job-1") is None
        assert register(wire, "job-1", offsets) == 0
        assert register(wire, "job-1", {TableBucket(1, 0): 99}) == 1
        assert register(wire, "empty", {}) == 0
        assert registered(wire, "empty") == {}
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert registered(wire, "job-1") == offsets
        answer = wire.call(apis.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id="job-1"))
        now_ms = server.look(server.server.context.storage.clock.now_ms)
        assert 0 < answer.expiration_time - now_ms <= DAY_MS
        for _ in range(2):
            wire.call(apis.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id="job-1"))
        assert registered(wire, "job-1") is None
        assert register(wire, "job-1", {}) == 0


def test_offsets_of_a_producer_expire(tmp_path: Path) -> None:
    with RunningServer(tmp_path, clock_settle_ms=0) as server, server.connect() as wire:
        assert register(wire, "job", {TableBucket(1, 0): 5}, ttl_ms=1) == 0
        eventually(lambda: registered(wire, "job") is None)
        assert register(wire, "job", {TableBucket(1, 0): 6}) == 0
        assert registered(wire, "job") == {TableBucket(1, 0): 6}


def test_wrong_producers_are_refused(wire: Wire) -> None:
    for name in ("", "../up", "a b", "x" * 300):
        for api in (apis.REGISTER_PRODUCER_OFFSETS, apis.GET_PRODUCER_OFFSETS, apis.DELETE_PRODUCER_OFFSETS):
            assert refusal(wire, api, api.request(producer_id=name)) == ErrorCode.INVALID_PRODUCER_ID_EXCEPTION
    for ttl_ms in (0, -1, 8 * DAY_MS):
        with pytest.raises(WireError, match="7 days"):
            register(wire, "job", {}, ttl_ms)


# ---- databases


def test_a_database_is_altered(wire: Wire) -> None:
    def alter(name: str, *items: tuple[str, str | None, int], **more: Any) -> None:
        request = pb.AlterDatabaseRequest(database_name=name, **{"ignore_if_not_exists": False, **more})
        for key, value, operation in items:
            request.config_changes.add(config_key=key, config_value=value, op_type=operation)
        wire.call(apis.ALTER_DATABASE, request)

    def info() -> tuple[Any, int]:
        answer = wire.call(apis.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name="shop"))
        return json.loads(answer.database_json), answer.modified_time

    given = b'{"version":1,"comment":"c","custom_properties":{"k":"v","gone":"x"}}'
    wire.call(
        apis.CREATE_DATABASE,
        pb.CreateDatabaseRequest(database_name="shop", ignore_if_exists=False, database_json=given),
    )
    wire.call(
        apis.CREATE_TABLE,
        pb.CreateTableRequest(table_path=path("t", "shop"), table_json=descriptor(), ignore_if_exists=False),
    )
    alter("shop", ("k", "w", SET), ("gone", None, DELETE), ("never", None, DELETE))
    assert info()[0] == {"version": 1, "comment": "c", "custom_properties": {"k": "w"}}
    alter("shop", comment="other")
    altered = info()
    assert altered[0] == {"version": 1, "comment": "other", "custom_properties": {"k": "w"}}
    alter("shop", ("k", "w", SET))
    assert info() == altered, "nothing was to be changed"
    assert list(wire.call(apis.LIST_TABLES, pb.ListTablesRequest(database_name="shop")).table_name) == ["t"]
    alter("missing", ignore_if_not_exists=True)
    with pytest.raises(WireError) as raised:
        alter("missing")
    assert raised.value.code == ErrorCode.DATABASE_NOT_EXIST
