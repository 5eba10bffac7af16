"""`python -m benchmarks.run`, called by `make bench-paths`: measure all corners, print the tables, keep them."""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.corners import CLIENTS, Corner, corners_of
from benchmarks.environment import describe
from benchmarks.floors import OURS, floors
from benchmarks.kv_workloads import KV_WORKLOADS
from benchmarks.latency_workloads import LATENCY_WORKLOADS
from benchmarks.log_workloads import LOG_WORKLOADS
from benchmarks.measure import Measurement, Progress, measure, started
from benchmarks.plots import draw
from benchmarks.report import render
from benchmarks.resources import LOADED, RESOURCES, measure_resources
from benchmarks.scale import AXES, ScaleSizes, measure_scale
from benchmarks.servers import SERVERS
from benchmarks.summary import failures
from benchmarks.workloads import Sizes, Workload

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "docs" / "benchmarks"
_FULL = Sizes(
    arrow_rows=2_000_000,
    dict_rows=300_000,
    poll_rows=500_000,
    ack_rows=150,
    latency_rows=200,
    shipped_rows=50,
    kv_rows=500_000,
    kv_dict_rows=200_000,
    prefix_rows=100_000,
    lookups=3_000,
    concurrent_lookups=50_000,
    load_rows=2_000_000,
)
_QUICK = Sizes(
    arrow_rows=100_000,
    dict_rows=20_000,
    poll_rows=20_000,
    ack_rows=20,
    latency_rows=20,
    shipped_rows=5,
    kv_rows=20_000,
    kv_dict_rows=5_000,
    prefix_rows=2_000,
    lookups=10,
    concurrent_lookups=5_000,
    load_rows=50_000,
)
# A JVM runs puts at its full speed only after a million rows and more; the first corner would pay for the others.
_WARM_UP = replace(_QUICK, kv_rows=300_000, kv_dict_rows=300_000)
_FULL_SCALE = ScaleSizes(
    row_counts=(100_000, 1_000_000, 10_000_000), counts=(1, 4, 16), rows=1_600_000, rounds=3, keys_once=1_000_000
)
_QUICK_SCALE = ScaleSizes(row_counts=(10_000, 100_000), counts=(1, 2), rows=40_000, rounds=1, keys_once=100_000)
_FULL_ROUNDS, _QUICK_ROUNDS = 5, 1

PATHS = (*LOG_WORKLOADS, *KV_WORKLOADS, *LATENCY_WORKLOADS)
_SCALES = {f"scale_{axis}": axis for axis in AXES}
CHOICES = [*(workload.key for workload in PATHS), RESOURCES.key, *_SCALES]


@dataclass(frozen=True)
class Plan:
    """What one run measures."""

    sizes: Sizes
    warm_up: Sizes | None
    scale: ScaleSizes
    rounds: int
    corners: list[Corner]
    scaled: list[Corner]
    chosen: Sequence[str]  # none means all

    @property
    def paths(self) -> list[Workload]:
        return [workload for workload in PATHS if self.wants(workload.key)]

    @property
    def workloads(self) -> list[Workload]:
        return [*self.paths, RESOURCES, LOADED] if self.wants(RESOURCES.key) else self.paths

    @property
    def axes(self) -> list[str]:
        return [axis for key, axis in _SCALES.items() if self.wants(key)]

    def wants(self, key: str) -> bool:
        return not self.chosen or key in self.chosen


@click.command()
@click.option("--rounds", type=click.IntRange(1), help="Rounds that count.  [default: 5, quick: 1]")
@click.option("--rows", type=click.IntRange(1), help="Rows of Arrow append and scan.  [default: 2,000,000]")
@click.option("--buckets", type=click.IntRange(1), default=1, show_default=True, help="Buckets of the tables.")
@click.option("--codec", type=click.Choice(["ZSTD", "LZ4_FRAME", "NONE"]), default="ZSTD", show_default=True)
@click.option("--quick", is_flag=True, help="Small sizes, to see that it works; keeps nothing without --output.")
@click.option("--client", "clients", multiple=True, type=click.Choice(list(CLIENTS)), help="Only these clients.")
@click.option("--server", "servers", multiple=True, type=click.Choice(list(SERVERS)), help="Only these servers.")
@click.option("--workload", "chosen", multiple=True, type=click.Choice(CHOICES), help="Only these.")
@click.option("--scale-everywhere", is_flag=True, help="Scale on all corners, not on our own without fsync alone.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the report.  [default: docs/benchmarks]")
def main(
    rounds: int | None,
    rows: int | None,
    buckets: int,
    codec: str,
    quick: bool,
    clients: Sequence[str],
    servers: Sequence[str],
    chosen: Sequence[str],
    scale_everywhere: bool,
    output: Path | None,
) -> None:
    """Compare our client and pyfluss, on our server and on Apache Fluss, and Kafka beside them, on this machine."""
    common: dict[str, Any] = {"buckets": buckets, "codec": codec}
    sizes = replace(_QUICK if quick else _FULL, **common)
    corners = corners_of(clients, servers)
    if not corners:
        raise click.UsageError("No such client speaks to such a server.")
    plan = Plan(
        sizes=sizes if rows is None else replace(sizes, arrow_rows=rows),
        warm_up=None if quick else replace(_WARM_UP, **common),
        scale=_QUICK_SCALE if quick else _FULL_SCALE,
        rounds=rounds or (_QUICK_ROUNDS if quick else _FULL_ROUNDS),
        corners=corners,
        scaled=[c for c in corners if not c.is_kafka and (scale_everywhere or c == OURS["os"])],
        chosen=chosen,
    )
    environment, measurements = _run(plan, _progress(time.monotonic()))
    stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d-%H%M")
    click.echo(_text(plan, environment, measurements, stamp))
    if output is None and not quick:
        output = _REPORTS
    if output is not None:
        _keep(output, stamp, plan, environment, measurements)
    if failed := failures(measurements):
        click.echo(f"{len(failed)} measurements failed.", err=True)
        sys.exit(1)


def _run(plan: Plan, progress: Progress) -> tuple[dict[str, str], list[Measurement]]:
    # Not the system's temporary directory: that may be memory, where a sync costs nothing.
    scratch = _ROOT / ".peers"
    scratch.mkdir(exist_ok=True)
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as name:
        folder = Path(name)
        environment = describe(folder, plan.corners)
        # The parts come one after another, so that no server of one part disturbs another.
        if plan.wants(RESOURCES.key):
            measurements += measure_resources(plan.corners, plan.sizes, plan.rounds, folder, progress)
        if plan.paths:
            with started(plan.corners, folder, measurements) as running:
                arguments = (plan.sizes, plan.warm_up, plan.rounds, progress, plan.paths)
                measurements += measure(running, *arguments)
        if plan.axes:
            measurements += measure_scale(plan.scaled, plan.sizes, plan.scale, folder, progress, plan.axes)
    return environment, measurements


def _progress(began: float) -> Progress:
    def show(line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        click.echo(f"{minutes:3}:{seconds:02} {line}", err=True)

    return show


def _text(
    plan: Plan, environment: dict[str, str], measurements: list[Measurement], stamp: str, pictures: Sequence[str] = ()
) -> str:
    return render(measurements, plan.workloads, environment, plan.sizes, plan.rounds, stamp, pictures)


def _keep(folder: Path, stamp: str, plan: Plan, environment: dict[str, str], measurements: list[Measurement]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    raw: dict[str, Any] = {
        "environment": environment,
        "sizes": asdict(plan.sizes),
        "scale_sizes": asdict(plan.scale),
        "rounds": plan.rounds,
        "floors": [asdict(floor) for floor in floors(measurements, plan.workloads)],
        "measurements": [item.to_json() for item in measurements],
    }
    # Of the pictures there is the latest only.
    pictures = draw(folder, "latest", measurements, plan.workloads, OURS["os"])
    for name, shown in ((stamp, []), ("latest", pictures)):
        (folder / f"{name}.md").write_text(_text(plan, environment, measurements, stamp, shown))
        (folder / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
