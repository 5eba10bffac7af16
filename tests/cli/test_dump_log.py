"""`fluss dump-log` as a process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.model.schema import Schema
from fluss.testing import FlussServer
from tests.kit.command import fluss as command

LOG: Final = fluss.TablePath("fluss", "events")
ROWS: Final = fluss.TablePath("fluss", "orders")
INDEXED: Final = fluss.TablePath("fluss", "indexed")
FIELDS: Final = [("id", pa.int64()), ("text", pa.string())]
BATCHES: Final = 6


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return command("dump-log", *map(str, args))


def dumped(*args: object) -> list[dict[str, Any]]:
    done = run("-o", "json", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def fill(connection: fluss.sync.FlussConnection) -> None:
    admin = connection.get_admin()
    admin.create_table(LOG, fluss.TableDescriptor(Schema(pa.schema(FIELDS)), bucket_count=1))
    indexed = {"table.log.format": "INDEXED"}
    admin.create_table(INDEXED, fluss.TableDescriptor(Schema(pa.schema(FIELDS)), bucket_count=1, properties=indexed))
    keyed = Schema(pa.schema(FIELDS), primary_keys=["id"])
    admin.create_table(ROWS, fluss.TableDescriptor(keyed, bucket_count=1))
    for path in (LOG, INDEXED):
        writer = connection.get_table(path).new_append().create_writer()
        for number in range(BATCHES):
            writer.write_arrow(pa.table({"id": [number] * 3, "text": ["a", "b", None]}))
            writer.flush()
    admin.alter_table(LOG, add_columns=[("more", pa.int32())])
    writer = connection.get_table(LOG).new_append().create_writer()
    writer.write_arrow(pa.table({"id": [99], "text": ["new"], "more": pa.array([5], pa.int32())}))
    writer.flush()
    upsert = connection.get_table(ROWS).new_upsert().create_writer()
    for text in ("first", "second"):
        upsert.upsert({"id": 1, "text": text})
        upsert.flush()
    upsert.delete({"id": 1})
    upsert.flush()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[fluss.TablePath, Path]:
    """The directory of each table's only bucket; the server is still running when they are read first."""
    with FlussServer(tmp_path_factory.mktemp("dump") / "data") as server:
        with fluss.sync.connect(server.bootstrap_servers) as connection:
            fill(connection)
            admin = connection.get_admin()
            found = {
                path: server.data_dir / "tables" / str(admin.get_table_info(path).table_id) / "0"
                for path in (LOG, ROWS, INDEXED)
            }
        assert len(dumped(found[LOG], "--rows")) == 3 * BATCHES + 1
    return found


def test_headers(tables: dict[fluss.TablePath, Path]) -> None:
    found = dumped(tables[LOG])
    assert [item["offset"] for item in found] == [3 * number for number in range(BATCHES + 1)]
    assert all(item["crc_ok"] for item in found)
    assert [item["rows"] for item in found] == [3] * BATCHES + [1]
    assert [item["schema_id"] for item in found] == [1] * BATCHES + [2]
    assert [item["sequence"] for item in found][:BATCHES] == list(range(BATCHES))
    assert found[0]["position"] + found[0]["bytes"] == found[1]["position"]
    (file,) = tables[LOG].glob("*.log")
    assert dumped(file) == found
    assert dumped(file, "--from", 7, "--limit", 2) == found[2:4]
    assert "offset" in run(file, "--limit", 1).stdout


def test_rows(tables: dict[fluss.TablePath, Path]) -> None:
    found = dumped(tables[LOG], "--rows", "--from", 3 * BATCHES - 1)
    assert [(item["_offset"], item["_change"], item["id"], item["text"], item["more"]) for item in found] == [
        (3 * BATCHES - 1, "+A", BATCHES - 1, None, None),
        (3 * BATCHES, "+A", 99, "new", 5),
    ]
    changes = dumped(tables[ROWS], "--rows")
    assert [(item["_change"], item["text"]) for item in changes] == [
        ("+I", "first"),
        ("-U", "first"),
        ("+U", "second"),
        ("-D", "second"),
    ]
    assert [item["id"] for item in dumped(tables[INDEXED], "--rows", "--limit", 4)] == [0, 0, 0, 1]


def test_damage(tables: dict[fluss.TablePath, Path], tmp_path: Path) -> None:
    (file,) = tables[LOG].glob("*.log")
    third = dumped(file)[2]["position"]
    copy = tmp_path / file.name
    data = bytearray(file.read_bytes())
    data[third + 60] ^= 1
    copy.write_bytes(data)
    done = run("-o", "json", copy)
    assert done.returncode == 1
    assert [json.loads(line)["crc_ok"] for line in done.stdout.splitlines()] == [True, True, False]
    assert done.stderr.startswith(f"fluss dump-log: {file.name}: corrupt batch at byte {third}: ")
    # Where not even a header can be read.
    copy.write_bytes(file.read_bytes()[: third + 20])
    done = run("-o", "json", copy)
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2)
    assert f"at byte {third}" in done.stderr


def test_what_can_not_be_read(tables: dict[fluss.TablePath, Path], tmp_path: Path) -> None:
    (file,) = tables[LOG].glob("*.log")
    alone = shutil.copy(file, tmp_path / file.name)
    (tmp_path / "text.log").write_text("no batches")
    for args, code, text in (
        ([tmp_path / "nowhere"], 1, "There is no file"),
        ([tmp_path / "text.log"], 1, "is not a log file"),
        ([tables[LOG].parent], 1, "has no log files"),
        ([alone, "--rows"], 1, "lies in no data directory"),
    ):
        done = run(*args)
        assert (done.returncode, done.stdout) == (code, ""), args
        assert text in done.stderr
        assert "Traceback" not in done.stderr
