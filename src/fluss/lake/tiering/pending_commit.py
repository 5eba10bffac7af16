"""The pending commit of a round, which nobody sees yet: files, or a branch with changes that an engine merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from fluss.lake.format import LakeBranch, LakeFile, LakeTable, WrittenFile
from fluss.lake.options import LakeOptions, local_path
from fluss.lake.tiering.executors import Executor
from fluss.lake.tiering.plan import RoundPlan
from fluss.lake.tiering.task import Task, TaskResult, remove_file
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.trust import is_local


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
        """Of what tasks have done; files of `removed` go in any case."""
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
