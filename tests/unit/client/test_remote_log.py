"""Remote segments from files: ranges, limits, damage, what lies below the offset asked for."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from fluss.client.runtime import run
from fluss.client.scan import remote
from fluss.client.scan.batches import Cursor, RawBatch
from fluss.client.scan.remote import RemoteFiles, RemoteLog, s3_options
from fluss.formats.arrow import payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches.log_batch import encode_batch, stamp
from fluss.model.config import Config
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.paths import TableBucket
from fluss.model.trust import Trust
from fluss.protocol import messages_pb2 as pb

BATCH_ROWS = 10
BATCHES = 8


def batch_bytes(first: int) -> bytes:
    rows = pa.record_batch({"id": list(range(first, first + BATCH_ROWS)), "text": ["x" * 50] * BATCH_ROWS})
    data = encode_batch(payload.encode(rows, Codec()), schema_id=1, record_count=BATCH_ROWS)
    stamp(data, 0, first, 1234)
    return bytes(data)


def write_segments(folder: Path, count: int) -> pb.PbRemoteLogFetchInfo:
    directory = folder / "log" / "db" / "t-1" / "0"
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=str(directory), first_start_pos=0)
    for number in range(count):
        start = number * BATCHES * BATCH_ROWS
        data = b"".join(batch_bytes(start + i * BATCH_ROWS) for i in range(BATCHES))
        path = directory / f"segment-{number}" / f"{start:020d}.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        info.remote_log_segments.add(
            remote_log_segment_id=f"segment-{number}",
            remote_log_start_offset=start,
            remote_log_end_offset=start + BATCHES * BATCH_ROWS,
            segment_size_in_bytes=len(data),
        )
    return info


def log_of(**settings: int) -> RemoteLog:
    client = SimpleNamespace(config=Config(settings), request_timeout_s=5.0)
    return RemoteLog(cast(Any, client))


def read(
    log: RemoteLog, cursor: Cursor, info: pb.PbRemoteLogFetchInfo, batches_max: int | None = None
) -> list[RawBatch]:
    async def all_batches() -> list[RawBatch]:
        batches: list[RawBatch] = []
        async for some in log.read(cursor, info):
            batches.extend(some)
            if batches_max is not None and len(batches) >= batches_max:
                break
        return batches

    try:
        return run(all_batches())
    finally:
        log.close()


def bases(batches: list[RawBatch]) -> list[int]:
    assert not any(batch.projected for batch in batches)
    return [batch.header.base_offset for batch in batches]


@pytest.mark.parametrize("range_bytes", [7, 60, 300, 1_000, 1 << 20])
def test_batches_come_whole_whatever_the_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    monkeypatch.setattr(remote, "RANGE_BYTES", range_bytes)
    info = write_segments(tmp_path, 3)
    cursor = Cursor(TableBucket(1, 0), 0)
    batches = read(log_of(), cursor, info)
    assert bases(batches) == list(range(0, 3 * BATCHES * BATCH_ROWS, BATCH_ROWS))
    assert cursor.fetch_offset == 3 * BATCHES * BATCH_ROWS
    for batch in batches:
        found = bytes(batch.records[batch.position : batch.position + batch.header.size_bytes])
        assert found == batch_bytes(batch.header.base_offset)


def test_reading_begins_at_the_batch_with_the_offset_and_stops_early(tmp_path: Path) -> None:
    info = write_segments(tmp_path, 2)
    info.first_start_pos = len(batch_bytes(0)) * 2
    cursor = Cursor(TableBucket(1, 0), 45, stop_offset=71)
    assert bases(read(log_of(), cursor, info)) == [40, 50, 60, 70]
    assert cursor.fetched


def test_the_earliest_offset_is_where_the_segments_begin(tmp_path: Path) -> None:
    info = write_segments(tmp_path, 2)
    del info.remote_log_segments[0]
    cursor = Cursor(TableBucket(1, 0), -2)
    assert bases(read(log_of(), cursor, info))[0] == BATCHES * BATCH_ROWS


def test_the_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RANGE_BYTES", 100)
    info = write_segments(tmp_path, 5)
    under_way: list[str] = []
    seen_ranges, seen_segments, seen_threads = [0], [0], set()
    lock = threading.Lock()
    real = RemoteFiles.read

    async def counted(self: RemoteFiles, file: pa.NativeFile, uri: str, position: int, size_bytes: int) -> bytes:
        under_way.append(uri)
        seen_ranges.append(max(under_way.count(other) for other in under_way))
        seen_segments.append(len(set(under_way)))
        data = await real(self, _Slow(file, seen_threads, lock), uri, position, size_bytes)
        under_way.remove(uri)
        return data

    monkeypatch.setattr(RemoteFiles, "read", counted)
    settings = {
        "scanner.remote-log.prefetch-num": 2,
        "scanner.remote-log.read-concurrency": 3,
        "remote-file.download-thread-num": 2,
    }
    log = log_of(**settings)
    log.buffer_bytes_max = 1_000
    assert len(read(log, Cursor(TableBucket(1, 0), 0), info)) == 5 * BATCHES
    assert max(seen_ranges) == 3
    assert max(seen_segments) <= 2
    assert len(seen_threads) <= 2


class _Slow:
    """A file whose reads take a moment, so that they overlap."""

    def __init__(self, file: pa.NativeFile, threads: set[int], lock: threading.Lock) -> None:
        self._file, self._threads, self._lock = file, threads, lock

    def read_at(self, size_bytes: int, position: int) -> bytes:
        with self._lock:
            self._threads.add(threading.get_ident())
        time.sleep(0.002)
        data: bytes = self._file.read_at(size_bytes, position)
        return data


def test_a_reader_that_stops_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RANGE_BYTES", 100)
    opened: list[pa.NativeFile] = []
    real = RemoteFiles.open

    async def noted(self: RemoteFiles, uri: str) -> pa.NativeFile:
        file = await real(self, uri)
        opened.append(file)
        return file

    monkeypatch.setattr(RemoteFiles, "open", noted)
    read(log_of(), Cursor(TableBucket(1, 0), 0), write_segments(tmp_path, 3), batches_max=2)
    read(log_of(), Cursor(TableBucket(1, 0), 0), write_segments(tmp_path / "other", 3))
    assert opened
    assert all(file.closed for file in opened)


def first_file(info: pb.PbRemoteLogFetchInfo) -> Path:
    return Path(info.remote_log_tablet_dir) / "segment-0" / f"{0:020d}.log"


@pytest.mark.parametrize("range_bytes", [100, 1 << 20])
def test_a_file_that_is_too_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    monkeypatch.setattr(remote, "RANGE_BYTES", range_bytes)
    info = write_segments(tmp_path, 1)
    first_file(info).write_bytes(first_file(info).read_bytes()[:-5])
    with pytest.raises(FlussError, match=r"00000000000000000000.log .*it ends at byte") as caught:
        read(log_of(), Cursor(TableBucket(1, 0), 0), info)
    assert caught.value.is_retriable


def test_a_batch_longer_than_its_file_is_an_error_before_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RANGE_BYTES", 100)
    info = write_segments(tmp_path, 1)
    data = bytearray(first_file(info).read_bytes())
    data[8:12] = (1 << 30).to_bytes(4, "little")
    first_file(info).write_bytes(data)
    with pytest.raises(CorruptDataError, match="ends inside a batch"):
        read(log_of(), Cursor(TableBucket(1, 0), 0), info)


def test_missing_offsets_are_an_error(tmp_path: Path) -> None:
    info = write_segments(tmp_path, 3)
    del info.remote_log_segments[1]
    with pytest.raises(CorruptDataError, match="has no offsets 80 to 159"):
        read(log_of(), Cursor(TableBucket(1, 0), 0), info)


def test_missing_files_may_come_back_and_a_missing_directory_does_not(tmp_path: Path) -> None:
    info = write_segments(tmp_path / "there", 1)
    first_file(info).unlink()
    with pytest.raises(FlussError, match="this machine must be able to reach it") as caught:
        read(log_of(), Cursor(TableBucket(1, 0), 0), info)
    assert caught.value.is_retriable
    info.remote_log_tablet_dir = f"file://{tmp_path}/elsewhere"
    with pytest.raises(FlussError, match="a directory that this machine lacks") as caught:
        read(log_of(), Cursor(TableBucket(1, 0), 0), info)
    assert not caught.value.is_retriable


def test_a_file_uri_is_read_like_a_path(tmp_path: Path) -> None:
    info = write_segments(tmp_path, 1)
    info.remote_log_tablet_dir = Path(info.remote_log_tablet_dir).as_uri() + "/"
    assert len(read(log_of(), Cursor(TableBucket(1, 0), 0), info)) == BATCHES


def test_s3_options_are_what_the_cluster_says() -> None:
    token = pb.GetFileSystemSecurityTokenResponse(
        schema="s3",
        token=b'{"access_key_id": "id", "access_key_secret": "secret", "security_token": "token"}',
    )
    token.addition_info.add(key="fs.s3a.endpoint", value="http://127.0.0.1:9000")
    token.addition_info.add(key="fs.s3a.path.style.access", value="true")
    assert s3_options(token, Trust(is_local=True)) == {
        "scheme": "http",
        "endpoint_override": "127.0.0.1:9000",
        "access_key": "id",
        "secret_key": "secret",
        "session_token": "token",
    }
    assert s3_options(pb.GetFileSystemSecurityTokenResponse(schema="s3", token=b""), Trust()) == {}
