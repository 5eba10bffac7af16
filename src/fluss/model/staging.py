"""Values of staged writes and of tiering jobs that client and server exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fluss.model.errors import FlussError
from fluss.model.paths import TablePath

NO_BATCH: Final = -1
_DIGESTS: Final = 1 << 64


class StagedTask(NamedTuple):
    """One attempt at a part of a batch: which, how many requests it staged, and which rows."""

    task: int
    attempt: int
    request_count: int
    row_count: int | None = None
    digest: int | None = None
    """See `fluss.formats.rows.digest`. Without it, or `row_count`, a repeated batch is not compared with the first."""


class StagedRows(NamedTuple):
    """How many rows a batch has, and their digest, which does not depend on their order."""

    row_count: int
    digest: int

    @classmethod
    def of(cls, tasks: Iterable[StagedTask]) -> StagedRows | None:
        """The rows of all tasks; None if one of them does not tell."""
        total = cls(0, 0)
        for task in tasks:
            if task.row_count is None or task.digest is None:
                return None
            total = cls(total.row_count + task.row_count, (total.digest + task.digest) % _DIGESTS)
        return total


class StagedQueryInfo(NamedTuple):
    """What a server knows of a query that writes to a table through staging."""

    table_path: TablePath
    query_id: str | None  # None: it has committed nothing, and only its files are known
    file_name: str  # what the names of its staged files begin with
    batch_id: int | None  # the last one committed
    row_count: int | None  # of that batch; None: not known
    used_ms: int | None
    decided_batch_id: int | None  # its commit was decided and is not done
    accepted_batch_id: int | None
    staged_bytes: int
    staged_since_ms: int | None


# Of the reason for which a round of tiering failed; what is longer is cut.
LAKE_ERROR_CHARACTERS_MAX: Final = 1_000


class LakeError(NamedTuple):
    """Why the last round of tiering of a table failed."""

    error: str
    time_ms: int


class Assigned(NamedTuple):
    """A table that the server has handed to a tiering job."""

    table_id: int
    table_path: TablePath
    tiering_epoch: int  # grows with each time the table is handed out
    coordinator_epoch: int


class Heartbeat(NamedTuple):
    """The server's answer: a table to tier, and what is wrong with those that were reported, by table id."""

    assigned: Assigned | None
    errors: Mapping[int, FlussError]
