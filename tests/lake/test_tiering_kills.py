"""Jobs that are killed, overtaken or in each other's way: nothing doubled, nothing lost, the next round recovers."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from fluss.api.operations import LakeRegistry
from fluss.lake.report import Status, TieringReport
from fluss.lake.tiering.round import COMMITTED, CRASH_CODE, REGISTERED, STEPS, TieringSettings, tier_table
from fluss.lake.tiering.task import LocalExecutor, Task, TaskResult
from fluss.sync import Config, FlussConnection, FlussTable, TablePath
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import check_lake, check_no_orphans, iceberg_table, tier_here

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(params=["log", "primary key"])
def table(lake: Lake, request: pytest.FixtureRequest) -> FlussTable:
    return lake.create("t", SCHEMA, keys=["id"] if request.param == "primary key" else [], buckets=2)


def path_of(table: FlussTable) -> TablePath:
    return table.get_table_info().table_path


def write(table: FlussTable, value: str, ids: Sequence[int] = range(40)) -> None:
    rows = pa.table({"id": list(ids), "v": [value] * len(ids)}, schema=SCHEMA)
    keyed = table.get_table_info().has_primary_key()
    with (table.new_upsert() if keyed else table.new_append()).create_writer() as writer:
        writer.write_arrow(rows)


def test_a_job_is_killed_at_each_step(lake: Lake, table: FlussTable, jobs: Jobs) -> None:
    for number, step in enumerate(STEPS):
        write(table, step, range(number, number + 30))
        jobs.kill_at(step, lake, table)
        committed = iceberg_table(lake.warehouse, path_of(table)).snapshots()
        [report] = tier_here(lake, table)
        was_committed = step in (COMMITTED, REGISTERED)
        assert report.status is (Status.NOTHING_NEW if was_committed else Status.TIERED), (step, report)
        check_lake(lake, table)
        snapshots = iceberg_table(lake.warehouse, path_of(table)).snapshots()
        assert len(snapshots) == len(committed) + (not was_committed)


def test_a_kill_between_commit_and_registration_and_further_rows(lake: Lake, table: FlussTable, jobs: Jobs) -> None:
    """The lake is ahead of the server, and the log of the lake."""
    write(table, "a")
    jobs.kill_at(COMMITTED, lake, table)
    write(table, "b", range(20, 60))
    assert [item.status for item in tier_here(lake, table)] == [Status.TIERED]
    check_lake(lake, table)


class Jobs:
    """`fluss tier --local` in processes of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def kill_at(self, step: str, lake: Lake, table: FlussTable) -> None:
        """Run a job that ends at a step."""
        where = ["--bootstrap", lake.address, "--warehouse", str(lake.warehouse)]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(shlex.join([step, *where, "--table", str(path_of(table))]), file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == f"{CRASH_CODE}\n"


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    command = [sys.executable, "-m", "tests.lake.job_driver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Jobs(process)


class Interrupted(LocalExecutor):
    """Does something when the tasks are done, before anything is committed."""

    def __init__(self, connection: FlussConnection, between: Callable[[], object]) -> None:
        super().__init__(connection, 2)
        self._between = between

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
        results = list(super().run_tasks(tasks))
        self._between()
        yield from results


def run_round(
    lake: Lake,
    table: FlussTable,
    between: Callable[[], object] = lambda: None,
    check_held: Callable[[], None] = lambda: None,
) -> TieringReport:
    """One round over a connection of its own."""
    with FlussConnection.create(Config({"bootstrap.servers": lake.address})) as connection:
        executor = Interrupted(connection, between)
        settings = TieringSettings(connection, executor, warehouse=str(lake.warehouse))
        return tier_table(settings, path_of(table), check_held)


@pytest.mark.parametrize("is_first", [True, False], ids=["first round", "later round"])
def test_two_jobs_at_once(lake: Lake, table: FlussTable, is_first: bool) -> None:
    if not is_first:
        write(table, "before")
        run_round(lake, table)
    write(table, "now", range(10, 50))
    barrier = threading.Barrier(2, timeout=20)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_round, lake, table, barrier.wait) for _ in range(2)]
        reports = [job.result() for job in jobs]
    assert sorted(report.status for report in reports) == [Status.LOST, Status.TIERED], [
        report.reason for report in reports
    ]
    check_lake(lake, table)
    check_no_orphans(lake, table)


@pytest.mark.parametrize("with_more", [False, True], ids=["same rows", "further rows"])
def test_a_stale_job_is_refused(lake: Lake, table: FlussTable, with_more: bool) -> None:
    """It planned and wrote, then another did a whole round."""
    write(table, "a")

    def overtake() -> None:
        if with_more:
            write(table, "b", range(30, 70))
        assert run_round(lake, table).status is Status.TIERED

    report = run_round(lake, table, overtake)
    assert report.status is Status.LOST, report
    check_lake(lake, table)
    check_no_orphans(lake, table)
    write(table, "c")
    assert run_round(lake, table).status is Status.TIERED
    check_lake(lake, table)


def test_a_job_that_the_server_gave_up_does_not_commit(lake: Lake, table: FlussTable) -> None:
    def refuse() -> None:
        from fluss.lake.format import LakeConflictError

        raise LakeConflictError("given to another")

    write(table, "a")
    report = run_round(lake, table, check_held=refuse)
    assert (report.status, report.reason) == (Status.LOST, "given to another")
    assert iceberg_table(lake.warehouse, path_of(table)).snapshots() == []
    check_no_orphans(lake, table)


def test_a_late_registration_changes_nothing(lake: Lake, table: FlussTable, jobs: Jobs) -> None:
    """A job that was slow to register finds that others did it and went on."""
    from fluss.lake.options import LakeOptions
    from fluss.lake.tiering.pending_commit import register

    write(table, "a")
    jobs.kill_at(COMMITTED, lake, table)
    info = lake.connection.get_admin().get_table_info(path_of(table))
    as_committed = LakeOptions(warehouse=str(lake.warehouse)).open().load_table(info.table_path)
    assert as_committed is not None
    snapshot = as_committed.tiered()
    assert snapshot is not None
    write(table, "b")
    tier_here(lake, table)
    register(LakeRegistry(lake.connection), info, as_committed, snapshot, {})
    check_lake(lake, table)


def test_a_failed_task_leaves_nothing(lake: Lake, table: FlussTable) -> None:
    class Failing(LocalExecutor):
        def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
            yield from super().run_tasks(tasks)
            yield TaskResult(error="the disk is full")

    write(table, "a")
    path = path_of(table)
    settings = TieringSettings(lake.connection, Failing(lake.connection), warehouse=str(lake.warehouse))
    report = tier_table(settings, path)
    assert (report.status, report.reason) == (Status.FAILED, "the disk is full")
    assert iceberg_table(lake.warehouse, path).snapshots() == []
    check_no_orphans(lake, table)
    assert [item.status for item in tier_here(lake, table)] == [Status.TIERED]
    check_lake(lake, table)


@pytest.mark.parametrize("failures", [1, 1_000], ids=["once", "always"])
def test_a_commit_that_took_effect_but_failed(
    lake: Lake, table: FlussTable, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync fails behind the commit: the server is told when the snapshot is on disk, and not before."""
    write(table, "a")
    real, left = os.fsync, [failures]

    def fail(descriptor: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "no such luck")
        real(descriptor)

    report = run_round(lake, table, lambda: monkeypatch.setattr(os, "fsync", fail))
    monkeypatch.undo()
    if failures == 1:
        assert report.status is Status.TIERED, report
    else:
        assert report.status is Status.FAILED, report
        assert LakeRegistry(lake.connection).latest(path_of(table)) is None
    assert [item.status for item in tier_here(lake, table)] == [Status.NOTHING_NEW]
    check_lake(lake, table)
