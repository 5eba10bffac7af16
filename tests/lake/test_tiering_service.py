"""Tiering as a service, as the server asks for it; and the command."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from fluss.api.operations import LakeRegistry
from fluss.cli.main import main
from fluss.lake.format import LakeConflictError
from fluss.lake.report import Status, TieringEvent
from fluss.lake.tiering.service import HeldTable, tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.model.errors import ErrorCode, FlussError
from fluss.sync import Config, FlussConnection, FlussTable
from fluss.testing import FlussServer
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import check_lake

SCHEMA = pa.schema([("id", pa.int64())])
SOON = {"table.datalake.freshness": "1ms"}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Lake]:
    """A server of its own: a service is handed all tables of a server."""
    with (
        FlussServer(tmp_path / "server") as server,
        FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers})) as connection,
    ):
        connection.get_admin().create_database("db")
        yield Lake(server, connection, "db", tmp_path / "server" / "lake")


def append(table: FlussTable, count: int = 10) -> None:
    with table.new_append().create_writer() as writer:
        writer.write_arrow(pa.table({"id": list(range(count))}, schema=SCHEMA))


def test_the_service_tiers_what_is_due(own: Lake) -> None:
    """Tables are tiered again and again, into the warehouse that the server names; one without rows is no trouble."""
    tables = [own.create(name, SCHEMA, properties=SOON) for name in ("a", "b")]
    empty = own.create("empty", SCHEMA, properties=SOON)
    for table in tables:
        append(table)
    stop, rounds = threading.Event(), {str(table.get_table_info().table_path): 0 for table in tables}

    def watch(event: TieringEvent) -> None:
        report = event.report
        if report is not None and report.status is Status.TIERED:
            rounds[str(event.table_path)] += 1
            table = next(item for item in tables if item.get_table_info().table_path == event.table_path)
            if rounds[str(event.table_path)] < 3:
                append(table)
            if all(count >= 3 for count in rounds.values()):
                stop.set()

    reports = tier(own.connection, LocalExecutor(own.connection), interval_s=0.01, stop=stop, progress=watch)
    assert {report.status for report in reports} <= {Status.TIERED, Status.NOTHING_NEW}
    for table in tables:
        check_lake(own, table)
    with pytest.raises(FlussError) as caught:
        own.connection.get_admin().get_latest_lake_snapshot(empty.get_table_info().table_path)
    assert caught.value.error_code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_named_tables_every_so_often(own: Lake) -> None:
    table = own.create("t", SCHEMA)
    stop, statuses = threading.Event(), []

    def watch(event: TieringEvent) -> None:
        if event.report is not None:
            statuses.append(event.report.status)
            append(table)
            if len(statuses) == 3:
                stop.set()

    paths = [table.get_table_info().table_path]
    executor = LocalExecutor(own.connection)
    tier(own.connection, executor, tables=paths, interval_s=0.01, stop=stop, progress=watch)
    assert statuses == [Status.NOTHING_NEW, Status.TIERED, Status.TIERED]


def test_a_table_that_was_given_to_another_job(own: Lake) -> None:
    own.create("t", SCHEMA, properties=SOON)
    registry = LakeRegistry(own.connection)
    assigned = None
    while assigned is None:
        assigned = registry.heartbeat(request_table=True).assigned
    with HeldTable(registry, assigned, heartbeat_s=0.001) as held:
        held.check()
        registry.heartbeat(failed=[assigned])  # the server gives it to the next one who asks
        with pytest.raises(LakeConflictError):
            held.check()
    later = None
    while later is None:
        later = registry.heartbeat(request_table=True).assigned
    assert later.tiering_epoch > assigned.tiering_epoch


def test_the_command(lake: Lake) -> None:
    table, other = lake.create("t", SCHEMA), lake.create("other", SCHEMA)
    append(table, 1234)
    where = ["tier", "--local", "--bootstrap", lake.address, "--warehouse", str(lake.warehouse)]
    names = [str(item.get_table_info().table_path) for item in (table, other)]
    done = CliRunner().invoke(main, [*where, "--table", names[0], "--table", names[1]])
    assert done.exit_code == 0, done.output
    assert re.search(r"\.t +tiered +1234 +1 +0 ", done.stdout), done.stdout
    assert re.search(r"other +nothing new", done.stdout), done.stdout
    check_lake(lake, table)


def test_the_command_says_what_failed(lake: Lake) -> None:
    done = CliRunner().invoke(main, ["tier", "--local", "--bootstrap", lake.address, "--table", "nowhere.t"])
    assert done.exit_code == 1
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("wrong", [["--interval", "soon"], ["--catalog", "type"], ["--interval", "0s"]])
def test_the_command_refuses(wrong: list[str]) -> None:
    assert CliRunner().invoke(main, ["tier", "--local", *wrong]).exit_code == 2


def test_the_command_without_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = CliRunner().invoke(main, ["tier", "--bootstrap", lake.address])
    assert done.exit_code == 1
    assert "flussbett[spark]" in done.stderr
    assert "--local" in done.stderr


def test_the_service_ends_by_ctrl_c(own: Lake) -> None:
    table = own.create("t", SCHEMA, properties=SOON)
    append(table)
    command = [sys.executable, "-m", "fluss.cli", "tier", "--local", "--bootstrap", own.address, "--interval", "10ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            registry = LakeRegistry(own.connection)
            waiting = threading.Event()
            while registry.latest(table.get_table_info().table_path) is None and process.poll() is None:
                waiting.wait(0.05)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "ends after this round" in said
    check_lake(own, table)
