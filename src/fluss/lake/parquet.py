"""Data files: Parquet with Iceberg's field ids, written and read batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fluss.doors import randomness
from fluss.lake.filesystem import open_filesystem, storage_errors
from fluss.lake.format import BUCKET, LakeFile, PartitionValues, WrittenFile
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

    from fluss.lake.deletes import Deletes

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
