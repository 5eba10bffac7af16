"""The tables, as Markdown that also reads well on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.corners import Corner
from benchmarks.measure import Measurement
from benchmarks.summary import Figure, figures
from benchmarks.workloads import TUNED_WAIT_MS, Sizes, Workload

_HOW_TO_READ = f"""\
Each figure is the median of the rounds, with the lowest and highest round beside it. The ratio says how many times
better a corner is than pyfluss on Apache Fluss: above 1 is faster, for latencies too. Every corner runs the same worker
with the same settings; corners take turns within a round, and every measurement checks that each row was read back
exactly once.

- MB/s count uncompressed Arrow bytes, from the first write to the end of `flush()`, or from subscribing to the end of
  `to_arrow()`.
- Client CPU is what the client's process used for one measurement; other load disturbs it less than the rates.
- Flussbett is measured with fsync (its default: acknowledged means on disk) and without. Apache Fluss does not sync
  before it acknowledges: compare it with "no fsync" for like with like.
- Latency: one row is appended and flushed, another process tails the table. "Tuned" gives every corner TCP_NODELAY,
  which pyfluss has no option for, and a fetch wait of {TUNED_WAIT_MS} ms, because Apache Fluss does not wake a waiting
  reader; "as shipped" changes nothing.
- Bulk upserts are Arrow batches; pyfluss has only row upserts, which is what is compared. Known keys are those of the
  upsert before, in another order. The memory is the server's after the upsert; the server of Apache Fluss is a JVM.
- Lookups 1,000 at a time share one lookuper here; pyfluss gets one lookuper for each, which is its best. Every row that
  is looked up is compared with what was written last.
"""


def render(
    measurements: Sequence[Measurement],
    workloads: Sequence[Workload],
    environment: Mapping[str, str],
    sizes: Sizes,
    rounds: int,
    title: str,
) -> str:
    parts = [f"# Benchmark {title}\n", table(["", ""], [list(item) for item in environment.items()])]
    parts.append(
        f"{_count(rounds, 'round')}; per measurement {sizes.arrow_rows:,} rows for Arrow append and "
        f"scan, {sizes.dict_rows:,} for row append, {sizes.latency_rows:,} (as shipped {sizes.shipped_rows:,}) for "
        f"latency, {sizes.kv_rows:,} keys of 100-byte rows for bulk upsert ({sizes.kv_dict_rows:,} for row upsert), "
        f"{sizes.lookups:,} lookups (or ten seconds of them) one after another and "
        f"{sizes.concurrent_lookups:,} side by side; "
        f"{_count(sizes.buckets, 'bucket')}. A workload that takes long has fewer rounds, 3 at most.\n"
    )
    parts += ["## Ratios to pyfluss on Apache Fluss\n", _ratios(measurements, workloads)]
    for workload in workloads:
        parts += [f"## {workload.title}\n", _details(measurements, workload)]
    return "\n".join([*parts, "## How to read this\n", _HOW_TO_READ])


def _ratios(measurements: Sequence[Measurement], workloads: Sequence[Workload]) -> str:
    corners = sorted(
        {item.corner for item in measurements if not item.corner.is_baseline}, key=lambda corner: corner.place
    )
    rows = []
    for workload in workloads:
        for metric in filter(lambda metric: metric.is_compared, workload.metrics):
            found = figures(measurements, workload.key, metric)
            label = workload.title if metric.higher_is_better else f"{workload.title}: {metric.title}"
            rows.append([label, *(_ratio(found[corner]) for corner in corners)])
    return table(["", *(corner.title for corner in corners)], rows)


def _details(measurements: Sequence[Measurement], workload: Workload) -> str:
    header = [""]
    rows: dict[Corner, list[str]] = {}
    for metric in workload.metrics:
        header += [metric.title, "ratio"] if metric.is_compared else [metric.title]
        for corner, figure in figures(measurements, workload.key, metric).items():
            cells = [_value(figure), _ratio(figure)] if metric.is_compared else [_value(figure)]
            rows.setdefault(corner, [corner.title]).extend(cells)
    return table(header, list(rows.values()))


def _value(figure: Figure) -> str:
    return f"{number(figure.median)} ({number(figure.lowest)}-{number(figure.highest)})"


def _ratio(figure: Figure) -> str:
    return "-" if figure.ratio is None else f"{figure.ratio:.2f}x"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def number(value: float) -> str:
    """Three digits that matter, no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A padded Markdown table: text to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    line = ["-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    return "".join(_line(cells, widths) for cells in [header, line, *rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]) + " |\n"
