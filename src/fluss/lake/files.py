"""Data files of a lake table, as plain values that can be sent to tasks and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow.parquet as pq

PartitionValues: TypeAlias = tuple[str, ...]
"""The values of a table's partition columns; () without partitions"""


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """Rows whose columns of these field ids are in a file are gone; Apache Fluss's own tiering writes such files."""

    path: str
    field_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A data file of a snapshot, and what was deleted from it since it was written."""

    path: str
    partition: PartitionValues
    bucket: int
    row_count: int
    size_bytes: int
    position_deletes: tuple[str, ...] = ()
    equality_deletes: tuple[EqualityDelete, ...] = ()

    @property
    def has_deletes(self) -> bool:
        return bool(self.position_deletes or self.equality_deletes)


def by_bucket(files: Iterable[LakeFile]) -> dict[tuple[PartitionValues, int], list[LakeFile]]:
    """The files of each bucket; a bucket that is asked for and has none has an empty list."""
    found: dict[tuple[PartitionValues, int], list[LakeFile]] = defaultdict(list)
    for file in files:
        found[file.partition, file.bucket].append(file)
    return found


@dataclass(frozen=True)
class WrittenFile:
    """A data file that a task has written and nobody has committed."""

    path: str
    partition: PartitionValues
    bucket: int
    size_bytes: int
    footer: pq.FileMetaData

    @property
    def row_count(self) -> int:
        return int(self.footer.num_rows)
