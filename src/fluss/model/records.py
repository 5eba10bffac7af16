"""What a scan returns besides rows: what happened to them, and batches of them."""

# Small on purpose: pickles that users keep name this module.

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from fluss.model.paths import TableBucket

if TYPE_CHECKING:
    import pyarrow as pa


CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP = "_change_type", "_log_offset", "_commit_timestamp"
"""Columns that changes as Arrow rows have before the table's own"""


NO_COMMIT_TIMESTAMP = -1
"""The `commit_timestamp` of batches that are not of the log, such as current rows."""


class ChangeType(IntEnum):
    """What happened to a row."""

    AppendOnly = 0
    Insert = 1
    UpdateBefore = 2
    UpdateAfter = 3
    Delete = 4

    def short_string(self) -> str:
        """`+A`, `+I`, `-U`, `+U` or `-D`."""
        return _SHORT[self]


_SHORT = ("+A", "+I", "-U", "+U", "-D")


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """An Arrow batch with its place in the log. A filter may have left out rows between its first and last offset."""

    batch: pa.RecordBatch
    bucket: TableBucket
    base_offset: int
    last_offset: int
    commit_timestamp: int = NO_COMMIT_TIMESTAMP
    """When the server stored it, in milliseconds since 1970."""

    @property
    def num_records(self) -> int:
        return int(self.batch.num_rows)

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return self.batch.__arrow_c_array__(requested_schema)  # type: ignore[no-any-return]
