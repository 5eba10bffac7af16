"""The pending commit of a round, which nobody sees yet; and its registration, which tells the server.

The lake decides: a snapshot that is committed there counts, whether or not its job lived to tell the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from fluss.api.operations import LakeRegistry
from fluss.lake.format import (
    LakeBranch,
    LakeConflictError,
    LakeFile,
    LakeTable,
    TieredSnapshot,
    WrittenFile,
    table_id_of,
)
from fluss.lake.options import LakeOptions, local_path
from fluss.lake.tiering.task import Executor, RoundPlan, Task, TaskResult, remove_file
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TableBucket
from fluss.model.trust import is_local


def has_snapshot(lake: LakeTable | None, known: LakeSnapshot | None) -> bool:
    """Whether the lake has what the server has registered."""
    return known is None or (lake is not None and lake.sequence_number(known.snapshot_id) is not None)


def unknown_snapshot(info: TableInfo, known: LakeSnapshot, location: str) -> FlussError:
    """The lake does not have what the server has registered."""
    return InvalidRequestError(
        f"{info.table_path} was tiered to a snapshot {known.snapshot_id} that the lake at {location} does not have: "
        f"name the warehouse it was tiered to. If that lake is lost, 'fluss lake drop {info.table_path} --start-over' "
        "has the table tiered anew."
    )


def prepare(registry: LakeRegistry, info: TableInfo, ends: Mapping[TableBucket, int]) -> str:
    """The file that has the offsets of a snapshot to come; raises LakeConflictError for a job that was overtaken."""
    try:
        return registry.prepare(info, ends)
    except FlussError as error:
        if error.error_code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION:
            raise LakeConflictError(str(error)) from error
        raise


def repair(registry: LakeRegistry, info: TableInfo, lake: LakeTable, known: LakeSnapshot | None) -> LakeSnapshot | None:
    """Register the lake's newest snapshot if the job that made it did not; returns what is registered then."""
    head = lake.tiered()
    if head is None or (known is not None and (lake.sequence_number(known.snapshot_id) or 0) >= head.sequence_number):
        return known
    if head.offsets_path is None:
        raise InvalidRequestError(
            f"Snapshot {head.snapshot_id} of {info.table_path} in the lake does not say how far it reaches, like those "
            f"of Apache Fluss before 0.9: use another warehouse, or 'fluss lake drop {info.table_path} --start-over'."
        )
    if table_id_of(head.offsets_path) not in (None, info.table_id):
        raise _of_another(info, lake)
    lake.sync()  # whoever made it may not have lived to do that either
    keep = head.snapshot_id if known is None else known.snapshot_id
    try:
        registry.commit(info, head.snapshot_id, head.offsets_path, {}, earliest_to_keep=keep)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{_of_another(info, lake)} ({error})") from error
    repaired = registry.latest(info.table_path)
    if repaired is not None and repaired.snapshot_id == head.snapshot_id:
        # The servers of a cluster learn from this how far the lake reaches; only now it is known.
        offsets = repaired.table_buckets_offset
        registry.commit(info, head.snapshot_id, head.offsets_path, offsets, earliest_to_keep=keep)
    return repaired


def _of_another(info: TableInfo, lake: LakeTable) -> InvalidRequestError:
    return InvalidRequestError(
        f"The lake at {lake.location} has rows of another table {info.table_path}, maybe of one that was dropped: "
        f"'fluss lake drop {info.table_path}' drops them; or rename it in the lake, or use another warehouse."
    )


def register(
    registry: LakeRegistry,
    info: TableInfo,
    lake: LakeTable,
    snapshot: TieredSnapshot,
    offsets: Mapping[TableBucket, int],
) -> None:
    """Register a snapshot, unless another job has registered it or a later one meanwhile."""
    known = registry.latest(info.table_path)
    if _is_behind(lake, snapshot, known):
        return
    # The one before stays: readers may be at it.
    keep = snapshot.snapshot_id if known is None else known.snapshot_id
    assert snapshot.offsets_path is not None
    try:
        registry.commit(info, snapshot.snapshot_id, snapshot.offsets_path, offsets, earliest_to_keep=keep)
    except FlussError as error:
        if error.error_code != ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION:
            raise
        if not _is_behind(lake, snapshot, registry.latest(info.table_path)):
            raise


def _is_behind(lake: LakeTable, snapshot: TieredSnapshot, known: LakeSnapshot | None) -> bool:
    """Whether the server knows a snapshot or a later one; those that `lake` did not see are later."""
    if known is None:
        return False
    number = lake.sequence_number(known.snapshot_id)
    return number is None or number >= snapshot.sequence_number


class PendingCommit(Protocol):
    """Rows that are ready to be committed."""

    @property
    def row_count(self) -> int: ...

    @property
    def read_s(self) -> float: ...

    @property
    def write_s(self) -> float: ...

    @property
    def files_added(self) -> int: ...

    @property
    def files_removed(self) -> int: ...

    def commit(self, offsets_path: str) -> None:
        """One step that all see; raises LakeConflictError, and changes nothing, if another job was faster."""
        ...

    def discard(self) -> None:
        """Leave nothing; what stays behind is removed by the clean-up."""
        ...


class Merger(Protocol):
    """An engine that merges changes of primary-key tables by itself. Spark's is in `fluss.spark.tiering`."""

    def merge(self, info: TableInfo, options: LakeOptions, lake: LakeTable, plan: RoundPlan) -> PendingCommit | None:
        """The changes of a round on a branch; None if this round has to be done with files."""
        ...


@dataclass(frozen=True)
class PendingFiles:
    """Files that tasks have written, and those that they replace."""

    lake: LakeTable
    added: Sequence[WrittenFile]
    removed: Sequence[LakeFile]
    row_count: int
    read_s: float
    write_s: float

    @classmethod
    def of(cls, lake: LakeTable, results: Sequence[TaskResult], removed: Sequence[LakeFile] = ()) -> Self:
        """The pending commit of what tasks have done; files of `removed` go in any case."""
        return cls(
            lake,
            [file for result in results for file in result.added],
            [*removed, *(file for result in results for file in result.removed)],
            sum(result.row_count for result in results),
            sum(result.read_s for result in results),
            sum(result.write_s for result in results),
        )

    @property
    def files_added(self) -> int:
        return len(self.added)

    @property
    def files_removed(self) -> int:
        return len(self.removed)

    def commit(self, offsets_path: str) -> None:
        self.lake.commit(self.added, self.removed, offsets_path)

    def discard(self) -> None:
        for file in self.added:
            with suppress(Exception):
                remove_file(file.path, self.lake.io_properties)


@dataclass(frozen=True)
class PendingBranch:
    """A branch with the changes, and what its engine says of them."""

    branch: LakeBranch
    row_count: int
    summary: Mapping[str, str]
    read_s: float = 0.0  # an engine does not tell
    write_s: float = 0.0

    @property
    def files_added(self) -> int:
        """Data files and files of deletes."""
        return sum(int(self.summary.get(f"added-{kind}-files", 0)) for kind in ("data", "delete"))

    @property
    def files_removed(self) -> int:
        return sum(int(self.summary.get(key, 0)) for key in ("deleted-data-files", "removed-delete-files"))

    def commit(self, offsets_path: str) -> None:
        self.branch.commit(offsets_path)

    def discard(self) -> None:
        self.branch.drop()


def _check_shared(files: Iterable[WrittenFile]) -> None:
    """Raise for a file on this machine's disk that is not there: then a task has written it to its own machine's.

    Once it is committed its rows count as stored, and the server may forget them.
    """
    for file in files:
        if is_local(file.path) and not local_path(file.path).is_file():
            raise FlussError(
                f"{file.path}, which a task has written, is not on this machine. The lake's folder has to be one that "
                "all machines of the cluster share under the same path; or put the lake in S3."
            )


def write_pending(
    executor: Executor,
    lake: LakeTable,
    tasks: Sequence[Task],
    removed: Sequence[LakeFile] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> PendingFiles:
    """What tasks make of their files; if one fails, what all of them wrote is removed."""
    results: list[TaskResult] = []
    try:
        for result in executor.run_tasks(tasks):
            results.append(result)
            progress(len(results))
        for result in results:
            if result.error is not None:
                raise FlussError(result.error)
            _check_shared(result.added)
    except BaseException:
        PendingFiles.of(lake, results).discard()
        raise
    return PendingFiles.of(lake, results, removed)
