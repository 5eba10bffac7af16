"""Upserting into primary-key tables; flush and acknowledgements block."""

from __future__ import annotations

from fluss.api.upsert_base import TableUpsertBase, UpsertMethods
from fluss.api.writer_sync import BlockingWriter, WriteResultHandle
from fluss.client.upsert import UpsertWriterCore


class UpsertWriter(UpsertMethods[WriteResultHandle], BlockingWriter[UpsertWriterCore]):
    __doc__ = UpsertMethods.__doc__


class TableUpsert(TableUpsertBase[UpsertWriter, WriteResultHandle]):
    __doc__ = TableUpsertBase.__doc__
    _writer_class = UpsertWriter

    def flush(self) -> None:
        """See `UpsertWriter.flush`."""
        self._writer.flush()

    def drain(self) -> None:
        """See `UpsertWriter.drain`."""
        self._writer.drain()

    def __enter__(self) -> TableUpsert:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._own_writer is not None:
            self._own_writer.__exit__(kind, error, traceback)
