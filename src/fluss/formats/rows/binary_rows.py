"""What the formats of rows as bytes have in common: record batches in, byte strings out, and back."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.rows.codecs import DecodedColumn, KernelColumn, binary_array, column_codec, rows_of
from fluss.kernels.codes import LAYOUT_KEY
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_field
from fluss.model.schema import Column


class RowFormat:
    """Writes and reads rows of given columns in one layout; has no state."""

    __slots__ = ("_arrow_schema", "_codecs", "_layout", "_names", "_specs")

    def __init__(self, columns: Sequence[Column], layout: int) -> None:
        self._names = [column.name for column in columns]
        if layout == LAYOUT_KEY:
            refuse_nested(columns, "keys")
        self._layout = layout
        self._codecs = [column_codec(column.name, column.data_type, layout) for column in columns]
        self._specs = [codec.spec for codec in self._codecs]
        self._arrow_schema = pa.schema([arrow_field(column.name, column.data_type) for column in columns])

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """All rows of a batch that has the columns of this format, in order."""
        data, offsets = self._encode_buffers(batch)
        return binary_array(data, offsets, batch.num_rows)

    def _encode_buffers(self, batch: pa.RecordBatch) -> tuple[bytearray, bytearray]:
        return kernel.encode_columns(self._sources(batch), batch.num_rows, self._layout)

    def _sources(self, batch: pa.RecordBatch) -> list[KernelColumn]:
        return [codec.source(column) for codec, column in zip(self._codecs, batch.columns, strict=True)]

    def decode(self, rows: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch:
        """The batch of encoded rows; raises `CorruptDataError` for bytes that are none."""
        array = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.binary())
        if array.null_count:
            raise CorruptDataError("rows: a row is null")
        data, offsets = rows_of(array)
        return self._decode_buffers(data, offsets, len(array))

    def _decode_buffers(
        self, data: memoryview | bytearray, offsets: memoryview | bytearray, row_count: int
    ) -> pa.RecordBatch:
        return self._batch(kernel.decode_columns(data, offsets, row_count, self._specs, self._layout), row_count)

    def _batch(self, columns: Sequence[DecodedColumn], row_count: int) -> pa.RecordBatch:
        try:
            arrays = [codec.array(row_count, column) for codec, column in zip(self._codecs, columns, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)
            batch.validate(full=True)  # text that is not UTF-8, decimals with too many digits
        except pa.ArrowException as error:
            raise CorruptDataError(f"rows: {error}") from error
        return batch


def refuse_nested(columns: Sequence[Column], where: str) -> None:
    for column in columns:
        if column.data_type.is_nested:
            raise SchemaMismatchError(f"Column {column.name!r} is {column.data_type}: {where} hold no nested types.")
