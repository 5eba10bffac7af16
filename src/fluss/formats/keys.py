"""Compacted key encoding: the key columns' values one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss.formats.compacted import CompactedFormat
from fluss.model.schema import Column


class KeyEncoder:
    """Encodes keys of given columns, in the order given."""

    __slots__ = ("_format", "_names")

    def __init__(self, columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        self._format = CompactedFormat(columns, with_null_bits=False)

    def encode_row(self, row: Mapping[str, Any] | Sequence[Any]) -> bytes:
        """The key of a row: a mapping that has the key columns and maybe others, or just the key's values in order."""
        if isinstance(row, Mapping):
            row = {name: row[name] for name in self._names if name in row}
        return self._format.encode_row(row)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The keys of all rows of a batch that has the key columns and maybe others."""
        return self._format.encode(batch.select(self._names))

    def decode(self, keys: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch:
        """The key columns of encoded keys."""
        return self._format.decode(keys)
