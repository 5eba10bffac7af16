"""What a long run is watched by: a line of a CSV file every few seconds, and the straight line through a curve."""

from __future__ import annotations

import csv
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.worker_loop import process_cpu_s, resident_mb

_METRICS_TIMEOUT_S = 20.0
_MB = 1e6
# Column of the CSV file, metric of the server's page, divisor.
_METRICS = (
    ("allocated_mb", "fluss_allocated_bytes", _MB),
    ("rocksdb_mb", "fluss_kv_memory_bytes", _MB),
    ("python_blocks", "fluss_python_blocks", 1),
    ("open_stores", "fluss_open_kv_stores", 1),
    ("open_logs", "fluss_open_logs", 1),
    ("tables", "fluss_tables", 1),
    ("partitions", "fluss_partitions", 1),
    ("connections", "fluss_connections", 1),
    ("fetches_waiting", "fluss_fetches_waiting", 1),
    ("kv_scanners", "fluss_kv_scanners", 1),
    ("appended_rows", "fluss_appended_rows_total", 1),
    ("lookup_keys", "fluss_lookup_keys_total", 1),
    ("removed_segments", "fluss_removed_segments_total", 1),
    ("sync_failures", "fluss_sync_failures_total", 1),
)
_OWN = ("minutes", "rss_mb", "pss_mb", "anon_mb", "descriptors", "threads", "cpu_s", "data_files", "data_mb")
_CLIENT_PREFIX = "client_"

Sample = dict[str, float]


def columns(clients: Iterable[str]) -> list[str]:
    return [*_OWN, *(name for name, _, _ in _METRICS), *(f"{_CLIENT_PREFIX}{name}_mb" for name in clients)]


def take(minutes: float, server_pid: int, metrics_port: int, data_dir: Path, clients: Mapping[str, int]) -> Sample:
    """One sample; of a client that is gone there is nothing."""
    files, size_bytes = _data(data_dir)
    found = {
        "minutes": minutes,
        **_memory(server_pid),
        "descriptors": len(os.listdir(f"/proc/{server_pid}/fd")),
        "threads": len(os.listdir(f"/proc/{server_pid}/task")),
        "cpu_s": process_cpu_s(server_pid),
        "data_files": files,
        "data_mb": size_bytes / _MB,
        **_metrics(metrics_port),
    }
    for name, pid in clients.items():
        try:
            found[f"{_CLIENT_PREFIX}{name}_mb"] = resident_mb(pid)
        except (OSError, StopIteration):
            continue
    return found


def _memory(pid: int) -> Sample:
    kib = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        kib[name] = int(rest.split()[0])
    return {
        f"{key}_mb": kib[name] * 1_024 / _MB for key, name in (("rss", "Rss"), ("pss", "Pss"), ("anon", "Anonymous"))
    }


def _data(folder: Path) -> tuple[int, int]:
    """How many files, and their bytes; those with several names count once for each."""
    count = size_bytes = 0
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        count += 1
                        size_bytes += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # It was dropped in this moment.
    return count, size_bytes


def _metrics(port: int) -> Sample:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_METRICS_TIMEOUT_S) as response:
            text = response.read().decode()
    except (OSError, urllib.error.URLError):
        return {}
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    values = {name: float(value) for name, _, value in lines}
    return {key: values[name] / divisor for key, name, divisor in _METRICS if name in values}


class Journal:
    """The CSV file; each line is in the file when it was written."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, names)
        self._writer.writeheader()
        self.samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._writer.writerow({name: f"{value:.3f}".rstrip("0").rstrip(".") for name, value in sample.items()})
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[Sample]:
    """What a journal has, also that of a run that goes on or was killed."""
    with path.open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file) if row["minutes"]]


class Trend(NamedTuple):
    """The straight line through a curve, by least squares."""

    slope: float  # a minute
    mean: float
    growth: float  # from the begin of the line to its end


def trend(samples: Sequence[Sample], name: str) -> Trend:
    points = [(sample["minutes"], sample[name]) for sample in samples if name in sample]
    if len(points) < 2:
        return Trend(0.0, points[0][1] if points else 0.0, 0.0)
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return Trend(slope, mean_y, slope * (points[-1][0] - points[0][0]))


def second_half(samples: Sequence[Sample]) -> list[Sample]:
    middle = samples[-1]["minutes"] / 2 if samples else 0.0
    return [sample for sample in samples if sample["minutes"] >= middle]
