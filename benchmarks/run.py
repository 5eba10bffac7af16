"""`python -m benchmarks.run`, called by `make bench`: measure all corners, print the tables, keep them."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.corners import CLIENTS, SERVERS, Corner, running_corners
from benchmarks.environment import describe
from benchmarks.kv_workloads import KV_WORKLOADS
from benchmarks.measure import Measurement, measure
from benchmarks.report import render
from benchmarks.workloads import LOG_WORKLOADS, Sizes

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "docs" / "benchmarks"
_FULL = Sizes(
    arrow_rows=4_000_000,
    dict_rows=300_000,
    latency_rows=200,
    shipped_rows=50,
    kv_rows=1_000_000,
    kv_dict_rows=200_000,
    lookups=2_000,
    concurrent_lookups=50_000,
)
_QUICK = Sizes(
    arrow_rows=100_000,
    dict_rows=20_000,
    latency_rows=20,
    shipped_rows=10,
    kv_rows=20_000,
    kv_dict_rows=5_000,
    lookups=10,
    concurrent_lookups=5_000,
)
WORKLOADS = (*LOG_WORKLOADS, *KV_WORKLOADS)


@click.command()
@click.option("--rounds", type=click.IntRange(1), help="Rounds that count.  [default: 7, quick: 1]")
@click.option("--rows", type=click.IntRange(1), help="Rows of Arrow append and scan.  [default: 4,000,000]")
@click.option("--buckets", type=click.IntRange(1), default=1, show_default=True, help="Buckets of the tables.")
@click.option("--quick", is_flag=True, help="Small sizes, to see that it works; keeps nothing without --output.")
@click.option("--client", "clients", multiple=True, type=click.Choice(list(CLIENTS)), help="Only these clients.")
@click.option("--server", "servers", multiple=True, type=click.Choice(list(SERVERS)), help="Only these servers.")
@click.option("--workload", "chosen", multiple=True, type=click.Choice([w.key for w in WORKLOADS]), help="Only these.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the report.  [default: docs/benchmarks]")
def main(
    rounds: int | None,
    rows: int | None,
    buckets: int,
    quick: bool,
    clients: Sequence[str],
    servers: Sequence[str],
    chosen: Sequence[str],
    output: Path | None,
) -> None:
    """Compare our client and pyfluss, on our server and on Apache Fluss, on this machine."""
    sizes = replace(_QUICK if quick else _FULL, buckets=buckets)
    if rows is not None:
        sizes = replace(sizes, arrow_rows=rows)
    warm_up = None if quick else replace(_QUICK, buckets=buckets)
    rounds = rounds or (1 if quick else 7)
    corners = [Corner(client, server) for client in clients or CLIENTS for server in servers or SERVERS]
    workloads = [workload for workload in WORKLOADS if not chosen or workload.key in chosen]
    # Not the system's temporary directory: that may be memory, where a sync costs nothing.
    scratch = _ROOT / ".peers"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as name:
        environment = describe(Path(name), with_apache=any(corner.server == "apache" for corner in corners))
        with running_corners(corners, Path(name)) as running:
            measurements = measure(running, sizes, warm_up, rounds, _progress, workloads)
    stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d-%H%M")
    text = render(measurements, workloads, environment, sizes, rounds, stamp)
    click.echo(text)
    if output is None and not quick:
        output = _REPORTS
    if output is not None:
        _keep(output, stamp, text, measurements, {"environment": environment, "sizes": asdict(sizes)})


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _keep(folder: Path, stamp: str, text: str, measurements: Sequence[Measurement], about: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**about, "measurements": [item.to_json() for item in measurements]}
    for name in (stamp, "latest"):
        (folder / f"{name}.md").write_text(text)
        (folder / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
