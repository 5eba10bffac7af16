"""The batches of log files, for people who want to see them; nothing is changed, and damage is shown as such."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fluss.formats.batches.log_batch import BatchHeader, verify_crc
from fluss.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from fluss.storage import files
from fluss.storage.directory import CATALOG_NAME, TABLES_NAME, VERSION_NAME
from fluss.storage.log.index import scan
from fluss.storage.log.segment import LOG_SUFFIX, list_base_offsets, segment_path

if TYPE_CHECKING:
    import pyarrow as pa

# Of batches gathered before they are printed.
_GATHERED_MAX: Final = 1_000


class DumpedBatch(NamedTuple):
    path: Path
    position: int
    header: BatchHeader
    problem: str | None  # what is wrong with it
    data: bytes


def segments(path: Path) -> list[tuple[int, Path]]:
    """The segments that a path names, with their base offsets: one file, or all of a bucket's directory."""
    if path.is_dir():
        found = [(base, segment_path(path, base, LOG_SUFFIX)) for base in list_base_offsets(path)]
        if not found:
            raise NotFoundError(f"{path} has no log files; name a .log file, or a directory like {TABLES_NAME}/0/0.")
        return found
    if not path.exists():
        raise NotFoundError(f"There is no file {path}.")
    if path.suffix != LOG_SUFFIX or not path.stem.isdigit():
        raise InvalidRequestError(
            f"{path} is not a log file: those have an offset for a name, and end in {LOG_SUFFIX}."
        )
    return [(int(path.stem), path)]


def batches(path: Path, from_offset: int) -> Iterator[DumpedBatch]:
    """Batches from the one with an offset on; ends with one that has a problem, or raises where none can be told."""
    found = segments(path)
    if from_offset:
        first = max((at for at, (base, _) in enumerate(found) if base <= from_offset), default=0)
        found = found[first:]
    for base_offset, segment in found:
        for batch in _of_segment(segment, base_offset, from_offset):
            yield batch
            if batch.problem is not None:
                return


def _of_segment(path: Path, base_offset: int, from_offset: int) -> Iterator[DumpedBatch]:
    size_bytes = path.stat().st_size
    fd = files.open_existing(path, writable=False)
    try:
        for position, header in scan(fd, path, 0, size_bytes, base_offset, verify=False):
            if header.last_offset < from_offset:
                continue
            data = files.read_at(fd, header.size_bytes, position)
            problem = None
            try:
                verify_crc(data, 0, header)
            except CorruptDataError as error:
                problem = error.message.partition(": ")[2] or error.message
            yield DumpedBatch(path, position, header, problem, data)
    finally:
        files.close(fd)


def headers_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("offset", pa.int64()),
            ("last_offset", pa.int64()),
            ("time", pa.timestamp("ms", "UTC")),
            ("rows", pa.int32()),
            ("writer_id", pa.int64()),
            ("sequence", pa.int32()),
            ("schema_id", pa.int32()),
            ("bytes", pa.int64()),
            ("crc_ok", pa.bool_()),
            ("file", pa.string()),
            ("position", pa.int64()),
        ]
    )


def headers(found: Iterator[DumpedBatch]) -> Iterator[pa.RecordBatch]:
    """What the headers say, with null where there is no writer."""
    import pyarrow as pa

    schema = headers_schema()
    gathered: list[tuple[object, ...]] = []

    def taken() -> pa.RecordBatch:
        columns = zip(*gathered, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        gathered.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    for path, position, header, problem, _ in found:
        writer = (None, None) if header.writer_id < 0 else (header.writer_id, header.batch_sequence)
        size = (header.schema_id, header.size_bytes, problem is None, path.name, position)
        place = (header.base_offset, header.last_offset, header.commit_timestamp_ms, header.record_count)
        gathered.append((*place, *writer, *size))
        if len(gathered) >= _GATHERED_MAX:
            yield taken()
    if gathered:
        yield taken()


class RowReader:
    """Rows of the batches of a bucket, by the schemas in the catalog of the data directory that it lies in."""

    def __init__(self, path: Path) -> None:
        from fluss.model.descriptor import LogFormat, TableDescriptor
        from fluss.model.forms.arrow_types import arrow_schema
        from fluss.model.schema import Schema
        from fluss.model.tables.options import LOG_FORMAT, choice
        from fluss.storage.catalog.read import read_catalog

        root, table_id = _place(path)
        catalog = read_catalog(root)
        table = next((entry for entry in catalog.tables if entry.table_id == table_id), None)
        if table is None:
            raise NotFoundError(f"{root / CATALOG_NAME} has no table {table_id}: it was dropped. Leave out --rows.")
        descriptor = TableDescriptor.from_json(table.table_json, foreign_properties=True)
        self._log_format = LogFormat(choice(descriptor.properties, LOG_FORMAT))
        self._schemas = {
            schema_id: Schema.from_json(json.loads(content))
            for of_table, schema_id, content in catalog.schemas
            if of_table == table_id
        }
        self._arrow_schema = cache(lambda schema_id: arrow_schema(self._schemas[schema_id]))
        self._newest: pa.Schema = self._arrow_schema(table.schema_id)

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        first = [("_offset", pa.int64()), ("_time", pa.timestamp("ms", "UTC")), ("_change", pa.string())]
        return pa.schema([*(pa.field(*pair) for pair in first), *self._newest])

    def rows(self, batch: DumpedBatch) -> pa.RecordBatch:
        """The rows of a batch; columns that it was written without are null."""
        import pyarrow as pa

        from fluss.model.records import ChangeType

        changes, rows = self._decoded(batch)
        count = rows.num_rows
        kinds = [ChangeType(kind).short_string() for kind in changes] if changes is not None else ["+A"] * count
        columns = [
            rows.column(field.name) if field.name in rows.schema.names else pa.nulls(count, field.type)
            for field in self._newest
        ]
        offsets = pa.array(range(batch.header.base_offset, batch.header.base_offset + count), pa.int64())
        time = pa.scalar(batch.header.commit_timestamp_ms, pa.timestamp("ms", "UTC"))
        return pa.RecordBatch.from_arrays(
            [offsets, pa.repeat(time, count), pa.array(kinds, pa.string()), *columns], schema=self.schema
        )

    def _decoded(self, batch: DumpedBatch) -> tuple[bytes | None, pa.RecordBatch]:
        from fluss.formats.arrow import payload
        from fluss.formats.rows import codecs
        from fluss.model.descriptor import LogFormat

        header = batch.header
        if header.schema_id not in self._schemas:
            raise CorruptDataError(f"{batch.path} byte {batch.position}: the table has no schema {header.schema_id}.")
        schema = self._arrow_schema(header.schema_id)
        if not header.record_count:
            return None, schema.empty_table().to_batches(max_chunksize=1)[0]
        if self._log_format is LogFormat.ARROW:
            return payload.decode_changes(batch.data, 0, header, schema)
        return codecs.decode_rows(batch.data, 0, header, self._schemas[header.schema_id], self._log_format)


def _place(path: Path) -> tuple[Path, int]:
    """The data directory that a path lies in, and the table."""
    parts = path.absolute()
    for parent in parts.parents:
        if parent.name == TABLES_NAME and (parent.parent / VERSION_NAME).exists():
            table = parts.relative_to(parent).parts[0]
            if table.isdigit():
                return parent.parent, int(table)
    raise NotFoundError(f"{path} lies in no data directory, so the schema of its rows is not known. Leave out --rows.")
