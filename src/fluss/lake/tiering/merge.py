"""Files of a bucket replaced: by ones with the changes folded into their rows, or by fewer and larger ones.

Changes are folded in by copy: a file that has rows of changed keys gives way to a new one. Engines that merge by
themselves are given the changes as rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss.lake.fold import ChangeFold, FoldedChanges, Keys, fold_changes
from fluss.lake.format import OFFSET, LakeFile, WrittenFile
from fluss.lake.parquet import READ_ROWS, read_file, write_files
from fluss.lake.tiering.task import (
    ChangesPart,
    RewritePart,
    Stopwatch,
    TaskResult,
    open_table,
    remove_file,
    scan_columns,
)
from fluss.sync import FlussConnection, FlussTable

# They are in memory at once; rounds with more of a bucket are done by copy, which folds piece by piece.
CHANGES_MAX: Final = 500_000
REMOVED: Final = "__fluss_removed"


def merge_changes(task: ChangesPart, table: FlussTable, reading: Stopwatch) -> TaskResult:
    """Fold a stretch of the changelog into the bucket's files, in bounded memory."""
    merge = _Merge(task, Keys(table.get_table_info()))
    fold = ChangeFold(merge.keys, task.table.columns, task.bucket.bucket)
    try:
        scan = scan_columns(task, table)
        found = scan.read_bucket(task.bucket, task.start_offset, task.end_offset, changelog=True)
        for changes in reading.waiting_for(found):
            fold.add(changes)
            if fold.is_full:
                merge.apply(fold.take())
        merge.apply(fold.take())
    except BaseException:
        merge.abort()
        raise
    return merge.result()


class _Merge:
    def __init__(self, task: ChangesPart, keys: Keys) -> None:
        self._task = task
        self._target = task.table.target
        self.keys = keys
        self._key_schema = pa.schema([self._target.schema.field(name) for name in keys.names])
        self._kept: list[LakeFile] = list(task.files)
        self._removed: list[LakeFile] = []
        self._written: dict[str, WrittenFile] = {}  # by this task, and not replaced since
        self._row_count = 0

    def apply(self, folded: FoldedChanges | None) -> None:
        """Replace the files that have changed keys, and add the rows that the changes leave behind theirs."""
        if folded is None:
            return
        touched: dict[LakeFile, pa.BooleanArray] = {}
        for file in self._kept:
            mask = self.keys.found_in(read_file(file, self._key_schema, self._target.properties), folded.keys)
            if pc.any(mask).as_py():
                touched[file] = mask
        rest = chain.from_iterable(self._untouched_rows(file, mask) for file, mask in touched.items())
        rows = chain(rest, folded.rows.to_batches())
        written = write_files(self._target, self._task.partition, self._task.bucket.bucket, rows)
        self._kept = [file for file in self._kept if file not in touched]
        for file in touched:
            if self._written.pop(file.path, None) is None:
                self._removed.append(file)
            else:
                remove_file(file.path, self._target.properties)
        for item in written:
            self._written[item.path] = item
            self._kept.append(LakeFile(item.path, item.partition, item.bucket, item.row_count, item.size_bytes))
        self._row_count += len(folded.keys)

    def _untouched_rows(self, file: LakeFile, mask: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in read_file(file, self._target.schema, self._target.properties):
            kept = batch.filter(pc.invert(mask.slice(first, batch.num_rows)))
            first += batch.num_rows
            if kept.num_rows:
                yield kept

    def result(self) -> TaskResult:
        """What has become of the bucket's files."""
        return TaskResult(list(self._written.values()), self._removed, self._row_count)

    def abort(self) -> None:
        """Leave no files."""
        for path in self._written:
            remove_file(path, self._target.properties)


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


def rewrite_files(task: RewritePart) -> TaskResult:
    """Write the rows of some files anew, in the order of their offsets."""
    target = task.table.target
    batches = (batch for file in task.files for batch in read_file(file, target.schema, target.properties))
    rows = pa.Table.from_batches(batches, target.schema).sort_by(OFFSET)
    added = write_files(target, task.partition, task.bucket.bucket, rows.to_batches(READ_ROWS))
    return TaskResult(added, list(task.files), rows.num_rows)
