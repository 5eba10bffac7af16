"""What a server says about its tables, databases and nodes, and how a notebook shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from html import escape
from typing import Final, NamedTuple

from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.model.partitions import PartitionSpec
from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Schema


@dataclass(frozen=True, slots=True, repr=False)
class TableInfo:
    """A table as the server knows it."""

    table_path: TablePath
    table_id: int
    schema_id: int
    descriptor: TableDescriptor
    num_buckets: int
    created_time: int
    modified_time: int

    @property
    def comment(self) -> str | None:
        return self.descriptor.comment

    @property
    def schema(self) -> Schema:
        return self.descriptor.schema

    @property
    def primary_keys(self) -> list[str]:
        return self.schema.get_primary_keys()

    @property
    def physical_primary_keys(self) -> list[str]:
        """The key columns that identify a row within its partition."""
        return self.descriptor.physical_primary_keys

    @property
    def partition_keys(self) -> list[str]:
        return self.descriptor.partition_keys

    @property
    def properties(self) -> dict[str, str]:
        return self.descriptor.properties

    @property
    def custom_properties(self) -> dict[str, str]:
        return self.descriptor.custom_properties

    def get_primary_keys(self) -> list[str]:
        """Primary key columns; empty for a log table."""
        return self.schema.get_primary_keys()

    def get_partition_keys(self) -> list[str]:
        """Partition columns."""
        return self.descriptor.partition_keys

    def get_bucket_keys(self) -> list[str]:
        """Columns that choose a row's bucket."""
        return self.descriptor.bucket_keys

    def has_primary_key(self) -> bool:
        """Whether rows are updated by key."""
        return self.descriptor.has_primary_key

    def is_partitioned(self) -> bool:
        """Whether the table has partitions."""
        return bool(self.descriptor.partition_keys)

    def get_schema(self) -> Schema:
        """The schema."""
        return self.schema

    def get_column_names(self) -> list[str]:
        """Column names in order."""
        return self.schema.column_names

    def get_column_count(self) -> int:
        """How many columns there are."""
        return len(self.schema.columns)

    def get_properties(self) -> dict[str, str]:
        """All `table.*` properties."""
        return self.descriptor.properties

    def get_custom_properties(self) -> dict[str, str]:
        """The table owner's own properties."""
        return self.descriptor.custom_properties

    def __repr__(self) -> str:
        return f"TableInfo({self.table_path}, table_id={self.table_id}, num_buckets={self.num_buckets})"

    def _repr_html_(self) -> str:

        return html_of_table(self)


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """A database as the server knows it."""

    database_name: str
    database_descriptor: DatabaseDescriptor
    created_time: int
    modified_time: int

    def get_database_descriptor(self) -> DatabaseDescriptor:
        """Comment and properties."""
        return self.database_descriptor


class ServerType(StrEnum):
    """The roles of a cluster's servers."""

    COORDINATOR_SERVER = "CoordinatorServer"
    TABLET_SERVER = "TabletServer"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ServerNode:
    """A server's address and role."""

    id: int
    host: str
    port: int
    server_type: ServerType

    @property
    def uid(self) -> str:
        """`cs-<id>` for a coordinator, `ts-<id>` for a tablet server."""
        return f"{'cs' if self.server_type is ServerType.COORDINATOR_SERVER else 'ts'}-{self.id}"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's id and name."""

    partition_id: int
    partition_name: str
    partition_spec: PartitionSpec = field(default_factory=lambda: PartitionSpec({}), compare=False)
    bucket_count: int | None = field(default=None, compare=False)
    """How many buckets it has; None where the server does not tell."""

    def __setstate__(self, state: Sequence[object]) -> None:
        # Those that were pickled by version 0.1.0 have no bucket count.
        for item, value in zip(fields(self), [*state, None], strict=False):
            object.__setattr__(self, item.name, value)

    def get_partition_id(self) -> int:
        """Same as `partition_id`."""
        return self.partition_id

    def get_partition_name(self) -> str:
        """Same as `partition_name`."""
        return self.partition_name


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """How far a table has been tiered to the lake."""

    snapshot_id: int
    table_buckets_offset: dict[TableBucket, int] = field(default_factory=dict)

    def get_bucket_offset(self, bucket: TableBucket) -> int | None:
        """The tiered offset of a bucket, or None."""
        return self.table_buckets_offset.get(bucket)

    def get_table_buckets(self) -> list[TableBucket]:
        """All buckets of the snapshot."""
        return list(self.table_buckets_offset)


class SchemaInfo(NamedTuple):
    """One of a table's schemas; adding a column makes a new one."""

    schema_id: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class TableStats:
    """How many rows a table or partition has."""

    row_count: int
    bucket_row_counts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a cluster and where it comes from."""

    key: str
    value: str | None
    source: str


ROWS_MAX: Final = 200


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A titled table; None is an empty cell."""
    found = list(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{'' if cell is None else escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in found[:ROWS_MAX]
    )
    more = f"<p>and {len(found) - ROWS_MAX:,} more</p>" if len(found) > ROWS_MAX else ""
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def html_facts(facts: Mapping[str, str | int | None]) -> str:
    """A line of facts; those without a value are left out."""
    shown = " · ".join(
        f"{escape(name)}: {escape(str(value))}" for name, value in facts.items() if value not in (None, "")
    )
    return f"<p>{shown}</p>" if shown else ""


def html_of_table(info: TableInfo) -> str:
    """What a table is: its columns, keys, buckets and properties."""
    columns = (
        (column.name, column.data_type, _role(column.name, info), column.comment) for column in info.schema.columns
    )
    facts: dict[str, str | int | None] = {
        "id": info.table_id,
        "buckets": info.num_buckets,
        "bucket key": ", ".join(info.get_bucket_keys()),
        "comment": info.comment,
    }
    text = html_table(str(info.table_path), ("column", "type", "key", "comment"), columns) + html_facts(facts)
    return text + html_facts({**info.properties, **info.custom_properties})


def _role(name: str, info: TableInfo) -> str:
    roles = (("primary", info.primary_keys), ("partition", info.partition_keys))
    return ", ".join(role for role, keys in roles if name in keys)
