"""A scripted server of a primary-key table whose snapshot lies in files."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from rocksdict import Options, Rdict

from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches.log_batch import encode_batch, stamp
from fluss.formats.rows.keys import primary_key_encoder
from fluss.formats.rows.values import ValueCodec
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode
from fluss.model.schema import Schema
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import TABLE_ID, Refuse, ScriptedServer

SCAN_KV = 1061
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
TABLE = TableDescriptor(Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), ["id"]), bucket_count=1)
CODEC = ValueCodec({1: TABLE.schema})
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
