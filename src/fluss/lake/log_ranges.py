"""The ranges of a table's log: what of each bucket is tiered and what is new, and long ranges in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from fluss.lake.format import PartitionValues
from fluss.model.infos import LakeSnapshot, PartitionInfo, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket

if TYPE_CHECKING:
    from fluss.sync import FlussConnection, FlussTable

# A part has at least and at most about so many rows, if nothing else is asked for.
PART_ROWS_MIN: Final = 100_000
PART_ROWS_MAX: Final = 2_000_000
PARTS_PER_SLOT: Final = 2
# More cuts than these are not aligned to batches: each is a question to the server.
ALIGNED_CUTS_MAX: Final = 128

LogRange: TypeAlias = tuple[TableBucket, int, int]
"""A bucket, from which offset, and to which"""


@dataclass(frozen=True)
class Stretch:
    """One bucket's log, and how far it is tiered."""

    bucket: TableBucket
    partition: PartitionValues
    partition_name: str | None
    earliest: int
    end: int
    tiered: int | None  # up to here; None: never

    @property
    def start(self) -> int:
        """The offset where tiering goes on; what retention has removed is gone."""
        return max(self.tiered or 0, self.earliest)


def log_stretches(
    connection: FlussConnection,
    table: FlussTable,
    tiered: LakeSnapshot | None,
    is_chosen: Callable[[PartitionValues], bool] = lambda partition: True,
) -> Iterator[Stretch]:
    """The buckets that a table has in the chosen partitions, each with its log as of now."""
    info = table.get_table_info()
    partitions: dict[int | None, tuple[PartitionValues, str | None]] = {None: ((), None)}
    if info.is_partitioned():
        found = connection.get_admin().list_partition_infos(info.table_path)
        named = {item.partition_id: (_values(info, item), item.partition_name) for item in found}
        partitions = {key: item for key, item in named.items() if is_chosen(item[0])}
    scan = table.new_scan()
    firsts = scan.bucket_offsets(OffsetSpec.earliest(), list(partitions)) if partitions else {}
    ends = scan.bucket_offsets(OffsetSpec.latest(), list(partitions)) if partitions else {}
    for bucket in sorted(ends, key=lambda item: (item.partition_id or 0, item.bucket)):
        if bucket in firsts:
            offset = None if tiered is None else tiered.get_bucket_offset(bucket)
            known = None if offset is None or offset < 0 else offset
            yield Stretch(bucket, *partitions[bucket.partition_id], firsts[bucket], ends[bucket], known)


def _values(info: TableInfo, item: PartitionInfo) -> PartitionValues:
    values = item.partition_spec.get_spec_map()
    return tuple(values[key] for key in info.partition_keys)


def part_rows(row_count: int, slots: int) -> int:
    """About how many rows a part has when so many tasks run at a time."""
    share = -(-row_count // (PARTS_PER_SLOT * slots))
    return min(max(share, PART_ROWS_MIN), PART_ROWS_MAX)


def split_ranges(table: FlussTable, ranges: Sequence[LogRange], part_rows: int) -> list[list[tuple[int, int]]]:
    """Start and end of the parts of each range, cut between batches where the server tells where those are."""
    cuts = [_cuts(start, end, part_rows) for _, start, end in ranges]
    are_aligned = sum(map(len, cuts)) <= ALIGNED_CUTS_MAX
    parts = []
    for (bucket, start, end), wanted in zip(ranges, cuts, strict=True):
        found = table.new_scan().batch_starts(bucket, wanted) if wanted and are_aligned else wanted
        inside = sorted({cut for cut in found if start < cut < end})
        parts.append(list(pairwise([start, *inside, end])))
    return parts


def _cuts(start: int, end: int, part_rows: int) -> list[int]:
    count = -(-(end - start) // part_rows)
    return [start + (end - start) * index // count for index in range(1, count)]
