"""Descriptors of tables and databases, the arguments of creating them; and what ALTER may change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.tables import options
from fluss.model.tables.options import lake_key_problem, names_lake
from fluss.model.types import optional_text, parse_json, text_list

BUCKET_COUNT_MAX = 128_000
DESCRIPTOR_SIZE_BYTES_MAX = 1 << 20


class LogFormat(StrEnum):
    """How a table's log is stored."""

    ARROW = "ARROW"
    INDEXED = "INDEXED"
    COMPACTED = "COMPACTED"


class KvFormat(StrEnum):
    """How a primary-key table's rows are stored."""

    COMPACTED = "COMPACTED"
    INDEXED = "INDEXED"


class TableDescriptor:
    """Schema, distribution and properties of a table."""

    __slots__ = (
        "_bucket_count",
        "_bucket_keys",
        "_comment",
        "_custom_properties",
        "_partition_keys",
        "_properties",
        "_schema",
    )

    def __init__(
        self,
        schema: Schema,
        *,
        partition_keys: list[str] | None = None,
        bucket_count: int | None = None,
        bucket_keys: list[str] | None = None,
        comment: str | None = None,
        log_format: str | None = None,
        kv_format: str | None = None,
        properties: dict[str, str] | None = None,
        custom_properties: dict[str, str] | None = None,
    ) -> None:
        self._schema = schema
        self._partition_keys = tuple(partition_keys or ())
        self._bucket_keys = tuple(bucket_keys or ())
        self._bucket_count = bucket_count
        self._comment = comment
        self._properties = _string_map("properties", properties)
        self._custom_properties = _string_map("custom_properties", custom_properties)
        if log_format is not None:
            self._properties[options.LOG_FORMAT] = str(log_format).upper()
        if kv_format is not None:
            self._properties[options.KV_FORMAT] = str(kv_format).upper()
        self._check()

    def _check(self) -> None:
        names = self._schema.column_names
        primary_keys = self._schema.get_primary_keys()
        for kind, keys in (("partition", self._partition_keys), ("bucket", self._bucket_keys)):
            for key in keys:
                if key not in names:
                    raise _bad(f"The {kind} key {key!r} is not among the columns {names}")
            if len(set(keys)) != len(keys):
                raise _bad(f"The {kind} keys {list(keys)} name a column twice")
        self._check_nested_keys()
        for key in self._bucket_keys:
            if key in self._partition_keys:
                raise _bad(f"The bucket key {key!r} is a partition key too; a column is one or the other")
            if primary_keys and key not in primary_keys:
                raise _bad(f"The bucket key {key!r} must be part of the primary key {primary_keys}")
        for key in self._partition_keys:
            if primary_keys and key not in primary_keys:
                raise _bad(f"The partition key {key!r} must be part of the primary key {primary_keys}")
        if self._bucket_count is not None and self._bucket_count < 1:
            raise _bad(f"bucket_count must be at least 1, not {self._bucket_count}")
        if self._bucket_count is not None and self._bucket_count > BUCKET_COUNT_MAX:
            raise InvalidRequestError(
                f"bucket_count must be at most {BUCKET_COUNT_MAX}, not {self._bucket_count}.",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )
        options.check_properties(self._properties)

    def _check_nested_keys(self) -> None:
        keys = {*self._partition_keys, *self._bucket_keys, *self._schema.get_primary_keys()}
        for column in self._schema.columns:
            if column.name in keys and column.data_type.is_nested:
                raise _bad(f"The key column {column.name!r} has the nested type {column.data_type}; use a scalar type")

    @staticmethod
    def builder() -> TableDescriptorBuilder:
        """Start building a descriptor."""
        return TableDescriptorBuilder()

    def get_schema(self) -> Schema:
        """The schema."""
        return self._schema

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def partition_keys(self) -> list[str]:
        return list(self._partition_keys)

    @property
    def bucket_keys(self) -> list[str]:
        return list(self._bucket_keys)

    @property
    def bucket_count(self) -> int | None:
        return self._bucket_count

    @property
    def has_primary_key(self) -> bool:
        return self._schema.primary_key is not None

    @property
    def physical_primary_keys(self) -> list[str]:
        """The key columns that identify a row within its partition."""
        return [key for key in self._schema.get_primary_keys() if key not in self._partition_keys]

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    @property
    def custom_properties(self) -> dict[str, str]:
        return dict(self._custom_properties)

    @property
    def comment(self) -> str | None:
        return self._comment

    def to_json(self) -> bytes:
        """The protocol's JSON; `partition_key`, `properties` and `custom_properties` must be there, even if empty."""
        result: dict[str, Any] = {"version": 1, "schema": self._schema.to_json()}
        if self._comment is not None:
            result["comment"] = self._comment
        result["partition_key"] = list(self._partition_keys)
        if self._bucket_count is not None or self._bucket_keys:
            result["bucket_key"] = list(self._bucket_keys)
        if self._bucket_count is not None:
            result["bucket_count"] = self._bucket_count
        result["properties"] = self._properties
        result["custom_properties"] = self._custom_properties
        return json.dumps(result, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, *, foreign_properties: bool = False) -> TableDescriptor:
        """The descriptor that JSON describes; InvalidRequestError (code 15 or 39) says what is wrong with it.

        `foreign_properties` takes `table.*` properties as they are: a table of a newer server may have others.
        """
        value = _parse(data, "table descriptor", ErrorCode.INVALID_TABLE_EXCEPTION)
        properties = value.get("properties") or {}
        descriptor = cls(
            Schema.from_json(value.get("schema")),
            partition_keys=text_list(value, "partition_key"),
            bucket_count=_optional_int(value, "bucket_count"),
            bucket_keys=text_list(value, "bucket_key"),
            comment=optional_text(value, "comment"),
            properties={} if foreign_properties else properties,
            custom_properties=value.get("custom_properties") or {},
        )
        if foreign_properties:
            descriptor._properties = _string_map("properties", properties)
        return descriptor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableDescriptor) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self._schema)

    def __repr__(self) -> str:
        return f"TableDescriptor({self.to_json().decode()})"


class TableDescriptorBuilder:
    """Builds a table descriptor step by step."""

    def __init__(self) -> None:
        self._schema: Schema | None = None
        self._options: dict[str, Any] = {"properties": {}, "custom_properties": {}}

    def schema(self, schema: Schema) -> TableDescriptorBuilder:
        """Set the schema."""
        self._schema = schema
        return self

    def log_format(self, format: LogFormat | str) -> TableDescriptorBuilder:
        """Set the log format."""
        self._options["log_format"] = str(format)
        return self

    def kv_format(self, format: KvFormat | str) -> TableDescriptorBuilder:
        """Set the format of rows in a primary-key table."""
        self._options["kv_format"] = str(format)
        return self

    def property(self, key: str, value: str) -> TableDescriptorBuilder:
        """Set one `table.*` property."""
        self._options["properties"][key] = value
        return self

    def custom_property(self, key: str, value: str) -> TableDescriptorBuilder:
        """Set one property of your own."""
        self._options["custom_properties"][key] = value
        return self

    def custom_properties(self, properties: Mapping[str, str]) -> TableDescriptorBuilder:
        """Set properties of your own."""
        self._options["custom_properties"].update(properties)
        return self

    def partitioned_by(self, keys: list[str]) -> TableDescriptorBuilder:
        """Set the partition columns."""
        self._options["partition_keys"] = keys
        return self

    def distributed_by(
        self, bucket_count: int | None = None, bucket_keys: list[str] | None = None
    ) -> TableDescriptorBuilder:
        """Set the number of buckets and the columns that choose one."""
        self._options.update(bucket_count=bucket_count, bucket_keys=bucket_keys)
        return self

    def comment(self, comment: str) -> TableDescriptorBuilder:
        """Set the comment."""
        self._options["comment"] = comment
        return self

    def build(self) -> TableDescriptor:
        """The descriptor, checked."""
        if self._schema is None:
            raise _bad("A table descriptor needs a schema: call schema(...) before build()")
        return TableDescriptor(self._schema, **self._options)


class DatabaseDescriptor:
    """Comment and properties of a database."""

    __slots__ = ("_comment", "_custom_properties")

    def __init__(self, comment: str | None = None, custom_properties: dict[str, str] | None = None) -> None:
        self._comment = comment
        self._custom_properties = _string_map("custom_properties", custom_properties)

    @staticmethod
    def builder() -> DatabaseDescriptorBuilder:
        """Start building a descriptor."""
        return DatabaseDescriptorBuilder()

    @property
    def comment(self) -> str | None:
        return self._comment

    @property
    def custom_properties(self) -> dict[str, str]:
        return dict(self._custom_properties)

    def get_custom_properties(self) -> dict[str, str]:
        """Properties of your own."""
        return dict(self._custom_properties)

    def to_json(self) -> bytes:
        """The protocol's JSON."""
        result: dict[str, Any] = {"version": 1}
        if self._comment is not None:
            result["comment"] = self._comment
        result["custom_properties"] = self._custom_properties
        return json.dumps(result, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> DatabaseDescriptor:
        """The descriptor that JSON describes."""
        value = _parse(data, "database descriptor", ErrorCode.INVALID_DATABASE_EXCEPTION)
        return cls(optional_text(value, "comment"), value.get("custom_properties") or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabaseDescriptor) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self._comment)

    def __repr__(self) -> str:
        return f"DatabaseDescriptor(comment={self._comment!r}, custom_properties={self._custom_properties!r})"


class DatabaseDescriptorBuilder:
    """Builds a database descriptor step by step."""

    def __init__(self) -> None:
        self._comment: str | None = None
        self._custom_properties: dict[str, str] = {}

    def comment(self, comment: str) -> DatabaseDescriptorBuilder:
        """Set the comment."""
        self._comment = comment
        return self

    def custom_property(self, key: str, value: str) -> DatabaseDescriptorBuilder:
        """Set one property of your own."""
        self._custom_properties[key] = value
        return self

    def custom_properties(self, properties: Mapping[str, str]) -> DatabaseDescriptorBuilder:
        """Set properties of your own."""
        self._custom_properties.update(properties)
        return self

    def build(self) -> DatabaseDescriptor:
        """The descriptor."""
        return DatabaseDescriptor(self._comment, self._custom_properties)


def _string_map(name: str, value: Mapping[str, str] | None) -> dict[str, str]:
    if value is not None and not isinstance(value, Mapping):
        raise _bad(f"{name} must map strings to strings, not be {value!r}")
    result: dict[str, str] = {}
    for key, item in (value or {}).items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise _bad(f"{name} must map strings to strings, not {key!r} to {item!r}")
        if len(key) > options.PROPERTY_LENGTH_MAX or len(item) > options.PROPERTY_LENGTH_MAX:
            raise _bad(f"A key or value in {name} is longer than {options.PROPERTY_LENGTH_MAX} characters")
        result[key] = item
    return result


def schema_from_bytes(data: bytes) -> Schema:
    """A schema from the protocol's JSON."""
    return Schema.from_json(_parse(data, "schema", ErrorCode.INVALID_TABLE_EXCEPTION))


def _parse(data: bytes, what: str, error_code: int) -> dict[str, Any]:
    if len(data) > DESCRIPTOR_SIZE_BYTES_MAX:
        raise InvalidRequestError(f"The {what} is larger than {DESCRIPTOR_SIZE_BYTES_MAX} bytes.", error_code)
    try:
        value = parse_json(data)
    except ValueError as error:
        raise InvalidRequestError(f"The {what} can't be read as JSON: {error}.", error_code) from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"The {what} must be a JSON object.", error_code)
    try:
        # An escape can spell half a character, which nobody could write down again.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"The {what} has text that is not Unicode: {error.reason}.", error_code) from None
    return value


def _optional_int(value: dict[str, Any], key: str) -> int | None:
    number = value.get(key)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise _bad(f"{key!r} must be an integer")
    return number


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_TABLE_EXCEPTION)


_TABLE_PREFIX: Final = "table."
ALTERABLE: Final = frozenset(
    {
        options.LOG_TTL,
        options.LOCAL_SEGMENTS,
        options.LOCAL_TTL,
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
    """The error for an alteration that is not allowed, code 56."""
    return InvalidRequestError(f"The table can't be altered: {reason}.", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)
