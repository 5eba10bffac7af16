"""The seam to the format of the lake: what tiering, union reads and upkeep ask of one, and what it hands out.

It hands out data, not readers: which files a snapshot has, what was deleted from them, and where its offsets are. The
files are Parquet with field ids, which `parquet` writes and reads for every format. "Add a lake format" in
docs/hacking.md says what a new one needs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.tables.options import ICEBERG

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# The formats that there are, as `table.datalake.format` names them, and the LakeCatalog of each: a class that is made
# with LakeOptions. It is imported when a lake is opened.
FORMATS: Final = {ICEBERG: "fluss.lake.iceberg.catalog:IcebergCatalog"}
# That of a lake which is named without a table.
DEFAULT_FORMAT: Final = next(iter(FORMATS))

# ---- names that every reader and writer of a tiered table agrees on; they are Apache Fluss's ----

# Columns behind the table's own.
BUCKET: Final = "__bucket"
OFFSET: Final = "__offset"
TIMESTAMP: Final = "__timestamp"
SYSTEM_COLUMNS: Final = (BUCKET, OFFSET, TIMESTAMP)

# Properties of a snapshot that tiering made: its author, and where its offsets are written down.
COMMIT_USER: Final = "commit-user"
TIERING_USER: Final = "__fluss_lake_tiering"
OFFSETS_PATH: Final = "fluss-offsets"

# What a catalog is called if nothing names it otherwise.
CATALOG_NAME: Final = "fluss-iceberg-catalog"

# A row that comes from a table's current rows and not from its changelog has no offset of its own.
NO_OFFSET: Final = -1

# The file with a snapshot's offsets is in a folder with the id of its table: of this server's, of Apache Fluss's.
_OFFSETS_FOLDERS: Final = (re.compile(r"/(\d+)/lake-offsets/[^/]+$"), re.compile(r"-(\d+)/metadata/[^/]+$"))


def table_id_of(offsets_path: str | None) -> int | None:
    """The id of the table that a file of offsets is of; None where its path does not tell."""
    found = next(filter(None, (folder.search(offsets_path or "") for folder in _OFFSETS_FOLDERS)), None)
    return None if found is None else int(found[1])


# ---- what a format hands out, and takes ----

PartitionValues: TypeAlias = tuple[str, ...]
"""The values of a table's partition columns; () without partitions"""


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """Rows whose columns of these field ids are in a file are gone; Apache Fluss's own tiering writes such files."""

    path: str
    field_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A data file of a snapshot, and what was deleted from it since it was written. Plain values, sent to tasks."""

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


@dataclass(frozen=True, slots=True)
class TieredSnapshot:
    """A snapshot that tiering made."""

    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    offsets_path: str | None  # the file that has its offsets


class LakeTotals(NamedTuple):
    """What a table of the lake has; None where the one who made its last snapshot did not say."""

    file_count: int | None
    size_bytes: int | None
    row_count: int | None
    snapshot_count: int


class LakeConflictError(FlussError):
    """Somebody else committed to the lake table first."""


# ---- what a format has to give ----


class LakeTable(Protocol):
    """A table of the lake as it was when it was loaded.

    Its commits are compare-and-swap: they succeed only if no other snapshot was committed since.
    """

    @property
    def name(self) -> str:
        """Its name in the catalog."""
        ...

    @property
    def location(self) -> str:
        """The folder with its files; new data files go below `data` there."""
        ...

    @property
    def folders(self) -> Sequence[str]:
        """The folders at its location that have files of the table, and no others but those of renamed tables."""
        ...

    @property
    def metadata_location(self) -> str:
        """The file that says what the table is as of now."""
        ...

    @property
    def io_properties(self) -> Mapping[str, str]:
        """What a task needs to open its files, with what `filesystem.check_place` asks for."""
        ...

    @property
    def file_schema(self) -> pa.Schema:
        """The Arrow schema of its files as of now, with field ids: the table's columns and the system columns."""
        ...

    @property
    def has_layout(self) -> bool:
        """Whether it has the columns that tables of a Fluss server have in the lake."""
        ...

    @property
    def totals(self) -> LakeTotals:
        """How much the current snapshot has."""
        ...

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot, None before the first."""
        ...

    def tiered(self) -> TieredSnapshot | None:
        """The newest snapshot that tiering made."""
        ...

    def all_tiered(self) -> list[TieredSnapshot]:
        """All snapshots that tiering made and that are kept."""
        ...

    def sequence_number(self, snapshot_id: int) -> int | None:
        """The number of a snapshot in the order of commits, or None if it is gone."""
        ...

    def files(self, snapshot_id: int | None) -> list[LakeFile]:
        """The data files of a snapshot, with the deletes that apply to each; each in a place that is allowed."""
        ...

    def commit(self, added: Sequence[WrittenFile], removed: Iterable[LakeFile], offsets_path: str) -> int:
        """One snapshot with these files more and less, which says where its offsets are, on disk; returns its id.

        Raises LakeConflictError, and changes nothing, if another was committed since this table was loaded. `removed`
        are files that `files()` gave.
        """
        ...

    def sync(self) -> None:
        """Put the current snapshot's metadata on disk: the server may forget rows once it knows that they are here."""
        ...

    def snapshots(self) -> list[tuple[int, int]]:
        """Ids of all snapshots and when they were made, in milliseconds; oldest first."""
        ...

    def named_snapshots(self) -> set[int]:
        """Snapshots that have a name, such as a branch or a tag, the current one among them."""
        ...

    def expire(self, snapshot_ids: Iterable[int]) -> None:
        """Forget snapshots; their files stay until they are cleaned up. Raises LakeConflictError like `commit`."""
        ...

    def used_files(self) -> set[str]:
        """Everything that the table as of now needs: metadata, and the files of all snapshots that are kept."""
        ...


class LakeBranch(Protocol):
    """A branch of a lake table on which an engine's round works unseen, until the branch becomes the table."""

    @property
    def name(self) -> str:
        """What the engine writes to."""
        ...

    def sync(self) -> Mapping[str, str]:
        """Put what was committed to the branch on disk; returns what its last snapshot says of itself, if there is one.

        `added-data-files`, `added-delete-files`, `deleted-data-files` and `removed-delete-files` are numbers of files.
        """
        ...

    def commit(self, offsets_path: str) -> None:
        """Make the branch the table, with a snapshot on top that says where the offsets are.

        Raises LakeConflictError, and changes nothing, if another snapshot was committed since the table was loaded.
        """
        ...

    def drop(self) -> None:
        """Leave nothing, as far as that can be done; never raises."""
        ...


class LakeCatalog(Protocol):
    """The tables of a lake. Nothing is opened, and no catalog is made, before a method is called."""

    def load_table(self, path: TablePath) -> LakeTable | None:
        """A table of the lake as it is now, or None where there is none.

        Raises CorruptDataError where its metadata is damaged.
        """
        ...

    def ensure_table(self, info: TableInfo) -> LakeTable:
        """The lake table of a Fluss table, made if need be, and with the columns that were added since.

        Raises InvalidRequestError where the lake has another table of that name, or can't hold such a table.
        """
        ...

    def list_tables(self) -> list[TablePath]:
        """All tables of the catalog that could be of a Fluss table by their names."""
        ...

    def drop_table(self, path: TablePath) -> None:
        """Take a table out of the catalog; its files stay. One that is not there is ignored."""
        ...

    def tables_below(self, lake: LakeTable) -> Sequence[LakeTable]:
        """Other tables of the catalog whose metadata is in this one's folder, as that of a renamed table is."""
        ...

    def new_branch(self, lake: LakeTable) -> LakeBranch:
        """A new branch at the current snapshot of a table, which must have one."""
        ...
