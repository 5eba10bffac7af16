"""What a table's stored JSON says about its bytes, and the Metadata response, put together from encoded parts.

What a bucket says in that response is the same for every table, so the buckets of a table are encoded once for each
number of them: an answer costs little more than copying it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, NamedTuple

from fluss.formats.arrow.layout import ArrowLayout
from fluss.model.descriptor import LogFormat, TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Schema
from fluss.model.tables import options
from fluss.model.types import DataType
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, encode_varint
from fluss.server.config import Address
from fluss.storage.catalog.catalog import PartitionEntry, TableEntry
from fluss.storage.catalog.view import DefinitionCache

_KEYS_BY_LAKE = "1"  # the first version of key encodings, which all clients know


class SchemaColumns(NamedTuple):
    """The columns of one schema."""

    types: tuple[DataType, ...]
    layout: ArrowLayout
    positions: dict[int, int]  # by field id, which stays the same in all schemas of a table


class TableFormat(NamedTuple):
    """How a table keeps its rows."""

    log_format: LogFormat
    has_primary_key: bool
    needs_new_keys: bool  # keys are encoded in a way that clients of version 0 do not know


@DefinitionCache
def schema_columns(schema_json: bytes) -> SchemaColumns:
    """The columns of a schema."""
    value = json.loads(schema_json)
    types = tuple(column.data_type for column in Schema.from_json(value).columns)
    ids = [item.get("id", position) for position, item in enumerate(value["columns"])]
    return SchemaColumns(types, ArrowLayout(types), {field_id: position for position, field_id in enumerate(ids)})


@DefinitionCache
def table_format(table_json: bytes) -> TableFormat:
    """The formats of a table."""
    table = TableDescriptor.from_json(table_json, foreign_properties=True)
    properties = table.properties
    return TableFormat(
        LogFormat(properties.get(options.LOG_FORMAT, LogFormat.ARROW).upper()),
        table.has_primary_key,
        table.has_primary_key
        and options.DATALAKE_FORMAT in properties
        and properties.get(options.KV_FORMAT_VERSION, _KEYS_BY_LAKE) != _KEYS_BY_LAKE
        and table.bucket_keys != table.physical_primary_keys,
    )


# One process plays both roles; clients keep connections to coordinators and tablet servers apart, so ids may be equal.
NODE_ID: Final = 0
LEADER_EPOCH: Final = 0

_LENGTH_DELIMITED: Final = 2
_BUCKET_COUNTS_KEPT: Final = 64  # each has some 50 KB at most, but for tables from before there was a limit


def _tag(field: str) -> bytes:
    return encode_varint(pb.MetadataResponse.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED)


_TABLE_TAG: Final = _tag("table_metadata")
_PARTITION_TAG: Final = _tag("partition_metadata")


class MetadataResponse:
    """An answer in the making; raises when it gets larger than `bytes_max`."""

    def __init__(self, address: Address, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        servers = pb.MetadataResponse()
        servers.coordinator_server.CopyFrom(pb.PbServerNode(node_id=NODE_ID, host=address.host, port=address.port))
        servers.tablet_servers.add(node_id=NODE_ID, host=address.host, port=address.port)
        self._parts: list[bytes] = [servers.SerializeToString()]
        self._size_bytes = len(self._parts[0])

    def add_table(self, entry: TableEntry, table_json: bytes) -> None:
        """A table as clients see it, with its buckets unless its partitions have them."""
        head = pb.PbTableMetadata(
            table_path=pb.PbTablePath(database_name=entry.path.database, table_name=entry.path.table),
            table_id=entry.table_id,
            schema_id=entry.schema_id,
            table_json=table_json,
            created_time=entry.created_time_ms,
            modified_time=entry.modified_time_ms,
        )
        buckets = b"" if entry.partition_keys else _table_buckets(entry.num_buckets)
        self._add(_TABLE_TAG, head.SerializeToString(), buckets)

    def add_partition(self, entry: PartitionEntry, num_buckets: int) -> None:
        """A partition with its buckets."""
        head = pb.PbPartitionMetadata(
            table_id=entry.table_id, partition_name=entry.name, partition_id=entry.partition_id
        )
        self._add(_PARTITION_TAG, head.SerializeToString(), _partition_buckets(num_buckets))

    def encoded(self) -> Encoded:
        """The whole answer, in one piece: its parts may be many."""
        return Encoded([b"".join(self._parts)], self._size_bytes)

    def _add(self, tag: bytes, head: bytes, buckets: bytes) -> None:
        length = encode_varint(len(head) + len(buckets))
        self._size_bytes += len(tag) + len(length) + len(head) + len(buckets)
        if self._size_bytes > self._bytes_max:
            raise InvalidRequestError(
                f"The answer has more than {self._bytes_max} bytes; ask for fewer tables and partitions at a time.",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        self._parts += (tag, length, head, buckets)


@lru_cache(_BUCKET_COUNTS_KEPT)
def _table_buckets(num_buckets: int) -> bytes:
    return _encoded_buckets(pb.PbTableMetadata(), num_buckets)


@lru_cache(_BUCKET_COUNTS_KEPT)
def _partition_buckets(num_buckets: int) -> bytes:
    return _encoded_buckets(pb.PbPartitionMetadata(), num_buckets)


def _encoded_buckets(owner: pb.PbTableMetadata | pb.PbPartitionMetadata, num_buckets: int) -> bytes:
    for bucket_id in range(num_buckets):
        owner.bucket_metadata.add(
            bucket_id=bucket_id, leader_id=NODE_ID, replica_id=[NODE_ID], leader_epoch=LEADER_EPOCH
        )
    return owner.SerializePartialToString()
