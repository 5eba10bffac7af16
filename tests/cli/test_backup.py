"""`fluss backup` and `fluss restore` as processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.testing import ApacheFluss, FlussServer
from tests.kit.command import fluss as run

PATH: Final = fluss.TablePath("fluss", "orders")
ROWS: Final = 500


def fails(*args: str | Path) -> str:
    """The one line that a command prints when it fails."""
    done = run(*args)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"fluss {args[0]}: ")
    return lines[0]


def fill(address: str) -> None:
    with fluss.sync.connect(address) as connection:
        schema = fluss.Schema(pa.schema([("id", pa.int64()), ("text", pa.string())]), primary_keys=["id"])
        connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=2))
        writer = connection.get_table(PATH).new_upsert().create_writer()
        writer.write_arrow(pa.table({"id": range(ROWS), "text": [f"row {number}" for number in range(ROWS)]}))
        writer.flush()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("backup") / "data") as server:
        fill(server.bootstrap_servers)
        yield server


def test_back_up_and_restore(server: FlussServer, tmp_path: Path) -> None:
    done = run("backup", "--bootstrap", server.bootstrap_servers, tmp_path / "copy")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path / 'copy'}: 1 tables, 2 buckets with rows" in done.stdout
    assert sum(item["end_offset"] for item in json.loads((tmp_path / "copy" / "backup.json").read_text())["buckets"])
    done = run("restore", tmp_path / "copy", tmp_path / "data")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"fluss server --data-dir {tmp_path / 'data'}" in done.stdout
    with FlussServer(tmp_path / "data") as restored, fluss.sync.connect(restored.bootstrap_servers) as connection:
        assert connection.get_admin().get_table_stats(PATH).row_count == ROWS
        lookuper = connection.get_table(PATH).new_lookup().create_lookuper()
        assert lookuper.lookup({"id": 77}) == {"id": 77, "text": "row 77"}
    assert "exists and is not an empty directory" in fails("restore", tmp_path / "copy", tmp_path / "data")
    again = fails("backup", "-b", server.bootstrap_servers, tmp_path / "copy")
    assert "exists and is not an empty directory" in again


def test_an_embedded_directory(tmp_path: Path) -> None:
    address = (tmp_path / "data").as_uri()
    fill(address)
    done = run("backup", "--bootstrap", address, tmp_path / "copy")
    assert (done.returncode, done.stderr) == (0, "")
    assert run("restore", tmp_path / "copy", tmp_path / "restored").returncode == 0
    with fluss.sync.connect((tmp_path / "restored").as_uri()) as connection:
        assert connection.get_admin().get_table_stats(PATH).row_count == ROWS
    assert "lie in each other" in fails("backup", "-b", address, tmp_path / "data" / "copy")


def test_what_is_no_backup(server: FlussServer, tmp_path: Path) -> None:
    assert "not a finished backup" in fails("restore", tmp_path, tmp_path / "data")
    assert "not a finished backup" in fails("restore", server.data_dir, tmp_path / "data")
    assert "not a finished backup" in fails("restore", tmp_path / "nowhere", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert "127.0.0.1:1" in fails("backup", "-b", "127.0.0.1:1", tmp_path / "copy")


@pytest.mark.compat
def test_apache_fluss_makes_none(apache_fluss: ApacheFluss, tmp_path: Path) -> None:
    line = fails("backup", "-b", apache_fluss.bootstrap_servers, tmp_path / "copy")
    assert "need a Flussbett server" in line
    done = run("doctor", "-b", apache_fluss.bootstrap_servers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "an Apache Fluss cluster" in done.stdout


def test_users_have_to_log_in(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert run("user", "add", users, "ann", input="secret\n").returncode == 0
    with FlussServer(tmp_path / "data", args=["--sasl-users", str(users)]) as server:
        where = ("--bootstrap", server.bootstrap_servers)
        assert "login" in fails("backup", *where, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        done = run("backup", *where, "--user", "ann", "--password", "secret", tmp_path / "copy")
        assert done.returncode == 0, done.stderr
