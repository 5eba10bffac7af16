"""The curves, the verdict and the page of a soak; `python -m benchmarks.soak_report FILE.csv` draws a run under way."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

from benchmarks.plots import STYLE, new_picture
from benchmarks.report import table
from benchmarks.soak_samples import Sample, read, second_half, trend

SLOPE_MB_MAX = 0.1  # a minute
# Below, caches are still being filled, and a verdict would be about them.
JUDGED_HOURS_MIN = 0.45
_GROWTH_SHARE_MAX = 0.05  # of what is counted, which goes up and down with the tables that come and go
_GROWTH_MIN = 3.0
_LEVEL = (("descriptors", "descriptors"), ("threads", "threads"), ("data_files", "files in the data directory"))
_SHOWN = (
    ("rss_mb", "resident memory, MB"),
    ("pss_mb", "its share of shared pages, MB"),
    ("anon_mb", "anonymous memory, MB"),
    ("allocated_mb", "given out by the C library, MB"),
    ("rocksdb_mb", "RocksDB's memtables and cached blocks, MB"),
    ("python_blocks", "blocks of Python objects"),
    ("descriptors", "descriptors"),
    ("threads", "threads"),
    ("open_stores", "open stores"),
    ("open_logs", "open logs"),
    ("data_files", "files in the data directory"),
    ("data_mb", "bytes in the data directory, MB"),
)
# Title of a pane, and its curves with their names and colours.
_PANES: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "server memory, MB",
        (
            ("rss_mb", "resident", "#0f766e"),
            ("anon_mb", "anonymous", "#5eb8ae"),
            ("allocated_mb", "allocated", "#c9a227"),
            ("rocksdb_mb", "RocksDB", "#b4532a"),
        ),
    ),
    ("descriptors and threads", (("descriptors", "descriptors", "#0f766e"), ("threads", "threads", "#c9a227"))),
    ("files in the data directory", (("data_files", "files", "#0f766e"),)),
    ("data directory, MB", (("data_mb", "bytes", "#0f766e"),)),
    ("open stores and logs", (("open_stores", "stores", "#0f766e"), ("open_logs", "logs", "#c9a227"))),
)
_CLIENT_COLOURS = ("#0f766e", "#5eb8ae", "#c9a227", "#b4532a", "#52606d", "#9b59b6", "#2d6cdf", "#7b8794")
_PANE_PX = 150


class ClientResult(NamedTuple):
    steps: int
    rows: int
    errors: int


def problems(samples: Sequence[Sample], clients: Mapping[str, ClientResult], *, is_judged: bool) -> list[str]:
    """Why a run has failed; nothing if it has not. A short run is judged by errors alone."""
    found = [f"{name}: {result.errors} errors" for name, result in clients.items() if result.errors]
    found += [f"{name}: not one step" for name, result in clients.items() if not result.steps]
    if any(sample.get("sync_failures") for sample in samples):
        found.append("a sync of the server failed")
    if not is_judged:
        return found
    half = second_half(samples)
    slope = trend(half, "rss_mb").slope
    if slope >= SLOPE_MB_MAX:
        found.append(f"memory grows by {slope:.3f} MB a minute, {SLOPE_MB_MAX:g} or more")
    for key, name in _LEVEL:
        line = trend(half, key)
        if line.growth > max(_GROWTH_MIN, _GROWTH_SHARE_MAX * line.mean):
            found.append(f"{name} grow: by {line.growth:.0f} in the second half, {line.mean:.0f} on average")
    return found


def trends(samples: Sequence[Sample]) -> str:
    half = second_half(samples)
    rows = []
    for key, name in _SHOWN:
        line = trend(half, key)
        values = [sample[key] for sample in half if key in sample] or [0.0]
        rows.append([name, f"{line.mean:,.1f}", f"{min(values):,.1f} to {max(values):,.1f}", f"{line.slope:+.3f}"])
    for key in sorted({key for sample in samples for key in sample if key.startswith("client_")}):
        line = trend(half, key)
        values = [sample[key] for sample in half if key in sample] or [0.0]
        name = f"client `{key.removeprefix('client_').removesuffix('_mb')}`, resident MB"
        rows.append([name, f"{line.mean:,.1f}", f"{min(values):,.1f} to {max(values):,.1f}", f"{line.slope:+.3f}"])
    return table(["second half", "mean", "range", "slope a minute"], rows)


def page(
    samples: Sequence[Sample],
    clients: Mapping[str, ClientResult],
    facts: Mapping[str, str],
    failed: Sequence[str],
    picture: str,
) -> str:
    minutes = samples[-1]["minutes"] if samples else 0.0
    busy = trend(samples, "cpu_s").slope / 60
    verdict = "**Level.**" if not failed else "**Failed**: " + "; ".join(failed) + "."
    lines = [
        "# Soak",
        "",
        f"{minutes / 60:.2f} hours of mixed load on one server, by `make soak`. {verdict}",
        "",
        f"![Curves of memory, descriptors, threads, files and disk]({picture})",
        "",
        trends(samples),
        "",
        "Slopes are least-squares lines through the second half. The run fails if the server's resident memory rises "
        f"by {SLOPE_MB_MAX:g} MB a minute or more, if descriptors, threads or files rise by more than "
        f"{_GROWTH_SHARE_MAX:.0%}, or if a client meets an error or a wrong row.",
        "",
        "## Load",
        "",
        table(
            ["client", "steps", "rows compared", "errors"],
            [[f"`{n}`", f"{r.steps:,}", f"{r.rows:,}", f"{r.errors}"] for n, r in clients.items()],
        ),
        "",
        f"Each client rests six times as long as a step took; the server used {busy:.2f} cores. The server has its "
        "default settings but for segments of 1 MiB, 64 MiB for RocksDB, snapshots every 20 s, retention every 5 s, "
        "a scrub every 10 minutes and staged writes that expire after a minute: what takes hours elsewhere happens "
        "often, and caches are full before the second half. Logs are kept for 60 s and up to 4 MiB a bucket.",
        "",
        "## Machine",
        "",
        table(["", ""], [[key, value] for key, value in facts.items()]),
        "",
    ]
    return "\n".join(lines)


def draw(samples: Sequence[Sample], path: Path) -> None:
    clients = sorted({key for sample in samples for key in sample if key.startswith("client_")})
    named = tuple(
        (key, key.removeprefix("client_").removesuffix("_mb"), colour)
        for key, colour in zip(clients, _CLIENT_COLOURS, strict=False)
    )
    panes = (*_PANES, ("client memory, MB", named))
    with mpl.rc_context(STYLE):
        picture = new_picture(_PANE_PX * len(panes))
        for axes, (title, curves) in zip(picture.subplots(len(panes), 1, sharex=True), panes, strict=True):
            _draw_pane(axes, title, curves, samples)
        axes.set_xlabel("minutes")
        picture.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw_pane(axes: Any, title: str, curves: Sequence[tuple[str, str, str]], samples: Sequence[Sample]) -> None:
    for key, name, colour in curves:
        points = [(sample["minutes"], sample[key]) for sample in samples if key in sample]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1, label=name)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if len(curves) > 1 and axes.lines:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.97), ncols=len(curves), frameon=False, fontsize=8)


def main() -> None:
    source = Path(sys.argv[1])
    samples = read(source)
    draw(samples, source.with_suffix(".svg"))
    print(trends(samples))


if __name__ == "__main__":
    main()
