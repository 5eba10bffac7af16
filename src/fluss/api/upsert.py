"""Upserting into primary-key tables; flush and acknowledgements are awaited."""

from __future__ import annotations

from fluss.api.upsert_base import TableUpsertBase, UpsertMethods
from fluss.api.writer import AwaitedWriter, WriteResultHandle
from fluss.client.upsert import UpsertWriterCore


class UpsertWriter(UpsertMethods[WriteResultHandle], AwaitedWriter[UpsertWriterCore]):
    __doc__ = UpsertMethods.__doc__


class TableUpsert(TableUpsertBase[UpsertWriter, WriteResultHandle]):
    __doc__ = TableUpsertBase.__doc__
    _writer_class = UpsertWriter

    async def flush(self) -> None:
        """See `UpsertWriter.flush`."""
        await self._writer.flush()

    async def drain(self) -> None:
        """See `UpsertWriter.drain`."""
        await self._writer.drain()

    async def __aenter__(self) -> TableUpsert:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._own_writer is not None:
            await self._own_writer.__aexit__(kind, error, traceback)
