"""Events of tiering while it runs, and reports of what came of it."""

# Small on purpose: what users' programs import of tiering.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from fluss.model.paths import TablePath


class Status(StrEnum):
    """How a round of a table ended."""

    TIERED = "tiered"
    NOTHING_NEW = "nothing new"
    LOST = "lost the race"
    FAILED = "failed"


@dataclass(frozen=True)
class TieringReport:
    """One round of one table."""

    table_path: TablePath
    status: Status
    row_count: int = 0  # rows of a log table, changed keys of a primary-key table
    files_added: int = 0
    files_removed: int = 0
    snapshot_id: int | None = None
    tasks_s: float = 0.0  # reading and writing
    read_s: float = 0.0  # of all tasks together, which run side by side
    write_s: float = 0.0  # as above
    commit_s: float = 0.0
    register_s: float = 0.0
    reason: str | None = None


class TieringEvent(NamedTuple):
    """How far a round is: tasks done of all there are; the last event of a round has its report."""

    table_path: TablePath
    tasks_done: int = 0
    task_count: int = 0
    row_count: int = 0  # rows, or changes, that the round reads
    report: TieringReport | None = None


Progress: TypeAlias = Callable[[TieringEvent], None]
