"""A primary-key table as puts need it: what its descriptor and schemas say, read once.

It is of one entry of the catalog: an altered table gets a new one.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches.kv_batch import KvRecords
from fluss.formats.batches.log_batch import BatchHeader, BufferLike, encode_batch
from fluss.formats.changelog.fold import FoldedPuts, Folder
from fluss.formats.rows import codecs
from fluss.formats.rows.keys import primary_key_encoder
from fluss.formats.rows.values import ValueCodec
from fluss.model.descriptor import LogFormat, TableDescriptor
from fluss.model.errors import CorruptDataError, ErrorCode, InvalidRequestError
from fluss.model.partitions import SEPARATOR
from fluss.model.schema import Schema
from fluss.model.tables.merge_rules import ChangelogImage, MergeRules
from fluss.model.tables.options import KV_FORMAT, LOG_FORMAT, choice
from fluss.storage.catalog.catalog import Catalog, TableEntry

FIRST_SCHEMA_ID: Final = 1


class KvTable:
    """Thread-safe: nothing of it changes but caches."""

    def __init__(self, entry: TableEntry, catalog: Catalog) -> None:
        descriptor = TableDescriptor.from_json(entry.table_json, foreign_properties=True)
        properties = descriptor.properties
        rules = MergeRules.of(descriptor)
        self.entry = entry
        self._schemas = {
            schema_id: Schema.from_json(json.loads(catalog.schema_json(entry.table_id, schema_id)))
            for schema_id in range(FIRST_SCHEMA_ID, entry.schema_id + 1)
        }
        self._kv_format = choice(properties, KV_FORMAT)
        self._log_format = LogFormat(choice(properties, LOG_FORMAT))
        self._compression = Codec.of(properties)
        self._codecs: dict[int, ValueCodec] = {}  # by schema id
        self.codec = ValueCodec(self._schemas, self._kv_format)
        self.folder = Folder(rules, self.codec)
        self.keys = primary_key_encoder(descriptor)
        self.counts_rows = rules.image is ChangelogImage.FULL

    def has_schema(self, schema_id: int) -> bool:
        return schema_id in self._schemas

    def codec_of(self, schema_id: int) -> ValueCodec:
        """Writes values of that schema, which need not be the newest."""
        codec = self._codecs.get(schema_id)
        if codec is None:
            if schema_id not in self._schemas:
                raise CorruptDataError(f"A log batch has the schema {schema_id}, which the table does not have.")
            codec = ValueCodec({schema_id: self._schemas[schema_id]}, self._kv_format)
            self._codecs[schema_id] = codec
        return codec

    def check_keys(self, changes: FoldedPuts) -> None:
        """A replay of the log takes the keys from the rows, and must come to the same."""
        if not self.keys.encode(changes.rows).equals(pa.array(changes.keys, pa.binary())):
            raise CorruptDataError("a record has a key that is not the one its row has")

    def log_batch(self, changes: FoldedPuts, writer_id: int, batch_sequence: int) -> bytearray:
        """The log batch of changes; rows that lie at keys which are not theirs are refused."""
        rows = changes.rows
        change_types: bytes | None = changes.change_types
        payload: bytes | pa.Buffer = b""
        if rows.num_rows:
            self.check_keys(changes)
            if self._log_format is LogFormat.ARROW:
                payload = arrow_payload.encode(rows, self._compression)
            else:
                payload = codecs.encode(rows, self.codec.schema, self._log_format, change_types)
                change_types = None
        return encode_batch(
            payload,
            schema_id=self.codec.schema_id,
            record_count=rows.num_rows,
            writer_id=writer_id,
            batch_sequence=batch_sequence,
            change_types=change_types,
            append_only=False,
        )

    def decode(self, buf: BufferLike, position: int, header: BatchHeader) -> tuple[bytes, pa.RecordBatch]:
        """Change types and rows, which are of the schema of the batch, of the log batch at `position`."""
        codec = self.codec_of(header.schema_id)
        if self._log_format is LogFormat.ARROW:
            change_types, rows = arrow_payload.decode_changes(buf, position, header, codec.arrow_schema)
        else:
            change_types, rows = codecs.decode_rows(buf, position, header, codec.schema, self._log_format)
        if change_types is None and header.record_count:
            raise CorruptDataError(f"The log batch at offset {header.base_offset} has no change types.")
        return change_types or b"", rows

    def key_records(self, keys: list[bytes], partition: str | None) -> KvRecords:
        """Rows with nothing but their key, and the values of their partition."""
        rows = self.keys.decode(keys)
        given = {name: rows.column(name) for name in rows.schema.names}
        if partition is not None:
            for name, text in zip(self.entry.partition_keys, partition.split(SEPARATOR), strict=True):
                given[name] = pa.repeat(self._partition_value(name, text), len(keys))
        columns = [
            given[field.name] if field.name in given else pa.nulls(len(keys), field.type)
            for field in self.codec.arrow_schema
        ]
        return KvRecords(keys, self.codec.encode(pa.RecordBatch.from_arrays(columns, schema=self.codec.arrow_schema)))

    def _partition_value(self, name: str, text: str) -> pa.Scalar:
        try:
            return pa.scalar(text).cast(self.codec.arrow_schema.field(name).type)
        except pa.ArrowException:
            raise InvalidRequestError(
                f"The partition column {name!r} can't be filled in from the partition's name; upsert the row instead.",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            ) from None
