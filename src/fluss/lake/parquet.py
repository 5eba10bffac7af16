"""Data files: Parquet with Iceberg's field ids, written and read by batches, less rows that were deleted later.

Rows are deleted by position, or by the values of some columns. This package's own tiering leaves no such deletes unless
it is asked for merge-on-read; Apache Fluss's always does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fluss.doors import randomness
from fluss.lake.filesystem import open_filesystem, storage_errors
from fluss.lake.format import BUCKET, EqualityDelete, LakeFile, PartitionValues, WrittenFile
from fluss.model.trust import is_local

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


FILE_BYTES: Final = 256 * 1024 * 1024  # then the next file is begun
ROW_GROUP_ROWS: Final = 262_144
READ_ROWS: Final = 65_536
COMPRESSION: Final = "zstd"

_FIELD_ID: Final = b"PARQUET:field_id"


@dataclass(frozen=True)
class FileTarget:
    """What a task needs to write files of a table. Plain values, so that tasks can be sent it."""

    location: str
    schema: pa.Schema
    partition_keys: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    file_bytes: int = FILE_BYTES


@storage_errors()
def write_files(
    target: FileTarget, partition: PartitionValues, bucket: int, batches: Iterable[pa.RecordBatch]
) -> list[WrittenFile]:
    """Write the rows of one bucket; no file without rows. The files are on disk, and in no snapshot."""
    import pyarrow as pa

    written: list[WrittenFile] = []
    rows: list[pa.RecordBatch] = []
    current: _OpenFile | None = None
    waiting = 0
    try:
        for batch in batches:
            rows.append(to_schema(batch, target.schema))
            waiting += batch.num_rows
            if waiting >= ROW_GROUP_ROWS:
                current = current or _OpenFile(target, partition, bucket)
                current.write(pa.Table.from_batches(rows))
                rows, waiting = [], 0
                if current.size_bytes >= target.file_bytes:
                    written.append(current.finish())
                    current = None
        if waiting:
            current = current or _OpenFile(target, partition, bucket)
            current.write(pa.Table.from_batches(rows))
        if current is not None:
            written.append(current.finish())
    except BaseException:
        if current is not None:
            current.abort()
        raise
    return written


class _OpenFile:
    def __init__(self, target: FileTarget, partition: PartitionValues, bucket: int) -> None:
        import pyarrow.parquet as pq

        folders = [
            f"{key}={quote(value, safe='')}" for key, value in zip(target.partition_keys, partition, strict=True)
        ]
        self._location = "/".join(
            [target.location, "data", *folders, f"bucket={bucket}", f"{randomness.new_uuid()}.parquet"]
        )
        self._partition, self._bucket = partition, bucket
        self._filesystem, self._path = open_filesystem(self._location, target.properties)
        if is_local(self._location):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._sink = self._filesystem.open_output_stream(self._path)
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink, target.schema, compression=COMPRESSION, metadata_collector=self._footers
        )

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)

    def finish(self) -> WrittenFile:
        self._writer.close()
        size_bytes = self.size_bytes
        self._sink.close()
        if is_local(self._location):
            folder = os.path.dirname(self._path)
            # Folders may be new, too, up to the one of the table, which its metadata is in.
            parents = (folder.rsplit("/", depth)[0] for depth in range(1, len(self._partition) + 3))
            sync_paths(self._path, folder, *parents)
        return WrittenFile(self._location, self._partition, self._bucket, size_bytes, self._footers[0])

    def abort(self) -> None:
        self._writer.close()
        self._sink.close()
        self._filesystem.delete_file(self._path)


def sync_paths(*paths: str | Path) -> None:
    """Put files and folders on disk."""
    for name in paths:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_file(
    file: LakeFile, schema: pa.Schema, properties: Mapping[str, str], share: tuple[int, int] = (0, 1)
) -> Iterator[pa.RecordBatch]:
    """The rows of a data file that were not deleted, in the columns of a schema with field ids, in its order.

    A `share` of (1, 3) is the second of three parts; each has whole row groups, so some may be empty.
    """
    import pyarrow.parquet as pq

    filesystem, path = open_filesystem(file.path, properties)
    with storage_errors(), filesystem.open_input_file(path) as source:
        parquet = pq.ParquetFile(source)
        by_id = {_field_id(item): item.name for item in parquet.schema_arrow}
        deletes = Deletes(file, properties)
        wanted = [by_id[number] for item in schema if (number := _field_id(item)) in by_id]
        needed = [by_id[number] for number in deletes.field_ids if by_id.get(number) not in (None, *wanted)]
        first, end = (parquet.num_row_groups * (share[0] + part) // share[1] for part in (0, 1))
        position = sum(parquet.metadata.row_group(group).num_rows for group in range(first))
        groups = list(range(first, end))
        for batch in parquet.iter_batches(READ_ROWS, row_groups=groups, columns=[*wanted, *needed]):
            kept = deletes.kept(batch, position, by_id)
            position += batch.num_rows
            yield arranged(kept, schema, by_id)


def read_file_as(
    file: LakeFile,
    lake_schema: pa.Schema,
    wanted: pa.Schema,
    properties: Mapping[str, str],
    share: tuple[int, int] = (0, 1),
) -> Iterator[pa.RecordBatch]:
    """The rows of a data file in the types wanted; columns that the lake does not know yet are null."""
    import pyarrow as pa

    known = [item for item in wanted if item.name in lake_schema.names]
    # Without any column nothing would tell how many rows there are.
    asked = pa.schema([lake_schema.field(item.name) for item in known] or [lake_schema.field(BUCKET)])
    for batch in read_file(file, asked, properties, share):
        columns = [
            _cast(batch.column(item.name), item.type) if item in known else pa.nulls(batch.num_rows, item.type)
            for item in wanted
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def arranged(batch: pa.RecordBatch, schema: pa.Schema, names: Mapping[int | None, str]) -> pa.RecordBatch:
    """A file's batch in the columns of a schema; those the file does not have are null."""
    import pyarrow as pa

    columns = []
    for item in schema:
        name = names.get(_field_id(item))
        if name is None:
            columns.append(pa.nulls(batch.num_rows, item.type))
        else:
            columns.append(_cast(batch.column(name), item.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with columns of the same names in the types of another schema; times finer than its own are cut."""
    import pyarrow as pa

    columns = [_cast(batch.column(item.name), item.type) for item in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type == wanted else column.cast(wanted, safe=False)


def _field_id(item: pa.Field) -> int | None:
    text = (item.metadata or {}).get(_FIELD_ID)
    return None if text is None else int(text)


class Deletes:
    """What was deleted from one data file."""

    def __init__(self, file: LakeFile, properties: Mapping[str, str]) -> None:
        self._positions = _positions(file, properties) if file.position_deletes else None
        self._keys: dict[tuple[int, ...], pa.Table] = {}
        for field_ids in {item.field_ids for item in file.equality_deletes}:
            same = [item for item in file.equality_deletes if item.field_ids == field_ids]
            self._keys[field_ids] = _keys(same, properties)

    @property
    def field_ids(self) -> set[int]:
        """Columns that must be read to know which rows are gone."""
        return {number for field_ids in self._keys for number in field_ids}

    def kept(self, batch: pa.RecordBatch, first: int, names: Mapping[int | None, str]) -> pa.RecordBatch:
        """The rows of a batch that are still there; `first` is the position of its first row in the file."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._positions is not None:
            places = pa.array(range(first, first + batch.num_rows), pa.int64())
            batch = batch.filter(pc.invert(pc.is_in(places, value_set=self._positions)))
        for field_ids, gone in self._keys.items():
            batch = _without(batch, [names[number] for number in field_ids], gone)
        return batch


def _without(batch: pa.RecordBatch, columns: list[str], gone: pa.Table) -> pa.RecordBatch:
    import pyarrow as pa

    rows = pa.table({"__row": pa.array(range(batch.num_rows), pa.int64())})
    for place, name in enumerate(columns):
        rows = rows.append_column(f"k{place}", batch.column(name).cast(gone.schema.field(place).type))
    kept = rows.join(gone, keys=gone.schema.names, join_type="left anti")
    return batch.take(kept["__row"].combine_chunks().sort())


def _positions(file: LakeFile, properties: Mapping[str, str]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found = []
    for location in file.position_deletes:
        filesystem, path = open_filesystem(location, properties)
        rows = pq.read_table(path, columns=["file_path", "pos"], filesystem=filesystem)
        found.append(rows.filter(pc.equal(rows["file_path"], file.path))["pos"].combine_chunks())
    return pa.concat_arrays([item.cast(pa.int64()) for item in found])


def _keys(deletes: list[EqualityDelete], properties: Mapping[str, str]) -> pa.Table:
    """The values of deleted rows, columns named k0, k1, … in the order of the field ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for item in deletes:
        filesystem, path = open_filesystem(item.path, properties)
        with filesystem.open_input_file(path) as source:
            parquet = pq.ParquetFile(source)
            names = {int(column.metadata[b"PARQUET:field_id"]): column.name for column in parquet.schema_arrow}
            rows = parquet.read(columns=[names[number] for number in item.field_ids])
            rows = rows.select([names[number] for number in item.field_ids])
        tables.append(rows.rename_columns([f"k{place}" for place in range(len(item.field_ids))]))
    return pa.concat_tables(tables)
