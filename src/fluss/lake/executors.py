"""Where the tasks of a tiering round run. Spark's executor is in `fluss.spark.tiering`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING, Protocol

from fluss.doors import threads
from fluss.lake.task import Task, TaskResult, run_task

if TYPE_CHECKING:
    from fluss.sync import FlussConnection


class Executor(Protocol):
    """Runs tasks somewhere, and gives their results in any order."""

    @property
    def slots(self) -> int:
        """How many tasks run at once, about."""
        ...

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]: ...


class LocalExecutor:
    """Runs tasks in threads of this process, over a connection that is there."""

    def __init__(self, connection: FlussConnection, slots: int | None = None) -> None:
        self._connection = connection
        self.slots = slots or os.cpu_count() or 1

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
        """Results as they come."""
        with threads.pool(self.slots, "fluss-tiering") as pool:
            for done in as_completed([pool.submit(run_task, task, self._connection) for task in tasks]):
                yield done.result()
