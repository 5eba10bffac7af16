"""Which tables this server makes, and what it adds to a descriptor that leaves things out."""

from __future__ import annotations

from typing import Final

from fluss.model import table_options
from fluss.model.descriptor import LogFormat, TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError

REPLICATION_FACTOR: Final = 1
_AUTO_PARTITION: Final = "table.auto-partition.enabled"
_DATALAKE: Final = "table.datalake.enabled"
_MERGE_ENGINE: Final = "table.merge-engine"


def completed(descriptor: TableDescriptor, default_bucket_count: int) -> TableDescriptor:
    """The descriptor as it is stored, or an error for a table that this server can't serve."""
    _check_kind(descriptor)
    _check_properties(descriptor.properties)
    properties = {table_options.REPLICATION_FACTOR: str(REPLICATION_FACTOR), **descriptor.properties}
    return TableDescriptor(
        descriptor.schema,
        bucket_count=default_bucket_count if descriptor.bucket_count is None else descriptor.bucket_count,
        bucket_keys=descriptor.bucket_keys,
        comment=descriptor.comment,
        properties=properties,
        custom_properties=descriptor.custom_properties,
    )


def _check_kind(descriptor: TableDescriptor) -> None:
    if descriptor.has_primary_key:
        raise _refused("primary-key tables are not served yet; leave the primary key out to make a log table")
    if descriptor.partition_keys:
        raise _refused("partitioned tables are not served yet; leave the partition keys out")
    log_format = descriptor.properties.get(table_options.LOG_FORMAT, LogFormat.ARROW).upper()
    if log_format != LogFormat.ARROW:
        raise _refused(f"the log format {log_format} is not served yet; use ARROW")


def _check_properties(properties: dict[str, str]) -> None:
    factor = int(properties.get(table_options.REPLICATION_FACTOR, REPLICATION_FACTOR))
    if factor > REPLICATION_FACTOR:
        raise InvalidRequestError(
            f"{table_options.REPLICATION_FACTOR} is {factor}, but there is 1 server to keep replicas; set it to 1.",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )
    if _MERGE_ENGINE in properties:
        raise _bad_property(f"{_MERGE_ENGINE} needs a primary key")
    if _is_true(properties, _AUTO_PARTITION):
        raise _bad_property(f"{_AUTO_PARTITION} needs partition keys")
    if _is_true(properties, _DATALAKE):
        raise InvalidRequestError(
            f"{_DATALAKE} can't be true: this server has no lake configured.",
            ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
        )


def _is_true(properties: dict[str, str], key: str) -> bool:
    return properties.get(key, "false").lower() == "true"


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be made: {reason}.", ErrorCode.INVALID_TABLE_EXCEPTION)


def _bad_property(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be made: {reason}.", ErrorCode.INVALID_CONFIG_EXCEPTION)
