"""What the readers of changes of all facades share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.client.changes import ChangesCore
from fluss.model.positions import ChangesPosition

if TYPE_CHECKING:
    import pyarrow as pa


class ChangesBase:
    """A table's changes, and before them its current rows where they are wanted. Made by `table.changes(start)`.

    Rows are PyArrow tables with `_change_type` (`+I`, `-U`, `+U`, `-D`; `+A` in log tables), `_log_offset` and
    `_commit_timestamp` in front of the table's columns. A row that was there at the start comes as `+I` with the offset
    that its bucket's changes go on from, and no timestamp. Iterating yields such tables without end.
    A reader of changes is for one caller at a time.
    """

    def __init__(self, core: ChangesCore) -> None:
        self._core = core

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of what polls return."""
        return self._core.arrow_schema

    @property
    def position(self) -> ChangesPosition:
        """How far polls have come; store it (`to_json()`) with what they returned, and go on with `table.changes(it)`.

        What is read from there on, folded by key into what was returned before, is the table; also when the position is
        one in the middle of the current rows, and rows have changed or gone meanwhile.
        """
        return self._core.position

    def _taken(self, changes: pa.Table) -> pa.Table:
        """Called where the caller can't be interrupted any more before it has them."""
        self._core.taken()
        return changes

    def close(self) -> None:
        """Stop reading."""
        self._core.close()

    def __repr__(self) -> str:
        return f"Changes({self._core.info.table_path})"
