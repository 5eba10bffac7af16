"""A log that takes long to open keeps nobody waiting but those who want it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.storage import store
from fluss.storage.log import log as log_module
from fluss.storage.log import recovery
from tests.kit.thread_server import (
    TIMEOUT_S,
    RunningServer,
    WireError,
    batch,
    checked_bucket,
    create_table,
    fetch,
    fetch_request,
    headers,
    path,
    produce,
    produce_request,
)


class Gate:
    """Stops recovery in its thread until the test opens it."""

    def __init__(self) -> None:
        self.closed = False
        self.entered = threading.Event()
        self._open = threading.Event()

    def close(self) -> None:
        self.closed = True

    def open(self) -> None:
        self._open.set()

    def __call__(self, *arguments: Any) -> recovery.Recovered:
        if self.closed:
            self.entered.set()
            assert self._open.wait(TIMEOUT_S)
        return recovery.recover(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(store, "recover", gate)
    yield gate
    gate.open()


@pytest.fixture
def table_ids(tmp_path: Path) -> tuple[int, int]:
    """Two tables with rows, not opened."""
    with RunningServer(tmp_path / "data") as server, server.connect() as wire:
        ids = create_table(wire, "slow"), create_table(wire, "other")
        for table_id in ids:
            produce(wire, table_id, batch(3))
    return ids


@pytest.fixture
def server(tmp_path: Path, table_ids: tuple[int, int], gate: Gate) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


def test_others_go_on_and_requests_keep_their_order(
    server: RunningServer, gate: Gate, table_ids: tuple[int, int]
) -> None:
    slow, other = table_ids
    with server.connect() as first, server.connect() as second, server.connect() as third:
        produce(third, other, batch(1))
        gate.close()
        # Behind each other on one connection, so they must be stored in this order.
        sent = [
            first.send(api_keys.PRODUCE_LOG, produce_request(slow, (0, batch(2, writer_id=5, sequence=sequence))))
            for sequence in range(3)
        ]
        assert gate.entered.wait(TIMEOUT_S)
        waiting = second.send(api_keys.FETCH_LOG, fetch_request(slow, (0, 0)))
        for _ in range(3):
            produce(third, other, batch(1))
        assert len(headers(fetch(third, other, 0).records)) == 5
        gate.open()
        for number, request_id in enumerate(sent):
            (entry,) = first.receive_answer(request_id, api_keys.PRODUCE_LOG).buckets_resp
            assert entry.base_offset == 3 + 2 * number
        assert checked_bucket(second.receive_answer(waiting, api_keys.FETCH_LOG)).high_watermark >= 3


Request = Callable[[int], tuple[api_keys.Api[Any, Any], Any]]
REQUESTS: dict[str, Request] = {
    "offsets": lambda table: (
        api_keys.LIST_OFFSETS,
        pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=table, bucket_id=[0]),
    ),
    "stats": lambda table: (
        api_keys.GET_TABLE_STATS,
        pb.GetTableStatsRequest(table_id=table, buckets_req=[pb.PbTableStatsBucketRequest(bucket_id=0)]),
    ),
    "limit scan": lambda table: (api_keys.LIMIT_SCAN, pb.LimitScanRequest(table_id=table, bucket_id=0, limit=1)),
    "fetch": lambda table: (api_keys.FETCH_LOG, fetch_request(table, (0, 0), max_wait_ms=100, min_bytes=1)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_waits_for_the_log(
    server: RunningServer, gate: Gate, table_ids: tuple[int, int], name: str
) -> None:
    api, request = REQUESTS[name](table_ids[0])
    gate.close()
    with server.connect() as wire, server.connect() as second:
        request_id = wire.send(api, request)
        assert gate.entered.wait(TIMEOUT_S)
        second.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest())
        gate.open()
        assert "error" not in str(wire.receive_answer(request_id, api))


def test_a_table_dropped_meanwhile(
    server: RunningServer, gate: Gate, table_ids: tuple[int, int], tmp_path: Path
) -> None:
    gate.close()
    with server.connect() as wire, server.connect() as second:
        request_id = wire.send(api_keys.FETCH_LOG, fetch_request(table_ids[0], (0, 0)))
        assert gate.entered.wait(TIMEOUT_S)
        second.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path("slow"), ignore_if_not_exists=False))
        gate.open()
        with pytest.raises(WireError) as raised:
            checked_bucket(wire.receive_answer(request_id, api_keys.FETCH_LOG))
        assert raised.value.code == 21
        server.run(_removed(server))
    assert not (tmp_path / "data" / "tables" / str(table_ids[0])).exists()


async def _removed(server: RunningServer) -> None:
    removals = server.server.context.storage._removals
    while removals:
        await next(iter(removals.values()))


def test_a_client_that_leaves_and_a_stop_meanwhile(tmp_path: Path, table_ids: tuple[int, int], gate: Gate) -> None:
    with RunningServer(tmp_path / "data") as server:
        gate.close()
        with server.connect() as wire:
            wire.send(api_keys.PRODUCE_LOG, produce_request(table_ids[0], (0, batch(2))))
            assert gate.entered.wait(TIMEOUT_S)
        threading.Timer(0.2, gate.open).start()


def test_a_log_that_can_not_be_opened_says_so_without_paths(
    server: RunningServer, table_ids: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(directory: Path, *_: Any) -> recovery.Recovered:
        raise OSError(5, "Input/output error", str(directory))

    with server.connect() as wire:
        with monkeypatch.context() as patch:
            patch.setattr(store, "recover", fail)
            patch.setattr(log_module, "recover", fail)
            with pytest.raises(WireError, match="can't be opened: Input/output error") as raised:
                produce(wire, table_ids[0], batch(1))
        assert raised.value.code == 10
        assert str(tmp_path) not in raised.value.text
        assert produce(wire, table_ids[0], batch(1)) == 3


def test_a_batch_whose_client_has_gone_is_not_stored(
    server: RunningServer, gate: Gate, table_ids: tuple[int, int]
) -> None:
    """Its client may have written the rows anew on another connection, and those are behind nothing older."""
    slow, _ = table_ids
    with server.connect() as second:
        with server.connect() as first:
            gate.close()
            first.send(api_keys.PRODUCE_LOG, produce_request(slow, (0, batch(2, writer_id=5, sequence=0))))
            assert gate.entered.wait(TIMEOUT_S)
        sent = second.send(api_keys.PRODUCE_LOG, produce_request(slow, (0, batch(1, writer_id=6, sequence=0))))
        gate.open()
        (entry,) = second.receive_answer(sent, api_keys.PRODUCE_LOG).buckets_resp
        assert entry.base_offset == 3
