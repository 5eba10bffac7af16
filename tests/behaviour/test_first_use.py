"""What a first row costs: pyarrow imports pandas, where it is installed, for many a call, and that takes a second."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import fluss.testing

_PROGRAM = """
import sys
import pyarrow as pa
import fluss.sync as fluss

columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
row = {"id": 1, "name": "a"}
with fluss.connect(sys.argv[1]) as connection:
    for name, keys in ("events", []), ("users", ["id"]):
        path = fluss.TablePath("fluss", name)
        schema = fluss.Schema(columns, primary_keys=keys)
        connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table = connection.get_table(path)
        with (table.new_upsert() if keys else table.new_append()).create_writer() as writer:
            writer.upsert(row) if keys else writer.append(row)
        scanner = table.new_scan().create_log_scanner()
        scanner.subscribe(0, 0)
        assert [record.row for record in scanner.poll(10_000)] == [row]
        assert table.new_scan().to_arrow().to_pylist() == [row]
        assert table.new_scan().filter((fluss.col("id") < 2) & fluss.col("name").is_in(["a"])).to_arrow().num_rows == 1
    lookuper = table.new_lookup().create_lookuper()
    assert lookuper.lookup([1]) == row
    assert lookuper.lookup_many([[2], [1]]).to_pylist() == [{"id": None, "name": None}, row]
    with table.changes() as changes:
        assert changes.poll(10_000).num_rows == 1
        with table.new_upsert().create_writer() as writer:
            writer.upsert({"id": 2, "name": "b"})
            writer.delete({"id": 2})
        assert changes.poll(10_000).num_rows
print("pandas" in sys.modules)
"""


def test_neither_client_nor_server_imports_pandas_for_everyday_work(tmp_path: Path) -> None:
    assert importlib.util.find_spec("pandas"), "without pandas this says nothing"
    with fluss.testing.FlussServer(tmp_path / "data") as server:
        program = [sys.executable, "-c", _PROGRAM, server.bootstrap_servers]
        ended = subprocess.run(program, capture_output=True, text=True)
        assert "pandas" not in Path(f"/proc/{server.pid}/maps").read_text()
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
