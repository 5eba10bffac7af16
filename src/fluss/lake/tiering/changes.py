"""Changes of a bucket as rows for an engine that merges them: the last change of each key, and whether it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from fluss.lake.fold import Keys, fold_changes
from fluss.lake.parquet import READ_ROWS
from fluss.lake.tiering.task import ChangesPart, open_table, scan_columns
from fluss.sync import FlussConnection

# They are in memory at once; rounds with more of a bucket are done by copy, which folds piece by piece.
CHANGES_MAX: Final = 500_000
REMOVED: Final = "__fluss_removed"


def read_changes(task: ChangesPart, connection: FlussConnection) -> Iterator[pa.RecordBatch]:
    """The columns of the lake table, and the flag; keys that are gone have the rows they had."""
    table = open_table(task, connection)
    scan, keys = scan_columns(task, table), Keys(table.get_table_info())
    folded = fold_changes(scan, task.bucket, task.start_offset, task.end_offset, keys, task.table.columns)
    if folded is None:
        return
    for rows, is_removed in ((folded.rows, False), (folded.removed, True)):
        for batch in rows.to_batches(READ_ROWS):
            yield batch.append_column(REMOVED, pa.repeat(pa.scalar(is_removed), batch.num_rows))
