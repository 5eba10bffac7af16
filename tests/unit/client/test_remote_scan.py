"""Scans that lead through remote segments, over offsets a server has left out, and past a refused projection."""

from __future__ import annotations

import asyncio
import time

import pytest

from fluss.client.runtime import run
from fluss.client.scan.batches import to_table
from fluss.formats.batches.log_batch import parse_header
from fluss.model.errors import FlussError
from fluss.model.predicates import col
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import TABLE_ID
from tests.unit.client.tiered_server import ALL_ROWS, REMOTE_ROWS, TieredServer, batch, poll_ids, scanner_of, server

__all__ = ["server"]  # a fixture


@pytest.mark.parametrize("offset", [-2, 0, 5, 137, 399, 400, 444])
def test_polls_lead_from_remote_segments_to_the_log(server: TieredServer, offset: int) -> None:
    scanner = scanner_of(server, offset)
    first = max(offset, 0)
    assert poll_ids(scanner, ALL_ROWS - first, 7) == list(range(first, ALL_ROWS))
    assert list(scanner.positions().values()) == [ALL_ROWS]
    assert server.remote_answers == (1 if first < REMOTE_ROWS else 0)
    result = to_table(run(scanner.read_to_latest()), scanner.arrow_schema)
    assert result["id"].to_pylist() == list(range(first, ALL_ROWS))


def test_projection_and_filter_are_made_here_for_remote_segments(server: TieredServer) -> None:
    scanner = scanner_of(server, projection=[0])
    assert scanner.arrow_schema.names == ["id"]
    assert poll_ids(scanner, ALL_ROWS) == list(range(ALL_ROWS))
    chosen = scanner_of(server, projection=[0], predicate=col("name").is_in(["n7", "n333", "n448"]))
    result = to_table(run(chosen.read_to_latest()), chosen.arrow_schema)
    assert result.to_pydict() == {"id": [7, 333, 448]}


def test_a_small_buffer_slows_reading_down_and_loses_nothing(server: TieredServer) -> None:
    scanner = scanner_of(server, **{"scanner.log.fetch.max-bytes": 200})
    assert poll_ids(scanner, ALL_ROWS, 3) == list(range(ALL_ROWS))


def test_a_reader_that_tiering_has_overtaken_goes_on_in_remote_segments(server: TieredServer) -> None:
    server.remote_rows = 0
    original = server.fetch

    async def in_small_answers(request: pb.FetchLogRequest) -> pb.FetchLogResponse:
        answer = await original(request)
        for item in answer.tables_resp[0].buckets_resp:
            if item.records:
                item.records = item.records[: parse_header(item.records).size_bytes]
                server.remote_rows = REMOTE_ROWS
        return answer

    server.handlers[1015] = in_small_answers
    assert poll_ids(scanner_of(server, 0), ALL_ROWS) == list(range(ALL_ROWS))
    assert server.remote_answers == 1


def test_a_missing_file_is_looked_for_again(server: TieredServer) -> None:
    path = server.segment(200)
    data = path.read_bytes()
    path.unlink()
    scanner = scanner_of(server, 0)
    assert poll_ids(scanner, 200) == list(range(200))
    assert run(scanner.poll_batches(100, None)) == []
    path.write_bytes(data)
    assert poll_ids(scanner, ALL_ROWS - 200) == list(range(200, ALL_ROWS))


def test_a_file_that_stays_missing_is_an_error_that_names_it(server: TieredServer) -> None:
    server.segment(200).unlink()
    scanner = scanner_of(server, 250)
    began = time.monotonic()
    with pytest.raises(FlussError, match=r"offset 250: can't read .*/s200/00000000000000000200\.log"):
        while time.monotonic() - began < 20:
            run(scanner.poll_batches(100, None))
    assert 1.5 < time.monotonic() - began < 10
    assert server.remote_answers < 40  # tried again with pauses
    with pytest.raises(FlussError, match=r"00000000000000000200\.log"):
        run(scanner.read_to_latest())


def test_damage_in_a_remote_file_is_an_error_at_once(server: TieredServer) -> None:
    path = server.segment(100)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    scanner = scanner_of(server, 150)
    began = time.monotonic()
    with pytest.raises(FlussError, match=r"offset 190: .*CRC"):
        run(scanner.read_to_latest())
    assert time.monotonic() - began < 1.5


def test_a_scanner_closed_amid_remote_segments_ends_quietly(server: TieredServer) -> None:
    scanner = scanner_of(server, 0, **{"scanner.log.fetch.max-bytes": 200})
    run(scanner.poll_batches(1_000, 1))
    scanner.close()

    async def tasks() -> int:
        names = ("_read_remote", "_SegmentsRead")
        return sum(any(name in str(task.get_coro()) for name in names) for task in asyncio.all_tasks())

    deadline = time.monotonic() + 5
    while run(tasks()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- other answers ----


def test_a_server_that_left_batches_out_says_how_far_it_looked(server: TieredServer) -> None:
    server.remote_rows = 0
    asked: list[int] = []

    async def pruned(request: pb.FetchLogRequest) -> pb.FetchLogResponse:
        (table,) = request.tables_req
        assert table.filter_schema_id == 1
        assert table.filter_predicate.leaf.field_id == 0
        offset = table.buckets_req[0].fetch_offset
        asked.append(offset)
        answer = pb.FetchLogResponse()
        item = answer.tables_resp.add(table_id=TABLE_ID).buckets_resp.add(bucket_id=0, high_watermark=ALL_ROWS)
        if offset < 100:
            item.filtered_end_offset = 100
        elif offset < ALL_ROWS:
            item.records = batch(100)
            item.filtered_end_offset = ALL_ROWS
        else:
            await asyncio.sleep(request.max_wait_ms / 1000)
        return answer

    server.handlers[1015] = pruned
    scanner = scanner_of(server, 0, predicate=col("id") == 104)
    assert poll_ids(scanner, 1) == [104]
    run(scanner.poll_batches(0, None))
    assert list(scanner.positions().values()) == [ALL_ROWS]
    assert asked[:2] == [0, 100]
    (fetched,) = run(scanner.read_to_latest())
    assert fetched.base_offset == 104


def test_a_refused_projection_is_made_here(server: TieredServer) -> None:
    server.remote_rows = 0
    original = server.fetch
    projected: list[bool] = []

    async def refusing(request: pb.FetchLogRequest) -> pb.FetchLogResponse:
        (table,) = request.tables_req
        projected.append(table.projection_pushdown_enabled)
        if not table.projection_pushdown_enabled:
            assert not table.projected_fields
            return await original(request)
        answer = pb.FetchLogResponse()
        answer.tables_resp.add(table_id=TABLE_ID).buckets_resp.add(
            bucket_id=0, error_code=34, error_message="no such column in an older schema"
        )
        return answer

    server.handlers[1015] = refusing
    scanner = scanner_of(server, 0, projection=[0])
    result = to_table(run(scanner.read_to_latest()), scanner.arrow_schema)
    assert result.to_pydict() == {"id": list(range(ALL_ROWS))}
    assert projected == [True, False]
