"""What a row costs when there are many: processor time against the number of rows, of buckets and of writers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.corners import Corner, RunningCorner
from benchmarks.data import BATCH_ROWS
from benchmarks.kv_workloads import create_kv_table, look_up_concurrently, upsert
from benchmarks.log_workloads import append_arrow, create_log_table, scan_arrow
from benchmarks.measure import Measurement, Progress, attempt, shown, started
from benchmarks.worker_loop import process_cpu_s
from benchmarks.worker_process import WorkerProcess, interpreter
from benchmarks.workloads import Sample, Sizes, rates

AXES = ("rows", "buckets", "writers")
LOG_PATHS, KV_PATHS = ("append", "scan"), ("upsert", "lookup")
_LOOKUPS = 50_000
_FIRST_VERSION = 1


@dataclass(frozen=True)
class ScaleSizes:
    row_counts: tuple[int, ...]
    counts: tuple[int, ...]  # of buckets and of writers
    rows: int  # with each of these counts
    rounds: int
    keys_once: int  # more than these are written in one round only


@dataclass(frozen=True)
class Point:
    """What is measured together: the paths of a kind of table at one place of an axis."""

    axis: str
    value: int
    rounds: int
    measure: Callable[[RunningCorner], dict[str, Sample]]


def measure_scale(
    corners: Sequence[Corner], sizes: Sizes, scale: ScaleSizes, folder: Path, progress: Progress, axes: Sequence[str]
) -> list[Measurement]:
    """Measurements whose workload is `axis:path` and whose sample has the place on the axis as `value`."""
    points = [point for point in _points(sizes, scale, folder) if point.axis in axes]
    found: list[Measurement] = []
    for corner in corners:
        with started([corner], folder / f"scale-{corner.client}-{corner.server}", found) as alone:
            for running in alone:
                found += _measure_all(running, points, progress)
    return found


def _measure_all(running: RunningCorner, points: Sequence[Point], progress: Progress) -> list[Measurement]:
    _measured(points[0], running, 0, progress)  # Warms up.
    return [
        item
        for number in range(1, 1 + max(point.rounds for point in points))
        for point in points
        if number <= point.rounds
        for item in _measured(point, running, number, progress)
    ]


def _measured(point: Point, running: RunningCorner, number: int, progress: Progress) -> list[Measurement]:
    running.revive()
    running.server.settle()
    samples: dict[str, Sample] = {}

    def take() -> Sample:
        samples.update(point.measure(running))
        return {}

    outcome = attempt(point.axis, running.corner, number, take)
    if outcome.failure is not None:
        found = [replace(outcome, sample={"value": point.value})]
    else:
        found = [
            Measurement(f"{point.axis}:{path}", running.corner, number, {"value": point.value, **sample})
            for path, sample in samples.items()
        ]
    for item in found:
        progress(f"round {number}: {item.workload}: {running.corner.title}: {shown(item)}")
    return found


def _points(sizes: Sizes, scale: ScaleSizes, folder: Path) -> list[Point]:
    points = []
    for rows in scale.row_counts:
        # Small ones are over soon and disturbed by little: more of them.
        rounds = scale.rounds * (2 if rows < scale.rows / 10 else 1)
        points.append(Point("rows", rows, rounds, _log(sizes, rows)))
        points.append(Point("rows", rows, 1 if rows > scale.keys_once else rounds, _kv(sizes, rows)))
    for buckets in scale.counts:
        wider = replace(sizes, buckets=buckets)
        points.append(Point("buckets", buckets, scale.rounds, _log(wider, scale.rows)))
        points.append(Point("buckets", buckets, scale.rounds, _kv(wider, scale.rows // 4)))
    points += [
        Point("writers", writers, scale.rounds, _writers(sizes, scale.rows, writers, folder))
        for writers in scale.counts
    ]
    return points


def _log(sizes: Sizes, rows: int) -> Callable[[RunningCorner], dict[str, Sample]]:
    def measure(running: RunningCorner) -> dict[str, Sample]:
        table = create_log_table(running, sizes)
        found = {"append": append_arrow(running, table, rows), "scan": scan_arrow(running, table, rows)}
        running.drop_table(table)
        return found

    return measure


def _kv(sizes: Sizes, rows: int) -> Callable[[RunningCorner], dict[str, Sample]]:
    def measure(running: RunningCorner) -> dict[str, Sample]:
        table = create_kv_table(running, sizes.buckets)
        found = {"upsert": upsert(running, "upsert_bulk", table, rows, _FIRST_VERSION)}
        running.server.settle()
        arguments: dict[str, Any] = {"table": table, "rows": rows, "version": _FIRST_VERSION}
        found["lookup"] = look_up_concurrently(running, lookups=_LOOKUPS, **arguments)
        running.drop_table(table)
        return found

    return measure


def _writers(sizes: Sizes, rows: int, count: int, folder: Path) -> Callable[[RunningCorner], dict[str, Sample]]:
    def measure(running: RunningCorner) -> dict[str, Sample]:
        table, share = create_log_table(running, sizes), rows // count
        with _workers(running.corner.client, count, folder) as workers, ThreadPoolExecutor(count) as executor:
            arguments = {"config": running.config(), "table": table, "rows": share, "batch_rows": BATCH_ROWS}
            warm_up = create_log_table(running, sizes)
            for number, worker in enumerate(workers):
                warm = {**arguments, "table": warm_up, "server_pid": running.server_pid}
                worker.call("append_arrow", **warm)
                worker.call("prepare_append", first=number * share, **arguments)
            before = process_cpu_s(running.server_pid)
            calls = [executor.submit(w.call, "run_prepared_append", server_pid=running.server_pid) for w in workers]
            answers = [call.result() for call in calls]
            server_cpu = process_cpu_s(running.server_pid) - before
        scan_arrow(running, table, share * count)
        for name in (table, warm_up):
            running.drop_table(name)
        seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
        client_cpu = sum(answer["client_cpu_seconds"] for answer in answers)
        together = {"seconds": seconds, "client_cpu_seconds": client_cpu, "server_cpu_seconds": server_cpu}
        return {"append": rates({"rows": share * count, **together})}

    return measure


@contextlib.contextmanager
def _workers(client: str, count: int, folder: Path) -> Iterator[list[WorkerProcess]]:
    with contextlib.ExitStack() as stack:
        workers = []
        for number in range(count):
            workers.append(WorkerProcess(interpreter(client), log_file=folder / f"writer-{number}.log"))
            stack.callback(workers[-1].kill)
        yield workers
