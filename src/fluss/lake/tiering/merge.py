"""Changes of a bucket folded into its files, by copy: a file that has rows of changed keys gives way to a new one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from fluss.lake.files import LakeFile, WrittenFile
from fluss.lake.fold import ChangeFold, Folded, Keys
from fluss.lake.parquet import read_file, write_files
from fluss.lake.tiering.task import ChangesPart, Stopwatch, TaskResult, remove_file, scan_columns
from fluss.sync import FlussTable


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

    def apply(self, folded: Folded | None) -> None:
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
