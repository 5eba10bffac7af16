"""Which tables can be tiered: their rows have to fit the layout of Apache Fluss's tables in Iceberg."""

from __future__ import annotations

from typing import Final

from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Column
from fluss.model.tables import options
from fluss.model.types import TypeRoot

_TEXT: Final = (TypeRoot.STRING, TypeRoot.CHAR)
_NO_TRANSFORM: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)


def check_lake_keys(descriptor: TableDescriptor) -> None:
    """Raise for a new table that says itself where its lake is."""
    for key in (*descriptor.properties, *descriptor.custom_properties):
        if options.names_lake(key):
            raise InvalidRequestError(
                f"This table can't be made: {options.lake_key_problem(key)}.", ErrorCode.INVALID_CONFIG_EXCEPTION
            )


def check_lake_table(descriptor: TableDescriptor, server_format: str | None) -> None:
    """Raise for a table that is to be tiered and can't be."""
    properties = descriptor.properties
    if not options.is_true(properties, options.DATALAKE_ENABLED):
        return
    table_format = properties.get(options.DATALAKE_FORMAT, "")
    if server_format is not None and table_format.lower() != server_format.lower():
        raise _refused(
            f"{options.DATALAKE_FORMAT} is {table_format}, but the server's datalake.format is {server_format}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    if table_format.upper() != options.ICEBERG:
        raise _refused(
            f"{options.DATALAKE_ENABLED} needs {options.DATALAKE_FORMAT} iceberg, nothing is tiered to "
            f"{table_format or 'no format'}; leave one of the two out",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    columns = {column.name: column for column in descriptor.schema.columns}
    for key in descriptor.partition_keys:
        if columns[key].data_type.root not in _TEXT:
            raise _refused(
                f"the partition key {key!r} of a table that is tiered must be STRING, not {columns[key].data_type}; "
                f"partition by a column of text, or leave {options.DATALAKE_ENABLED} out"
            )
    if descriptor.bucket_keys:
        _check_bucket_key([columns[key] for key in descriptor.bucket_keys])


def _check_bucket_key(keys: list[Column]) -> None:
    from fluss.formats.rows.keys import IcebergKeys

    names = ", ".join(key.name for key in keys)
    if len(keys) > 1:
        raise _refused(
            f"a table that is tiered to Iceberg has one bucket key, not {names}; set bucket.key to one column"
        )
    try:
        IcebergKeys(keys)
        is_known = keys[0].data_type.root not in _NO_TRANSFORM
    except InvalidRequestError:
        is_known = False
    if not is_known:
        raise _refused(
            f"Iceberg has no buckets by {names}, which is {keys[0].data_type}; set bucket.key to a column of another "
            f"type, or leave {options.DATALAKE_ENABLED} out"
        )


def _refused(reason: str, error_code: int = ErrorCode.INVALID_TABLE_EXCEPTION) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be tiered to a lake: {reason}.", error_code)
