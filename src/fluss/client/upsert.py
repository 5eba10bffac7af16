"""Upserting into and deleting from a primary-key table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.client.chunk import Chunk
from fluss.client.encoder import BatchLimits
from fluss.client.kv_chunk import KvChunk, KvEncoder
from fluss.client.partition_routing import router
from fluss.client.upsert_columns import UpsertColumns
from fluss.client.writer import WriterCore
from fluss.doors import clock
from fluss.formats.cast import ArrowCaster
from fluss.formats.row_builder import RowBuilder
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.merge_mode import MergeMode
from fluss.model.table_options import DELETE_BEHAVIOR

if TYPE_CHECKING:
    from fluss.client.core import ClientCore


# Long enough for the I/O thread to wake up and take the interpreter.
TURN_S = 0.0002


class UpsertWriterCore(WriterCore):
    """Takes rows and keys of a primary-key table; operations on one key are done in the order of the calls."""

    upsert = WriterCore.take_row
    _chunk_class = KvChunk

    def __init__(
        self,
        client: ClientCore,
        info: TableInfo,
        columns: UpsertColumns | None = None,
        merge_mode: MergeMode = MergeMode.DEFAULT,
    ) -> None:
        self.columns = columns or UpsertColumns(info)
        config = client.config
        encoder = KvEncoder(info, BatchLimits.of(config), router(info, config), self.columns, merge_mode)
        self._key_caster = ArrowCaster(self.columns.key_schema)
        super().__init__(client, info, encoder, self.columns.schema)

    def _new_builder(self) -> RowBuilder:
        return self.columns.row_builder()

    def _close_full(self, chunk: Chunk) -> None:
        """When the client has nothing else, the server, which needs longer for rows than anybody here, waits for it.

        A caller that takes rows without a pause gives the interpreter to other threads every 5 ms only, and encoding in
        a worker and sending take a dozen such turns: encode here, and let the I/O thread send at once.
        """
        if chunk.add_row is None or self._memory.used_bytes > chunk.reserved_bytes:
            super()._close_full(chunk)
            return
        self.encoder.prepare(chunk)
        chunk.prepared = True
        super()._close_full(chunk)
        clock.sleep(TURN_S)

    def delete(self, key: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Take the key of a row to delete; waits while the buffer is full."""
        check_deletes(self._info)
        self._admit()
        with self._lock:
            chunk = self._open
            if chunk is None or chunk.add_row is None:
                chunk = self._open_rows()
            assert isinstance(chunk, KvChunk)
            chunk.add_delete(key)
            return self._taken(chunk)

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
