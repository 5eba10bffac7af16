"""Ids for auto-increment columns: one sequence per table, from 1, reserved on disk in blocks and given out from memory.

An id is given out at most once. A killed server loses the rest of its blocks; one that is closed gives them back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.tables.options import AUTO_INCREMENT_CACHE_SIZE
from fluss.storage.catalog.view import DefinitionCache

FIRST_ROW_ID: Final = 1
ROW_ID_MAX: Final = 2**63 - 1
BLOCK_DEFAULT: Final = 100_000


@DefinitionCache
def block_of(table_json: bytes) -> int:
    """How many ids a table reserves at once, by its properties."""
    size = json.loads(table_json).get("properties", {}).get(AUTO_INCREMENT_CACHE_SIZE, "")
    return int(size) if size.isascii() and size.isdigit() and int(size) else BLOCK_DEFAULT


class RowIds:
    """The sequences in memory; whoever holds it writes what is reserved to disk."""

    def __init__(self, reserved: Mapping[int, int] | None = None) -> None:
        self._reserved = dict(reserved or {})  # by table id: ids below are given out or in memory
        self._next = dict(self._reserved)

    def take(self, table_id: int, count: int) -> int | None:
        """The first of `count` ids in a row, None if too few are reserved."""
        first = self._next.get(table_id, FIRST_ROW_ID)
        if first + count > self._reserved.get(table_id, FIRST_ROW_ID):
            return None
        self._next[table_id] = first + count
        return first

    def bound_for(self, table_id: int, count: int, block: int) -> int:
        """Up to where to reserve, so that `count` can be taken whatever others take meanwhile."""
        reserved = self._reserved.get(table_id, FIRST_ROW_ID)
        if reserved + count > ROW_ID_MAX:
            raise FlussError(
                f"Table id {table_id} has used all ids of its auto-increment column. Make a new table.",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        return min(reserved + max(count, block), ROW_ID_MAX)

    def reserved(self, table_id: int, bound: int) -> None:
        """Ids below `bound` are reserved on disk."""
        self._reserved[table_id] = bound
        self._next.setdefault(table_id, FIRST_ROW_ID)

    def forget(self, table_id: int) -> None:
        self._reserved.pop(table_id, None)
        self._next.pop(table_id, None)

    def give_back(self) -> dict[int, int]:
        """Give out nothing more; where each table's sequence may go on."""
        unused = {table: first for table, first in self._next.items() if first < self._reserved[table]}
        self._reserved = dict(self._next)
        return unused
