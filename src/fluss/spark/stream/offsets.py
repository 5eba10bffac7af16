"""Offsets of a stream as Spark keeps them in a checkpoint, and how far a limited micro-batch may go.

    {"version": 1, "table_id": 7, "offsets": [120, 98]}
    {"version": 1, "table_id": 8, "offsets": {"3": [120, 98], "5": [-1, -1]}}

A position has an offset per bucket, and in a partitioned table a list per partition id; -1 stands for a bucket whose
current rows come first. Spark takes two texts that differ for new data, so one that says the same is returned as it
was.

Further fields are notes. `start` is in the end of the first micro-batch: Spark does not keep where a stream began
before that batch is through, and asks for it anew when it has to run the batch again. `dropped` has the partitions that
were found to be gone since the text before. `lake` is in the beginning of a stream, and in the end of its first
micro-batch: the snapshot whose rows come in that batch, before those of the logs.

A limit counts rows by offsets: a change that is not wanted counts like one that is. Every bucket gets a share by how
much it has, and at least one row, so that all of them move. The current rows of a bucket come in one piece: so many
buckets at a time as have seen no more changes than the limit has rows, and at least one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.spark.read.parts import BucketRange
from fluss.spark.read.plan import BucketKey

VERSION = 1
CURRENT_ROWS = -1

Offsets: TypeAlias = Mapping[BucketKey, int]


@dataclass(frozen=True)
class StreamOffset:
    """A position of a stream."""

    table_id: int
    offsets: Offsets
    is_initial: bool = False
    """Whether a stream begins here"""
    start: Offsets | None = None
    """Where the first micro-batch began, in its end"""
    dropped: tuple[int, ...] = ()
    lake: int | None = None
    """The lake snapshot that the first micro-batch has"""

    def to_json(self) -> dict[str, Any]:
        """What Spark writes as JSON; the same position is always the same text."""
        found: dict[str, Any] = {"version": VERSION, "table_id": self.table_id, "offsets": _plain(self.offsets)}
        if self.is_initial:
            found["initial"] = True
        if self.start is not None:
            found["start"] = _plain(self.start)
        if self.dropped:
            found["dropped"] = sorted(self.dropped)
        if self.lake is not None:
            found["lake"] = self.lake
        return found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], info: TableInfo) -> StreamOffset:
        """A position of this table from what Spark has kept."""
        version = stored.get("version")
        if version != VERSION:
            raise InvalidRequestError(
                f"The checkpoint's position of {info.table_path} is of version {version}, and this release knows "
                f"version {VERSION}: use the release that wrote it, or a new checkpoint."
            )
        if stored["table_id"] != info.table_id:
            raise InvalidRequestError(
                f"{info.table_path} was dropped and created again: the stream was reading the table with id "
                f"{stored['table_id']}, and this one has id {info.table_id}. Start with a new checkpoint to read it."
            )
        start = stored.get("start")
        return cls(
            info.table_id,
            _offsets(stored["offsets"]),
            is_initial=bool(stored.get("initial")),
            start=None if start is None else _offsets(start),
            dropped=tuple(stored.get("dropped", ())),
            lake=stored.get("lake"),
        )


def _plain(offsets: Offsets) -> object:
    by_partition: dict[int | None, list[int]] = {}
    for key in sorted(offsets, key=lambda key: (key[0] or 0, key[1])):
        by_partition.setdefault(key[0], []).append(offsets[key])
    if None in by_partition:
        return by_partition[None]
    return {str(partition_id): found for partition_id, found in by_partition.items()}


def _offsets(stored: Any) -> Offsets:
    if isinstance(stored, list):
        return {(None, bucket): offset for bucket, offset in enumerate(stored)}
    return {(int(name), bucket): offset for name, found in stored.items() for bucket, offset in enumerate(found)}


SAMPLE_ROWS = 1_000


def limited(starts: Offsets, ends: Offsets, rows_max: int) -> dict[BucketKey, int]:
    """Ends for about `rows_max` rows; `starts` and `ends` have the same buckets."""
    found = dict(starts)
    remaining = rows_max
    for key, start in starts.items():
        # A bucket has no more rows than it has seen changes.
        if start == CURRENT_ROWS and (remaining == rows_max or ends[key] <= remaining):
            found[key] = ends[key]
            remaining -= ends[key]
    backlog = {key: ends[key] - start for key, start in starts.items() if start != CURRENT_ROWS and ends[key] > start}
    total = sum(backlog.values())
    if remaining > 0:
        for key, rows in backlog.items():
            found[key] += rows if total <= remaining else max(1, rows * remaining // total)
    return found


def sample_range(info: TableInfo, starts: Offsets, ends: Offsets) -> BucketRange | None:
    """Some of the rows that come next, to see how large they are; None if there are none."""
    backlog = {key: ends[key] - start for key, start in starts.items() if ends[key] > max(start, 0)}
    if not backlog:
        return None
    partition_id, bucket = key = max(backlog, key=backlog.__getitem__)
    # Where current rows come first, the last changes are about as large, and are kept the longest.
    start = starts[key] if starts[key] != CURRENT_ROWS else max(0, ends[key] - SAMPLE_ROWS)
    return BucketRange(info.table_id, partition_id, bucket, start, min(ends[key], start + SAMPLE_ROWS))
