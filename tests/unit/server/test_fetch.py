"""FetchLog: what is read, from where, how much, and how long it waits."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from fluss.formats.arrow.payload import decode
from fluss.formats.batches.log_batch import payload_of
from fluss.model.errors import ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.storage.log import segment as segment_module
from fluss.storage.log.segment import Segment
from tests.kit.thread_server import (
    SCHEMA,
    RunningServer,
    Wire,
    WireError,
    batch,
    checked_bucket,
    create_table,
    fetch,
    fetch_request,
    headers,
    path,
    produce,
    rows,
)

LONG_WAIT_MS = 15_000


def test_rows_come_back_as_they_were_sent(wire: Wire) -> None:
    table_id = create_table(wire)
    before_ms = time.time_ns() // 1_000_000
    produce(wire, table_id, batch(5, writer_id=3, sequence=0))
    answer = fetch(wire, table_id)
    (header,) = headers(answer.records)
    assert (header.base_offset, header.record_count, header.writer_id) == (0, 5, 3)
    assert before_ms <= header.commit_timestamp_ms <= time.time_ns() // 1_000_000
    assert decode(payload_of(answer.records, 0, header)[1], SCHEMA).equals(rows(5))
    assert answer.log_start_offset == 0


@pytest.mark.parametrize(("offset", "first"), [(-2, 0), (0, 0), (2, 0), (3, 3), (5, 3), (8, 6)])
def test_data_begins_with_the_batch_that_holds_the_offset(wire: Wire, offset: int, first: int) -> None:
    table_id = create_table(wire)
    for _ in range(3):
        produce(wire, table_id, batch(3))
    assert headers(fetch(wire, table_id, offset).records)[0].base_offset == first


def test_at_the_high_watermark_records_are_present_and_empty(wire: Wire) -> None:
    table_id = create_table(wire)
    for offset in (-2, 0):
        assert fetch(wire, table_id, offset).records == b""
    produce(wire, table_id, batch(3))
    answer = fetch(wire, table_id, 3)
    assert (answer.records, answer.high_watermark) == (b"", 3)


@pytest.mark.parametrize("offset", [-1, -3, 4, 10**15, -(2**63), 2**63 - 1])
def test_offsets_outside_of_the_log(wire: Wire, offset: int) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, batch(3))
    begin = time.monotonic()
    with pytest.raises(WireError, match="out of range") as raised:
        fetch(wire, table_id, offset, max_wait_ms=LONG_WAIT_MS, min_bytes=1)
    assert raised.value.code == 19
    assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2


def test_bucket_limit_cuts_at_batches_and_gives_at_least_one(wire: Wire) -> None:
    table_id = create_table(wire)
    for _ in range(4):
        produce(wire, table_id, batch(1_000))
    limit_bytes = 3 * len(batch(1_000)) + 1
    assert len(headers(fetch(wire, table_id, bucket_bytes=1).records)) == 1
    assert len(headers(fetch(wire, table_id, bucket_bytes=-5).records)) == 1
    records = fetch(wire, table_id, bucket_bytes=limit_bytes).records
    assert len(headers(records)) > 1
    assert len(records) <= limit_bytes


def test_total_limit_holds_over_all_buckets_and_each_gets_its_turn(wire: Wire) -> None:
    table_id = create_table(wire, buckets=3)
    for bucket in range(3):
        produce(wire, table_id, batch(3), bucket)
    size_bytes = len(batch(3))
    seen: set[int] = set()
    for _ in range(3):
        request = fetch_request(table_id, (0, 0), (1, 0), (2, 0), max_bytes=size_bytes + 10)
        (table,) = wire.call(api_keys.FETCH_LOG, request).tables_resp
        assert [entry.bucket_id for entry in table.buckets_resp] == [0, 1, 2]
        assert all(entry.high_watermark == 3 for entry in table.buckets_resp)
        filled = [entry.bucket_id for entry in table.buckets_resp if entry.records]
        assert len(filled) == 1
        seen.update(filled)
    assert seen == {0, 1, 2}


def test_the_first_batch_may_break_the_total_limit(wire: Wire) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, batch(100))
    assert len(headers(fetch(wire, table_id, max_bytes=1).records)) == 1


def test_errors_are_told_bucket_by_bucket(wire: Wire) -> None:
    table_id = create_table(wire, buckets=2)
    produce(wire, table_id, batch(), 1)
    response = wire.call(api_keys.FETCH_LOG, fetch_request(table_id, (0, 99), (1, 0), (7, 0)))
    (table,) = response.tables_resp
    assert [entry.error_code for entry in table.buckets_resp] == [19, 0, 21]
    assert [entry.HasField("error_code") for entry in table.buckets_resp] == [True, False, True]
    assert headers(table.buckets_resp[1].records)
    assert not table.buckets_resp[0].HasField("records")


def test_several_tables_in_one_request(wire: Wire) -> None:
    first, second = create_table(wire, "a"), create_table(wire, "b")
    produce(wire, second, batch(2))
    request = fetch_request(first, (0, 0))
    request.tables_req.append(fetch_request(second, (0, 0)).tables_req[0])
    request.tables_req.append(fetch_request(999, (0, 0)).tables_req[0])
    response = wire.call(api_keys.FETCH_LOG, request)
    assert [table.table_id for table in response.tables_resp] == [first, second, 999]
    assert [table.buckets_resp[0].high_watermark for table in response.tables_resp] == [0, 2, 0]
    assert response.tables_resp[2].buckets_resp[0].error_code == 21


def test_a_large_answer_arrives_whole(wire: Wire) -> None:
    table_id = create_table(wire)
    for _ in range(8):
        produce(wire, table_id, batch(50_000))
    answer = fetch(wire, table_id, bucket_bytes=16 << 20)
    assert sum(header.record_count for header in headers(answer.records)) == 400_000


# --- waiting


def test_a_waiting_fetch_is_woken_by_an_append(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire, buckets=2)
    request = fetch_request(table_id, (0, 0), (1, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=1)
    with server.connect() as writer:
        begin = time.monotonic()
        waiting = wire.send(api_keys.FETCH_LOG, request)
        # An answer to a later request shows that the fetch was received, and waits.
        wire.call(api_keys.METADATA, pb.MetadataRequest())
        produce(writer, table_id, batch(2), 1)
        response = wire.receive_answer(waiting, api_keys.FETCH_LOG)
    assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2
    assert len(headers(checked_bucket(response, 1).records)) == 1
    assert checked_bucket(response, 0).records == b""


def test_every_reader_is_woken(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    request = fetch_request(table_id, (0, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=1)
    readers = [server.connect() for _ in range(20)]
    waiting = [reader.send(api_keys.FETCH_LOG, request) for reader in readers]
    for reader in readers:
        reader.call(api_keys.METADATA, pb.MetadataRequest())
    begin = time.monotonic()
    produce(wire, table_id, batch())
    for reader, request_id in zip(readers, waiting, strict=True):
        assert checked_bucket(reader.receive_answer(request_id, api_keys.FETCH_LOG)).high_watermark == 3
        reader.socket.close()
    assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2


def test_min_bytes_are_waited_for(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    enough = 3 * len(batch(1))
    request = fetch_request(table_id, (0, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=enough)
    begin = time.monotonic()
    with server.connect() as writer:
        waiting = wire.send(api_keys.FETCH_LOG, request)
        wire.call(api_keys.METADATA, pb.MetadataRequest())
        for _ in range(3):
            produce(writer, table_id, batch(1))
        response = wire.receive_answer(waiting, api_keys.FETCH_LOG)
    assert len(checked_bucket(response).records) >= enough
    assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2


def test_min_bytes_count_over_all_buckets_and_reads_nothing(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire, buckets=2)
    produce(wire, table_id, batch(3), bucket=1)
    size_bytes = len(batch(3))
    request = fetch_request(
        table_id, (0, 0), (1, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=8 * size_bytes, bucket_bytes=100 * size_bytes
    )
    reads = 0
    log = server.look(lambda: server.server.context.storage.bucket(TableBucket(table_id, 0)))
    read = log.read

    def counted(*arguments: int, **options: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(*arguments, **options)

    log.read = counted  # type: ignore[method-assign]
    with server.connect() as writer:
        waiting = wire.send(api_keys.FETCH_LOG, request)
        for _ in range(7):
            assert reads == 0
            produce(writer, table_id, batch(3))
        response = wire.receive_answer(waiting, api_keys.FETCH_LOG)
    assert len(headers(checked_bucket(response, 0).records)) == 7
    assert len(headers(checked_bucket(response, 1).records)) == 1
    assert reads == 1


def test_min_bytes_do_not_wait_for_a_segment_that_is_full(tmp_path: Path) -> None:
    with RunningServer(tmp_path, segment_size_bytes=10_000) as server, server.connect() as wire:
        table_id = create_table(wire)
        for _ in range(40):
            produce(wire, table_id, batch(10))
        begin = time.monotonic()
        answer = fetch(wire, table_id, 0, max_wait_ms=LONG_WAIT_MS, min_bytes=100_000)
        assert headers(answer.records)
        assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2


@pytest.mark.parametrize(
    "options", [{}, {"max_wait_ms": LONG_WAIT_MS}, {"max_wait_ms": 0, "min_bytes": 1}, {"min_bytes": 1}]
)
def test_without_data_and_time_the_answer_is_empty(wire: Wire, options: dict[str, int]) -> None:
    table_id = create_table(wire)
    begin = time.monotonic()
    assert fetch(wire, table_id, 0, **options).records == b""
    assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2


def test_a_wait_ends_when_its_time_is_over(wire: Wire) -> None:
    table_id = create_table(wire)
    begin = time.monotonic()
    assert fetch(wire, table_id, 0, max_wait_ms=200, min_bytes=1).records == b""
    assert time.monotonic() - begin >= 0.2


def test_dropping_the_table_ends_a_wait(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    with server.connect() as other:
        waiting = wire.send(api_keys.FETCH_LOG, fetch_request(table_id, (0, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=1))
        wire.call(api_keys.METADATA, pb.MetadataRequest())
        other.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
        begin = time.monotonic()
        with pytest.raises(WireError) as raised:
            checked_bucket(wire.receive_answer(waiting, api_keys.FETCH_LOG))
        assert raised.value.code == 21
        assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2


def test_a_reader_that_hangs_up_leaves_nothing_behind(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, batch())
    with server.connect() as reader:
        request = fetch_request(table_id, (0, 3), max_wait_ms=LONG_WAIT_MS, min_bytes=1)
        for _ in range(10):
            reader.send(api_keys.FETCH_LOG, request)
        reader.call(api_keys.METADATA, pb.MetadataRequest())
        assert _waiters(server, table_id) == 10
    deadline = time.monotonic() + 10
    while _waiters(server, table_id) and time.monotonic() < deadline:
        wire.call(api_keys.METADATA, pb.MetadataRequest())
    assert _waiters(server, table_id) == 0
    assert produce(wire, table_id, batch()) == 3


def _waiters(server: RunningServer, table_id: int) -> int:
    from fluss.model.paths import TableBucket

    storage = server.server.context.storage
    return server.look(lambda: len(storage.bucket(TableBucket(table_id, 0))._waiters))


def test_data_survives_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = create_table(wire)
        produce(wire, table_id, batch(4, writer_id=1, sequence=0))
        before = fetch(wire, table_id)
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert fetch(wire, table_id) == before
        assert produce(wire, table_id, batch(4, writer_id=1, sequence=0)) == 0
        assert produce(wire, table_id, batch(4, writer_id=1, sequence=1)) == 4


def test_a_lost_index_is_made_anew_beside_other_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To walk a segment takes seconds; a directory of an older format has no index that can be used."""
    rebuilt: list[threading.Thread] = []
    rebuild = Segment._rebuild_index

    def watched(segment: Segment) -> None:
        rebuilt.append(threading.current_thread())
        rebuild(segment)

    with RunningServer(tmp_path, segment_size_bytes=2_000) as server, server.connect() as wire:
        table_id = create_table(wire)
        for _ in range(40):
            produce(wire, table_id, batch(3))
    for index in tmp_path.rglob("*.index"):
        index.unlink()
    monkeypatch.setattr(segment_module, "REBUILT_BYTES_MAX", 0)
    monkeypatch.setattr(Segment, "_rebuild_index", watched)
    with RunningServer(tmp_path, segment_size_bytes=2_000) as server, server.connect() as wire:
        loop_thread = server.look(threading.current_thread)
        refusals = []
        offset = 0
        while offset < 120:
            try:
                offset = headers(fetch(wire, table_id, offset).records)[-1].next_offset
            except WireError as error:
                refusals.append(error)
        assert {refused.code for refused in refusals} == {ErrorCode.LOG_STORAGE_EXCEPTION}  # clients try again
        assert all("its index is being made anew; try again" in refused.text for refused in refusals)
        assert rebuilt
        assert loop_thread not in rebuilt
        rebuilt.clear()
        for index in tmp_path.rglob("*.index"):
            index.unlink()
        log = server.look(lambda: server.server.context.storage.bucket(TableBucket(table_id, 0)))
        for offset in range(0, 117, 3):  # those who can wait do
            data = asyncio.run_coroutine_threadsafe(log.read_indexed(offset, 1), server.loop).result(LONG_WAIT_MS)
            assert headers(data)[0].base_offset == offset
        assert rebuilt
        assert loop_thread not in rebuilt
