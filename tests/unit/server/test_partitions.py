"""Requests about partitions, and partitions in all other requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import (
    RunningServer,
    Wire,
    WireError,
    create_table,
    descriptor,
    fetch_request,
    headers,
    path,
)
from tests.unit.server.partitioned import create, listed, partition_id, partitioned, produce_into, spec


def drop(wire: Wire, values: dict[str, str], table: str = "t", ignore: bool = False) -> None:
    request = pb.DropPartitionRequest(table_path=path(table), partition_spec=spec(values), ignore_if_not_exists=ignore)
    wire.call(api_keys.DROP_PARTITION, request)


def fetch_from(table_id: int, partition: int, offset: int = -2, **options: Any) -> pb.FetchLogRequest:
    request = fetch_request(table_id, (0, offset), **options)
    request.tables_req[0].buckets_req[0].partition_id = partition
    return request


def code(raised: pytest.ExceptionInfo[WireError]) -> int:
    return raised.value.code


def test_created_listed_and_dropped(wire: Wire) -> None:
    partitioned(wire, keys=("name", "id"))
    assert listed(wire) == []
    for name, number in (("b", "1"), ("a", "2"), ("a", "1")):
        create(wire, {"id": number, "name": name})
    everything = [
        (2, {"name": "a", "id": "1"}),
        (1, {"name": "a", "id": "2"}),
        (0, {"name": "b", "id": "1"}),
    ]
    assert listed(wire) == everything
    assert listed(wire, {}) == everything
    assert listed(wire, {"name": "a"}) == everything[:2]
    assert listed(wire, {"id": "1"}) == [everything[0], everything[2]]
    assert listed(wire, {"id": "1", "name": "b"}) == everything[2:]
    assert listed(wire, {"id": "9"}) == []
    drop(wire, {"name": "a", "id": "2"})
    assert listed(wire) == [everything[0], everything[2]]
    create(wire, {"name": "a", "id": "2"})
    assert listed(wire)[1][0] == 3, "an id is never used again"


def test_codes(wire: Wire) -> None:
    create_table(wire, "plain")
    partitioned(wire)
    create(wire, {"name": "a"})
    create(wire, {"name": "a"}, ignore=True)
    drop(wire, {"name": "none"}, ignore=True)
    for action, expected in (
        (lambda: create(wire, {"name": "a"}), 42),
        (lambda: create(wire, {"name": "a"}, "missing"), 7),
        (lambda: create(wire, {"name": "a"}, "plain"), 37),
        (lambda: create(wire, {}), 43),
        (lambda: create(wire, {"id": "1"}), 43),
        (lambda: create(wire, {"name": "a", "id": "1"}), 43),
        (lambda: drop(wire, {"name": "none"}), 36),
        (lambda: drop(wire, {"name": "a"}, "missing", ignore=True), 7),
        (lambda: drop(wire, {"name": "a"}, "plain", ignore=True), 37),
        (lambda: drop(wire, {"id": "1"}, ignore=True), 43),
        (lambda: listed(wire, table="missing"), 7),
        (lambda: listed(wire, table="plain"), 37),
        (lambda: listed(wire, {"id": "1"}), 43),
    ):
        with pytest.raises(WireError) as raised:
            action()
        assert code(raised) == expected, raised.value
    assert [values for _, values in listed(wire)] == [{"name": "a"}]


@pytest.mark.parametrize("value", ["", ".", "..", "a/b", "../x", "a$b", "ü", "a b", "__a", "x" * 201, "a\n", "\x00"])
def test_values_that_are_no_names(wire: Wire, value: str) -> None:
    partitioned(wire)
    with pytest.raises(WireError) as raised:
        create(wire, {"name": value})
    assert code(raised) == 43
    with pytest.raises(WireError) as raised:
        drop(wire, {"name": value}, ignore=True)
    assert code(raised) == 43
    assert listed(wire) == []


def test_values_are_of_the_column_s_type(wire: Wire) -> None:
    partitioned(wire, keys=("id",))
    for value in ("abc", "007", "+1", "-0", "2147483648", "1_0"):
        with pytest.raises(WireError) as raised:
            create(wire, {"id": value})
        assert code(raised) == 43
    for value in ("0", "-2147483648", "2147483647"):
        create(wire, {"id": value})
    assert {values["id"] for _, values in listed(wire)} == {"0", "-2147483648", "2147483647"}


def test_a_spec_that_names_a_column_twice(wire: Wire) -> None:
    partitioned(wire)
    twice = pb.PbPartitionSpec(
        partition_key_values=[pb.PbKeyValue(key="name", value="a"), pb.PbKeyValue(key="name", value="b")]
    )
    request = pb.CreatePartitionRequest(table_path=path(), partition_spec=twice, ignore_if_exists=False)
    with pytest.raises(WireError, match="twice") as raised:
        wire.call(api_keys.CREATE_PARTITION, request)
    assert code(raised) == 43


def test_limits(tmp_path: Path) -> None:
    with RunningServer(tmp_path, max_partition_num=2, max_bucket_num=10) as server, server.connect() as wire:
        partitioned(wire, buckets=4)
        create(wire, {"name": "a"})
        create(wire, {"name": "b"})
        with pytest.raises(WireError, match="may have 2") as raised:
            create(wire, {"name": "c"})
        assert code(raised) == 45
        create(wire, {"name": "b"}, ignore=True)
        with pytest.raises(WireError, match="may have 10, and 8 are in use") as raised:
            create_table(wire, "plain", 3)
        assert code(raised) == 49
        partitioned(wire, "other", buckets=4)
        with pytest.raises(WireError) as raised:
            create(wire, {"name": "a"}, "other")
        assert code(raised) == 49
        drop(wire, {"name": "a"})
        create(wire, {"name": "a"}, "other")


def test_metadata_by_name_and_by_id(wire: Wire) -> None:
    table_id = partitioned(wire, buckets=2)
    create(wire, {"name": "a"})
    create(wire, {"name": "b"})
    by_name = pb.PbPhysicalTablePath(database_name="fluss", table_name="t", partition_name="a")
    request = pb.MetadataRequest(partitions_path=[by_name, by_name], partitions_id=[0, 1])
    answer = wire.call(api_keys.METADATA, request)
    found = [(entry.table_id, entry.partition_id, entry.partition_name) for entry in answer.partition_metadata]
    assert found == [(table_id, 0, "a"), (table_id, 1, "b")]
    for entry in answer.partition_metadata:
        assert [(bucket.bucket_id, bucket.leader_id) for bucket in entry.bucket_metadata] == [(0, 0), (1, 0)]
    (table,) = answer.table_metadata
    assert table.table_id == table_id
    assert not table.bucket_metadata, "a partitioned table has no buckets of its own"
    assert json.loads(table.table_json)["partition_key"] == ["name"]


def test_metadata_codes(wire: Wire) -> None:
    create_table(wire, "plain")
    partitioned(wire)
    for table, name, expected in (("t", "none", 36), ("plain", "a", 37), ("missing", "a", 7)):
        with pytest.raises(WireError) as raised:
            partition_id(wire, name, table)
        assert code(raised) == expected
    for identity in (0, -1, 2**62):
        with pytest.raises(WireError) as raised:
            wire.call(api_keys.METADATA, pb.MetadataRequest(partitions_id=[identity]))
        assert code(raised) == 36


def test_rows_of_partitions_are_apart_and_their_id_is_echoed(wire: Wire) -> None:
    table_id = partitioned(wire)
    counts = {"a": 2, "b": 5}
    for name, count in counts.items():
        create(wire, {"name": name})
        answer = produce_into(wire, table_id, partition_id(wire, name), count)
        assert (answer.partition_id, answer.base_offset) == (partition_id(wire, name), 0)
    for name, count in counts.items():
        identity = partition_id(wire, name)
        (entry,) = wire.call(api_keys.FETCH_LOG, fetch_from(table_id, identity)).tables_resp[0].buckets_resp
        assert (entry.partition_id, entry.high_watermark) == (identity, count)
        assert [header.record_count for header in headers(entry.records)] == [count]
        request = pb.ListOffsetsRequest(
            follower_server_id=-1, offset_type=1, table_id=table_id, partition_id=identity, bucket_id=[0]
        )
        assert wire.call(api_keys.LIST_OFFSETS, request).buckets_resp[0].offset == count


def test_buckets_that_do_not_exist(wire: Wire) -> None:
    table_id = partitioned(wire)
    other_id = partitioned(wire, "other")
    plain_id = create_table(wire, "plain")
    create(wire, {"name": "a"})
    identity = partition_id(wire, "a")
    for table, partition in ((table_id, None), (table_id, 99), (other_id, identity), (plain_id, identity)):
        answer = produce_into(wire, table, partition)
        assert answer.error_code == 21
        assert answer.HasField("partition_id") == (partition is not None)
    assert produce_into(wire, table_id, identity).base_offset == 0


def test_a_waiting_fetch_is_told_of_the_drop(server: RunningServer, wire: Wire, tmp_path: Path) -> None:
    table_id = partitioned(wire)
    create(wire, {"name": "a"})
    identity = partition_id(wire, "a")
    produce_into(wire, table_id, identity)
    with server.connect() as reader:
        request_id = reader.send(
            api_keys.FETCH_LOG, fetch_from(table_id, identity, offset=3, max_wait_ms=15_000, min_bytes=1)
        )
        while not server.look(lambda: any(log._waiters for log in server.server.context.storage._logs.values())):
            pass
        drop(wire, {"name": "a"})
        (entry,) = reader.receive_answer(request_id, api_keys.FETCH_LOG).tables_resp[0].buckets_resp
    assert (entry.error_code, entry.partition_id) == (21, identity)
    assert produce_into(wire, table_id, identity).error_code == 21


def test_partitions_survive_a_restart_and_their_files_a_drop_do_not(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = partitioned(wire)
        for name in ("a", "b"):
            create(wire, {"name": name})
            produce_into(wire, table_id, partition_id(wire, name))
        drop(wire, {"name": "a"})
        before = listed(wire)
    assert [entry.name for entry in (tmp_path / "tables" / str(table_id)).iterdir()] == ["p1"]
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert listed(wire) == before
        (entry,) = wire.call(api_keys.FETCH_LOG, fetch_from(table_id, 1)).tables_resp[0].buckets_resp
        assert entry.high_watermark == 3
        wire.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
        with pytest.raises(WireError) as raised:
            wire.call(api_keys.METADATA, pb.MetadataRequest(partitions_id=[1]))
        assert code(raised) == 36
    assert list((tmp_path / "tables").iterdir()) == []


SCALARS = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BYTES", "DATE",
]  # fmt: skip
WITH_PARAMETERS: list[dict[str, Any]] = [
    {"type": "CHAR", "length": 3},
    {"type": "BINARY", "length": 3},
    {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 3},
    {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 6},
    {"type": "TIMESTAMP_WITH_LOCAL_TIME_ZONE", "precision": 6},
]
REFUSED: list[dict[str, Any]] = [
    {"type": "DECIMAL", "precision": 10, "scale": 2},
    {"type": "ARRAY", "element_type": {"type": "INTEGER"}},
    {"type": "ROW", "fields": [{"name": "a", "field_type": {"type": "INTEGER"}}]},
]


def with_key_type(data_type: dict[str, Any]) -> bytes:
    value = json.loads(descriptor(partition_key=["name"]))
    value["schema"]["columns"][1]["data_type"] = data_type
    return json.dumps(value).encode()


def make(wire: Wire, table_json: bytes) -> None:
    wire.call(
        api_keys.CREATE_TABLE, pb.CreateTableRequest(table_path=path(), table_json=table_json, ignore_if_exists=False)
    )


@pytest.mark.parametrize("data_type", [*({"type": name} for name in SCALARS), *WITH_PARAMETERS], ids=str)
def test_scalar_columns_may_be_partition_keys(wire: Wire, data_type: dict[str, Any]) -> None:
    make(wire, with_key_type(data_type))


@pytest.mark.parametrize("data_type", REFUSED, ids=str)
def test_other_columns_may_not(wire: Wire, data_type: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="name") as raised:
        make(wire, with_key_type(data_type))
    assert code(raised) == 15


@pytest.mark.parametrize(
    "overrides",
    [
        {"partition_key": ["nope"]},
        {"partition_key": ["name", "name"]},
        {"partition_key": ["name"], "bucket_key": ["name"], "bucket_count": 2},
    ],
)
def test_partition_keys_that_do_not_fit(wire: Wire, overrides: dict[str, Any]) -> None:
    with pytest.raises(WireError) as raised:
        make(wire, descriptor(**overrides))
    assert code(raised) == 15
