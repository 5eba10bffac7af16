"""A branch of a lake table on which a round works unseen, until the branch becomes the table.

Engines with commits of their own put them on top of whatever is there by then. On a branch that is no harm: what
counts is the step from the table's old snapshot to the branch's, and that is a compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fluss.doors import randomness
from fluss.lake.filesystem import check_place
from fluss.lake.format import COMMIT_USER, OFFSETS_PATH, TIERING_USER, LakeBranch, LakeConflictError
from fluss.lake.iceberg.table import IcebergTable, summary_of
from fluss.lake.options import local_path
from fluss.lake.parquet import sync_paths
from fluss.model.trust import is_local

if TYPE_CHECKING:
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
