"""The floors: how many times better than pyfluss on Apache Fluss each path has to be, and whether it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.corners import Corner
from benchmarks.measure import Measurement
from benchmarks.scale import KV_PATHS, LOG_PATHS
from benchmarks.summary import Figure, by_round, costs, figures, ratio
from benchmarks.workloads import Metric, Workload

OURS = {server: Corner("flussbett", f"flussbett-{server}") for server in ("os", "fsync")}
OURS_ON_APACHE = Corner("flussbett", "apache")
PYFLUSS_ON_OURS = {server: Corner("pyfluss", f"flussbett-{server}") for server in ("os", "fsync")}
_BASELINE = Corner("pyfluss", "apache")

# Workload, metric, and the ratio needed without and with fsync.
_RATIOS = (
    ("append_arrow_1k", "krows_per_s", 1.2, 1.0),
    ("append_arrow_10k", "krows_per_s", 1.3, 1.0),
    ("append_arrow_50k", "krows_per_s", 1.3, 1.0),
    ("append_rows", "krows_per_s", 1.1, 1.1),
    ("scan_arrow", "krows_per_s", 1.2, 1.2),
    ("scan_projected", "krows_per_s", 1.2, 1.2),
    ("poll_rows", "krows_per_s", 1.5, 1.5),
    ("upsert_rows_insert", "krows_per_s", 1.2, 1.2),
    ("upsert_rows_update", "krows_per_s", 1.5, 1.5),
    ("upsert_bulk_insert", "krows_per_s", 1.5, 1.5),
    ("upsert_bulk_update", "krows_per_s", 1.5, 1.5),
    ("lookup", "lookup_ms", 300.0, 300.0),
    ("lookup_concurrent", "krows_per_s", 12.0, 12.0),
    ("ack", "ack_ms", 10.0, 4.0),
    ("latency", "visible_ms", 50.0, 50.0),
    ("resources", "server_idle_mb", 4.0, 4.0),
    ("resources", "all_idle_mb", 4.0, 4.0),
    ("resources", "startup_s", 5.0, 5.0),
)
_VISIBLE_TUNED = 2.0
_LOOKUP_MS_MAX = 0.3
_EVERY_PATH = 1.0
# Axis, paths, where it begins, and how many times the cost there a row may cost further on.
_GROWTHS = (("rows", LOG_PATHS, 100_000, 1.3), ("buckets", LOG_PATHS, 1, 1.5), ("rows", KV_PATHS, 1_000_000, 2.5))


@dataclass(frozen=True)
class Floor:
    """One line of the table; without a measurement it is neither reached nor missed."""

    path: str
    where: str
    needed: str
    measured: str
    is_reached: bool | None


class _Figures:
    """Looks figures up by the keys of workload and metric."""

    def __init__(self, measurements: Sequence[Measurement], workloads: Sequence[Workload]) -> None:
        self.measurements = measurements
        self.workloads = {workload.key: workload for workload in workloads}

    def has(self, corner: Corner) -> bool:
        return any(item.corner == corner for item in self.measurements)

    def metric(self, workload: str, key: str) -> Metric | None:
        found = self.workloads[workload].metrics if workload in self.workloads else ()
        return next((metric for metric in found if metric.key == key), None)

    def median(self, workload: str, key: str, corner: Corner) -> float | None:
        figure = self._figure(workload, key, corner)
        return None if figure is None else figure.median

    def ratio(self, workload: str, key: str, corner: Corner) -> float | None:
        figure = self._figure(workload, key, corner)
        return None if figure is None else figure.ratio

    def by_round(self, workload: str, key: str, corner: Corner) -> dict[int, float]:
        return by_round(self.measurements, workload, key).get(corner, {})

    def _figure(self, workload: str, key: str, corner: Corner) -> Figure | None:
        metric = self.metric(workload, key)
        return figures(self.measurements, workload, metric).get(corner) if metric else None


def floors(measurements: Sequence[Measurement], workloads: Sequence[Workload]) -> list[Floor]:
    found = _Figures(measurements, workloads)
    parts = (_ratios, _visible_tuned, _lookup_time, _every_path, _growths)
    return [floor for part in parts for floor in part(found)]


def _ratios(found: _Figures) -> Iterator[Floor]:
    for workload, key, *needed in _RATIOS:
        metric = found.metric(workload, key)
        if metric is None or not found.has(_BASELINE):
            continue
        for (server, corner), least in zip(OURS.items(), needed, strict=True):
            if found.has(corner):
                title = label(found.workloads[workload], metric)
                yield _at_least(title, server, least, found.ratio(workload, key, corner))


def _visible_tuned(found: _Figures) -> Iterator[Floor]:
    """Ours as it is shipped against the peer at its best."""
    metric = found.metric("latency", "visible_ms")
    tuned = found.by_round("latency_tuned", "visible_ms", _BASELINE)
    if metric is None or not tuned:
        return
    for server, corner in OURS.items():
        if found.has(corner):
            measured = ratio(found.by_round("latency", "visible_ms", corner), tuned, metric)
            yield _at_least("Append to visible, against the peer tuned", server, _VISIBLE_TUNED, measured)


def _lookup_time(found: _Figures) -> Iterator[Floor]:
    for server, corner in OURS.items():
        measured = found.median("lookup", "lookup_ms", corner)
        if measured is not None:
            reached = measured < _LOOKUP_MS_MAX
            yield Floor("Lookup, median", server, f"under {_LOOKUP_MS_MAX} ms", f"{measured:.3f} ms", reached)


def _every_path(found: _Figures) -> Iterator[Floor]:
    corners = {"our client on Apache Fluss": OURS_ON_APACHE}
    corners |= {f"pyfluss on our server, {server}": corner for server, corner in PYFLUSS_ON_OURS.items()}
    for title, corner in corners.items():
        ratios = sorted((value, path) for path, value in _compared(found, corner))
        below = [item for item in ratios if item[0] < _EVERY_PATH]
        # One line when all is well; otherwise one for each path that is not.
        for value, path in below or ratios[:1]:
            name = path if below else f"Every path, the lowest: {path}"
            yield _at_least(name, title, _EVERY_PATH, value)


def _compared(found: _Figures, corner: Corner) -> Iterator[tuple[str, float]]:
    for workload in found.workloads.values():
        for metric in workload.metrics:
            value = found.ratio(workload.key, metric.key, corner) if metric.is_compared else None
            if value is not None:
                yield label(workload, metric), value


def _growths(found: _Figures) -> Iterator[Floor]:
    for axis, paths, start, most in _GROWTHS:
        for path in paths:
            by_value = costs(found.measurements, axis, path, OURS["os"])
            places = {value: cost for value, cost in by_value.items() if value >= start}
            if start in places and len(places) > 1:
                growth = max(places.values()) / places[start]
                title = f"CPU a row, {path}, {start:,} to {max(places):,} {axis}"
                yield Floor(title, "os", f"within {most:.1f}x", f"{growth:.2f}x", round(growth, 2) <= most)


def _at_least(path: str, where: str, needed: float, measured: float | None) -> Floor:
    text = "-" if measured is None else f"{measured:.2f}x"
    # As it is shown: 1.00x has reached 1x.
    return Floor(path, where, f"{needed:g}x", text, None if measured is None else round(measured, 2) >= needed)


def label(workload: Workload, metric: Metric) -> str:
    """A path in words; its rate needs none."""
    return workload.title if metric.higher_is_better else f"{workload.title}: {metric.title}"
