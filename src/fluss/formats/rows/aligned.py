"""Aligned rows: a slot of eight bytes per column, longer values behind the slots. Paimon has its keys like this."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.rows.binary_rows import RowFormat, refuse_nested
from fluss.kernels.codes import LAYOUT_COMPACTED
from fluss.model.schema import Column


class AlignedFormat(RowFormat):
    """Writes and reads aligned rows of given scalar columns."""

    __slots__ = ()

    def __init__(self, columns: Sequence[Column]) -> None:
        refuse_nested(columns, "aligned rows")
        super().__init__(columns, LAYOUT_COMPACTED)  # values in slots are described alike

    def _encode_buffers(self, batch: pa.RecordBatch) -> tuple[bytearray, bytearray]:
        return kernel.encode_aligned(self._sources(batch), batch.num_rows)

    def _decode_buffers(
        self, data: memoryview | bytearray, offsets: memoryview | bytearray, row_count: int
    ) -> pa.RecordBatch:
        return self._batch(kernel.decode_aligned(data, offsets, row_count, self._specs), row_count)
