"""The pictures: ratios of all paths, and what a row costs when there are many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks.corners import Corner
from benchmarks.floors import OURS, OURS_ON_APACHE
from benchmarks.measure import Measurement
from benchmarks.scale import KV_PATHS, LOG_PATHS
from benchmarks.summary import costs, figures
from benchmarks.workloads import Workload

_BARS = (
    ("Flussbett client and server, fsync", OURS["fsync"], "#0f766e"),
    ("Flussbett client and server, no fsync", OURS["os"], "#5eb8ae"),
    ("Flussbett client on Apache Fluss", OURS_ON_APACHE, "#c9a227"),
)
# Workload, metric, and what a reader calls it.
_PATHS = (
    ("append_arrow_1k", "krows_per_s", "Arrow append, 1,000 rows a call"),
    ("append_arrow_10k", "krows_per_s", "Arrow append, 10,000 rows a call"),
    ("append_arrow_50k", "krows_per_s", "Arrow append, 50,000 rows a call"),
    ("append_rows", "krows_per_s", "Row append"),
    ("scan_arrow", "krows_per_s", "Scan to Arrow"),
    ("scan_projected", "krows_per_s", "Scan, 2 of 5 columns"),
    ("scan_filtered", "krows_per_s", "Scan, filtered"),
    ("poll_rows", "krows_per_s", "Polling rows"),
    ("upsert_rows_insert", "krows_per_s", "Row upsert, new keys"),
    ("upsert_rows_update", "krows_per_s", "Row upsert, known keys"),
    ("upsert_bulk_insert", "krows_per_s", "Bulk upsert, new keys"),
    ("upsert_bulk_update", "krows_per_s", "Bulk upsert, known keys"),
    ("changelog", "krows_per_s", "Changelog"),
    ("lookup", "lookup_ms", "Lookup, time"),
    ("lookup_concurrent", "krows_per_s", "Lookups, 1,000 at a time"),
    ("lookup_prefix", "lookup_ms", "Prefix lookup, time"),
    ("ack", "ack_ms", "Append + flush, time"),
    ("latency", "visible_ms", "Append to visible, time"),
    ("latency_tuned", "visible_ms", "Append to visible, tuned"),
    ("resources", "startup_s", "Start-up, time"),
    ("resources", "server_idle_mb", "Server memory, idle"),
)
_COLOURS = {"append": "#0f766e", "scan": "#5eb8ae", "upsert": "#c9a227", "lookup": "#b4532a"}
_TITLES = {"append": "Arrow append", "scan": "scan to Arrow", "upsert": "bulk upsert", "lookup": "lookup"}
_TEXT = "#1f2933"
STYLE: Any = {
    "svg.hashsalt": "flussbett",  # the same picture for the same figures
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans", "sans-serif"],
    "font.size": 11,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.edgecolor": "#9aa5b1",
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
}
_INCHES_PER_PIXEL = 1 / 72
_WIDTH_PX = 800


def draw(
    folder: Path, stem: str, measurements: Sequence[Measurement], workloads: Sequence[Workload], scaled: Corner
) -> list[str]:
    """Write the pictures there are figures for; returns the names of their files."""
    pictures = {f"{stem}.svg": _ratios(measurements, workloads), f"{stem}-scale.svg": _scale(measurements, scaled)}
    written = []
    for name, picture in pictures.items():
        if picture is not None:
            with mpl.rc_context(STYLE):
                picture.savefig(folder / name, format="svg", metadata={"Date": None, "Creator": None})
            written.append(name)
    return written


def new_picture(height_px: float) -> Picture:
    # A card of its own: the page around it may be dark.
    size = (_WIDTH_PX * _INCHES_PER_PIXEL, height_px * _INCHES_PER_PIXEL)
    return Picture(figsize=size, facecolor="white", layout="constrained")


def _ratios(measurements: Sequence[Measurement], workloads: Sequence[Workload]) -> Picture | None:
    rows = _ratio_rows(measurements, workloads)
    if not rows:
        return None
    with mpl.rc_context(STYLE):
        picture = new_picture(110 + 36 * len(rows))
        axes = picture.subplots()
        for offset, (title, corner, colour) in enumerate(_BARS):
            places = [row - 0.27 + 0.27 * offset for row, (_, found) in enumerate(rows) if corner in found]
            values = [found[corner] for _, found in rows if corner in found]
            # Bars begin at 1: what reaches to the left is slower.
            axes.barh(places, [value - 1 for value in values], 0.25, left=1, color=colour, label=title)
            for place, value in zip(places, values, strict=True):
                _bar_label(axes, place, value)
        _dress_ratios(axes, [name for name, _ in rows], [v for _, found in rows for v in found.values()])
        picture.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=10)
    return picture


def _ratio_rows(
    measurements: Sequence[Measurement], workloads: Sequence[Workload]
) -> list[tuple[str, dict[Corner, float]]]:
    by_key = {workload.key: workload for workload in workloads}
    rows = []
    for key, metric_key, name in _PATHS:
        metrics = by_key[key].metrics if key in by_key else ()
        for metric in (metric for metric in metrics if metric.key == metric_key):
            found = {c: f.ratio for c, f in figures(measurements, key, metric).items() if f.ratio is not None}
            shown = {corner: found[corner] for _, corner, _ in _BARS if corner in found}
            if shown:
                rows.append((name, shown))
    return rows


def _bar_label(axes: Any, place: float, value: float) -> None:
    text = f"{value:,.0f}x" if value >= 20 else f"{value:.1f}x" if value >= 9.95 else f"{value:.2f}x"
    side, shift = ("left", 3) if value >= 1 else ("right", -3)
    offset = {"xytext": (shift, 0), "textcoords": "offset points", "ha": side, "va": "center_baseline", "fontsize": 8.5}
    axes.annotate(text, (value, place), **offset)


def _dress_ratios(axes: Any, names: list[str], values: list[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, min(values) * 0.6), max(4.0, max(values) * 2.2))
    decades = range(math.ceil(math.log10(axes.get_xlim()[0])), math.floor(math.log10(axes.get_xlim()[1])) + 1)
    axes.set_xticks([10.0**power for power in decades], [f"{10.0**power:g}x" for power in decades])
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.axvline(1, color=_TEXT, linewidth=1)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("times better than pyfluss on Apache Fluss (1 = the same, logarithmic)")


def _scale(measurements: Sequence[Measurement], corner: Corner) -> Picture | None:
    panels = {
        "rows": ("rows in the table", [*LOG_PATHS, *KV_PATHS]),
        "buckets": ("buckets", [*LOG_PATHS, *KV_PATHS]),
        "writers": ("writers at a time", ["append"]),
    }
    found = {
        axis: {path: places for path in paths if (places := costs(measurements, axis, path, corner))}
        for axis, (_, paths) in panels.items()
    }
    shown = [axis for axis in panels if found[axis]]
    if not shown:
        return None
    with mpl.rc_context(STYLE):
        picture = new_picture(340)
        lines: dict[str, Any] = {}
        panes = picture.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for number, (axis, axes) in enumerate(zip(shown, panes, strict=True)):
            for path, places in found[axis].items():
                (lines[_TITLES[path]],) = axes.plot(
                    list(places), list(places.values()), "o-", color=_COLOURS[path], markersize=4
                )
            _dress_scale(axes, panels[axis][0], sorted({place for by in found[axis].values() for place in by}))
            if number == 0:
                axes.set_ylabel("CPU of client and server, µs a row")
        picture.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=4, frameon=False, fontsize=10)
    return picture


def _dress_scale(axes: Any, title: str, places: list[int]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.1)
    axes.set_xticks(places, [_short(place) for place in places])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(title)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _short(value: int) -> str:
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return str(value)
