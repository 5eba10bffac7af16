"""Rules for tables: which this server makes, what it adds to descriptors, and what definitions say about bytes.

What a bucket says in the Metadata response is the same for every table, so the buckets of a table are encoded once for
each number of them: an answer costs little more than copying it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, NamedTuple

from fluss.formats.arrow.messages import ArrowLayout
from fluss.model.descriptor import DESCRIPTOR_SIZE_BYTES_MAX, KvFormat, LogFormat, TableDescriptor, with_properties
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath, check_database_name, check_table_name
from fluss.model.schema import Schema
from fluss.model.tables import options
from fluss.model.tables.auto_partition import AutoPartition, TimeUnit
from fluss.model.tables.merge_rules import DeleteBehavior, MergeRules
from fluss.model.trust import Address
from fluss.model.types import DataType, TypeRoot
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, encode_varint
from fluss.server.config import ServerConfig
from fluss.server.tables.lake import check_lake_keys, check_lake_table
from fluss.storage.catalog.catalog import PartitionEntry, TableEntry
from fluss.storage.catalog.view import DefinitionCache
from fluss.storage.log.retention import TTL_MS_DEFAULT

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
        LogFormat(options.choice(properties, options.LOG_FORMAT)),
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


def database_name(name: str) -> str:
    """The name, or code 16."""
    check_database_name(name)
    return name


def table_path(path: pb.PbTablePath | pb.PbPhysicalTablePath) -> TablePath:
    """The path, or code 16 or 15."""
    check_database_name(path.database_name)
    check_table_name(path.table_name)
    return TablePath(path.database_name, path.table_name)


def check_count(count: int, limit: int, what: str) -> None:
    """Refuse a request that names too many things."""
    if count > limit:
        raise InvalidRequestError(
            f"One request may name {limit} {what}, not {count}; send several.", ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        )


REPLICATION_FACTOR: Final = 1
_KV_FORMAT_VERSION: Final = "2"  # of key encodings; without it clients take the first
_DATE_PATTERN: Final = "yyyy-MM-dd"
_NO_STATISTICS: Final = (TypeRoot.BINARY, TypeRoot.BYTES, TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW)


def completed(descriptor: TableDescriptor, config: ServerConfig) -> TableDescriptor:
    """The descriptor as it is stored, or an error for a table that this server can't serve."""
    check_lake_keys(descriptor)
    given = descriptor.properties
    properties = {options.REPLICATION_FACTOR: str(REPLICATION_FACTOR), **given}
    if config.datalake_format is not None:
        properties.setdefault(options.DATALAKE_FORMAT, config.datalake_format.lower())
    elif options.is_true(given, options.DATALAKE_ENABLED):
        properties.setdefault(options.DATALAKE_FORMAT, options.ICEBERG.lower())
    if len(descriptor.partition_keys) > 1 and options.is_true(given, options.AUTO_PARTITION_ENABLED):
        # The values of the other partition columns are not known ahead.
        properties.setdefault(options.AUTO_PARTITION_PRECREATE, "0")
    if descriptor.has_primary_key:
        properties.setdefault(options.KV_FORMAT_VERSION, _KV_FORMAT_VERSION)
        if options.MERGE_ENGINE in given:
            properties.setdefault(options.DELETE_BEHAVIOR, DeleteBehavior.IGNORE)
    elif not options.is_true(given, options.DATALAKE_ENABLED):
        properties.setdefault(options.LOG_TTL, config.retention_default_ttl)
    result = TableDescriptor(
        descriptor.schema,
        partition_keys=descriptor.partition_keys,
        bucket_count=config.default_bucket_number if descriptor.bucket_count is None else descriptor.bucket_count,
        bucket_keys=descriptor.bucket_keys or descriptor.physical_primary_keys,
        comment=descriptor.comment,
        properties=properties,
        custom_properties=descriptor.custom_properties,
    )
    check_table(result, config)
    return result


def with_default_ttl(after: TableDescriptor, before: TableDescriptor, config: ServerConfig) -> TableDescriptor:
    """A log table that lost its time to live, or its lake, with that of new tables."""
    had = options.LOG_TTL in before.properties or options.is_true(before.properties, options.DATALAKE_ENABLED)
    has = options.LOG_TTL in after.properties or options.is_true(after.properties, options.DATALAKE_ENABLED)
    if after.has_primary_key or has or not had:
        return after
    return with_properties(after, [(options.LOG_TTL, config.retention_default_ttl)])


def check_table(descriptor: TableDescriptor, config: ServerConfig) -> None:
    """Raise for a table that this server can't serve, new or altered."""
    _check_formats(descriptor)
    _check_replication(descriptor.properties)
    problem = options.local_ttl_problem(descriptor.properties, TTL_MS_DEFAULT)
    if problem is not None:
        raise _bad_property(problem)
    MergeRules.of(descriptor)
    _check_keys(descriptor)
    _check_partitions(descriptor)
    _check_statistics(descriptor)
    check_lake_table(descriptor, config.datalake_format)


def stored_json(descriptor: TableDescriptor) -> tuple[str, str]:
    """The descriptor and its schema as they are kept; code 15 if they are more than clients can take."""
    table_json = descriptor.to_json()
    if len(table_json) > DESCRIPTOR_SIZE_BYTES_MAX:
        raise _refused(f"its description has {len(table_json)} bytes, {DESCRIPTOR_SIZE_BYTES_MAX} are allowed")
    schema_json = json.dumps(descriptor.schema.to_json(), separators=(",", ":"), ensure_ascii=False)
    return table_json.decode(), schema_json


def _check_formats(descriptor: TableDescriptor) -> None:
    log_format = options.choice(descriptor.properties, options.LOG_FORMAT)
    kv_format = options.choice(descriptor.properties, options.KV_FORMAT)
    if not descriptor.has_primary_key:
        if log_format == LogFormat.COMPACTED:
            raise _refused(f"a log table can't have the log format {log_format}; use ARROW or INDEXED")
    elif kv_format == KvFormat.COMPACTED and log_format == LogFormat.INDEXED:
        raise _bad_property(
            f"{options.LOG_FORMAT} can't be {log_format} with {options.KV_FORMAT} {kv_format}; use ARROW or COMPACTED"
        )


def _check_replication(properties: dict[str, str]) -> None:
    factor = int(properties.get(options.REPLICATION_FACTOR, REPLICATION_FACTOR))
    if factor > REPLICATION_FACTOR:
        raise InvalidRequestError(
            f"{options.REPLICATION_FACTOR} is {factor}, but there is 1 server to keep replicas; set it to 1.",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def _check_keys(descriptor: TableDescriptor) -> None:
    """A row needs a key within its partition, encoded in a way that its lake format has."""
    if not descriptor.has_primary_key:
        return
    if not descriptor.physical_primary_keys:
        raise _refused(
            f"its primary key {descriptor.schema.get_primary_keys()} has partition keys only; "
            "add a column that tells the rows of a partition apart"
        )
    if options.DATALAKE_FORMAT in descriptor.properties:
        from fluss.formats.rows.keys import primary_key_encoder

        try:
            primary_key_encoder(descriptor)
        except InvalidRequestError as error:
            raise _refused(error.message.rstrip(".")) from None


def _check_partitions(descriptor: TableDescriptor) -> None:
    keys = descriptor.partition_keys
    enabled = options.is_true(descriptor.properties, options.AUTO_PARTITION_ENABLED)
    if not keys:
        if enabled:
            raise _bad_property(f"{options.AUTO_PARTITION_ENABLED} needs partition keys")
        return
    types = {column.name: column.data_type for column in descriptor.schema.columns}
    for key in keys:
        if types[key].root is TypeRoot.DECIMAL:
            raise _refused(f"the partition key {key!r} is a DECIMAL; use another scalar type")
    rule = AutoPartition.of(descriptor.properties, keys)
    if enabled:
        _check_auto_partition(descriptor, rule, types[keys[rule.key_index]])


def _check_auto_partition(descriptor: TableDescriptor, rule: AutoPartition, time_type: DataType) -> None:
    keys = descriptor.partition_keys
    if len(keys) > 1 and not descriptor.properties.get(options.AUTO_PARTITION_KEY, "").strip():
        raise _refused(f"{options.AUTO_PARTITION_KEY} must name one of the partition keys {keys}")
    if len(keys) > 1 and rule.precreate:
        raise _refused(f"{options.AUTO_PARTITION_PRECREATE} must be 0 with several partition keys")
    if time_type.root is TypeRoot.DATE and (rule.unit is not TimeUnit.DAY or rule.pattern != _DATE_PATTERN):
        raise _refused(
            f"a DATE as the time of partitions needs {options.AUTO_PARTITION_TIME_UNIT} DAY and "
            f"{options.AUTO_PARTITION_TIME_FORMAT} {_DATE_PATTERN}, as dates are written in partition names"
        )


def _check_statistics(descriptor: TableDescriptor) -> None:
    value = descriptor.properties.get(options.STATISTICS_COLUMNS)
    if value is None:
        return
    if descriptor.has_primary_key:
        raise _bad_property(f"{options.STATISTICS_COLUMNS} is for log tables; leave it out of one with a primary key")
    if value.strip() == options.ALL_COLUMNS:
        return
    names = options.statistics_columns(value)
    if not names:
        raise _bad_property(
            f"{options.STATISTICS_COLUMNS} names no column; use {options.ALL_COLUMNS!r} for all, or leave it out"
        )
    types = {column.name: column.data_type for column in descriptor.schema.columns}
    for name in names:
        if name not in types:
            raise _bad_property(f"{options.STATISTICS_COLUMNS} names {name!r}, which is not a column")
        if types[name].root in _NO_STATISTICS:
            raise _bad_property(f"{options.STATISTICS_COLUMNS} can't have {name!r}, which is {types[name]}")


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be made: {reason}.", ErrorCode.INVALID_TABLE_EXCEPTION)


def _bad_property(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be made: {reason}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
