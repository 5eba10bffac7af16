"""How far the lake is, as `fluss lake status` and its Python function tell it; and why rounds failed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog

from fluss.api.operations import LakeRegistry
from fluss.cli.main import main
from fluss.lake.format import CATALOG_NAME
from fluss.lake.maintenance import OnServer
from fluss.lake.report import Status, TieringReport
from fluss.lake.status import TableStatus, lake_status
from fluss.lake.tiering import round as tiering
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.model.errors import FlussError
from fluss.sync import Config, FlussConnection, FlussTable, TablePath
from fluss.testing import FlussServer
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import tier_here
from tests.lake.keyed_table import SCHEMA, loaded, rounds, upsert


def status_of(lake: Lake, table: FlussTable, **arguments: Any) -> TableStatus:
    path = table.table_path
    [found] = lake_status(lake.connection, path.database_name, path.table_name, **arguments)
    assert found.table_path == path
    return found


def command(lake: Lake, *arguments: str) -> Any:
    return CliRunner().invoke(main, ["lake", "status", *arguments, "--bootstrap", lake.address])


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Lake]:
    """A server of its own."""
    with (
        FlussServer(tmp_path / "server") as server,
        FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers})) as connection,
    ):
        connection.get_admin().create_database("db")
        yield Lake(server, connection, "db", tmp_path / "server" / "lake")


# ---- how far it is ----


@pytest.mark.parametrize("kind", ["log", "primary key", "partitions"])
def test_rows_and_time_that_the_lake_is_behind(lake: Lake, kind: str) -> None:
    table = lake.create(
        "behind",
        SCHEMA,
        keys=["id"] if kind == "primary key" else None,
        buckets=3 if kind == "log" else 1,
        partition_keys=["day"] if kind == "partitions" else None,
    )
    if kind == "partitions":
        lake.connection.get_admin().create_partition(table.table_path, {"day": "d1"})
    found = status_of(lake, table)
    assert (found.on_server, found.lag_rows, found.lag_s, found.tiered_ms) == (OnServer.TIERED, 0, 0, None)
    began = time.time()
    upsert(table, *range(10))
    time.sleep(0.3)
    upsert(table, *range(10, 15))
    found = status_of(lake, table)
    assert found.lag_rows == 15
    assert found.lag_s is not None
    assert 0.3 <= found.lag_s <= time.time() - began + 1  # clocks of the two processes
    tier_here(lake, table)
    found = status_of(lake, table)
    assert (found.lag_rows, found.lag_s) == (0, 0)
    assert found.tiered_ms is not None
    assert began - 1 <= found.tiered_ms / 1_000 <= time.time() + 1
    upsert(table, 3)
    # An update is two changes.
    assert status_of(lake, table).lag_rows == (2 if kind == "primary key" else 1)


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["log", "primary key"])
def test_files_and_bytes_are_those_of_the_current_snapshot(lake: Lake, keys: list[str]) -> None:
    """They are taken from its summary; here all manifests are read."""
    table = lake.create("large", SCHEMA, keys=keys, buckets=2, bucket_keys=["id"])
    rounds(lake, table, 2)
    upsert(table, 3, 4, 5, tag="b")
    tier_here(lake, table)
    stored = loaded(lake, table)
    files = stored.files(stored.snapshot_id)
    totals = status_of(lake, table).totals
    assert (totals.file_count, totals.size_bytes) == (len(files), sum(file.size_bytes for file in files))
    assert totals.row_count == sum(file.row_count for file in files)
    assert totals.snapshot_count == 3


def test_what_the_server_has_under_the_name(own: Lake) -> None:
    admin = own.connection.get_admin()
    tables = {name: own.create(name, SCHEMA) for name in ("gone", "new", "off", "tiered")}
    for table in tables.values():
        rounds(own, table, 1)
    admin.drop_table(tables["gone"].table_path)
    admin.drop_table(tables["new"].table_path)
    upsert(own.create("new", SCHEMA), 1, 2)
    admin.alter_table(tables["off"].table_path, set_properties={"table.datalake.enabled": "false"})
    admin.create_database("other")
    lone = own.create("lone", SCHEMA)
    with SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{own.warehouse}/catalog.db", warehouse=str(own.warehouse)) as foreign:
        foreign.create_table(("db", "foreign"), pa.schema([("id", pa.int64())]))
        foreign.create_namespace("elsewhere")
        foreign.create_table(("elsewhere", "foreign"), pa.schema([("id", pa.int64())]))
    found = lake_status(own.connection)
    assert [(item.table_path.table_name, str(item.on_server), item.lag_rows) for item in found] == [
        ("gone", "missing", None),
        ("lone", "tiered", 0),
        ("new", "recreated", 2),
        ("off", "not tiered", None),
        ("tiered", "tiered", 0),
    ]
    assert [item.table_path for item in lake_status(own.connection, "db")] == [item.table_path for item in found]
    assert lake_status(own.connection, "other") == []
    [only] = lake_status(own.connection, "db", "gone")
    assert only == found[0]
    for table in (lone, tables["tiered"], tables["new"]):
        admin.drop_table(table.table_path)
    # Nobody tells where the lake is now.
    assert lake_status(own.connection) == []
    assert len(lake_status(own.connection, warehouse=str(own.warehouse))) == 4
    assert "--warehouse names a lake" in command(own).stdout


def test_a_lake_that_can_not_be_read(own: Lake, tmp_path: Path) -> None:
    """The rest is told all the same."""
    good, bad = own.create("good", SCHEMA), own.create("bad", SCHEMA)
    for table in (good, bad):
        rounds(own, table, 1)
        upsert(table, 1)
    Path(loaded(own, bad).metadata_location).unlink()
    found = lake_status(own.connection)
    assert [(item.table_path.table_name, item.lag_rows, item.totals.file_count) for item in found] == [
        ("bad", 1, None),
        ("good", 1, 1),
    ]
    assert "metadata.json" in str(found[0].problem)
    assert found[1].problem is None
    own.connection.get_admin().drop_table(bad.table_path)
    assert [str(item.on_server) for item in lake_status(own.connection)] == ["missing", "tiered"]
    nowhere = {"type": "rest", "uri": "http://127.0.0.1:1"}
    [found_good] = lake_status(own.connection, catalog=nowhere)
    assert (found_good.table_path, found_good.lag_rows) == (good.table_path, 1)
    assert "127.0.0.1" in str(found_good.problem)


def test_the_command(own: Lake) -> None:
    table = own.create("t", SCHEMA)
    rounds(own, table, 1)
    upsert(table, 1, 2, 3)
    own.create("empty", SCHEMA)
    done = command(own)
    assert done.exit_code == 0, done.output
    assert "2 tables, 3 rows behind, the oldest for" in done.stdout
    for arguments in (["db"], ["db.t"]):
        [line] = [line for line in command(own, *arguments, "-o", "json").stdout.splitlines() if "db.t" in line]
        row = json.loads(line)
        assert (row["table"], row["server"], row["lag_rows"], row["files"]) == ("db.t", "tiered", 3, 1)
        assert row["bytes"] > 0
        assert (row["snapshots"], row["last_error"], row["last_error_at"], row["problem"]) == (1, None, None, None)
        assert row["tiered_at"].endswith("Z")
    assert command(own, "db.no").exit_code == 1
    assert "no table db.no" in command(own, "db.no").stderr
    assert command(own, "fluss").exit_code == 0
    assert "There is no database nowhere, neither on the server nor in the lake" in command(own, "nowhere").stderr
    assert "Invalid database name" in command(own, "no such").stderr


# ---- why a round failed ----


def failing(lake: Lake, table: FlussTable, error: Exception, monkeypatch: pytest.MonkeyPatch) -> TieringReport:
    """A round of which a step raises this."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(tiering, "named_lake", fail)
        [report] = tier_here(lake, table)
    return report


def test_why_the_last_round_failed(own: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one does not fail; over a restart of the server, and whoever asks."""
    table = own.create("t", SCHEMA)
    upsert(table, 1)
    assert failing(own, table, OSError("the bucket is gone"), monkeypatch).status is Status.FAILED
    for _ in range(2):
        error = status_of(own, table).last_error
        assert error is not None
        assert error.error == "the bucket is gone"
        assert abs(error.time_ms / 1_000 - time.time()) < 600
        own.server.terminate()
        own.server.start()
    done = command(own, "-o", "json")
    assert json.loads(done.stdout)["last_error"] == "the bucket is gone"
    assert "Z: the bucket is gone" in command(own).stdout
    [report] = tier_here(own, table)
    assert report.status is Status.TIERED
    assert status_of(own, table).last_error is None
    failing(own, table, OSError("again"), monkeypatch)
    [report] = tier_here(own, table)
    assert report.status is Status.NOTHING_NEW
    assert status_of(own, table).last_error is None


def test_a_server_that_lives_as_long_as_its_clients_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = (tmp_path / "data").as_uri()
    for step in ("create", "look"):
        with FlussConnection.create(Config({"bootstrap.servers": address})) as connection:
            lake = Lake(FlussServer(tmp_path / "unused"), connection, "fluss", tmp_path / "data" / "lake")
            if step == "create":
                failing(lake, lake.create("t", SCHEMA), OSError("no rights"), monkeypatch)
                continue
            error = status_of(lake, connection.get_table(TablePath("fluss", "t"))).last_error
            assert error is not None
            assert error.error == "no rights"


def test_a_race_that_was_lost_is_no_failure(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create("race", SCHEMA)
    assert failing(lake, table, tiering.LakeConflictError("too late"), monkeypatch).status is Status.LOST
    assert status_of(lake, table).last_error is None


def test_a_login_in_an_address_is_not_told_to_others(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create("login", SCHEMA)
    error = FlussError("postgresql://ada:a/long@secret@db.example:5432/lake and s3://b/x do not answer")
    failing(lake, table, error, monkeypatch)
    kept = status_of(lake, table).last_error
    assert kept is not None
    assert kept.error == "postgresql://db.example:5432/lake and s3://b/x do not answer"


def test_a_reason_is_data(lake: Lake) -> None:
    """Neither colours nor lines of its own reach a terminal; programs get all of it."""
    table = lake.create("hostile", SCHEMA)
    text = "\x1b[2J\x07a\nb.t failed at 2026-01-01: \x9b31m" + "x" * 5_000
    LakeRegistry(lake.connection).report(table.get_table_info(), text)
    name = str(table.table_path)
    shown = command(lake, name).stdout
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    assert "\nb.t failed" not in shown
    assert json.loads(command(lake, name, "-o", "json").stdout)["last_error"] == text[:1_000]


def test_a_round_goes_on_if_its_reason_can_not_be_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create("full", SCHEMA)
    upsert(table, 1)

    def fail(*_: Any) -> None:
        raise FlussError("the disk is full")

    monkeypatch.setattr(LakeRegistry, "report", fail)
    [report] = tier(lake.connection, LocalExecutor(lake.connection), tables=[table.table_path])
    assert report.status is Status.TIERED
