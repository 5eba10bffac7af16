"""A table in Iceberg and its branches, through pyiceberg. No commit is retried on top of another snapshot.

Engines with commits of their own put them on top of whatever is there by then. On a branch that is no harm: what
counts is the step from the table's old snapshot to the branch's, and that is a compare-and-swap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from fluss.doors import randomness
from fluss.lake.filesystem import check_place, storage_errors
from fluss.lake.format import (
    BUCKET,
    COMMIT_USER,
    OFFSETS_PATH,
    SYSTEM_COLUMNS,
    TIERING_USER,
    EqualityDelete,
    LakeBranch,
    LakeConflictError,
    LakeFile,
    LakeTable,
    LakeTotals,
    PartitionValues,
    TieredSnapshot,
    WrittenFile,
)
from fluss.lake.iceberg.schema import OWN_PROPERTIES, file_schema, iceberg_schema, iceberg_type, partition_spec
from fluss.lake.options import local_path
from fluss.lake.parquet import sync_paths
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.trust import is_local

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


PREFIX: Final = "fluss_tiering_"


class IcebergBranch(LakeBranch):
    """A new branch at the current snapshot of a table, which must have one."""

    def __init__(self, lake: IcebergTable) -> None:
        from pyiceberg.exceptions import CommitFailedException

        self._lake = lake
        self._base = lake.snapshot_id
        assert self._base is not None
        self._name = f"{PREFIX}{randomness.new_uuid().hex}"
        try:
            lake.now().manage_snapshots().create_branch(self._base, self._name).commit()
        except CommitFailedException as error:
            raise self._conflict(error) from error

    @property
    def name(self) -> str:
        return self._name

    def sync(self) -> Mapping[str, str]:
        """Put the files of what was committed to the branch on disk; returns what its summary says of them."""
        table = self._lake.now()
        tip = self._tip(table)
        if tip.snapshot_id == self._base:
            return {}
        if is_local(self._lake.location):
            root = local_path(self._lake.location)
            manifests = [item for item in tip.manifests(table.io) if item.added_snapshot_id == tip.snapshot_id]
            entries = [entry for item in manifests for entry in item.fetch_manifest_entry(table.io)]
            for entry in entries:
                check_place(entry.data_file.file_path, table.io.properties)
            files = {local_path(entry.data_file.file_path) for entry in entries}
            folders = {folder for file in files for folder in file.parents if folder.is_relative_to(root)}
            sync_paths(*files, *folders)
        return summary_of(tip)

    def commit(self, offsets_path: str) -> None:
        """Make the branch the table, with a snapshot on top that says where the offsets are.

        Raises LakeConflictError, and changes nothing, if another snapshot was committed since the table was loaded.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update.snapshot import ManageSnapshots

        table = self._lake.now()
        current = table.current_snapshot()
        if current is None or current.snapshot_id != self._base:
            raise self._conflict("it has another snapshot")
        tip = self._tip(table)
        if self._base not in (tip.snapshot_id, tip.parent_snapshot_id):
            raise self._conflict("the branch was taken away")
        properties = {COMMIT_USER: TIERING_USER, OFFSETS_PATH: offsets_path}
        try:
            with table.transaction() as transaction:
                ManageSnapshots(transaction).set_current_snapshot(tip.snapshot_id).commit()
                with transaction.update_snapshot(snapshot_properties=properties).fast_append():
                    pass
                # Other jobs' branches are from the snapshot that is the old one now: they have lost, or died.
                for name in table.metadata.refs:
                    if name.startswith(PREFIX):
                        ManageSnapshots(transaction).remove_branch(name).commit()
        except CommitFailedException as error:
            raise self._conflict(error) from error
        self._lake.reload()
        self._lake.sync()

    def drop(self) -> None:
        """Leave nothing; a branch that stays behind goes with the next round that commits one."""
        with suppress(Exception):
            self._lake.now().manage_snapshots().remove_branch(self.name).commit()

    def _tip(self, table: Table) -> Snapshot:
        tip = table.snapshot_by_name(self.name)
        if tip is None:
            raise self._conflict("the branch was taken away")
        return tip

    def _conflict(self, reason: object) -> LakeConflictError:
        return LakeConflictError(f"Another job committed to {self._lake.name} in the lake meanwhile: {reason}")


# Where Iceberg's writers put a table's files.
_FOLDERS: Final = ("data", "metadata")
# The column of position deletes that names data files, by Iceberg's specification.
_DELETED_FROM_ID: Final = 2147483546


class IcebergTable(LakeTable):
    """A table of the lake as it was when it was loaded."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._data_files: dict[str, DataFile] = {}

    @property
    def name(self) -> str:
        return ".".join(self._table.name())

    @property
    def location(self) -> str:
        return str(self._table.location())

    @property
    def folders(self) -> Sequence[str]:
        """Folders at the location that have files of the table."""
        return _FOLDERS

    @property
    def io_properties(self) -> dict[str, str]:
        """What a task needs to open its files."""
        return dict(self._table.io.properties)

    @property
    def file_schema(self) -> pa.Schema:
        """The Arrow schema of its files as of now, with field ids."""
        return file_schema(self._table.schema())

    @property
    def column_names(self) -> list[str]:
        """The Fluss table's columns."""
        return [field.name for field in self._table.schema().fields if field.name not in SYSTEM_COLUMNS]

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot."""
        current = self._table.current_snapshot()
        return None if current is None else current.snapshot_id

    @property
    def has_layout(self) -> bool:
        """Whether it has the columns that tables of a Fluss server have in the lake."""
        return {field.name for field in self._table.schema().fields} >= set(SYSTEM_COLUMNS)

    @property
    def totals(self) -> LakeTotals:
        """How much the current snapshot has, by what its summary says."""
        current = self._table.current_snapshot()
        if current is None:
            return LakeTotals(0, 0, 0, len(self._table.snapshots()))
        data, deletes, size, rows = (
            _number(summary_of(current).get(f"total-{what}", ""))
            for what in ("data-files", "delete-files", "files-size", "records")
        )
        return LakeTotals(None if data is None else data + (deletes or 0), size, rows, len(self._table.snapshots()))

    def now(self) -> Table:
        """pyiceberg's table as it is now, whatever this one knows."""
        return self._table.catalog.load_table(self._table.name())

    def reload(self) -> None:
        """Know what was committed since."""
        self._table.refresh()

    def tiered(self) -> TieredSnapshot | None:
        """The newest snapshot that tiering made."""
        return max(self.all_tiered(), key=lambda item: item.sequence_number, default=None)

    def all_tiered(self) -> list[TieredSnapshot]:
        """All snapshots that tiering made and that are kept."""
        return [_tiered(item) for item in self._table.snapshots() if summary_of(item).get(COMMIT_USER) == TIERING_USER]

    def sequence_number(self, snapshot_id: int) -> int | None:
        """The number of a snapshot in the order of commits, or None if it is gone; ids have no order."""
        found = self._table.snapshot_by_id(snapshot_id)
        return None if found is None else (found.sequence_number or 0)

    @storage_errors()
    def files(self, snapshot_id: int | None) -> list[LakeFile]:
        """The data files of a snapshot, with the deletes that apply to each."""
        if snapshot_id is None:
            return []
        snapshot = self._table.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise InvalidRequestError(
                f"Snapshot {snapshot_id} of {self.name} is no longer in the lake; load the table again."
            )
        data: list[ManifestEntry] = []
        deletes: list[ManifestEntry] = []
        for entry in self._entries(snapshot):
            (deletes if entry.data_file.content.value else data).append(entry)
        self._data_files |= {entry.data_file.file_path: entry.data_file for entry in data}
        # Each file is looked at once more when it is opened.
        for folder in {entry.data_file.file_path.rpartition("/")[0] for entry in (*data, *deletes)}:
            check_place(folder, self._table.io.properties)
        return [_lake_file(entry, deletes) for entry in data]

    def _entries(self, snapshot: Snapshot) -> Iterator[ManifestEntry]:
        for manifest in snapshot.manifests(self._table.io):
            yield from manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)

    @storage_errors()
    def commit(self, added: Sequence[WrittenFile], removed: Iterable[LakeFile], offsets_path: str) -> int:
        """One snapshot with these files more and less, which says where its offsets are; returns its id.

        Raises LakeConflictError, and changes nothing, if another was committed since this table was loaded. `removed`
        are files that `files()` gave.
        """
        from pyiceberg.exceptions import CommitFailedException

        gone = [self._data_files[file.path] for file in removed]
        properties = {COMMIT_USER: TIERING_USER, OFFSETS_PATH: offsets_path}
        try:
            with self._table.transaction() as transaction:
                update = transaction.update_snapshot(snapshot_properties=properties)
                producer: Any = update.overwrite() if gone else update.fast_append()
                with producer as snapshot:
                    for file in added:
                        snapshot.append_data_file(self._data_file(file))
                    for item in gone:
                        snapshot.delete_data_file(item)
        except (CommitFailedException, ValueError) as error:
            # The number of a snapshot is taken when a branch has had a commit, which pyiceberg calls a wrong value.
            if isinstance(error, ValueError) and self.now().last_sequence_number == self._table.last_sequence_number:
                raise
            raise LakeConflictError(f"Another job committed to {self.name} in the lake meanwhile: {error}") from error
        self.sync()
        current = self._table.current_snapshot()
        assert current is not None
        return int(current.snapshot_id)

    def _data_file(self, file: WrittenFile) -> DataFile:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        schema = self._table.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            file.footer, compute_statistics_plan(schema, self._table.properties), parquet_path_to_id_mapping(schema)
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*file.partition, file.bucket),
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=self._table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def sync(self) -> None:
        """Put the current snapshot's metadata on disk: the server may forget rows once it knows that they are here."""
        if not is_local(self.location):
            return
        snapshot = self._table.current_snapshot()
        assert snapshot is not None
        written = [self._table.metadata_location, snapshot.manifest_list]
        written += [manifest.manifest_path for manifest in snapshot.manifests(self._table.io)]
        for location in written:
            check_place(location, self._table.io.properties)
        paths = {local_path(location) for location in written}
        sync_paths(*sorted(paths), *sorted({path.parent for path in paths}))

    def refuse_retries(self) -> None:
        """Have commits fail that lost a race. A table that a server of Apache Fluss made would let them be retried."""
        missing = {key: value for key, value in OWN_PROPERTIES.items() if self._table.properties.get(key) != value}
        if missing:
            with self._table.transaction() as transaction:
                transaction.set_properties(missing)

    def evolve(self, info: TableInfo) -> None:
        """Add the columns that the Fluss table has and this one has not, before the system columns."""
        known = set(self.column_names)
        missing = [column for column in info.schema.columns if column.name not in known]
        if not missing:
            return
        # The catalog numbers fields anew; here they need only differ.
        ids = count(1_000_000)
        with self._table.update_schema() as update:
            for column in missing:
                update.add_column(column.name, iceberg_type(column.data_type, ids), doc=column.comment)
                update.move_before(column.name, BUCKET)

    def check_fits(self, info: TableInfo) -> None:
        """Raises when this is not the lake table of a Fluss table: other columns, types or buckets."""
        from pyiceberg.schema import assign_fresh_schema_ids

        schema = self._table.schema()
        own, wanted = (assign_fresh_schema_ids(item) for item in (schema, iceberg_schema(info)))
        same_spec = [(field.source_id, str(field.transform)) for field in self._table.spec().fields] == [
            (field.source_id, str(field.transform)) for field in partition_spec(info, schema).fields
        ]
        if own.as_struct() != wanted.as_struct() or not same_spec:
            raise InvalidRequestError(
                f"The lake has a table {info.table_path} of another shape at {self.location}, maybe of one that was "
                f"dropped: 'fluss lake drop {info.table_path}' drops it; or rename it in the lake, or use another "
                "warehouse."
            )

    def expire(self, snapshot_ids: Iterable[int]) -> None:
        """Forget snapshots; their files stay until they are cleaned up."""
        from pyiceberg.exceptions import CommitFailedException

        ids = list(snapshot_ids)
        if not ids:
            return
        try:
            self._table.maintenance.expire_snapshots().by_ids(ids).commit()
        except CommitFailedException as error:
            raise LakeConflictError(f"Another job committed to {self.name} in the lake meanwhile: {error}") from error

    def snapshots(self) -> list[tuple[int, int]]:
        """Ids of all snapshots and when they were made, in milliseconds; oldest first."""
        found = sorted(self._table.snapshots(), key=lambda item: item.sequence_number or 0)
        return [(item.snapshot_id, item.timestamp_ms) for item in found]

    def named_snapshots(self) -> set[int]:
        """Snapshots that a branch or a tag names, the current one among them."""
        return {item.snapshot_id for item in self._table.metadata.refs.values()}

    @property
    def metadata_location(self) -> str:
        """The file that says what the table is as of now."""
        return str(self._table.metadata_location)

    @storage_errors()
    def used_files(self) -> set[str]:
        """Everything that the table as of now needs: metadata, and the files of all snapshots that are kept."""
        metadata = self._table.metadata
        found = {self.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
        found |= {item.statistics_path for item in (*metadata.statistics, *metadata.partition_statistics)}
        manifests: dict[str, ManifestFile] = {}
        for snapshot in self._table.snapshots():
            found.add(snapshot.manifest_list)
            manifests |= {item.manifest_path: item for item in snapshot.manifests(self._table.io)}
        for manifest in manifests.values():
            # Those that a manifest says are deleted are in others, or in none.
            entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            found |= {entry.data_file.file_path for entry in entries}
        return found | set(manifests)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """What the one who made a snapshot says of it."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _tiered(snapshot: Snapshot) -> TieredSnapshot:
    path = summary_of(snapshot).get(OFFSETS_PATH)
    return TieredSnapshot(snapshot.snapshot_id, snapshot.sequence_number or 0, snapshot.timestamp_ms, path)


def _lake_file(entry: ManifestEntry, deletes: Sequence[ManifestEntry]) -> LakeFile:
    file = entry.data_file
    values = tuple(file.partition)
    partition: PartitionValues = values[:-1]
    written = entry.sequence_number or 0
    positions, equalities = [], []
    for delete in deletes:
        if tuple(delete.data_file.partition) != values:
            continue
        made = delete.sequence_number or 0
        if delete.data_file.content.name == "POSITION_DELETES":
            if made >= written and _may_name(delete.data_file, file.file_path):
                positions.append(delete.data_file.file_path)
        elif made > written:
            equalities.append(EqualityDelete(delete.data_file.file_path, tuple(delete.data_file.equality_ids or ())))
    return LakeFile(
        file.file_path,
        partition,
        int(values[-1]),
        file.record_count,
        file.file_size_in_bytes,
        tuple(positions),
        tuple(equalities),
    )


def _may_name(deletes: DataFile, path: str) -> bool:
    """Whether a file of position deletes can have some of a data file, by the first and the last path in it."""
    first = (deletes.lower_bounds or {}).get(_DELETED_FROM_ID, b"")
    last = (deletes.upper_bounds or {}).get(_DELETED_FROM_ID)
    return first <= path.encode() and (last is None or path.encode() <= last)
