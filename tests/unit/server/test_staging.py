"""StageWrite, CommitStaged, DropStaged over raw sockets: what is taken, what is refused, and with which code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluss.formats.arrow.payload import decode_changes
from fluss.formats.batches.log_batch import walk
from fluss.model.schema import COLUMN_COUNT_MAX
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from fluss.storage import failpoints
from tests.kit.kv_requests import create_kv_table, key, kv_batch, lookup, raw_batch
from tests.kit.thread_server import (
    SCHEMA,
    RunningServer,
    Wire,
    WireError,
    batch,
    create_table,
    eventually,
    fetch,
    path,
)

QUERY = "query"


def stage_request(table_id: int, *records: bytes | bytearray, **fields: Any) -> pb.StageWriteRequest:
    """Batches for bucket 0, unless `bucket` says otherwise."""
    bucket = fields.pop("bucket", 0)
    defaults = {"query_id": QUERY, "batch_id": 0, "task": 0, "attempt": 0, "sequence": 0, "timeout_ms": 10_000}
    request = pb.StageWriteRequest(table_id=table_id, **{**defaults, **fields})
    for item in records:
        request.buckets_req.add(bucket_id=bucket, records=bytes(item))
    return request


def stage(wire: Wire, table_id: int, *records: bytes | bytearray, **fields: Any) -> None:
    wire.call(api_keys.STAGE_WRITE, stage_request(table_id, *records, **fields))


def commit(wire: Wire, table_id: int, **task: int) -> bool:
    request = pb.CommitStagedRequest(table_id=table_id, query_id=QUERY, batch_id=0, timeout_ms=10_000)
    request.tasks.add(**{"task": 0, "attempt": 0, "request_count": 1, **task})
    return wire.call(api_keys.COMMIT_STAGED, request).is_repeated


def ids(wire: Wire, table_id: int) -> list[int]:
    """Of the rows in bucket 0 of a log table, by offset."""
    data = fetch(wire, table_id, 0).records
    decoded = (decode_changes(data, position, header, SCHEMA)[1] for position, header in walk(data))
    return [number for rows in decoded for number in rows.column("id").to_pylist()]


def drop(wire: Wire, table_id: int) -> None:
    wire.call(api_keys.DROP_STAGED, pb.DropStagedRequest(table_id=table_id, query_id=QUERY, batch_id=0))


def test_a_log_table(wire: Wire) -> None:
    table_id = create_table(wire)
    stage(wire, table_id, batch(3), batch(2, start=3))
    assert ids(wire, table_id) == []
    assert not commit(wire, table_id)
    assert commit(wire, table_id)
    assert ids(wire, table_id) == [0, 1, 2, 3, 4]


def test_a_primary_key_table(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    stage(wire, table_id, kv_batch([(1, "a", 1.0), (2, "b", 2.0)]), kv_batch(deletes=[1]))
    stage(wire, table_id, kv_batch([(2, None, 5.0)]), sequence=1, target_columns=[0, 2])
    assert lookup(wire, table_id, 1, 2) == [None, None]
    assert not commit(wire, table_id, request_count=2)
    assert lookup(wire, table_id, 1, 2) == [None, (2, "b", 5.0)]


def test_an_aborted_batch_can_be_staged_again(wire: Wire) -> None:
    table_id = create_table(wire)
    stage(wire, table_id, batch(1))
    drop(wire, table_id)
    drop(wire, table_id)
    with pytest.raises(WireError, match="0 of 1 requests"):
        commit(wire, table_id)
    stage(wire, table_id, batch(1, start=7))
    commit(wire, table_id)
    drop(wire, table_id)
    assert ids(wire, table_id) == [7]


def corrupt(records: bytes | bytearray) -> bytes:
    changed = bytearray(records)
    changed[-1] ^= 0x40
    return bytes(changed)


@pytest.mark.parametrize(
    ("records", "fields", "code", "text"),
    [
        (corrupt(batch()), {}, 14, "CRC"),
        (batch(schema_id=9), {}, 15, "schema id 9"),
        (batch()[:-1], {}, 2, "announces"),
        (b"", {}, 2, "at least"),
        (kv_batch([(1, "a", 1.0)]), {}, 2, "batch"),
        (batch(), {"bucket": 1}, 21, "does not exist"),
        (batch(), {"bucket": -1}, 21, "does not exist"),
        (batch(), {"table_id": 99}, 7, "no table with id 99"),
        (batch(), {"target_columns": [0]}, 15, "whole"),
        (batch(), {"agg_mode": 1}, 15, "whole"),
        (batch(), {"agg_mode": 3}, 2, "agg_mode"),
        (batch(), {"query_id": ""}, 15, "1 to 255"),
        (batch(), {"query_id": "q" * 256}, 15, "1 to 255"),
        (batch(), {"batch_id": -1}, 15, "batch_id"),
        (batch(), {"task": -1}, 15, "task"),
        (batch(), {"attempt": -5}, 15, "attempt"),
        (batch(), {"sequence": -1}, 15, "sequence"),
        (batch(), {"target_columns": [1] * (COLUMN_COUNT_MAX + 1)}, 13, "target columns"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_log_table_refuses(
    server: RunningServer, wire: Wire, records: bytes, fields: dict[str, Any], code: int, text: str
) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError, match=text) as raised:
        stage(wire, fields.pop("table_id", table_id), records, **fields)
    assert raised.value.code == code
    assert server.look(lambda: server.server.context.storage.staging.size_bytes) == 0
    stage(wire, table_id, batch(1))
    commit(wire, table_id)
    assert len(ids(wire, table_id)) == 1


def test_magic_2_is_refused(wire: Wire) -> None:
    """It would have its writer elsewhere."""
    table_id = create_table(wire)
    records = batch(1)
    records[12] = 2
    with pytest.raises(WireError):
        stage(wire, table_id, records)


@pytest.mark.parametrize(
    ("records", "fields", "code", "text"),
    [
        (corrupt(kv_batch([(1, "a", 1.0)])), {}, 14, "CRC"),
        (kv_batch([(1, "a", 1.0)], schema_id=9), {}, 15, "schema id 9"),
        (batch(), {}, 2, "kv batch"),
        (b"", {}, 2, "kv batch"),
        (raw_batch([key(1)], [b"\xff"]), {}, 35, "NOT NULL"),
        (raw_batch([key(1)], [b"\0"]), {}, 2, "can't be accepted"),
        (raw_batch([b"not the key of the row"], [kv_batch([(1, "a", 1.0)])[40:]]), {}, 2, "can't be accepted"),
        (kv_batch([(1, "a", 1.0)]), {"target_columns": [1, 2]}, 35, "key column"),
        (kv_batch([(1, "a", 1.0)]), {"target_columns": [0, 77]}, 35, "no column 77"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_primary_key_table_refuses(
    server: RunningServer, wire: Wire, records: bytes, fields: dict[str, Any], code: int, text: str
) -> None:
    """A commit that was decided must not fail on what could have been known before."""
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match=text) as raised:
        stage(wire, table_id, records, **fields)
    assert raised.value.code == code
    assert server.look(lambda: server.server.context.storage.staging.size_bytes) == 0


def test_deletes_are_refused_where_they_are_disabled(wire: Wire) -> None:
    table_id = create_kv_table(wire, properties={"table.delete.behavior": "DISABLE"})
    with pytest.raises(WireError) as raised:
        stage(wire, table_id, kv_batch(deletes=[1]))
    assert raised.value.code == 57


@pytest.mark.parametrize(
    "fields",
    [
        {"query_id": b"\xff\xfe"},
        {"table_id": None},
        {"sequence": None},
    ],
)
def test_unreadable_requests(wire: Wire, fields: dict[str, Any]) -> None:
    table_id = create_table(wire)
    request = stage_request(table_id, batch(1))
    body = b""
    for descriptor, value in request.ListFields():
        if descriptor.name not in fields:
            part = pb.StageWriteRequest()
            if descriptor.is_repeated:
                getattr(part, descriptor.name).extend(value)
            else:
                setattr(part, descriptor.name, value)
            body += part.SerializePartialToString()
    text = fields.get("query_id")
    if text is not None:
        body += bytes([0x12, len(text)]) + text
    error = wire.receive_error(wire.send_raw(api_keys.STAGE_WRITE.key, body))
    assert error.code == 2


@pytest.mark.parametrize(
    "task", [{"task": -1}, {"attempt": -1}, {"request_count": -1}, {"request_count": 2**31 - 1}, {"request_count": 2}]
)
def test_commits_that_are_refused(wire: Wire, task: dict[str, int]) -> None:
    table_id = create_table(wire)
    stage(wire, table_id, batch(1))
    with pytest.raises(WireError) as raised:
        commit(wire, table_id, **task)
    assert raised.value.code in (13, 15)
    assert not commit(wire, table_id)
    assert len(ids(wire, table_id)) == 1


@pytest.mark.parametrize("api", [api_keys.COMMIT_STAGED, api_keys.DROP_STAGED], ids=lambda api: api.name)
def test_a_query_id_that_is_no_text(wire: Wire, api: api_keys.Api[Any, Any]) -> None:
    table_id = create_table(wire)
    rest = api.request(table_id=table_id, batch_id=0)
    if api is api_keys.COMMIT_STAGED:
        rest.timeout_ms = 1_000
    body = rest.SerializePartialToString() + b"\x12\x02\xff\xfe"
    error = wire.receive_error(wire.send_raw(api.key, body))
    assert (error.code, "UTF-8" in error.text) == (15, True)


def test_tasks_have_a_limit(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(request_items_max=5)) as server, server.connect() as wire:
        table_id = create_table(wire)
        request = pb.CommitStagedRequest(table_id=table_id, query_id=QUERY, batch_id=0, timeout_ms=1_000)
        for task in range(6):
            request.tasks.add(task=task, attempt=0, request_count=0)
        with pytest.raises(WireError, match="5 tasks"):
            wire.call(api_keys.COMMIT_STAGED, request)
        with pytest.raises(WireError, match="5 buckets"):
            stage(wire, table_id, *[batch(1)] * 6)


def test_many_requests_of_one_connection_at_once(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    count = 40
    requests = [stage_request(table_id, batch(1, start=n), sequence=n) for n in range(count)]
    sent = [wire.send(api_keys.STAGE_WRITE, request) for request in requests]
    assert sorted(wire.receive().request_id or 0 for _ in sent) == sent
    assert not commit(wire, table_id, request_count=count)
    assert ids(wire, table_id) == list(range(count))
    assert server.look(lambda: server.server.context.request_budget.used_bytes) == 0


def test_a_commit_that_was_cut_off_is_carried_out_at_the_next_start(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = create_table(wire)
        stage(wire, table_id, batch(2), batch(3, start=2))
        failpoints.arm("segment.append.before_write:2:eio")
        with pytest.raises(WireError):
            commit(wire, table_id)
        failpoints.disarm()
        eventually(lambda: len(ids(wire, table_id)) == 2)
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert commit(wire, table_id) in (True, False)  # it may come before the recovery, which it then is
        assert ids(wire, table_id) == [0, 1, 2, 3, 4]
        assert commit(wire, table_id)


def test_expired_writes_go_in_the_background(tmp_path: Path) -> None:
    with RunningServer(tmp_path, staging_expire_ms=1, clock_settle_ms=0) as server, server.connect() as wire:
        table_id = create_table(wire)
        stage(wire, table_id, batch(1))
        eventually(lambda: server.look(lambda: server.server.context.storage.staging.size_bytes) == 0)
        with pytest.raises(WireError, match="expired"):
            commit(wire, table_id)


def test_a_dropped_table(wire: Wire) -> None:
    table_id = create_table(wire)
    stage(wire, table_id, batch(1))
    wire.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
    for call in (lambda: stage(wire, table_id, batch(1)), lambda: commit(wire, table_id), lambda: drop(wire, table_id)):
        with pytest.raises(WireError) as raised:
            call()
        assert raised.value.code == 7


def test_repeated_batches_are_compared_over_the_wire(wire: Wire) -> None:
    """With what a commit says of its rows; one of an older client says nothing, and is taken for done."""
    table_id = create_table(wire)
    stage(wire, table_id, batch(3))
    assert not commit(wire, table_id, row_count=3, digest=2**64 - 1)
    assert commit(wire, table_id, attempt=1, row_count=3, digest=2**64 - 1)
    assert commit(wire, table_id)
    for fields in ({"row_count": 3, "digest": 0}, {"row_count": 2, "digest": 2**64 - 1}):
        with pytest.raises(WireError, match="with other rows") as raised:
            commit(wire, table_id, **fields)
        assert raised.value.code == 15
    with pytest.raises(WireError, match="negative"):
        commit(wire, table_id, row_count=-1, digest=0)
    assert ids(wire, table_id) == [0, 1, 2]


def test_what_an_operator_asks_for_is_checked(wire: Wire) -> None:
    table_id = create_table(wire)
    for api, request in (
        (api_keys.ACCEPT_STAGED, pb.AcceptStagedRequest(table_id=table_id, query_id=QUERY, batch_id=-1)),
        (api_keys.ACCEPT_STAGED, pb.AcceptStagedRequest(table_id=table_id, query_id="", batch_id=1)),
        (api_keys.RESET_STAGED, pb.ResetStagedRequest(table_id=table_id, query_id="x" * 256)),
        (api_keys.RESET_STAGED, pb.ResetStagedRequest(table_id=table_id, query_id=QUERY, batch_id=-5)),
        (api_keys.RESET_STAGED, pb.ResetStagedRequest(table_id=table_id, query_id=QUERY)),
    ):
        with pytest.raises(WireError) as raised:
            wire.call(api, request)
        assert raised.value.code == 15
    with pytest.raises(WireError) as raised:
        wire.call(api_keys.RESET_STAGED, pb.ResetStagedRequest(table_id=99, query_id=QUERY, batch_id=1))
    assert raised.value.code == 7
    assert not wire.call(api_keys.LIST_STAGED, pb.ListStagedRequest()).queries
