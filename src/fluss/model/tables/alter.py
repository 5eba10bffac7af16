"""What altering a table may change: columns added at the end, some properties, all custom properties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.tables import options
from fluss.model.tables.options import lake_key_problem, names_lake

_TABLE_PREFIX: Final = "table."
ALTERABLE: Final = frozenset(
    {
        options.LOG_TTL,
        options.LOCAL_SEGMENTS,
        options.STATISTICS_COLUMNS,
        options.AUTO_PARTITION_ENABLED,
        options.AUTO_PARTITION_PRECREATE,
        options.AUTO_PARTITION_RETENTION,
        options.DATALAKE_ENABLED,
        options.DATALAKE_FRESHNESS,
        options.DATALAKE_AUTO_COMPACTION,
    }
)


def with_columns(descriptor: TableDescriptor, columns: Sequence[Column]) -> TableDescriptor:
    """The table with columns added at the end; code 56 or 15 says why they can't be."""
    schema = descriptor.schema
    names = set(schema.column_names)
    for column in columns:
        if column.name in names:
            raise refused(f"it has a column {column.name!r} already")
        if not column.data_type.nullable:
            raise refused(
                f"the new column {column.name!r} must be nullable, for the rows there are have no value for it"
            )
        names.add(column.name)
    longer = Schema.of(
        [*schema.columns, *columns], schema.get_primary_keys(), next(iter(schema.get_auto_increment_columns()), None)
    )
    return _with(descriptor, longer, descriptor.properties, descriptor.custom_properties)


def with_properties(descriptor: TableDescriptor, changes: Iterable[tuple[str, str | None]]) -> TableDescriptor:
    """The table with properties set, or with None reset; code 56 or 39 says why they can't be."""
    properties, custom = descriptor.properties, descriptor.custom_properties
    for key, value in changes:
        is_table_property = key.startswith(_TABLE_PREFIX)
        if value is not None and names_lake(key):
            raise refused(lake_key_problem(key))
        if is_table_property:
            _check_alterable(key, properties)
        target = properties if is_table_property else custom
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
    return _with(descriptor, descriptor.schema, properties, custom)


def _check_alterable(key: str, properties: dict[str, str]) -> None:
    # A table of an earlier version may have such an option, which can go.
    if key not in ALTERABLE and not options.is_iceberg_option(key):
        raise refused(f"{key[:100]} can't be changed; what can be is {', '.join(sorted(ALTERABLE))}")
    if key.startswith(options.DATALAKE_PREFIX) and options.DATALAKE_FORMAT not in properties:
        raise refused(
            f"{key} needs {options.DATALAKE_FORMAT}, which is fixed when a table is made, for it decides how rows are "
            f"spread over buckets; make the table anew with {options.DATALAKE_ENABLED}=true"
        )


def _with(
    descriptor: TableDescriptor, schema: Schema, properties: dict[str, str], custom_properties: dict[str, str]
) -> TableDescriptor:
    return TableDescriptor(
        schema,
        partition_keys=descriptor.partition_keys,
        bucket_count=descriptor.bucket_count,
        bucket_keys=descriptor.bucket_keys,
        comment=descriptor.comment,
        properties=properties,
        custom_properties=custom_properties,
    )


def refused(reason: str) -> InvalidRequestError:
    """Code 56."""
    return InvalidRequestError(f"The table can't be altered: {reason}.", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)
