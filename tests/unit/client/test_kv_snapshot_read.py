"""Current rows from a KV snapshot and the changes since, from a server without ScanKv."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rocksdict import Options, Rdict

from fluss.client.client import ClientCore
from fluss.client.current import current_rows
from fluss.client.current.changes import ChangesCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches.log_batch import encode_batch, stamp
from fluss.formats.rows.keys import primary_key_encoder
from fluss.formats.rows.values import ValueCodec
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.schema import Schema
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, TABLE_ID, Refuse, ScriptedServer

SCAN_KV = 1061
TABLE = TableDescriptor(Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), ["id"]), bucket_count=1)
CODEC = ValueCodec({1: TABLE.schema})
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
SNAPSHOT_ROWS = 100

Change = tuple[int, int, str]
"""Change type, id, name."""


def rows(items: list[tuple[int, str]]) -> pa.RecordBatch:
    ids, names = [item[0] for item in items], [item[1] for item in items]
    return pa.record_batch([pa.array(ids, pa.int32()), pa.array(names, pa.string())], schema=CODEC.arrow_schema)


class SnapshotServer(ScriptedServer):
    """Like Apache Fluss 0.9: a changelog, and snapshots as RocksDB files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(TABLE)
        self.directory = directory
        self.first_offset = 0
        self.log: list[Change] = []
        self.snapshots: list[tuple[int, Path]] = []
        """Log offset and directory of each, by id; one is told after the other, the last one for good."""
        self.handlers |= {1015: self.fetch, 1021: self.offsets, 1023: self.latest_snapshots, 1024: self.snapshot}

    def api_versions(self, request: pb.ApiVersionsRequest) -> pb.ApiVersionsResponse:
        every = super().api_versions(request)
        answer = pb.ApiVersionsResponse()
        answer.api_versions.extend(item for item in every.api_versions if item.api_key != SCAN_KV)
        return answer

    def add_snapshot(self, items: list[tuple[int, str]], log_offset: int) -> Path:
        path = self.directory / f"t-{TABLE_ID}" / f"snap-{len(self.snapshots)}"
        store = Rdict(str(path), Options(raw_mode=True))
        keys = primary_key_encoder(TABLE).encode(rows(items)).to_pylist()
        for key, value in zip(keys, CODEC.encode(rows(items)), strict=True):
            store[key] = value
        store.flush()
        store.close()
        self.snapshots.append((log_offset, path))
        return path

    def latest_snapshots(self, _: pb.GetLatestKvSnapshotsRequest) -> pb.GetLatestKvSnapshotsResponse:
        answer = pb.GetLatestKvSnapshotsResponse(table_id=TABLE_ID)
        item = answer.latest_snapshots.add(bucket_id=0)
        if self.snapshots:
            snapshot_id = min(self.count(1023) - 1, len(self.snapshots) - 1)
            item.snapshot_id, item.log_offset = snapshot_id, self.snapshots[snapshot_id][0]
        return answer

    def snapshot(self, request: pb.GetKvSnapshotMetadataRequest) -> pb.GetKvSnapshotMetadataResponse:
        log_offset, path = self.snapshots[request.snapshot_id]
        if not path.exists():
            raise Refuse(ErrorCode.KV_SNAPSHOT_NOT_EXIST, "no such snapshot")
        answer = pb.GetKvSnapshotMetadataResponse(log_offset=log_offset)
        for name in sorted(os.listdir(path)):
            answer.snapshot_files.add(remote_path=str(path / name), local_file_name=name)
        return answer

    def offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        answer = pb.ListOffsetsResponse()
        offset = self.first_offset if request.offset_type == 0 else len(self.log)
        answer.buckets_resp.add(bucket_id=0, offset=offset)
        return answer

    def fetch(self, request: pb.FetchLogRequest) -> pb.FetchLogResponse:
        """Each change is a batch of its own."""
        answer = pb.FetchLogResponse()
        item = answer.tables_resp.add(table_id=TABLE_ID).buckets_resp.add(bucket_id=0, high_watermark=len(self.log))
        start = request.tables_req[0].buckets_req[0].fetch_offset
        assert start >= self.first_offset
        for offset, (kind, key, name) in enumerate(self.log[start : start + 50], start):
            payload = arrow_payload.encode(rows([(key, name)]), Codec())
            batch = encode_batch(payload, schema_id=1, record_count=1, change_types=bytes([kind]))
            stamp(batch, 0, offset, 1234)
            item.records += bytes(batch)
        return answer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SnapshotServer]:
    with SnapshotServer(tmp_path) as running:
        assert isinstance(running, SnapshotServer)
        running.log = [(INSERT, key, f"n{key}") for key in range(SNAPSHOT_ROWS)]
        yield running


@pytest.fixture
def table(server: SnapshotServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableCore]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    settings = {"bootstrap.servers": server.address, "request-timeout-ms": "3000"}
    client = run(ClientCore.connect(Config(settings)))
    yield run(client.table(PATH))
    run(client.close())
    assert os.listdir(scratch) == []


def found(table: TableCore) -> dict[int, str]:
    read, offsets = run(table.read())
    assert list(offsets) == [TableBucket(TABLE_ID, 0)]
    rows = dict(zip(read["id"].to_pylist(), read["name"].to_pylist(), strict=True))
    assert len(rows) == read.num_rows
    return rows


EVERY = {key: f"n{key}" for key in range(SNAPSHOT_ROWS)}


def poll(changes: ChangesCore) -> pa.Table:
    found = run(changes.poll(3_000))
    changes.taken()
    return found


def test_without_a_snapshot_the_changes_are_folded(table: TableCore, server: SnapshotServer) -> None:
    server.log += [(BEFORE, 5, "n5"), (AFTER, 5, "new"), (DELETE, 7, "n7")]
    assert found(table) == {key: name for key, name in (EVERY | {5: "new"}).items() if key != 7}


@pytest.mark.parametrize("chunk_rows_max", [1, 7, 50_000])
def test_a_snapshot_and_the_changes_since(
    table: TableCore, server: SnapshotServer, monkeypatch: pytest.MonkeyPatch, chunk_rows_max: int
) -> None:
    monkeypatch.setattr(current_rows, "CHUNK_ROWS_MAX", chunk_rows_max)
    server.add_snapshot(list(EVERY.items()), SNAPSHOT_ROWS)
    server.first_offset = SNAPSHOT_ROWS  # what is in the snapshot need not be in the log
    assert found(table) == EVERY
    server.log += [
        (BEFORE, 0, "n0"),
        (AFTER, 0, "zero"),
        (DELETE, 99, "n99"),
        (INSERT, 1_000, "end"),
        (DELETE, 4, "n4"),
    ]
    expected = EVERY | {0: "zero", 1_000: "end"}
    del expected[99], expected[4]
    assert found(table) == expected


def test_a_reader_stops_and_goes_on_anywhere_in_the_rows(
    table: TableCore, server: SnapshotServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_rows, "CHUNK_ROWS_MAX", 9)
    server.add_snapshot(list(EVERY.items()), SNAPSHOT_ROWS)
    state: dict[int, str] = {}
    expected = dict(EVERY)
    position: Any = "snapshot"
    for step in range(0, 90, 3):
        changes = table.changes()
        run(changes.start(position))
        for change in poll(changes).to_pylist():
            key = change["id"]
            if change["_change_type"] in ("-U", "-D"):
                assert state.pop(key) == change["name"]
            else:
                assert key not in state
                state[key] = change["name"]
        position = changes.position
        changes.close()
        server.log += [(BEFORE, step, expected[step]), (AFTER, step, "new"), (DELETE, step + 1, expected[step + 1])]
        expected[step] = "new"
        del expected[step + 1]
    changes = table.changes()
    run(changes.start(position))
    while state != expected:
        for change in poll(changes).to_pylist():
            if change["_change_type"] in ("-U", "-D"):
                del state[change["id"]]
            else:
                state[change["id"]] = change["name"]
    changes.close()


def test_a_snapshot_that_is_replaced_meanwhile(table: TableCore, server: SnapshotServer) -> None:
    first = server.add_snapshot([(1, "old")], 2)
    shutil.rmtree(first)
    second = server.add_snapshot([(1, "old")], 2)
    (second / "CURRENT").unlink()
    (second / "CURRENT").symlink_to(second / "nowhere")  # told of, and gone when it is copied
    server.add_snapshot(list(EVERY.items()), SNAPSHOT_ROWS)
    assert found(table) == EVERY
    assert server.count(1023) == 3


def test_a_snapshot_that_is_none(table: TableCore, server: SnapshotServer) -> None:
    path = server.add_snapshot(list(EVERY.items()), SNAPSHOT_ROWS)
    (path / "CURRENT").write_bytes(b"rubbish")
    with pytest.raises(FlussError, match="Can't open a KV snapshot"):
        run(table.read())


def test_changes_whose_beginning_is_gone(table: TableCore, server: SnapshotServer) -> None:
    server.first_offset = 1
    with pytest.raises(InvalidRequestError, match="neither in its log nor in a snapshot"):
        run(table.read())


def test_a_snapshot_out_of_reach(table: TableCore, server: SnapshotServer) -> None:
    path = server.add_snapshot(list(EVERY.items()), SNAPSHOT_ROWS)

    def elsewhere(request: pb.GetKvSnapshotMetadataRequest) -> pb.GetKvSnapshotMetadataResponse:
        answer = server.snapshot(request)
        for item in answer.snapshot_files:
            item.remote_path = item.remote_path.replace(str(path), "/on/another/machine")
        return answer

    server.handlers[1024] = elsewhere
    assert found(table) == EVERY  # the log has it all
    server.first_offset = 1
    with pytest.raises(FlussError, match="/on/another/machine"):
        run(table.read())
