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

from fluss.client.client import ClientCore
from fluss.client.current import current_rows
from fluss.client.current.changes import ChangesCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, TABLE_ID
from tests.unit.client.snapshot_server import AFTER, BEFORE, DELETE, INSERT, SNAPSHOT_ROWS, SnapshotServer


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
