"""Upserting into and deleting from a primary-key table: columns, checks, and rows by encoded key."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from fluss.client.cluster.cluster import Cluster
from fluss.client.write.encode_queue import BatchLimits, Encoder
from fluss.client.write.routing import Route, Router, router, row_numbers
from fluss.client.write.row_buffer import BufferOwner, RowBuffer
from fluss.client.write.sender import Sender
from fluss.client.write.writer import WriterCore
from fluss.doors import clock
from fluss.formats.arrow.cast import ArrowCaster
from fluss.formats.arrow.payload import numbers_array
from fluss.formats.batches import kv_batch
from fluss.formats.rows.codecs import CompactedFormat, IndexedFormat
from fluss.formats.rows.keys import primary_key_encoder
from fluss.formats.rows.python_rows import RowBuilder
from fluss.model.descriptor import KvFormat
from fluss.model.errors import ErrorCode, InvalidRequestError, SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.merge_mode import MergeMode
from fluss.model.rows import GenericRow
from fluss.model.schema import Schema
from fluss.model.tables.options import DELETE_BEHAVIOR, KV_FORMAT, choice
from fluss.protocol.writes import put_kv


class UpsertColumns:
    """The columns of a writer: all of the table, or the targets of a partial update.

    A table with an auto-increment column is written by updates of all other columns: the server numbers new rows and
    keeps the number of those that are there.
    """

    def __init__(self, info: TableInfo, targets: Sequence[int] | None = None) -> None:
        self._info = info
        self.table_names = info.schema.column_names
        columns = info.schema.columns
        self._numbered = info.schema.get_auto_increment_columns()
        if targets is None and self._numbered:
            targets = [index for index, column in enumerate(columns) if column.name not in self._numbered]
        self.targets = () if targets is None else tuple(targets)
        """Indexes in the order in which rows have them; empty: whole rows."""
        keys = info.primary_keys
        if targets is not None:
            self._check_targets(targets, keys)
        self.schema = Schema.of([columns[index] for index in self.targets] if self.targets else columns, keys)
        """The columns of rows, in their order."""
        by_name = {column.name: column for column in columns}
        self.key_schema = Schema.of([by_name[name] for name in keys], keys)
        """The key columns in the order of the primary key."""

    @classmethod
    def named(cls, info: TableInfo, names: Iterable[str]) -> UpsertColumns:
        """A partial update of columns by name."""
        known = info.schema.column_names
        targets = []
        for name in _listed(names, "column names"):
            if name not in known:
                raise _bad_target(
                    f"Table {info.table_path} has no column {name!r}; its columns are {', '.join(known)}."
                )
            targets.append(known.index(name))
        return cls(info, targets)

    @classmethod
    def numbered(cls, info: TableInfo, indexes: Iterable[int]) -> UpsertColumns:
        """A partial update of columns by index."""
        count = len(info.schema.columns)
        targets = _listed(indexes, "column indexes")
        for index in targets:
            if not isinstance(index, int) or not 0 <= index < count:
                raise _bad_target(f"Column index {index!r} is not in the range 0 to {count - 1} of {info.table_path}.")
        return cls(info, targets)

    def _check_targets(self, targets: Sequence[int], keys: list[str]) -> None:
        names = [self.table_names[index] for index in targets]
        missing = [key for key in keys if key not in names]
        if missing:
            raise _bad_target(
                f"A partial update of table {self._info.table_path} needs all columns of the primary key; "
                f"{missing[0]!r} is not among {', '.join(names) or 'none'}."
            )
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise _bad_target(f"The partial update names column {twice[0]!r} twice.")
        for column in self._info.schema.columns:
            if column.name in self._numbered:
                if column.name in names:
                    raise _bad_target(f"Column {column.name!r} is numbered by the server and can't be written.")
            elif column.name not in keys and not column.data_type.nullable:
                why = f", which the auto-increment column {self._numbered[0]!r} calls for," if self._numbered else ""
                raise _bad_target(
                    f"A partial update of table {self._info.table_path}{why} needs all columns but those of the "
                    f"primary key to be nullable; {column.name!r} is {column.data_type}."
                )

    def row_builder(self) -> RowBuilder:
        """The builder for rows as a user gives them."""
        return TargetRowBuilder(self) if self.targets else RowBuilder(self.schema)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise for a column that the table has and the writer does not write."""
        for name in names:
            if name in self._numbered:
                raise SchemaMismatchError(f"Column {name!r} is numbered by the server; leave it out.")
            if name in self.table_names and name not in self.schema.column_names:
                raise SchemaMismatchError(
                    f"Column {name!r} is not among those of the partial update: {', '.join(self.schema.column_names)}."
                )

    def key_names(self, names: Iterable[str]) -> list[str]:
        """The key columns among these; a key may come with other columns of the table, but not with unknown ones."""
        found = list(names)
        unknown = [name for name in found if name not in self.table_names]
        keys = self.key_schema.column_names
        if unknown:
            raise SchemaMismatchError(f"The table has no column {unknown[0]!r}; its key columns are {', '.join(keys)}.")
        return [name for name in found if name in keys]

    def widen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with all columns of the table: those not written are null, a number the server will set is 0."""
        if not self.targets:
            return rows
        target = arrow_schema(self._info.schema)
        columns = []
        for index, column in enumerate(self._info.schema.columns):
            if index in self.targets:
                columns.append(rows.column(self.targets.index(index)))
            elif column.data_type.nullable:
                columns.append(pa.nulls(rows.num_rows, target.types[index]))
            else:
                columns.append(pa.repeat(pa.scalar(0, target.types[index]), rows.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=target)


class TargetRowBuilder(RowBuilder):
    """Rows of a partial update: only the targets, in the order named, or whole rows with None everywhere else.

    Where both have as many values, a GenericRow is a whole row, a list or tuple has the targets.
    """

    __slots__ = ("_columns", "_whole_width", "_width")

    def __init__(self, columns: UpsertColumns) -> None:
        super().__init__(columns.schema)
        self._columns = columns
        self._width = len(columns.targets)
        self._whole_width = len(columns.table_names)

    def append(self, row: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> int:
        if isinstance(row, Mapping):
            try:
                return super().append(row)
            except SchemaMismatchError:
                self._columns.check_names(row)
                raise
        if is_whole(row, self._whole_width, self._width):
            names = self._columns.table_names
            targets = self._columns.targets
            self._columns.check_names(
                name for index, name in enumerate(names) if index not in targets and row[index] is not None
            )
            row = [row[index] for index in targets]
        return super().append(row)


class KeyBuilder(RowBuilder):
    """Keys: key columns by name, their values in the order of the primary key, or whole rows.

    Where both have as many values, a GenericRow is a whole row, a list or tuple a key.
    """

    __slots__ = ("_columns", "_indexes", "_whole_width")

    def __init__(self, columns: UpsertColumns) -> None:
        super().__init__(columns.key_schema)
        self._columns = columns
        self._indexes = [columns.table_names.index(name) for name in columns.key_schema.column_names]
        self._whole_width = len(columns.table_names)

    def append(self, row: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> int:
        if isinstance(row, Mapping):
            if len(row) != len(self._indexes):
                row = {name: row[name] for name in self._columns.key_names(row)}
        elif is_whole(row, self._whole_width, len(self._indexes)):
            row = [row[index] for index in self._indexes]
        return super().append(row)


def is_whole(row: object, whole_width: int, width: int) -> bool:
    """Whether a list or tuple has a value for each column of the table, rather than for `width` chosen ones."""
    if not isinstance(row, list | tuple) or len(row) != whole_width:
        return False
    return whole_width != width or isinstance(row, GenericRow)


def _listed(items: Iterable[Any], what: str) -> list[Any]:
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InvalidRequestError(f"A partial update takes a list of {what}, not {items!r}.")
    return list(items)


def _bad_target(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, ErrorCode.INVALID_TARGET_COLUMN)


_ROW_INDEX = ""  # no column of a table has this name


class Operations(NamedTuple):
    """Rows to upsert and keys to delete; `order` has indexes into both, keys behind rows."""

    rows: pa.RecordBatch | None
    keys: pa.RecordBatch | None
    order: pa.Array | None


class KvBufferOwner(BufferOwner, Protocol):
    """The writer whose upserts and deletes a row buffer holds."""

    @property
    def columns(self) -> UpsertColumns: ...


class KvRowBuffer(RowBuffer):
    """Operations on a primary-key table that were closed together."""

    __slots__ = ("_deleted_at", "_keys")
    writer: KvBufferOwner

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._keys: KeyBuilder | None = None
        self._deleted_at = array("q")
        """Which of the operations are deletes, by number."""

    @property
    def row_count(self) -> int:
        builder = self._builder  # a worker may take it away meanwhile
        return self._row_count if builder is None else builder.row_count + len(self._deleted_at)

    def add_delete(self, key: Any) -> None:
        """Take the key of a row to delete."""
        if self._keys is None:
            self._keys = KeyBuilder(self.writer.columns)
        self._size_bytes += self._keys.append(key)
        self._deleted_at.append(self.row_count)

    def take_operations(self) -> Operations:
        """All operations; the row builder is free again."""
        if self._builder is None:
            batch = self.take_rows()
            return Operations(None, batch, None) if self.deletes else Operations(batch, None, None)
        row_count, deleted_at = self._builder.row_count, np.array(self._deleted_at)
        rows = self.take_rows()
        if self._keys is None:
            return Operations(rows, None, None)
        is_delete = np.zeros(self._row_count, np.bool_)
        is_delete[deleted_at] = True
        order = np.empty(self._row_count, np.int64)
        order[~is_delete] = np.arange(row_count)
        order[is_delete] = np.arange(row_count, self._row_count)
        return Operations(rows, self._keys.build(), numbers_array(order))


class KvEncoder(Encoder):
    """Batches of primary-key tables."""

    __slots__ = ("_columns", "_key_encoder", "_row_format")
    record_count_max = kv_batch.RECORD_COUNT_MAX

    def __init__(
        self, info: TableInfo, limits: BatchLimits, route: Router, columns: UpsertColumns, merge_mode: MergeMode
    ) -> None:
        super().__init__(info, limits, route, put_kv(columns.targets, merge_mode))
        self._columns = columns
        self._key_encoder = primary_key_encoder(info.descriptor)
        indexed = choice(info.properties, KV_FORMAT) == KvFormat.INDEXED
        self._row_format = (IndexedFormat if indexed else CompactedFormat)(info.schema.columns)

    def _routes(self, buffer: RowBuffer) -> Iterable[Route]:
        assert isinstance(buffer, KvRowBuffer)
        key_columns, records = self._records(buffer.take_operations())
        columns = [*key_columns.columns, row_numbers(records.num_rows)]
        numbered = pa.RecordBatch.from_arrays(columns, [*key_columns.schema.names, _ROW_INDEX])
        routes, buffer.partitions = self._route(numbered)
        if len(routes) == 1:
            ((partition, bucket, _),) = routes
            return [(partition, bucket, records)]
        order = pa.concat_arrays([part.column(_ROW_INDEX) for _, _, part in routes])
        ordered = records.take(order)
        ends = np.cumsum([part.num_rows for _, _, part in routes]).tolist()
        return [
            (partition, bucket, ordered.slice(end - part.num_rows, part.num_rows))
            for (partition, bucket, part), end in zip(routes, ends, strict=True)
        ]

    def _records(self, operations: Operations) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The key columns, and encoded keys and rows; a row that is null is a delete."""
        names = self._columns.key_schema.column_names
        parts = []
        if operations.rows is not None:
            rows = operations.rows
            parts.append((rows.select(names), self._row_format.encode(self._columns.widen(rows))))
        if operations.keys is not None:
            parts.append((operations.keys, pa.nulls(operations.keys.num_rows, pa.binary())))
        encoded = [
            pa.RecordBatch.from_arrays([self._key_encoder.encode(keys), rows], ["key", "row"]) for keys, rows in parts
        ]
        if operations.order is None:
            return parts[0][0], encoded[0]
        key_columns = pa.concat_batches([keys for keys, _ in parts])
        return key_columns.take(operations.order), pa.concat_batches(encoded).take(operations.order)

    def _batch(self, rows: pa.RecordBatch) -> tuple[bytearray, memoryview]:
        records = kv_batch.encode_records(rows.column(0), rows.column(1))
        header = kv_batch.encode_header(records, schema_id=self._info.schema_id, record_count=rows.num_rows)
        return header, memoryview(records)


# Long enough for the I/O thread to wake up and take the interpreter.
TURN_S = 0.0002


class UpsertWriterCore(WriterCore):
    """Takes rows and keys of a primary-key table; operations on one key are done in the order of the calls."""

    upsert = WriterCore.take_row
    _buffer_class = KvRowBuffer

    def __init__(
        self,
        cluster: Cluster,
        sender: Sender,
        info: TableInfo,
        columns: UpsertColumns | None = None,
        merge_mode: MergeMode = MergeMode.DEFAULT,
    ) -> None:
        self.columns = columns or UpsertColumns(info)
        config = cluster.config
        encoder = KvEncoder(info, BatchLimits.of(config), router(info, config), self.columns, merge_mode)
        self._key_caster = ArrowCaster(self.columns.key_schema)
        super().__init__(cluster, sender, info, encoder, self.columns.schema)

    def _new_builder(self) -> RowBuilder:
        return self.columns.row_builder()

    def _close_full(self, buffer: RowBuffer) -> None:
        """Close a full row buffer, and wait when the client is idle: the server needs longer for rows than the client.

        A caller that takes rows without a pause gives the interpreter to other threads every 5 ms only, and encoding in
        a worker and sending take a dozen such turns: encode here, and let the I/O thread send at once.
        """
        if buffer.add_row is None or self._memory.used_bytes > buffer.reserved_bytes:
            super()._close_full(buffer)
            return
        self.encoder.prepare(buffer)
        buffer.prepared = True
        super()._close_full(buffer)
        clock.sleep(TURN_S)

    def delete(self, key: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Take the key of a row to delete; waits while the write memory is full."""
        check_deletes(self._info)
        self._admit()
        with self._lock:
            buffer = self._open
            if buffer is None or buffer.add_row is None:
                buffer = self._open_rows()
            assert isinstance(buffer, KvRowBuffer)
            buffer.add_delete(key)
            return self._taken(buffer)

    def write_batch(self, batch: pa.RecordBatch) -> Any:
        self.columns.check_names(batch.schema.names)
        return super().write_batch(batch)

    def write_table(self, table: pa.Table) -> Any:
        self.columns.check_names(table.schema.names)
        return super().write_table(table)

    def delete_table(self, table: pa.Table) -> Any:
        """Take an Arrow table of keys to delete, which may have the table's other columns too."""
        check_deletes(self._info)
        keys = table.select(self.columns.key_names(table.schema.names))
        return self._write(list(self._key_caster.cast_all(keys)), deletes=True)


def check_deletes(info: TableInfo) -> None:
    """Raise where rows can't be deleted."""
    if choice(info.properties, DELETE_BEHAVIOR) == "DISABLE":
        raise InvalidRequestError(
            f"Table {info.table_path} has {DELETE_BEHAVIOR} = DISABLE: its rows can't be deleted.",
            ErrorCode.DELETION_DISABLED_EXCEPTION,
        )
