"""ScanKv, LimitScan and statistics of primary-key tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluss.formats.rows.values import decode_value_batch
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from tests.kit.kv_requests import (
    Row,
    create_kv_table,
    kv_batch,
    limit_scan,
    put,
    rows_of,
    scan,
    scan_request,
)
from tests.kit.thread_server import RunningServer, Wire, WireError, create_table, eventually, fetch, path


def _scanned(response: pb.ScanKvResponse) -> list[Row]:
    return rows_of(decode_value_batch(response.records)) if response.HasField("records") else []


def _all(wire: Wire, table_id: int, **fields: Any) -> Iterator[tuple[pb.ScanKvResponse, list[Row]]]:
    response = scan(wire, scan_request(table_id, **fields))
    yield response, _scanned(response)
    sequence = 0
    while response.has_more_results:
        sequence += 1
        request = pb.ScanKvRequest(
            scanner_id=response.scanner_id, call_seq_id=sequence, batch_size_bytes=fields.get("batch_size_bytes", 1_000)
        )
        response = scan(wire, request)
        yield response, _scanned(response)


def _fill(wire: Wire, table_id: int, count: int = 1_000) -> list[Row]:
    rows: list[Row] = [(number, f"n{number}", number / 2) for number in range(count)]
    put(wire, table_id, kv_batch(rows))
    return rows


# --- ScanKv


@pytest.mark.parametrize("batch_size_bytes", [1, 500, 1_000_000])
def test_a_scan_has_every_row_once_in_batches_of_the_size_asked_for(wire: Wire, batch_size_bytes: int) -> None:
    table_id = create_kv_table(wire)
    rows = _fill(wire, table_id, 100)
    batches = list(_all(wire, table_id, batch_size_bytes=batch_size_bytes))
    assert sorted(row for _, found in batches for row in found) == rows
    first, last = batches[0][0], batches[-1][0]
    assert first.log_offset == 100
    assert not any(response.HasField("log_offset") for response, _ in batches[1:])
    assert not last.has_more_results
    assert len(batches) == {1: 100, 500: len(batches), 1_000_000: 1}[batch_size_bytes]
    assert all(len(response.records) < 2 * batch_size_bytes + 100 for response, _ in batches)


def test_a_scan_stays_as_it_began(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    rows = _fill(wire, table_id, 100)
    batches = _all(wire, table_id, batch_size_bytes=200)
    found = next(batches)[1]
    put(wire, table_id, kv_batch([(1_000, "new", 1.0), (50, "changed", 1.0)], list(range(60, 100))))
    for _, more in batches:
        found += more
    assert sorted(found) == rows


def test_an_empty_bucket_needs_no_second_request(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([], [5]))
    response = scan(wire, scan_request(table_id))
    assert response == pb.ScanKvResponse(has_more_results=False, log_offset=1)
    assert server.look(lambda: server.server.context.scanners.count) == 0


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (7, 7), (100, 100), (101, 100), (0, 100), (-5, 100)])
def test_the_limit_of_a_scan(server: RunningServer, wire: Wire, limit: int, count: int) -> None:
    table_id = create_kv_table(wire)
    _fill(wire, table_id, 100)
    assert sum(len(found) for _, found in _all(wire, table_id, limit=limit, batch_size_bytes=300)) == count
    assert server.look(lambda: server.server.context.scanners.count) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"bucket_scan_req": None},
        {"scanner_id": b"x"},
        {"close_scanner": True},
        {"batch_size_bytes": None},
        {"batch_size_bytes": 0},
        {"batch_size_bytes": -1},
        {"call_seq_id": None},
        {"call_seq_id": 1},
        {"call_seq_id": -1},
    ],
)
def test_requests_that_make_no_sense(server: RunningServer, wire: Wire, fields: dict[str, Any]) -> None:
    table_id = create_kv_table(wire)
    _fill(wire, table_id, 10)
    with pytest.raises(WireError) as raised:
        scan(wire, scan_request(table_id, **fields))
    assert raised.value.code == 68
    assert server.look(lambda: server.server.context.scanners.count) == 0


def test_wrong_tables(wire: Wire) -> None:
    log_table_id = create_table(wire)
    for table_id, code in ((log_table_id, 20), (log_table_id + 1, 21)):
        with pytest.raises(WireError) as raised:
            scan(wire, scan_request(table_id))
        assert raised.value.code == code


def _begin(wire: Wire, table_id: int) -> bytes:
    response = scan(wire, scan_request(table_id, batch_size_bytes=1))
    assert response.has_more_results
    return response.scanner_id


def _go_on(scanner_id: bytes, sequence: int = 1) -> pb.ScanKvRequest:
    return pb.ScanKvRequest(scanner_id=scanner_id, call_seq_id=sequence, batch_size_bytes=1)


@pytest.mark.parametrize("sequence", [0, 2, -1, 2**31 - 1])
def test_a_wrong_sequence_ends_the_scan(server: RunningServer, wire: Wire, sequence: int) -> None:
    table_id = create_kv_table(wire)
    _fill(wire, table_id, 10)
    scanner_id = _begin(wire, table_id)
    for request, code in ((_go_on(scanner_id, sequence), 68), (_go_on(scanner_id), 67)):
        with pytest.raises(WireError) as raised:
            scan(wire, request)
        assert raised.value.code == code
    assert server.look(lambda: server.server.context.scanners.count) == 0


@pytest.mark.parametrize("scanner_id", [b"", b"\0" * 16, b"x" * 100_000])
def test_scanners_that_there_are_not(wire: Wire, scanner_id: bytes) -> None:
    with pytest.raises(WireError) as raised:
        scan(wire, _go_on(scanner_id))
    assert raised.value.code == 67
    # A client may close what it has read to the end.
    scan(wire, pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True))


def test_scanners_of_others_can_be_neither_used_nor_closed(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    _fill(wire, table_id, 10)
    scanner_id = _begin(wire, table_id)
    with server.connect() as other:
        with pytest.raises(WireError) as raised:
            scan(other, _go_on(scanner_id))
        assert raised.value.code == 67
        scan(other, pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True))
    assert len(_scanned(scan(wire, _go_on(scanner_id)))) == 1


def test_a_closed_scanner_is_gone(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    _fill(wire, table_id, 10)
    scanner_id = _begin(wire, table_id)
    response = scan(wire, pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True))
    assert (response.scanner_id, response.has_more_results) == (scanner_id, False)
    assert server.look(lambda: server.server.context.scanners.count) == 0
    with pytest.raises(WireError) as raised:
        scan(wire, _go_on(scanner_id))
    assert raised.value.code == 67


def test_scanners_end_with_their_connection(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    _fill(wire, table_id, 10)
    with server.connect() as other:
        for _ in range(5):
            _begin(other, table_id)
        assert server.look(lambda: server.server.context.scanners.count) == 5
    eventually(lambda: server.look(lambda: server.server.context.scanners.count) == 0)


def test_scanners_that_nobody_uses_expire(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(scanner_idle_ms_max=20)) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        _fill(wire, table_id, 10)
        scanner_id = _begin(wire, table_id)
        eventually(lambda: server.look(lambda: server.server.context.scanners.count) == 0)
        with pytest.raises(WireError, match="20 ms") as raised:
            scan(wire, _go_on(scanner_id))
        assert raised.value.code == 66


@pytest.mark.parametrize("limits", [{"scanners_total_max": 3}, {"scanners_per_connection_max": 3}])
def test_too_many_scanners(tmp_path: Path, limits: dict[str, int]) -> None:
    with RunningServer(tmp_path, limits=Limits(**limits)) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        _fill(wire, table_id, 10)
        scanner_id, _, _ = (_begin(wire, table_id) for _ in range(3))
        with pytest.raises(WireError) as raised:
            _begin(wire, table_id)
        assert raised.value.code == 69
        scan(wire, pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True))
        _begin(wire, table_id)


def test_the_size_of_answers_is_bounded(tmp_path: Path) -> None:
    limits = Limits(scan_kv_bytes_max=1_000, scan_kv_rows_max=7)
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        rows = _fill(wire, table_id, 100)
        batches = list(_all(wire, table_id, batch_size_bytes=2**31 - 1))
        assert sorted(row for _, found in batches for row in found) == rows
        assert all(len(response.records) < 1_100 and len(found) <= 7 for response, found in batches)


def test_a_table_dropped_under_a_scan(server: RunningServer, wire: Wire) -> None:
    table_id = create_kv_table(wire)
    _fill(wire, table_id, 10)
    scanner_id = _begin(wire, table_id)
    wire.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
    with pytest.raises(WireError) as raised:
        scan(wire, _go_on(scanner_id))
    assert raised.value.code > 0
    assert server.look(lambda: server.server.context.scanners.count) == 0


def test_a_server_stops_with_scans_open(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        _fill(wire, table_id, 10)
        _begin(wire, table_id)
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert len([row for _, found in _all(wire, table_id) for row in found]) == 10


# --- LimitScan


def test_the_first_rows_by_key(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    assert limit_scan(wire, table_id, 5).hex() == "050000000000000000"
    rows = _fill(wire, table_id, 100)
    assert rows_of(decode_value_batch(limit_scan(wire, table_id, 5))) == rows[:5]
    assert len(decode_value_batch(limit_scan(wire, table_id, 2**31 - 1))) == 100


def test_limits_of_limit_scans(tmp_path: Path) -> None:
    limits = Limits(limit_scan_rows_max=50, limit_scan_bytes_max=10_000)
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as wire:
        table_id = create_kv_table(wire)
        put(wire, table_id, kv_batch([(number, "x" * 300, 1.0) for number in range(100)]))
        for limit in (51, 40):
            with pytest.raises(WireError) as raised:
                limit_scan(wire, table_id, limit)
            assert raised.value.code == 13
        assert len(decode_value_batch(limit_scan(wire, table_id, 20))) == 20
        with pytest.raises(WireError) as raised:
            limit_scan(wire, table_id, 0)
        assert raised.value.code == 2


# --- GetTableStats


def _row_counts(wire: Wire, table_id: int, *buckets: int) -> list[tuple[int, int]]:
    request = pb.GetTableStatsRequest(table_id=table_id)
    for bucket_id in buckets:
        request.buckets_req.add(bucket_id=bucket_id)
    entries = wire.call(api_keys.GET_TABLE_STATS, request).buckets_resp
    return [(entry.row_count, entry.error_code) for entry in entries]


def test_rows_are_counted(wire: Wire) -> None:
    table_id = create_kv_table(wire, buckets=2)
    _fill(wire, table_id, 100)
    put(wire, table_id, kv_batch([(1, "x", 1.0), (1_000, "y", 1.0)], [2, 3, 4, 5_000]))
    assert _row_counts(wire, table_id, 0, 1, 7) == [(98, 0), (0, 0), (0, 21)]


def test_rows_are_not_counted_without_full_changes(wire: Wire) -> None:
    table_id = create_kv_table(wire, properties={"table.changelog.image": "WAL"})
    _fill(wire, table_id, 100)
    assert _row_counts(wire, table_id, 0) == [(0, 15)]


# --- fetching the changelog


def test_a_changelog_can_be_projected(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    put(wire, table_id, kv_batch([(1, "a", 1.0)]))
    put(wire, table_id, kv_batch([(1, "b", 1.0)]))
    put(wire, table_id, kv_batch([], [9]))
    whole, projected = fetch(wire, table_id), fetch(wire, table_id, projection=[0, 2])
    assert projected.high_watermark == whole.high_watermark == 4
    assert 0 < len(projected.records) < len(whole.records)
