"""A scripted server whose log has segments in remote storage."""

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
from fluss.client.scan.scanner import LogScannerCore
from fluss.formats.arrow import payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches.log_batch import encode_batch, stamp
from fluss.model.config import Config
from fluss.model.predicates import Predicate
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
