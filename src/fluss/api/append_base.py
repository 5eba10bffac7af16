"""What the append writers of all facades share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluss.api.writer_base import Handle, WriterBase
from fluss.client.append import AppendWriterCore

if TYPE_CHECKING:
    import pyarrow as pa


class AppendMethods(WriterBase[AppendWriterCore, Handle]):
    """Appends rows to a log table. Rows are buffered and sent in batches; `flush` waits until all are stored.

    When the buffer is full the write methods wait for room; in async code await `drain()` between writes instead.
    """

    def append(self, row: Mapping[str, Any] | Sequence[Any]) -> Handle:
        """Append one row: a dict by column name, or a list or tuple in column order."""
        handle: Handle = self._take(row) or self._core.append(row)
        return handle

    def append_arrow_batch(self, batch: pa.RecordBatch) -> Handle:
        """Same as `write_arrow_batch`."""
        return self.write_arrow_batch(batch)
