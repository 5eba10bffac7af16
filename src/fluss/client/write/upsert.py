"""Upserting into and deleting from a primary-key table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss.client.cluster.cluster import Cluster
from fluss.client.write.encoder import BatchLimits
from fluss.client.write.kv_chunk import KvEncoder, KvRowBuffer
from fluss.client.write.partition_routing import router
from fluss.client.write.row_buffer import RowBuffer
from fluss.client.write.sender import Sender
from fluss.client.write.upsert_columns import UpsertColumns
from fluss.client.write.writer import WriterCore
from fluss.doors import clock
from fluss.formats.arrow.cast import ArrowCaster
from fluss.formats.rows.python_rows import RowBuilder
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.merge_mode import MergeMode
from fluss.model.tables.options import DELETE_BEHAVIOR

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
        """When the client has nothing else, the server, which needs longer for rows than anybody here, waits for it.

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
    if info.properties.get(DELETE_BEHAVIOR, "").upper() == "DISABLE":
        raise InvalidRequestError(
            f"Table {info.table_path} has {DELETE_BEHAVIOR} = DISABLE: its rows can't be deleted.",
            ErrorCode.DELETION_DISABLED_EXCEPTION,
        )
