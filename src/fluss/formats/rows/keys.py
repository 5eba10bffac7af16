"""Primary keys as bytes: the key columns' values one after another, or as the table's lake format has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from fluss.formats.rows.compacted import CompactedFormat
from fluss.formats.rows.lake_keys import ICEBERG, PAIMON, lake_keys
from fluss.formats.rows.row_builder import RowBuilder
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.tables.options import DATALAKE_FORMAT, KV_FORMAT_VERSION

# From this version on a key that is not the bucket key is compacted whatever the lake format.
_COMPACTED_SINCE_VERSION = 2


class PrimaryKeyEncoder(Protocol):
    """Encodes the primary keys of one table. `encode_row` is for one thread at a time."""

    def encode_row(self, row: Mapping[str, Any] | Sequence[Any]) -> bytes: ...

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray: ...

    def decode(self, keys: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch: ...


def primary_key_encoder(descriptor: TableDescriptor) -> PrimaryKeyEncoder:
    """How a table's keys are stored: without the partition columns, by its lake format and version."""
    by_name = {column.name: column for column in descriptor.schema.columns}
    names = descriptor.physical_primary_keys
    columns = [by_name[name] for name in names]
    lake_format = descriptor.properties.get(DATALAKE_FORMAT, "").upper()
    version = int(descriptor.properties.get(KV_FORMAT_VERSION, "1"))
    is_bucket_key = (descriptor.bucket_keys or names) == names
    if lake_format in (PAIMON, ICEBERG) and (version < _COMPACTED_SINCE_VERSION or is_bucket_key):
        return LakeKeyEncoder(columns, lake_format)
    return KeyEncoder(columns)


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


class LakeKeyEncoder:
    """Encodes keys as Paimon or Iceberg does; they are not decoded."""

    __slots__ = ("_builder", "_keys", "_lake_format", "_names")

    def __init__(self, columns: Sequence[Column], lake_format: str) -> None:
        self._names = [column.name for column in columns]
        self._lake_format = lake_format
        self._keys = lake_keys(lake_format, columns)
        self._builder = RowBuilder(Schema.of(columns))

    def encode_row(self, row: Mapping[str, Any] | Sequence[Any]) -> bytes:
        """The key of a row: a mapping that has the key columns and maybe others, or just the key's values in order."""
        if isinstance(row, Mapping):
            row = {name: row[name] for name in self._names if name in row}
        self._builder.append(row)  # type: ignore[arg-type]
        key: bytes = self._keys.encode(self._builder.build())[0].as_py()
        return key

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """The keys of all rows of a batch that has the key columns and maybe others."""
        return self._keys.encode(batch.select(self._names))

    def decode(self, keys: pa.BinaryArray | Sequence[bytes]) -> pa.RecordBatch:
        raise InvalidRequestError(f"Keys of a table with the lake format {self._lake_format} can't be decoded.")
