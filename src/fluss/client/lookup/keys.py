"""Keys of lookups: Python rows and Arrow data into encoded keys, with the partition and bucket of each."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fluss.client.write.routing import row_numbers, split_by_index
from fluss.formats import kernel
from fluss.formats.arrow.arrays import numbers_of
from fluss.formats.arrow.cast import ArrowCaster
from fluss.formats.rows.keys import BucketHash, KeyEncoder, PrimaryKeyEncoder, assigner_for
from fluss.formats.rows.partition_values import partition_names, value_text
from fluss.formats.rows.python_rows import RowBuilder
from fluss.formats.rows.specs import LAYOUT_KEY, kind_of, spec_of
from fluss.model.config import Config
from fluss.model.errors import SchemaMismatchError
from fluss.model.infos import TableInfo
from fluss.model.schema import Column, Schema
from fluss.model.tables.options import DATALAKE_FORMAT
from fluss.model.types import TypeRoot

_TEXTS_REMEMBERED_MAX = 1_000
_PLAIN_TEXT = (TypeRoot.STRING, TypeRoot.CHAR)
_PLAIN_NUMBER = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT)
_NO_LAKE = (None, "LANCE")


Place: TypeAlias = tuple[str | None, int, bytes]
"""(partition name or None, bucket, key)"""


class Part(NamedTuple):
    """Keys of one bucket, and where they stood in the input."""

    partition: str | None
    bucket: int
    keys: list[bytes]
    positions: np.ndarray[Any, np.dtype[np.int64]]


class LookupKeys:
    """Encodes keys of given columns of a table: its partition columns and those that `encoder` takes."""

    def __init__(
        self, info: TableInfo, config: Config, names: Sequence[str], encoder: PrimaryKeyEncoder, what: str
    ) -> None:
        by_name = {column.name: column for column in info.schema.columns}
        self._what = what
        self._names = list(names)
        columns = [by_name[name] for name in names]
        self._schema = Schema.of(columns)
        self._appender = kernel.RowAppender(self._names, [kind_of(column.data_type) for column in columns])
        self._partition_columns = [by_name[name] for name in info.partition_keys]
        self._partition_places = [self._names.index(name) for name in info.partition_keys]
        self._texts: dict[Any, str] = {}
        self._encoder = encoder
        self._key = _Columns(self._names, [column for column in columns if column not in self._partition_columns])
        bucket_keys = [by_name[name] for name in info.get_bucket_keys() or info.physical_primary_keys]
        self._bucket = _Columns(self._names, bucket_keys)
        self._bucket_count = info.num_buckets
        lake_format = info.properties.get(DATALAKE_FORMAT)
        lake_format = lake_format and lake_format.upper()
        variant = BucketHash(config.bucket_hash)
        self._sign_extend = variant is BucketHash.JAVA
        self._assigner = assigner_for(bucket_keys, info.num_buckets, lake_format, variant)
        self._is_plain = isinstance(encoder, KeyEncoder) and lake_format in _NO_LAKE
        self._lock = threading.Lock()
        self._builder = RowBuilder(self._schema)
        self._caster = ArrowCaster(self._schema)

    def place(self, row: Mapping[str, Any] | Sequence[Any]) -> Place:
        """The place of one key: a dict by column name, or a list or tuple in column order. For any thread."""
        try:
            values = self._appender.convert(row)
        except SchemaMismatchError as error:
            raise self._explained(row, error) from error
        partition = self._partition_name(row, values) if self._partition_places else None
        if not self._is_plain:
            return self._place_by_batch(row, partition)
        key = self._key.encode(values)
        if self._bucket_count == 1:
            return partition, 0, key
        bucket_key = key if self._bucket.places == self._key.places else self._bucket.encode(values)
        return partition, kernel.bucket_of(bucket_key, self._bucket_count, self._sign_extend), key

    def _place_by_batch(self, row: Any, partition: str | None) -> Place:
        """Keys of lake formats are encoded in batches only."""
        with self._lock:
            self._builder.append(row)
            batch = self._builder.build()
        return partition, self._assigner.assign(batch)[0].as_py(), self._encoder.encode(batch)[0].as_py()

    def _partition_name(self, row: Any, values: list[Any]) -> str:
        texts = []
        for column, place in zip(self._partition_columns, self._partition_places, strict=True):
            value = values[place]
            root = column.data_type.root
            if root in _PLAIN_TEXT:
                texts.append(value)
            elif root in _PLAIN_NUMBER:
                texts.append(str(value))
            else:
                texts.append(self._text(column, value, row[column.name] if isinstance(row, Mapping) else row[place]))
        return "$".join(texts)

    def _text(self, column: Column, physical: Any, value: Any) -> str:
        """Texts of other types take a while to make, and a table has few partitions."""
        text = self._texts.get((column.name, physical))
        if text is None:
            if len(self._texts) >= _TEXTS_REMEMBERED_MAX:
                self._texts.clear()
            text = self._texts[column.name, physical] = value_text(column.data_type, value)
        return text

    def _explained(self, row: Any, error: SchemaMismatchError) -> SchemaMismatchError:
        """What is wrong with a key, in the words of keys."""
        named = ", ".join(self._names)
        if isinstance(row, Mapping):
            surplus = next((name for name in row if name not in self._names), None)
            if surplus is not None:
                return SchemaMismatchError(f"{surplus!r} is not part of the {self._what}, which is {named}.")
            missing = next((name for name in self._names if name not in row), None)
            if missing is not None:
                return SchemaMismatchError(f"Column {missing!r} of the {self._what} ({named}) is missing.")
        return SchemaMismatchError(f"The {self._what} is {named}: {error.message}")

    def parts(self, keys: Any, keys_max: int) -> tuple[int, list[Part]]:
        """How many keys there are, and all of them by bucket, in parts of at most `keys_max`."""
        batch = self._batch(keys)
        parts: list[Part] = []
        for partition, rows in self._by_partition(_with_positions(batch)):
            for bucket, piece in split_by_index(rows, self._assigner.assign(rows)) if rows.num_rows else ():
                positions = numbers_of(piece.column(batch.num_columns))
                encoded: list[bytes] = self._encoder.encode(piece).to_pylist()
                for start in range(0, len(encoded), keys_max):
                    end = start + keys_max
                    parts.append(Part(partition, bucket, encoded[start:end], positions[start:end]))
        return batch.num_rows, parts

    def _by_partition(self, rows: pa.RecordBatch) -> list[tuple[str | None, pa.RecordBatch]]:
        if not self._partition_columns:
            return [(None, rows)]
        indexes, names = partition_names(rows, self._partition_columns)
        return [(names[index], part) for index, part in split_by_index(rows, indexes)]

    def _batch(self, keys: Any) -> pa.RecordBatch:
        if isinstance(keys, (list, tuple)):
            builder = RowBuilder(self._schema)
            for row in keys:
                try:
                    builder.append(row)
                except SchemaMismatchError as error:
                    raise self._explained(row, error) from error
            return builder.build()
        try:
            batches = list(self._caster.cast_all(keys))
        except SchemaMismatchError as error:
            raise SchemaMismatchError(
                f"The {self._what} is {', '.join(self._names)}, as a list of dicts, lists or tuples, or as Arrow data: "
                f"{error.message}"
            ) from error
        return pa.concat_batches(batches) if batches else RowBuilder(self._schema).build()


class _Columns:
    """Some of a lookup's columns as a compacted key."""

    __slots__ = ("_is_all", "_names", "_specs", "places")

    def __init__(self, names: Sequence[str], columns: Sequence[Column]) -> None:
        self._names = [column.name for column in columns]
        self._specs = [spec_of(column.data_type, LAYOUT_KEY) for column in columns]
        self.places = [names.index(column.name) for column in columns]
        self._is_all = self.places == list(range(len(names)))

    def encode(self, values: Sequence[Any]) -> bytes:
        if not self._is_all:
            values = [values[place] for place in self.places]
        return kernel.encode_values(self._names, self._specs, values, False)


def _with_positions(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, row_numbers(batch.num_rows)], names=[*batch.schema.names, ""])
