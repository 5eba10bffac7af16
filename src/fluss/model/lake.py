"""What a tiering job and the server tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fluss.model.errors import FlussError
from fluss.model.paths import TablePath

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
