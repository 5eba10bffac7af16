"""Virtual tables of SQL: `orders$changelog` and `orders$binlog`, with the columns and words that Flink shows.

Both are of what the log still has, from its earliest row to its latest as of the call. A changelog has a row for each
change, before images included; a binlog, which only tables with a primary key have, has one for each change of a key,
with the row before and after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats.arrow.payload import numbers_array
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.offsets import EARLIEST_OFFSET
from fluss.model.paths import TablePath
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ChangeType
from fluss.sync import FlussConnection

META: Final = (CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP)
# What a binlog calls what became of a key, which has one row for both halves of an update.
_INSERT, _UPDATE, _DELETE = "insert", "update", "delete"
_BEFORE, _AFTER = "update_before", "update_after"
_WORDS: Final = {
    ChangeType.AppendOnly: _INSERT,
    ChangeType.Insert: _INSERT,
    ChangeType.UpdateBefore: _BEFORE,
    ChangeType.UpdateAfter: _AFTER,
    ChangeType.Delete: _DELETE,
}


class VirtualTable(NamedTuple):
    """A table, and what of it is wanted."""

    base: TablePath
    suffix: str
    read: Callable[[FlussConnection, TablePath], pa.Table]

    def named_after(self, base: TablePath) -> TablePath:
        """The same of a table whose name is written otherwise."""
        return TablePath(base.database_name, f"{base.table_name}${self.suffix}")


def virtual_table(path: TablePath) -> VirtualTable | None:
    """What a name with a suffix stands for; None: a table as it is."""
    name, mark, suffix = path.table_name.rpartition("$")
    read = _READERS.get(suffix.lower()) if mark else None
    return None if read is None else VirtualTable(TablePath(path.database_name, name), suffix.lower(), read)


def changelog(connection: FlussConnection, path: TablePath) -> pa.Table:
    """All changes of a table that its log has."""
    changes = _changes(connection, path)
    kinds = changes.column(CHANGE_TYPE)
    words = pc.index_in(kinds, pa.array([kind.short_string() for kind in _WORDS]))
    return changes.set_column(0, CHANGE_TYPE, pa.array(list(_WORDS.values())).take(words.combine_chunks()))


def binlog(connection: FlussConnection, path: TablePath) -> pa.Table:
    """All changes of keys that a table's log has, each with the row before and after it."""
    if not connection.get_admin().get_table_info(path).has_primary_key():
        raise InvalidRequestError(
            f"Table {path} has no primary key, so it has no binlog; {path.table_name}$changelog has its rows.",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    changes = changelog(connection, path).combine_chunks()
    kinds = changes.column(CHANGE_TYPE).to_numpy(zero_copy_only=False)
    kept = np.flatnonzero(kinds != _BEFORE)
    is_delete, is_update = kinds[kept] == _DELETE, kinds[kept] == _AFTER
    # The row before an update is the change before it, in the order of its bucket; tables without these have none.
    has_before = is_update & (kept > 0) & (kinds[np.maximum(kept - 1, 0)] == _BEFORE)
    before = np.where(is_delete, kept, kept - 1)
    rows = changes.drop_columns(list(META)).to_struct_array()
    meta = changes.select(list(META)).take(numbers_array(kept))
    words = np.where(is_delete, _DELETE, np.where(is_update, _UPDATE, _INSERT))
    table = meta.set_column(0, CHANGE_TYPE, pa.array(words.tolist(), pa.string()))
    table = table.append_column("before", _taken(rows, before, is_delete | has_before))
    return table.append_column("after", _taken(rows, kept, ~is_delete))


def _taken(rows: pa.ChunkedArray, places: np.ndarray, is_there: np.ndarray) -> pa.ChunkedArray:
    """Rows by place, null where there is none."""
    return rows.take(pa.array(places, pa.int64(), mask=~is_there))


def _changes(connection: FlussConnection, path: TablePath) -> pa.Table:
    table = connection.get_table(path)
    buckets = range(table.get_table_info().num_buckets)
    with table.new_scan().create_changelog_batch_scanner() as scanner:
        if not scanner.is_partitioned():
            scanner.subscribe_buckets(dict.fromkeys(buckets, EARLIEST_OFFSET))
            return scanner.to_arrow()
        found = connection.get_admin().list_partition_infos(path)
        if not found:
            return scanner.arrow_schema.empty_table()
        keys = [(partition.partition_id, bucket) for partition in found for bucket in buckets]
        scanner.subscribe_partition_buckets(dict.fromkeys(keys, EARLIEST_OFFSET))
        return scanner.to_arrow()


_READERS: Final = {"changelog": changelog, "binlog": binlog}
