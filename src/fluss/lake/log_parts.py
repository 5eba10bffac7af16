"""Long stretches of a log in parts that are read side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from fluss.model.paths import TableBucket

if TYPE_CHECKING:
    from fluss.sync import FlussTable

# A part has at least and at most about so many rows, if nothing else is asked for.
PART_ROWS_MIN: Final = 100_000
PART_ROWS_MAX: Final = 2_000_000
PARTS_PER_SLOT: Final = 2
# More cuts than these are not aligned to batches: each is a question to the server.
ALIGNED_CUTS_MAX: Final = 128

Stretch: TypeAlias = tuple[TableBucket, int, int]
"""A bucket, from which offset, and to which"""


def part_rows(row_count: int, slots: int) -> int:
    """About how many rows a part has when so many tasks run at a time."""
    share = -(-row_count // (PARTS_PER_SLOT * slots))
    return min(max(share, PART_ROWS_MIN), PART_ROWS_MAX)


def split_stretches(table: FlussTable, stretches: Sequence[Stretch], part_rows: int) -> list[list[tuple[int, int]]]:
    """Start and end of the parts of each stretch, cut between batches where the server tells where those are."""
    cuts = [_cuts(start, end, part_rows) for _, start, end in stretches]
    are_aligned = sum(map(len, cuts)) <= ALIGNED_CUTS_MAX
    parts = []
    for (bucket, start, end), wanted in zip(stretches, cuts, strict=True):
        found = table.new_scan().batch_starts(bucket, wanted) if wanted and are_aligned else wanted
        inside = sorted({cut for cut in found if start < cut < end})
        parts.append(list(pairwise([start, *inside, end])))
    return parts


def _cuts(start: int, end: int, part_rows: int) -> list[int]:
    count = -(-(end - start) // part_rows)
    return [start + (end - start) * index // count for index in range(1, count)]
