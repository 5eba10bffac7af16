"""Which files and hosts a server can name as its remote storage: segments of logs and snapshots of stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.scan.remote import s3_options
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.trust import Trust, UntrustedError
from fluss.protocol import messages_pb2 as pb
from tests.kit.lake.hostile import Listener
from tests.kit.scripted import PATH, TABLE_ID
from tests.unit.client.snapshot_server import INSERT, SNAPSHOT_ROWS, SnapshotServer
from tests.unit.client.tiered_server import ALL_ROWS, TieredServer, poll_ids, scanner_of

OF_TABLE = f"t-{TABLE_ID}"
GET_TOKEN = 1025


class LyingServer(TieredServer):
    """Names any folder and any segment."""

    named: str | None = None
    segment_id: str | None = None

    def answer_remote(self, item: pb.PbFetchLogBucketResponse, offset: int) -> None:
        super().answer_remote(item, offset)
        info = item.remote_log_fetch_info
        info.remote_log_tablet_dir = self.named or info.remote_log_tablet_dir
        for segment in info.remote_log_segments:
            segment.remote_log_segment_id = self.segment_id or segment.remote_log_segment_id


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LyingServer]:
    with LyingServer(tmp_path / "remote" / OF_TABLE) as running:
        assert isinstance(running, LyingServer)
        yield running


def read(server: LyingServer, **settings: str) -> list[int]:
    scanner = scanner_of(server, **settings)
    try:
        return poll_ids(scanner, ALL_ROWS)
    finally:
        scanner.close()


def test_segments_of_a_server_on_this_machine(server: LyingServer) -> None:
    assert read(server) == list(range(ALL_ROWS))


@pytest.mark.parametrize(
    "named",
    [
        "/etc",
        "/dev",
        f"{{folder}}/remote/{OF_TABLE}/../../elsewhere",
        "{folder}/elsewhere",
        f"{{folder}}/remote/{OF_TABLE}/x#/",
        f"file://{{folder}}/remote/%2e%2e/elsewhere/{OF_TABLE}",
        "s3://theirs/log",
        "hdfs://127.0.0.2:1/log",
    ],
)
def test_folders_that_a_server_may_not_name(server: LyingServer, tmp_path: Path, named: str) -> None:
    (tmp_path / "elsewhere" / OF_TABLE).mkdir(parents=True)
    (server.directory / "x#").mkdir()
    server.named = named.format(folder=tmp_path)
    with pytest.raises(UntrustedError, match=r'lake\.trusted = "'):
        read(server)


def test_a_folder_that_is_listed(server: LyingServer, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    server.directory.rename(elsewhere)
    server.named = elsewhere.as_uri()
    with pytest.raises(UntrustedError, match=f'lake.trusted = "{elsewhere}"'):
        read(server)
    assert read(server, **{"lake.trusted": str(elsewhere)}) == list(range(ALL_ROWS))


@pytest.mark.parametrize("segment_id", ["../../elsewhere", "..", "a/b", "a#b", "a%2fb", "x" * 200])
def test_segments_that_are_none(server: LyingServer, segment_id: str) -> None:
    server.segment_id = segment_id
    with pytest.raises(CorruptDataError, match="is not the id of a remote segment"):
        read(server)


def test_a_segment_that_is_a_link(server: LyingServer, tmp_path: Path) -> None:
    first = server.segment(0)
    first.rename(tmp_path / "moved")
    first.symlink_to(tmp_path / "moved")
    with pytest.raises(UntrustedError, match="leads out of the folder"):
        read(server)


def test_a_segment_that_is_a_pipe(server: LyingServer) -> None:
    pipe = server.segment(0)
    pipe.unlink()
    os.mkfifo(pipe)
    with pytest.raises(UntrustedError, match="a pipe"):
        read(server)
    with pytest.raises(OSError, match="No such device"):  # nobody waits at its other end
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)


def test_no_bucket_is_asked_for(server: LyingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the server hands out credentials and says where it is."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    foreign = Listener()
    token = pb.GetFileSystemSecurityTokenResponse(schema="s3", token=b"")
    token.addition_info.add(key="fs.s3a.endpoint", value=f"http://{foreign.address}")
    server.handlers[GET_TOKEN] = lambda _: token
    server.named = f"s3://bucket/log/fluss/{OF_TABLE}/0"
    with pytest.raises(UntrustedError, match=r'lake\.trusted = "s3://bucket"'):
        read(server)
    token.token = b'{"access_key_id": "theirs", "access_key_secret": "theirs"}'
    with pytest.raises(UntrustedError, match=f'lake.trusted = "s3://bucket,{foreign.address}"'):
        read(server, **{"lake.trusted": "s3://bucket"})
    foreign.close()
    assert foreign.count == 0


def test_own_credentials_sign_for_no_endpoint_of_a_server() -> None:
    token = pb.GetFileSystemSecurityTokenResponse(schema="s3", token=b"")
    token.addition_info.add(key="fs.s3a.endpoint", value="http://127.0.0.1:9000")
    token.addition_info.add(key="fs.s3a.endpoint.region", value="here")
    assert s3_options(token, Trust(listed=("127.0.0.1:9000",))) == {"region": "here"}


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[SnapshotServer]:
    with SnapshotServer(tmp_path / "remote") as running:
        assert isinstance(running, SnapshotServer)
        rows = [(number, f"n{number}") for number in range(SNAPSHOT_ROWS)]
        running.log = [(INSERT, *row) for row in rows]
        running.add_snapshot(rows, SNAPSHOT_ROWS)
        running.first_offset = SNAPSHOT_ROWS  # so the snapshot is needed
        yield running


def snapshot_rows(server: SnapshotServer) -> int:
    config = Config({"bootstrap.servers": server.address, "request-timeout-ms": 2_000})
    client = run(ClientCore.connect(config))
    try:
        table: TableCore = run(client.table(PATH))
        return int(run(table.read())[0].num_rows)
    finally:
        run(client.close())


class _Renamed:
    """A snapshot's answer with one file that is another."""

    def __init__(self, server: SnapshotServer, path: str, name: str) -> None:
        self._answer = server.snapshot
        self._path, self._name = path, name

    def __call__(self, request: pb.GetKvSnapshotMetadataRequest) -> pb.GetKvSnapshotMetadataResponse:
        answer = self._answer(request)
        answer.snapshot_files.add(remote_path=self._path, local_file_name=self._name)
        return answer


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/etc/passwd", "x.sst"),
        ("{snapshot}/../../../elsewhere", "x.sst"),
        ("{snapshot}/pipe", "x.sst"),
        ("{snapshot}/link", "x.sst"),
        ("s3://theirs/x.sst", "x.sst"),
        ("{snapshot}/CURRENT", ".."),
        ("{snapshot}/CURRENT", "../x.sst"),
        ("{snapshot}/CURRENT", ""),
    ],
)
def test_snapshots_that_a_server_may_not_name(snapshots: SnapshotServer, tmp_path: Path, path: str, name: str) -> None:
    assert snapshot_rows(snapshots) == SNAPSHOT_ROWS
    [(_, snapshot)] = snapshots.snapshots
    (tmp_path / "elsewhere").write_text("secret")
    snapshots.handlers[1024] = _Renamed(snapshots, path.format(snapshot=snapshot), name)
    if path.endswith("pipe"):
        os.mkfifo(snapshot.parent / "p")
        (snapshot.parent / "p").rename(snapshot / "pipe")
    elif path.endswith("link"):
        (snapshot / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FlussError, match=r"lake\.trusted|not opened|names a file"):
        snapshot_rows(snapshots)
