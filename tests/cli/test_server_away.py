"""Writes of the command line to a server that goes away: what is waited for, what is stored, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss.sync as fs
from fluss.cli.commands import write
from fluss.cli.text.inputs import Input
from fluss.model.forms.type_text import parse_schema
from fluss.testing import FlussServer
from tests.kit.command import here

FIRST, SECOND = 3, 4


def test_what_is_stored_is_said_and_the_rest_can_be_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, config = tmp_path / "rows.csv", tmp_path / "fluss.toml"
    file.write_text("id\n" + "".join(f"{number}\n" for number in range(FIRST + SECOND)))
    config.write_text('[client]\n"writer.delivery-timeout-ms" = 1500\n"close.timeout-ms" = 1000\n')
    with FlussServer(tmp_path / "data") as server:
        address = server.bootstrap_servers
        with fs.connect(address) as connection:
            connection.get_admin().create_table("t", fs.TableDescriptor(parse_schema("id int"), bucket_count=1))

        def batches(self: Input, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
            (whole,) = read(self, schema)
            yield whole.slice(0, FIRST)
            server.kill()
            yield whole.slice(FIRST)

        read = Input.batches
        monkeypatch.setattr(Input, "batches", batches)
        monkeypatch.setattr(write, "SILENCE_S_MAX", 0.2)
        monkeypatch.setattr(write, "BATCHES_UNDER_WAY_MAX", 0)  # the first is acknowledged before the server goes
        failed = here("append", "t", file, "--config", config, bootstrap=address)
    assert failed.returncode == 1
    waiting, *_, line = failed.stderr.splitlines()
    assert waiting == "The server has not answered for 0.2 s; waiting for it."
    assert (
        "At least 3 rows were appended to fluss.t before that. --skip 3 leaves out what is stored for certain" in line
    )
    monkeypatch.undo()
    with FlussServer(tmp_path / "data") as server:
        done = here("append", "t", file, "--skip", "3", bootstrap=server.bootstrap_servers)
        assert done.stdout.startswith("4 rows appended to fluss.t in ")
        with fs.connect(server.bootstrap_servers) as connection:
            rows = connection.get_table("t").new_scan().to_arrow()
    assert rows.column("id").to_pylist() == list(range(FIRST + SECOND))


def test_rows_before_a_mistake_can_be_left_out(server: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    with fs.connect(server) as connection:
        connection.get_admin().create_table("t", fs.TableDescriptor(parse_schema("id int"), bucket_count=1))
    (tmp_path / "first.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    file.write_text('{"id": "x"}\n')
    failed = here("append", "t", tmp_path / "first.jsonl", file, bootstrap=server)
    assert failed.stderr.endswith("2 rows were appended to fluss.t before that. --skip 2 leaves out what is stored.\n")
    file.write_text('{"id": 3}\n')
    here("append", "t", tmp_path / "first.jsonl", file, "--skip", "2", bootstrap=server)
    with fs.connect(server) as connection:
        rows = connection.get_table("t").new_scan().to_arrow()
    assert rows.column("id").to_pylist() == [1, 2, 3]
