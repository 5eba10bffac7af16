"""Branches on which rounds work unseen: the step to the table is a compare-and-swap, and leaves none behind."""

from __future__ import annotations

import pytest

from fluss.lake.format import LakeConflictError
from fluss.lake.iceberg.catalog import IcebergCatalog
from fluss.lake.iceberg.table import PREFIX, IcebergBranch, IcebergTable
from fluss.lake.options import LakeOptions
from tests.unit.lake.iceberg_tables import COLUMNS, info_of, options, read, reloaded, rows, write

__all__ = ["options"]  # a fixture


def row(number: int) -> dict[str, object]:
    return {"id": number, "day": "d", "note": None}


@pytest.fixture
def lake(options: LakeOptions) -> IcebergTable:
    """A table with one row."""
    table = IcebergCatalog(options).ensure_table(info_of(keys=("id",)))
    table.commit(write(table, rows(COLUMNS, [row(0)])), [], "offsets-0")
    return reloaded(options)


def append(table: IcebergTable, branch: IcebergBranch, number: int) -> None:
    """What an engine does, which knows nothing of offsets."""
    with (
        table.now().transaction() as transaction,
        transaction.update_snapshot(branch=branch.name).fast_append() as snapshot,
    ):
        for file in write(table, rows(COLUMNS, [row(number)], number)):
            snapshot.append_data_file(table._data_file(file))


def branches(table: IcebergTable) -> list[str]:
    return [name for name in table.now().metadata.refs if name.startswith(PREFIX)]


def test_a_branch_becomes_the_table(lake: IcebergTable, options: LakeOptions) -> None:
    branch = IcebergBranch(lake)
    append(lake, branch, 1)
    assert branch.sync()["added-data-files"] == "1"
    unseen = reloaded(options)
    assert read(unseen, COLUMNS) == [row(0)]
    assert [item.offsets_path for item in unseen.all_tiered()] == ["offsets-0"]
    branch.commit("offsets-1")
    assert lake.snapshot_id == reloaded(options).snapshot_id
    assert read(reloaded(options), COLUMNS) == [row(0), row(1)]
    tiered = lake.tiered()
    assert tiered is not None
    assert (tiered.snapshot_id, tiered.offsets_path) == (lake.snapshot_id, "offsets-1")
    assert branches(lake) == []


def test_a_branch_without_changes_says_how_far_the_lake_reaches(lake: IcebergTable, options: LakeOptions) -> None:
    branch = IcebergBranch(lake)
    assert branch.sync() == {}
    branch.commit("offsets-1")
    assert [item.offsets_path for item in reloaded(options).all_tiered()] == ["offsets-0", "offsets-1"]
    assert read(reloaded(options), COLUMNS) == [row(0)]


def test_a_branch_of_an_older_snapshot_is_refused(lake: IcebergTable, options: LakeOptions) -> None:
    other, branch = reloaded(options), IcebergBranch(lake)
    other.commit(write(other, rows(COLUMNS, [row(2)], 2)), [], "offsets-2")
    append(lake, branch, 1)
    with pytest.raises(LakeConflictError):
        branch.commit("offsets-1")
    branch.drop()
    assert read(reloaded(options), COLUMNS) == [row(0), row(2)]
    assert [item.offsets_path for item in reloaded(options).all_tiered()] == ["offsets-0", "offsets-2"]
    assert branches(lake) == []


def test_files_are_refused_when_a_branch_has_changed(lake: IcebergTable, options: LakeOptions) -> None:
    """Snapshots of branches and of the table are numbered together."""
    other, branch = reloaded(options), IcebergBranch(lake)
    append(lake, branch, 1)
    with pytest.raises(LakeConflictError):
        other.commit(write(other, rows(COLUMNS, [row(2)], 2)), [], "offsets-2")
    branch.commit("offsets-1")
    assert read(reloaded(options), COLUMNS) == [row(0), row(1)]


def test_the_first_of_two_branches_wins(lake: IcebergTable, options: LakeOptions) -> None:
    first, second = IcebergBranch(lake), IcebergBranch(reloaded(options))
    for number, branch in enumerate((first, second), 1):
        append(lake, branch, number)
    second.commit("offsets-2")
    assert branches(lake) == []
    for step in (first.sync, lambda: first.commit("offsets-1")):
        with pytest.raises(LakeConflictError):
            step()
    assert read(reloaded(options), COLUMNS) == [row(0), row(2)]


def test_a_branch_of_a_table_that_was_stale_is_refused(lake: IcebergTable, options: LakeOptions) -> None:
    other = reloaded(options)
    other.commit([], [], "offsets-2")
    branch = IcebergBranch(lake)
    append(lake, branch, 1)
    with pytest.raises(LakeConflictError):
        branch.commit("offsets-1")


def test_what_a_dead_job_left_goes_with_the_next_commit(lake: IcebergTable, options: LakeOptions) -> None:
    dead = IcebergBranch(lake)
    append(lake, dead, 1)
    assert branches(lake) == [dead.name]
    branch = IcebergBranch(reloaded(options))
    branch.commit("offsets-2")
    assert branches(lake) == []
    assert read(reloaded(options), COLUMNS) == [row(0)]
