"""Scans that lead through remote segments, over offsets a server has left out, and past a refused projection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.scan.batches import to_table
from fluss.client.scan.scanner import LogScannerCore
from fluss.formats.arrow import payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches.log_batch import encode_batch, parse_header, stamp
from fluss.model.config import Config
from fluss.model.errors import FlussError
from fluss.model.predicates import Predicate, col
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, TABLE_ID, ScriptedServer, descriptor

BATCH_ROWS = 10
SEGMENT_ROWS = 100
REMOTE_ROWS = 400
ALL_ROWS = 450


def batch(first: int, columns: list[str] | None = None) -> bytes:
    ids = list(range(first, first + BATCH_ROWS))
    rows = pa.record_batch({"id": ids, "name": [f"n{i}" for i in ids]}).select(columns or ["id", "name"])
    data = encode_batch(payload.encode(rows, Codec()), schema_id=1, record_count=BATCH_ROWS)
    stamp(data, 0, first, 1234)
    return bytes(data)


class TieredServer(ScriptedServer):
    """Has the first rows in remote segments, the rest in its own log."""

    def __init__(self, directory: Path) -> None:
        super().__init__(descriptor())
        self.directory = directory
        self.remote_rows = REMOTE_ROWS
        self.remote_answers = 0
        self.handlers |= {1015: self.fetch, 1021: self.offsets}
        for start in range(0, REMOTE_ROWS, SEGMENT_ROWS):
            path = self.segment(start)
            path.parent.mkdir(parents=True)
            path.write_bytes(b"".join(map(batch, range(start, start + SEGMENT_ROWS, BATCH_ROWS))))

    def segment(self, start: int) -> Path:
        return self.directory / f"s{start}" / f"{start:020d}.log"

    def offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        answer = pb.ListOffsetsResponse()
        answer.buckets_resp.add(bucket_id=0, offset=0 if request.offset_type == 0 else ALL_ROWS)
        return answer

    async def fetch(self, request: pb.FetchLogRequest) -> pb.FetchLogResponse:
        (table,) = request.tables_req
        answer = pb.FetchLogResponse()
        item = answer.tables_resp.add(table_id=TABLE_ID).buckets_resp.add(bucket_id=0, high_watermark=ALL_ROWS)
        offset = max(table.buckets_req[0].fetch_offset, 0)
        if offset < self.remote_rows:
            self.remote_answers += 1
            self.answer_remote(item, offset)
        elif offset < ALL_ROWS:
            columns = [["id", "name"][index] for index in table.projected_fields] or None
            item.records = b"".join(batch(first, columns) for first in range(offset // 10 * 10, ALL_ROWS, BATCH_ROWS))
        else:
            await asyncio.sleep(request.max_wait_ms / 1000)
        return answer

    def answer_remote(self, item: pb.PbFetchLogBucketResponse, offset: int) -> None:
        info = item.remote_log_fetch_info
        info.remote_log_tablet_dir = str(self.directory)
        info.first_start_pos = 0
        for start in range(offset // SEGMENT_ROWS * SEGMENT_ROWS, self.remote_rows, SEGMENT_ROWS):
            info.remote_log_segments.add(
                remote_log_segment_id=f"s{start}",
                remote_log_start_offset=start,
                remote_log_end_offset=start + SEGMENT_ROWS,
                segment_size_in_bytes=sum(len(batch(first)) for first in range(start, start + SEGMENT_ROWS, 10)),
            )


_opened: list[tuple[LogScannerCore, ClientCore]] = []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TieredServer]:
    with TieredServer(tmp_path / "remote" / f"t-{TABLE_ID}") as running:
        assert isinstance(running, TieredServer)
        yield running
        while _opened:
            scanner, client = _opened.pop()
            scanner.close()
            run(client.close())


def scanner_of(
    server: ScriptedServer,
    offset: int = -2,
    projection: list[int] | None = None,
    predicate: Predicate | None = None,
    **settings: Any,
) -> LogScannerCore:
    config = {"bootstrap.servers": server.address, "request-timeout-ms": 2_000, **settings}
    client = run(ClientCore.connect(Config(config)))
    scanner = run(client.table(PATH)).log_scanner(projection, predicate)
    _opened.append((scanner, client))
    run(scanner.subscribe({(None, 0): offset}))
    return scanner


def poll_ids(scanner: LogScannerCore, count: int, max_records: int | None = None) -> list[int]:
    ids: list[int] = []
    deadline = time.monotonic() + 20
    while len(ids) < count:
        assert time.monotonic() < deadline, len(ids)
        for fetched in run(scanner.poll_batches(1_000, max_records)):
            ids.extend(fetched.batch.column("id").to_pylist())
    return ids


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
