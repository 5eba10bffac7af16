"""The tables, as Markdown that also reads well on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.floors import floors, label
from benchmarks.latency_workloads import TUNED_WAIT_MS
from benchmarks.measure import Measurement
from benchmarks.scale import KV_PATHS, LOG_PATHS
from benchmarks.summary import Figure, costs, failures, figures
from benchmarks.workloads import Sizes, Workload

_HOW_TO_READ = f"""\
Each figure is the median of the rounds, with the lowest and highest round beside it. The ratio says how many times
better a corner is than pyfluss on Apache Fluss: above 1 is faster or less, for latencies and memory too. It is taken
within each round, and the median of the rounds is shown. All corners run the same worker on the same rows and take
turns within a round. What is read is compared with what was written, by number of rows and checksum, or row by row; a
measurement that fails its check is shown as failed.

- A row of a log table has 52 bytes in Arrow: a bigint, a string of 20 characters, a double, a timestamp, an int. A row
  of a primary-key table is a bigint and 100 characters. MB/s count uncompressed Arrow bytes.
- Time is taken from the first write to the end of `flush()`, or from subscribing to the last row. CPU is what the
  client's and the server's process used in that time, divided by the rows; other load disturbs it less than the rates.
  Of Apache Fluss it is that of the tablet server.
- Flussbett is measured with fsync (its default: acknowledged means on disk) and without. Apache Fluss and Kafka do not
  sync before they acknowledge: compare them with "no fsync" for like with like.
- Filtered scan: the last tenth of the ids; the rate counts all rows of the table. On Flussbett's server the table has
  statistics on this column, so that batches that cannot match are left out there, and the client filters the rest.
  Apache Fluss 0.9.1 knows no such statistics: the client reads everything and filters. pyfluss leaves filtering within
  a batch to its user, so the worker does it.
- Tuned: TCP_NODELAY, which pyfluss has no option for, and a fetch wait of {TUNED_WAIT_MS} ms, because Apache Fluss
  does not wake a waiting reader; Kafka's clients get a linger of 0 ms. What does not say tuned is as shipped. With
  pauses, 5 to 15 ms pass between two rows, and another process tails the table.
- Bulk upserts are Arrow batches; pyfluss has only row upserts, which is what is compared. Known keys are those of the
  upsert before, in another order; 2,000 random keys are looked up after each upsert. The changelog has an insert and an
  update of each key.
- Lookups 1,000 at a time: pyfluss looks up one row at a time with one lookuper, so it gets one for each call, which is
  its best; "one lookuper" is without that. Lookups last four seconds at most.
- Kafka moves bytes and knows no columns: its rows are the same values packed into 52 bytes, sent and polled one by one,
  in one partition with acks=1, and unpacked by the worker.
- Start-up: from the start of the processes until a client has listed the databases. The server's memory is that of the
  process that keeps the tables; the load is appended, scanned and upserted by the client whose memory is shown.
"""


def render(
    measurements: Sequence[Measurement],
    workloads: Sequence[Workload],
    environment: Mapping[str, str],
    sizes: Sizes,
    rounds: int,
    title: str,
    pictures: Sequence[str] = (),
) -> str:
    parts = [f"# Benchmark {title}\n", table(["", ""], [list(item) for item in environment.items()])]
    parts += [_about(sizes, rounds)]
    parts += [f"![{_PICTURES[number]}]({name})\n" for number, name in enumerate(pictures)]
    if failed := failures(measurements):
        parts += ["## Failed\n", _failures(failed)]
    if reached := floors(measurements, workloads):
        lines = [[f.path, f.where, f.needed, f.measured, _YES_NO[f.is_reached]] for f in reached]
        parts += ["## Floor reached?\n", table(["", "where", "needed", "measured", "reached"], lines)]
        parts += ["What keeps a path from its floor is in [limits](limits.md).\n"]
    fluss, kafka = ([item for item in measurements if item.corner.is_kafka is kafka] for kafka in (False, True))
    parts += ["## Ratios to pyfluss on Apache Fluss\n", _ratios(fluss, workloads)]
    if kafka:
        baseline = [item for item in measurements if item.corner.is_baseline]
        with_kafka = [workload for workload in workloads if workload.has_kafka]
        parts += ["## Ratios of Kafka to pyfluss on Apache Fluss\n", _ratios([*kafka, *baseline], with_kafka)]
    for workload in workloads:
        parts += [f"## {workload.title}\n", _details(measurements, workload)]
    if scaled := _scale(measurements):
        parts += ["## Cost of a row against scale\n", scaled]
    return "\n".join([*parts, "## How to read this\n", _HOW_TO_READ])


_PICTURES = ("Ratios of all paths to pyfluss on Apache Fluss", "CPU a row against rows, buckets and writers")
_YES_NO = {True: "yes", False: "no", None: "-"}


def _about(sizes: Sizes, rounds: int) -> str:
    return (
        f"{_count(rounds, 'round')}; per measurement {sizes.arrow_rows:,} rows for Arrow append and scan, "
        f"{sizes.dict_rows:,} for row append, {sizes.poll_rows:,} for polling, {sizes.ack_rows:,} rows one by one "
        f"back to back, {sizes.shipped_rows:,} (tuned {sizes.latency_rows:,}) with pauses, {sizes.kv_rows:,} keys for "
        f"bulk upsert and lookups ({sizes.kv_dict_rows:,} for row upsert and changelog), {sizes.lookups:,} lookups one "
        f"after another and {sizes.concurrent_lookups:,} side by side, {sizes.load_rows:,} rows as load for memory; "
        f"{_count(sizes.buckets, 'bucket')}, {sizes.codec}.\n"
    )


def _failures(failed: Sequence[Measurement]) -> str:
    lines = [
        [item.workload, item.corner.title, str(item.round), str(item.failure).replace("|", "/")] for item in failed
    ]
    return table(["", "where", "round", "reason"], lines)


def _ratios(measurements: Sequence[Measurement], workloads: Sequence[Workload]) -> str:
    corners = sorted(
        {item.corner for item in measurements if not item.corner.is_baseline}, key=lambda corner: corner.place
    )
    rows = []
    for workload in workloads:
        for metric in filter(lambda metric: metric.is_compared, workload.metrics):
            found = figures(measurements, workload.key, metric)
            rows.append([label(workload, metric), *(_ratio(found.get(corner)) for corner in corners)])
    return table(["", *(corner.title for corner in corners)], rows)


def _details(measurements: Sequence[Measurement], workload: Workload) -> str:
    corners = {item.corner for item in measurements if item.workload == workload.key}
    header = [""]
    rows = {corner: [corner.title] for corner in sorted(corners, key=lambda corner: corner.place)}
    for metric in workload.metrics:
        header += [metric.title, "ratio"] if metric.is_compared else [metric.title]
        found = figures(measurements, workload.key, metric)
        for corner, cells in rows.items():
            figure = found.get(corner)
            cells += [_value(figure), _ratio(figure)] if metric.is_compared else [_value(figure)]
    return table(header, list(rows.values()))


def _scale(measurements: Sequence[Measurement]) -> str:
    """CPU of client and server together, µs a row; a line for each path, a column for each place of the axis."""
    parts = []
    for corner in sorted({item.corner for item in measurements}, key=lambda corner: corner.place):
        for axis, paths in (
            ("rows", [*LOG_PATHS, *KV_PATHS]),
            ("buckets", [*LOG_PATHS, *KV_PATHS]),
            ("writers", ["append"]),
        ):
            found = {path: costs(measurements, axis, path, corner) for path in paths}
            places = sorted({place for by_place in found.values() for place in by_place})
            if places:
                header = [f"{corner.title}: CPU µs a row", *(f"{place:,} {axis}" for place in places)]
                lines = [[p, *(number(by[x]) if x in by else "-" for x in places)] for p, by in found.items() if by]
                parts.append(table(header, lines))
    return "\n".join(parts)


def _value(figure: Figure | None) -> str:
    """What has no figure has failed: it is in the table of failures."""
    if figure is None:
        return "failed"
    return f"{number(figure.median)} ({number(figure.lowest)}-{number(figure.highest)})"


def _ratio(figure: Figure | None) -> str:
    return "-" if figure is None or figure.ratio is None else f"{figure.ratio:.2f}x"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def number(value: float) -> str:
    """Three digits that matter, no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A padded Markdown table: text to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    line = ["-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    return "".join(_line(cells, widths) for cells in [header, line, *rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]) + " |\n"
