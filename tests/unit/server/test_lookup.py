"""Lookup and PrefixLookup."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.keys import KeyEncoder
from fluss.model.paths import TableBucket
from fluss.model.schema import Column, Schema
from fluss.model.types import DataType, TypeRoot
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from fluss.storage.kv import engine
from tests.kit.kv_requests import (
    call,
    create_kv_table,
    key,
    kv_batch,
    lookup,
    lookup_raw,
    prefix_lookup,
    put,
    raw_batch,
    rows_of,
)
from tests.kit.thread_server import RunningServer, StalledSyncs, Wire, WireError, create_table, fetch, headers, path


def _request(table_id: int, *buckets: tuple[int, list[bytes]], **fields: Any) -> pb.LookupRequest:
    request = pb.LookupRequest(table_id=table_id, **fields)
    for bucket_id, keys in buckets:
        request.buckets_req.add(bucket_id=bucket_id, keys=keys)
    return request


def test_values_come_in_the_order_of_their_keys(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(number, f"n{number}", None) for number in range(3_000)]))
    seed = random.randrange(1 << 32)
    print("seed", seed)
    numbers = random.Random(seed).choices(range(-100, 3_100), k=2_500)
    expected = [(number, f"n{number}", None) if 0 <= number < 3_000 else None for number in numbers]
    assert lookup(wire, table_id, *numbers) == expected


@pytest.mark.parametrize("version", [0, 1])
def test_a_missing_key_is_a_value_that_is_not_set(wire: Wire, version: int) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    request = _request(table_id, (0, [key(1), key(2), b"", b"k" * 100_000]))
    (entry,) = call(wire, api_keys.LOOKUP, request, version).buckets_resp
    assert not entry.HasField("error_code")
    assert [item.HasField("values") for item in entry.values] == [True, False, False, False]


def test_one_entry_per_bucket_also_of_those_named_twice(wire: Wire) -> None:
    table_id = create_kv_table(wire, buckets=2)
    put(wire, table_id, kv_batch([(1, "a", 1.0)]), bucket=1)
    request = _request(table_id, (1, [key(1)]), (0, [key(1)]), (9, [key(1)]), (1, []), (1, [key(1), key(1)]))
    entries = call(wire, api_keys.LOOKUP, request, 1).buckets_resp
    assert [entry.bucket_id for entry in entries] == [1, 0, 9, 1, 1]
    assert [entry.error_code for entry in entries] == [0, 0, 21, 0, 0]
    assert [len(entry.values) for entry in entries] == [1, 1, 0, 0, 2]
    assert [entry.values[0].HasField("values") for entry in (entries[0], entries[1])] == [True, False]


def test_wrong_tables(wire: Wire) -> None:
    log_table_id = create_table(wire)
    for table_id, code in ((log_table_id, 20), (log_table_id + 1, 21)):
        with pytest.raises(WireError) as raised:
            lookup_raw(wire, table_id, [key(1)])
        assert raised.value.code == code
        with pytest.raises(WireError) as raised:
            prefix_lookup(wire, table_id, key(1))
        assert raised.value.code == code


def test_partitions(wire: Wire) -> None:
    schema = Schema.of(
        [Column("day", DataType(TypeRoot.STRING)), Column("id", DataType(TypeRoot.INTEGER))], ["day", "id"]
    )
    table_id = create_kv_table(wire, schema=schema.to_json(), partition_key=["day"])
    request = _request(table_id, (0, [key(1)]))
    request.buckets_req[0].partition_id = 77
    (entry,) = call(wire, api_keys.LOOKUP, request, 1).buckets_resp
    assert (entry.error_code, entry.partition_id) == (21, 77)
    spec = pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key="day", value="mon")])
    made = pb.CreatePartitionRequest(table_path=path(), partition_spec=spec, ignore_if_exists=False)
    wire.call(api_keys.CREATE_PARTITION, made)
    listed = wire.call(api_keys.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=path()))
    request.buckets_req[0].partition_id = listed.partitions_info[0].partition_id
    (entry,) = call(wire, api_keys.LOOKUP, request, 1).buckets_resp
    assert entry.partition_id == listed.partitions_info[0].partition_id
    assert [item.HasField("values") for item in entry.values] == [False]


def test_many_lookups_at_once_are_all_answered(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(number, "x", None) for number in range(100)]))
    bodies = [_request(table_id, (0, [key(number)])).SerializeToString() for number in range(100)]
    ids = [wire.send_raw(api_keys.LOOKUP.key, body, 1) for body in bodies]
    answers = {}
    for _ in ids:
        response = wire.receive()
        (entry,) = pb.LookupResponse.FromString(bytes(response.body)).buckets_resp
        answers[response.request_id] = rows_of([entry.values[0].values])
    assert answers == {request_id: [(number, "x", None)] for number, request_id in enumerate(ids)}
    (connection,) = server.server._connections
    assert server.look(lambda: connection._context.reads_running) == 0


@pytest.mark.parametrize("slow_s", [-1.0, 1_000.0])
def test_a_few_keys_are_read_on_the_loop_unless_that_was_slow(
    server: RunningServer, wire: Wire, monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> None:
    monkeypatch.setattr(engine, "READ_SLOW_S", slow_s)
    monkeypatch.setattr(engine, "READS_SLOW_TIMES", 1e9)
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    kv = server.server.context.storage.kv
    for few in (True, slow_s > 0):
        bucket = TableBucket(table_id, 0)
        assert (server.look(lambda bucket=bucket: kv.get_few(bucket, [key(2)])) is not None) == few
        assert lookup(wire, table_id, 1, 2) == [(1, "a", 1.0), None]
    wire.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
    with pytest.raises(WireError) as raised:
        lookup(wire, table_id, 1)
    assert raised.value.code == 21


# --- limits


def test_limits_on_keys_and_on_answers(tmp_path: Path) -> None:
    limits = Limits(lookup_keys_max=100, lookup_bytes_max=10_000)
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as wire:
        table_id = create_kv_table(wire, buckets=2)
        put(wire, table_id, kv_batch([(number, "x" * 1_000, 1.0) for number in range(20)]))
        for api, request in (
            (api_keys.LOOKUP, _request(table_id, (0, [b"k"] * 60), (1, [b"k"] * 41))),
            (api_keys.PREFIX_LOOKUP, pb.PrefixLookupRequest(table_id=table_id)),
        ):
            if api is api_keys.PREFIX_LOOKUP:
                request.buckets_req.add(bucket_id=0, keys=[b"k"] * 101)
            with pytest.raises(WireError, match="100 keys") as raised:
                call(wire, api, request, 1)
            assert raised.value.code == 13
        for keys in ([key(number) for number in range(20)], [key(1)] * 20):
            with pytest.raises(WireError, match="fewer keys") as raised:
                lookup_raw(wire, table_id, keys)
            assert raised.value.code == 13
        with pytest.raises(WireError) as raised:
            prefix_lookup(wire, table_id, b"")
        assert raised.value.code == 13
        assert len(lookup(wire, table_id, *range(9))) == 9
        assert server.look(lambda: server.server.context.response_budget.unsent_bytes) == 0


# --- prefixes

PREFIXED = Schema.of([Column("a", DataType(TypeRoot.INTEGER)), Column("b", DataType(TypeRoot.STRING))], ["a", "b"])


def test_prefixes(wire: Wire) -> None:
    table_id = create_kv_table(wire, schema=PREFIXED.to_json(), bucket_key=["a"])
    keys, values = KeyEncoder(PREFIXED.columns), CompactedFormat(PREFIXED.columns)
    rows = [(a, b) for a in (1, 2, 300) for b in ("x", "xy", "z")]
    put(wire, table_id, raw_batch([keys.encode_row(row) for row in rows], [values.encode_row(row) for row in rows]))
    prefix = KeyEncoder(PREFIXED.columns[:1])
    found = prefix_lookup(wire, table_id, *(prefix.encode_row([a]) for a in (2, 7, 300)), b"\xff" * 50)
    assert [len(values) for values in found] == [3, 0, 3, 0]
    stored = [b"\x01\x00" + values.encode_row(row) for row in rows]
    assert sorted(found[0]) == sorted(stored[3:6])
    assert sorted(found[2]) == sorted(stored[6:9])


# --- inserting what is missing


def test_missing_rows_are_inserted_with_their_keys(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    fields = {"insert_if_not_exists": True, "acks": -1, "timeout_ms": 10_000}
    assert lookup(wire, table_id, 1, 2, 2, 3, **fields) == [
        (1, "a", 1.0),
        (2, None, None),
        (2, None, None),
        (3, None, None),
    ]
    assert fetch(wire, table_id).high_watermark == 3
    assert lookup(wire, table_id, 2, 3, 4) == [(2, None, None), (3, None, None), None]
    assert lookup(wire, table_id, 2, **fields) == [(2, None, None)]
    assert fetch(wire, table_id).high_watermark == 3


def test_inserting_ends_at_its_timeout(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    with StalledSyncs(server):
        with pytest.raises(WireError) as raised:
            lookup(wire, table_id, 2, insert_if_not_exists=True, acks=-1, timeout_ms=50)
        assert raised.value.code == 25
        assert lookup(wire, table_id, 1, 2) == [(1, "a", 1.0), None]
    assert lookup(wire, table_id, 2, insert_if_not_exists=True, acks=-1, timeout_ms=10_000) == [(2, None, None)]
    # Inserted once; a second put that finds it there takes an offset, too.
    assert sum(header.record_count for header in headers(fetch(wire, table_id).records)) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"acks": -1}, 2), ({"timeout_ms": 1_000}, 2), ({}, 2), ({"acks": 5, "timeout_ms": 1_000}, 18)],
)
def test_inserting_needs_acks_and_a_timeout(wire: Wire, fields: dict[str, int], code: int) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match="acks") as raised:
        lookup_raw(wire, table_id, [key(1)], insert_if_not_exists=True, **fields)
    assert raised.value.code == code
    assert fetch(wire, table_id).high_watermark == 0


@pytest.mark.parametrize("bad", [b"", b"\xff" * 5, key(1) + b"x", b"k" * 10_000])
def test_keys_that_are_none_are_not_inserted(wire: Wire, bad: bytes) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError) as raised:
        lookup_raw(wire, table_id, [key(1), bad], insert_if_not_exists=True, acks=-1, timeout_ms=10_000)
    assert raised.value.code in (2, 15)
    assert fetch(wire, table_id).high_watermark == 0
