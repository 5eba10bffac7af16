"""Rules for tables: which this server makes, how they may be named, and what it adds where a descriptor is silent."""

from __future__ import annotations

import json
from typing import Final

from fluss.model.descriptor import DESCRIPTOR_SIZE_BYTES_MAX, KvFormat, LogFormat, TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TablePath, check_database_name, check_table_name
from fluss.model.tables import options
from fluss.model.tables.auto_partition import AutoPartition, TimeUnit
from fluss.model.tables.merge_rules import DeleteBehavior, MergeRules
from fluss.model.types import DataType, TypeRoot
from fluss.protocol import messages_pb2 as pb
from fluss.server.config import ServerConfig
from fluss.server.tables.lake import check_lake_keys, check_lake_table


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


def check_table(descriptor: TableDescriptor, config: ServerConfig) -> None:
    """Raise for a table that this server can't serve, new or altered."""
    _check_formats(descriptor)
    _check_replication(descriptor.properties)
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
    log_format = descriptor.properties.get(options.LOG_FORMAT, LogFormat.ARROW).upper()
    kv_format = descriptor.properties.get(options.KV_FORMAT, KvFormat.COMPACTED).upper()
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
            raise _bad_property(f"{options.STATISTICS_COLUMNS} names {name!r}, which is none of the columns")
        if types[name].root in _NO_STATISTICS:
            raise _bad_property(f"{options.STATISTICS_COLUMNS} can't have {name!r}, which is {types[name]}")


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be made: {reason}.", ErrorCode.INVALID_TABLE_EXCEPTION)


def _bad_property(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be made: {reason}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
