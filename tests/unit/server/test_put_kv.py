"""PutKv: what is put, what is refused, what is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluss.formats.batches.kv_batch import encode_header
from fluss.model.errors import RETRIABLE_CODES
from fluss.model.schema import Schema
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.handlers.writes import _FOR_OLD_CLIENTS, _put_failed
from fluss.server.net.limits import Limits
from fluss.storage.kv.bucket import QUEUED_BYTES_MAX
from fluss.storage.kv.store import KvStoreBusyError
from tests.kit.kv_requests import (
    KV_SCHEMA,
    call,
    create_kv_table,
    key,
    kv_batch,
    lookup,
    put,
    put_request,
    raw_batch,
)
from tests.kit.thread_server import (
    RunningServer,
    StalledSyncs,
    Wire,
    WireError,
    create_table,
    eventually,
    fetch,
    headers,
    path,
)


def test_rows_are_put_found_and_logged(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    assert put(wire, table_id, kv_batch([(1, "a", 1.5), (2, None, None)])) == 2
    assert lookup(wire, table_id, 2, 1, 3) == [(2, None, None), (1, "a", 1.5), None]
    # An update has two changes, a delete one.
    assert put(wire, table_id, kv_batch([(1, "b", 2.5)], [2])) == 5
    assert lookup(wire, table_id, 1, 2) == [(1, "b", 2.5), None]
    answer = fetch(wire, table_id)
    assert answer.high_watermark == 5
    assert [(header.record_count, header.append_only) for header in headers(answer.records)] == [(2, False), (3, False)]


def test_nothing_to_change_takes_one_offset(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    assert put(wire, table_id, kv_batch([], [7])) == 1
    assert put(wire, table_id, kv_batch()) == 2
    assert [header.record_count for header in headers(fetch(wire, table_id).records)] == [0, 0]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acks_is_answered_without_an_error_code(wire: Wire, acks: int, version: int) -> None:
    table_id = create_kv_table(wire)
    request = put_request(table_id, (0, kv_batch([(1, "a", 1.0)])), acks=acks)
    (entry,) = call(wire, api_keys.PUT_KV, request, version).buckets_resp
    assert not entry.HasField("error_code")
    assert not entry.HasField("error_message")
    assert not entry.HasField("partition_id")
    assert entry.log_end_offset == 1


@pytest.mark.parametrize("acks", [7, 2, -2])
def test_other_acks_are_refused_for_the_whole_request(wire: Wire, acks: int) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match="0, 1 or -1") as raised:
        put(wire, table_id, kv_batch([(1, "a", 1.0)]), acks=acks)
    assert raised.value.code == 18
    assert fetch(wire, table_id).high_watermark == 0


@pytest.mark.parametrize("agg_mode", [2, -1, 1_000])
def test_unknown_ways_to_merge_are_refused(wire: Wire, agg_mode: int) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match="agg_mode") as raised:
        put(wire, table_id, kv_batch([(1, "a", 1.0)]), agg_mode=agg_mode)
    assert raised.value.code == 2
    assert fetch(wire, table_id).high_watermark == 0


def test_a_merge_engine_is_asked_or_passed_over(wire: Wire) -> None:
    table_id = create_kv_table(wire, properties={"table.merge-engine": "first_row"})
    put(wire, table_id, kv_batch([(1, "first", 1.0)]))
    put(wire, table_id, kv_batch([(1, "second", 2.0)]), agg_mode=0)
    assert lookup(wire, table_id, 1) == [(1, "first", 1.0)]
    put(wire, table_id, kv_batch([(1, "third", 3.0)]), agg_mode=1)
    assert lookup(wire, table_id, 1) == [(1, "third", 3.0)]


def test_acknowledged_is_found_at_once(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    for number in range(20):
        put(wire, table_id, kv_batch([(number, "x", 1.0)]))
        assert lookup(wire, table_id, number, number + 1) == [(number, "x", 1.0), None]


def test_requests_of_a_connection_are_put_in_their_order(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    ids = []
    for number in range(50):
        request = put_request(table_id, (0, kv_batch([(1, f"v{number}", 1.0)])))
        ids.append(wire.send_raw(api_keys.PUT_KV.key, request.SerializeToString(), 2))
    ends = [wire.receive_answer(request_id, api_keys.PUT_KV).buckets_resp[0].log_end_offset for request_id in ids]
    assert ends == [1 + 2 * number for number in range(50)]
    assert lookup(wire, table_id, 1) == [(1, "v49", 1.0)]


def test_buckets_fail_one_by_one_and_may_come_twice(wire: Wire) -> None:
    table_id = create_kv_table(wire, buckets=2)
    good, more = kv_batch([(1, "a", 1.0)]), kv_batch([(1, "b", 1.0)])
    request = put_request(table_id, (0, good), (5, good), (1, b""), (0, more))
    entries = call(wire, api_keys.PUT_KV, request, 2).buckets_resp
    assert [entry.bucket_id for entry in entries] == [0, 5, 1, 0]
    assert [entry.error_code for entry in entries] == [0, 21, 2, 0]
    assert [entry.HasField("log_end_offset") for entry in entries] == [True, False, False, True]
    assert entries[3].log_end_offset == 3
    assert lookup(wire, table_id, 1) == [(1, "b", 1.0)]


def test_a_repeated_sequence_is_put_once(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    for sequence in range(3):
        records = kv_batch([(sequence, "x", 1.0)], writer_id=9, sequence=sequence)
        assert put(wire, table_id, records) == sequence + 1
    assert put(wire, table_id, kv_batch([(1, "x", 1.0)], writer_id=9, sequence=1)) == 2
    assert put(wire, table_id, kv_batch([(3, "x", 1.0)], writer_id=9, sequence=3)) == 4
    assert fetch(wire, table_id).high_watermark == 4


def test_a_repeat_that_overtakes_its_first_answer(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    body = put_request(table_id, (0, kv_batch([(1, "a", 1.0)], writer_id=9, sequence=0))).SerializeToString()
    ids = [wire.send_raw(api_keys.PUT_KV.key, body, 2) for _ in range(3)]
    answers = [wire.receive_answer(request_id, api_keys.PUT_KV) for request_id in ids]
    assert [answer.buckets_resp[0].log_end_offset for answer in answers] == [1, 1, 1]
    assert fetch(wire, table_id).high_watermark == 1


def test_out_of_order_sequences_are_refused(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(1, "a", 1.0)], writer_id=9, sequence=0))
    with pytest.raises(WireError) as raised:
        put(wire, table_id, kv_batch([(1, "b", 1.0)], writer_id=9, sequence=2))
    assert raised.value.code == 31
    assert lookup(wire, table_id, 1) == [(1, "a", 1.0)]


# --- partial updates


def test_target_columns_are_written_and_the_others_kept(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    put(wire, table_id, kv_batch([(1, None, 2.0)]), target_columns=[0, 2])
    assert lookup(wire, table_id, 1) == [(1, "a", 2.0)]
    put(wire, table_id, kv_batch([(1, "b", None)]), target_columns=[1, 0, 1])
    assert lookup(wire, table_id, 1) == [(1, "b", 2.0)]


@pytest.mark.parametrize("targets", [[1], [0, 3], [0, -1], [0, 2**31 - 1], [7]])
def test_target_columns_that_there_are_not(wire: Wire, targets: list[int]) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match="column") as raised:
        put(wire, table_id, kv_batch([(1, "a", 1.0)]), target_columns=targets)
    assert raised.value.code == 35
    assert fetch(wire, table_id).high_watermark == 0


def test_absurdly_many_target_columns(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match="target columns") as raised:
        put(wire, table_id, kv_batch([(1, "a", 1.0)]), target_columns=[0, 1] * 5_000)
    assert raised.value.code == 13


def test_a_delete_where_deletes_are_disabled(wire: Wire) -> None:
    table_id = create_kv_table(wire, properties={"table.delete.behavior": "disable"})
    put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    with pytest.raises(WireError) as raised:
        put(wire, table_id, kv_batch([(2, "b", 1.0)], [1]))
    assert raised.value.code == 57
    assert lookup(wire, table_id, 1, 2) == [(1, "a", 1.0), None]


# --- batches that are refused


def _flipped(at: int) -> bytes:
    damaged = bytearray(kv_batch([(1, "a", 1.0), (2, "b", 2.0)]))
    damaged[at] ^= 0xFF
    return bytes(damaged)


@pytest.mark.parametrize("at", [5, 9, 11, 12, 20, 24, 28, 33, -1])
def test_a_bad_checksum_is_named(wire: Wire, at: int) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match="CRC-32C") as raised:
        put(wire, table_id, _flipped(at))
    assert raised.value.code == 14
    assert fetch(wire, table_id).high_watermark == 0


def _announcing(records: bytes, count: int, schema_id: int = 1) -> bytes:
    return bytes(encode_header(records, schema_id=schema_id, record_count=count) + records)


@pytest.mark.parametrize(
    "records",
    [
        b"",
        b"\0" * 27,
        _flipped(0),
        _flipped(4),
        kv_batch([(1, "a", 1.0)]) + b"\0",
        kv_batch([(1, "a", 1.0)])[:-1],
        kv_batch([(1, "a", 1.0)]) * 2,
        _announcing(kv_batch([(1, "a", 1.0)])[28:], 2),
        _announcing(kv_batch([(1, "a", 1.0)])[28:], 0),
        _announcing(kv_batch([(1, "a", 1.0)])[28:], -1),
        _announcing(kv_batch([(1, "a", 1.0)])[28:], 1 << 20),
        _announcing(b"\xff\xff\xff\x7f\x01\x01", 1),
        _announcing(b"\x02\x00\x00\x00\xff\xff", 1),
        kv_batch([(1, "a", 1.0)], schema_id=2),
        kv_batch([(1, "a", 1.0)], schema_id=-1),
        raw_batch([key(1)], [b"\x00"]),
        raw_batch([key(1)], [b"\x00" + b"\xff" * 40]),
        raw_batch([key(2)], [kv_batch([(1, "a", 1.0)])[-11:]]),
        raw_batch([b""], [b"\x00\x01\x01a" + bytes(8)]),
        raw_batch([b"k" * 100_000], [b"\x00\x01\x01a" + bytes(8)]),
    ],
)
def test_batches_that_can_never_be_accepted_get_codes_that_clients_do_not_retry(wire: Wire, records: bytes) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError) as raised:
        put(wire, table_id, records)
    assert raised.value.code > 0
    assert raised.value.code not in RETRIABLE_CODES
    assert fetch(wire, table_id).high_watermark == 0
    assert put(wire, table_id, kv_batch([(1, "a", 1.0)])) == 1
    assert lookup(wire, table_id, 1, 2) == [(1, "a", 1.0), None]


def test_a_refused_batch_does_not_take_a_sequence(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError):
        put(wire, table_id, raw_batch([key(1)], [b"\x00"], writer_id=3, sequence=0))
    assert put(wire, table_id, kv_batch([(1, "a", 1.0)], writer_id=3, sequence=0)) == 1


def test_batches_above_the_limit_are_refused(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(batch_bytes_max=1_000)) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        with pytest.raises(WireError, match="smaller batches") as raised:
            put(wire, table_id, kv_batch([(number, "x" * 50, 1.0) for number in range(100)]))
        assert raised.value.code == 13
        assert put(wire, table_id, kv_batch([(1, "a", 1.0)])) == 1


def test_batches_larger_than_other_requests_may_be(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    records = kv_batch([(number, "x" * 1_000, 1.0) for number in range(4_000)])
    assert len(records) > 2 << 20
    assert put(wire, table_id, records) == 4_000


def test_unknown_tables_and_partitions_and_log_tables(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    log_table_id = create_table(wire, "log")
    records = kv_batch([(1, "a", 1.0)])
    for wrong, code in ((log_table_id, 20), (log_table_id + 1, 21)):
        with pytest.raises(WireError) as raised:
            put(wire, wrong, records)
        assert raised.value.code == code
    request = put_request(table_id, (0, records))
    request.buckets_req[0].partition_id = 3
    (entry,) = call(wire, api_keys.PUT_KV, request, 2).buckets_resp
    assert (entry.error_code, entry.partition_id) == (21, 3)


def test_too_many_buckets_in_one_request(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(request_items_max=10)) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        with pytest.raises(WireError) as raised:
            call(wire, api_keys.PUT_KV, put_request(table_id, *[(0, kv_batch([(1, "a", 1.0)]))] * 11), 2)
        assert raised.value.code == 13
        assert fetch(wire, table_id).high_watermark == 0


# --- versions


def _lake_table(wire: Wire, properties: dict[str, str], **overrides: Any) -> int:
    schema = Schema.of(KV_SCHEMA.columns, ["id", "name"]).to_json()
    return create_kv_table(wire, properties=properties, schema=schema, **overrides)


@pytest.mark.parametrize(
    ("properties", "bucket_key", "is_refused"),
    [
        ({"table.datalake.format": "paimon"}, ["id"], True),
        ({"table.datalake.format": "paimon", "table.kv.format-version": "1"}, ["id"], False),
        ({"table.datalake.format": "paimon"}, [], False),
        ({}, ["id"], False),
    ],
)
def test_old_clients_are_refused_where_they_would_encode_other_keys(
    wire: Wire, properties: dict[str, str], bucket_key: list[str], is_refused: bool
) -> None:
    table_id = _lake_table(wire, properties, bucket_key=bucket_key)
    lookups = pb.LookupRequest(table_id=table_id)
    lookups.buckets_req.add(bucket_id=0, keys=[b"k"])
    prefixes = pb.PrefixLookupRequest(table_id=table_id)
    prefixes.buckets_req.add(bucket_id=0, keys=[b"k"])
    empty = put_request(table_id, (0, kv_batch()))
    for api, request in ((api_keys.PUT_KV, empty), (api_keys.LOOKUP, lookups), (api_keys.PREFIX_LOOKUP, prefixes)):
        for version in (0, 1):
            (entry,) = call(wire, api, request, version).buckets_resp
            assert entry.error_code == (2 if is_refused and version == 0 else 0)


def test_back_pressure_is_told_in_a_code_the_client_knows() -> None:
    for recoded, code in (({}, 72), (_FOR_OLD_CLIENTS, 11)):
        entry = pb.PbPutKvBucketResponse(bucket_id=0)
        _put_failed(entry, recoded, KvStoreBusyError("the disk is slow"))
        assert (entry.error_code, entry.error_message) == (code, "the disk is slow")


# --- waiting


def test_a_sync_that_takes_too_long_is_told_within_the_timeout(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    records = kv_batch([(1, "a", 1.0)], writer_id=1, sequence=0)
    put(wire, table_id, kv_batch([(9, "z", 1.0)]))
    with StalledSyncs(server):
        with pytest.raises(WireError) as raised:
            put(wire, table_id, records, timeout_ms=50)
        assert raised.value.code == 25
        assert lookup(wire, table_id, 1, 9) == [None, (9, "z", 1.0)]
    # The retry of the client learns what became of the batch.
    assert put(wire, table_id, records) == 2
    assert lookup(wire, table_id, 1) == [(1, "a", 1.0)]


def test_no_acks_do_not_wait_for_the_disk(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(9, "z", 1.0)]))
    with StalledSyncs(server):
        assert put(wire, table_id, kv_batch([(1, "a", 1.0)]), acks=0) == 2
        assert lookup(wire, table_id, 1) == [None]


def test_a_table_dropped_under_a_waiting_put(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(9, "z", 1.0)]))
    with StalledSyncs(server), server.connect() as other:
        body = put_request(table_id, (0, kv_batch([(1, "a", 1.0)]))).SerializeToString()
        waiting = wire.send_raw(api_keys.PUT_KV.key, body, 2)
        wire.call(api_keys.METADATA, pb.MetadataRequest())
        other.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
        (entry,) = wire.receive_answer(waiting, api_keys.PUT_KV).buckets_resp
        assert entry.error_code == 21
    with pytest.raises(WireError) as raised:
        put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    assert raised.value.code == 21


def test_puts_wait_for_room_and_all_get_through(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(0, "z", 1.0)]))
    large = kv_batch([(number, "x" * 4_200, 1.0) for number in range(1_000)])
    context = server.server.context
    (connection,) = server.server._connections
    with StalledSyncs(server):
        body = put_request(table_id, (0, large), timeout_ms=60_000).SerializeToString()
        # One more than a bucket takes at a time.
        ids = [wire.send_raw(api_keys.PUT_KV.key, body, 2) for _ in range(QUEUED_BYTES_MAX // len(large) + 2)]
        metadata = wire.send(api_keys.METADATA, pb.MetadataRequest())
        unanswered = len(ids) + 1
        eventually(lambda: server.look(lambda: connection._session.open_requests) == unanswered)
        # The last put is not begun, and so neither is what comes after it.
        assert server.look(lambda: connection._session.queued_bytes) > 0
        assert server.look(lambda: context.request_budget.used_bytes) > QUEUED_BYTES_MAX
    answers = {answer.request_id for answer in (wire.receive() for _ in range(unanswered))}
    assert answers == {*ids, metadata}
    assert server.look(lambda: context.request_budget.used_bytes) == 0
    assert lookup(wire, table_id, 999) == [(999, "x" * 4_200, 1.0)]


def test_rows_survive_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        put(wire, table_id, kv_batch([(number, "x", 1.0) for number in range(100)]))
        put(wire, table_id, kv_batch([(1, "y", 2.0)], [2]))
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert lookup(wire, table_id, 0, 1, 2, 99) == [(0, "x", 1.0), (1, "y", 2.0), None, (99, "x", 1.0)]
        assert put(wire, table_id, kv_batch([(2, "z", 3.0)])) == 104
