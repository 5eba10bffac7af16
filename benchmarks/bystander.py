"""`python -m benchmarks.bystander`, called by `make bench-bystander`: how long a bystander waits beside each load."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from tests.kit.bystander import (
    EXCESS_LONGEST_MS_MAX,
    EXCESS_P99_MS_MAX,
    LOGIN_LONGEST_MS_MAX,
    SLOW_DISK_LONGEST_MS_MAX,
    Measured,
    Waits,
    measure,
)
from tests.kit.bystander_loads import LOADS

from benchmarks.environment import describe
from benchmarks.report import table

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "docs" / "benchmarks"
_REASON_MAX = 300
_HEADER = (
    "load",
    "p50",
    "p99",
    "longest",
    "control p50",
    "p99",
    "longest",
    "excess p99",
    "longest",
    "cores",
    "held?",
)


@click.command()
@click.option("--only", "names", type=click.Choice(list(LOADS)), multiple=True, help="This load; may be repeated.")
@click.option("--seconds", type=click.FloatRange(min=0.5), default=10.0, show_default=True, help="For each load.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="For the report.  [default: docs/benchmarks, of all loads]"
)
def main(names: tuple[str, ...], seconds: float, output: Path | None) -> None:
    """Time lookups of a table beside loads on others; status 1 when a bound is missed."""
    scratch = _ROOT / "build"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bystander-", dir=scratch) as folder:
        facts = describe(Path(folder))
        found = [_measured(name, Path(folder), seconds) for name in names or LOADS]
    click.echo(results(found))
    target = output or (None if names else _REPORTS)
    if target is not None:
        _keep(target, found, facts, seconds)
    missed = [one for one in found if one.problems()]
    for one in missed:
        click.echo(f"{one.name}: {'; '.join(one.problems())}", err=True)
    sys.exit(1 if missed else 0)


def _measured(name: str, folder: Path, seconds: float) -> Measured:
    try:
        found = measure(name, folder / name, seconds)
    except Exception as error:
        # The others go on; the end of the run tells.
        reason = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:_REASON_MAX]}"
        found = Measured(name, LOADS[name].title, reason, 0.0, 0.0, Waits.of([]), Waits.of([]))
    told = f"p99 {_ms(found.waits.p99_ms)}, longest {_ms(found.waits.longest_ms)} ms of {found.waits.count:,} answers"
    click.echo(f"{time.strftime('%H:%M:%S')} {name}: {found.did}, {found.seconds:.1f} s: {told}", err=True)
    return found


def results(found: Sequence[Measured]) -> str:
    return table(_HEADER, [_row(one) for one in found])


def _row(one: Measured) -> list[str]:
    times = [ms for waits in (one.waits, one.control) for ms in (waits.p50_ms, waits.p99_ms, waits.longest_ms)]
    times += [one.excess_p99_ms, one.excess_longest_ms]
    held = "yes" if not one.problems() else f"no: {'; '.join(one.problems())}"
    return [f"{one.title} (`{one.name}`)", *map(_ms, times), f"{one.cores:.1f}", held]


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _keep(folder: Path, found: Sequence[Measured], facts: dict[str, str], seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%d %H:%M")
    (folder / "bystander-latest.md").write_text(_page(found, facts, seconds, stamp))
    raw = {"environment": facts, "seconds": seconds, "loads": [asdict(one) for one in found]}
    (folder / "bystander-latest.json").write_text(json.dumps(raw, indent=1) + "\n")


def _page(found: Sequence[Measured], facts: dict[str, str], seconds: float, stamp: str) -> str:
    done = [[f"`{one.name}`", one.did, f"{one.seconds:.1f}", f"{one.waits.count:,}"] for one in found]
    return f"""# The bystander

How long a client waits for its lookups while the server does something large for others. Times are milliseconds, taken
{stamp} by `make bench-bystander`.

{results(found)}
## How it is measured

A process looks up rows of a table with 1,000 keys that nobody else uses, one after another, 2 ms after the answer to
the one before, and times every answer. Beside it a load runs in a process of its own: for {seconds:g} s, or until its
one piece of work is done. What is awaited while it runs, and in the second after it, counts.

The control is the same on a server that has nothing else to do, while processes burn as much processor time as the
load's client and the server used for it ("cores"): what lookups wait there, the machine makes them wait. The excess is
what the load has above its control.

A load holds when the p99 is at most {EXCESS_P99_MS_MAX:g} ms and the longest answer at most
{EXCESS_LONGEST_MS_MAX:g} ms above the control. While syncs of another table take a second each, the longest answer
may take {SLOW_DISK_LONGEST_MS_MAX:g} ms, and a login with the right password may take {LOGIN_LONGEST_MS_MAX:g} ms
while others guess.

Load that is not ours hits both runs of a row, but not alike, and a load that gets less of the machine takes less in
its control: on a busy machine only stalls, not the p99, say something. While the server answers nothing, nothing is
asked, so a stall is one answer, which the p99 may not show.

In two rows the bystander does something else: it appends 100 KB in each request, or logs in anew each time.
`--only NAME` takes one load alone, `--seconds` makes all shorter.

## What the loads did

{table(["load", "did", "seconds", "answers to the bystander"], done)}
## Machine

{table(["", ""], [[key, value] for key, value in facts.items()])}"""


if __name__ == "__main__":
    main()
