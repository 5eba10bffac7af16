"""`fluss doctor` as a process: what it finds in directories and on connections."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.testing import FlussServer
from tests.cli.tables import PATH, write_ten_batches
from tests.kit.command import fluss as command


def doctor(*args: object, status: int, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """What it finds, by what it looked at."""
    done = command("doctor", "-o", "json", *map(str, args), variables=env or {})
    assert (done.returncode, done.stderr) == (status, ""), done.stdout + done.stderr
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    for finding in findings:
        assert bool(finding["advice"]) == (finding["status"] != "ok")
    return {finding["check"]: finding for finding in findings}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    server = FlussServer(tmp_path_factory.mktemp("doctor") / "data").start()
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        write_ten_batches(connection)
    yield server
    server.terminate()


def test_a_connection_and_a_running_directory(server: FlussServer) -> None:
    found = doctor("--bootstrap", server.bootstrap_servers, status=0)
    assert "Flussbett server" in found["server"]["text"]
    assert found["tables"]["text"].startswith("1, all")
    assert found["clock"]["status"] == "ok"
    assert found["round trip"]["text"].endswith(("ms", "ms, which is slow"))
    found = doctor(server.data_dir, status=0)
    assert found["server"]["text"].startswith("running")
    assert found["logs"]["text"].startswith("1 of 1 buckets, 10 batches")


def test_directories_that_are_none(tmp_path: Path) -> None:
    assert doctor(tmp_path / "nowhere", status=1)["format"]["status"] == "problem"
    (tmp_path / "file").write_text("mine")
    assert "no 'format_version'" in doctor(tmp_path, status=1)["format"]["text"]
    assert doctor("-b", "127.0.0.1:1", status=1)["address"]["status"] == "problem"


def test_usage(tmp_path: Path) -> None:
    done = command("doctor", tmp_path, "-b", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not both" in done.stderr


def test_another_package_of_the_same_name(tmp_path: Path) -> None:
    rival = tmp_path / "pyfluss-1.0.dist-info"
    rival.mkdir()
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: pyfluss\nVersion: 1.0\n")
    found = doctor(status=0, env={"PYTHONPATH": str(tmp_path), "FLUSS_PURE": "1"})
    assert found["import name"]["status"] == "warning"
    assert "pyfluss 1.0" in found["import name"]["text"]
    assert found["kernels"]["status"] == "warning"
    assert "pyarrow" in found["versions"]["text"]


def test_damage_is_found(server: FlussServer, tmp_path: Path) -> None:
    """Last: the server of this module is stopped, and its files are damaged."""
    server.terminate()
    data_dir = server.data_dir
    found = doctor(data_dir, status=0)
    assert found["server"]["text"] == "not running"
    assert {finding["status"] for finding in found.values()} <= {"ok"}
    (log,) = data_dir.rglob("*.log")
    good, index = log.read_bytes(), log.with_suffix(".index").read_bytes()

    log.write_bytes(good + good[: len(good) // 20])
    torn = doctor(data_dir, status=0)["fluss.orders bucket 0"]
    assert torn["status"] == "warning"
    assert f"byte {len(good)}" in torn["text"]

    log.write_bytes(good[:60] + bytes([good[60] ^ 1]) + good[61:])
    damaged = doctor(data_dir, status=1)["fluss.orders bucket 0"]
    assert damaged["status"] == "problem"
    assert "corrupt batch at byte 0" in damaged["text"]
    assert log.name in damaged["text"]
    log.with_suffix(".index").unlink()  # Whole batches follow, so it is no interrupted write either.
    assert doctor(data_dir, status=1)["fluss.orders bucket 0"]["status"] == "problem"

    log.write_bytes(good[: len(good) // 2])
    assert "offsets" in doctor(data_dir, status=1)["fluss.orders bucket 0"]["advice"]
    log.unlink()
    assert "the file is missing" in doctor(data_dir, status=1)["fluss.orders bucket 0"]["text"]

    log.write_bytes(good)
    log.with_suffix(".index").write_bytes(index[:-1])
    assert "can't be used" in doctor(data_dir, status=0)["fluss.orders bucket 0"]["text"]
    log.with_suffix(".index").write_bytes(index)

    (data_dir / "tables" / "77").mkdir()
    assert "never heard of tables/77" in doctor(data_dir, status=1)["catalog"]["text"]
    (data_dir / "tables" / "77").rmdir()
    assert log.read_bytes() == good

    catalog = data_dir / "catalog.db"
    with closing(sqlite3.connect(catalog)) as database:
        database.execute("PRAGMA user_version = 99")
    assert "99" in doctor(data_dir, status=1)["catalog"]["text"]
    catalog.write_bytes(b"?" * 9_000)
    assert doctor(data_dir, status=1)["catalog"]["status"] == "problem"


def test_what_the_scrubber_found(tmp_path: Path) -> None:
    """As the server left it: the log is not read again by the server, but the doctor reads it, too."""
    import asyncio

    from fluss.storage.damage.scrub import Scrubber
    from fluss.storage.kv.snapshots import KvSnapshots
    from fluss.storage.store import Storage, StorageOptions

    async def scrub() -> None:
        storage = await Storage.open(StorageOptions(tmp_path / "data"))
        await Scrubber(storage, KvSnapshots(storage, storage.kv.bucket)).run_once()
        await storage.close()

    with FlussServer(tmp_path / "data") as server, fluss.sync.connect(server.bootstrap_servers) as connection:
        descriptor = fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int64())])), bucket_count=1)
        connection.get_admin().create_table(PATH, descriptor)
        writer = connection.get_table(PATH).new_append().create_writer()
        writer.write_arrow(pa.table({"id": range(10)}))
        writer.flush()
    assert "scrub" not in doctor(tmp_path / "data", status=0)
    asyncio.run(scrub())
    assert doctor(tmp_path / "data", status=0)["scrub"]["text"].startswith("last one ended ")
    (path,) = (tmp_path / "data").rglob("*.log")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    asyncio.run(scrub())
    found = doctor(tmp_path / "data", status=1)["scrub"]
    assert found["status"] == "problem"
    assert path.name in found["text"]
    assert "fluss repair" in found["advice"]
    data[-3] ^= 1
    path.write_bytes(data)
    assert doctor(tmp_path / "data", status=0)["scrub"]["status"] == "warning", "it was changed since"
