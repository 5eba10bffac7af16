"""Value classes, the same objects in all three facades. None of them needs pyarrow to be imported."""

from fluss.formats.rows.records import ScanRecord, ScanRecords
from fluss.model.aggregation import AggFunction
from fluss.model.config import Config
from fluss.model.descriptor import (
    DatabaseDescriptor,
    DatabaseDescriptorBuilder,
    KvFormat,
    LogFormat,
    TableDescriptor,
    TableDescriptorBuilder,
)
from fluss.model.errors import (
    AlreadyExistsError,
    AuthenticationError,
    ConnectError,
    CorruptDataError,
    ErrorCode,
    FlussError,
    InvalidRequestError,
    NotFoundError,
    SchemaMismatchError,
    TimeoutError,
)
from fluss.model.infos import (
    ConfigEntry,
    DatabaseInfo,
    LakeSnapshot,
    PartitionInfo,
    SchemaInfo,
    ServerNode,
    ServerType,
    TableInfo,
    TableStats,
)
from fluss.model.merge_mode import MergeMode
from fluss.model.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.model.partitions import PartitionSpec
from fluss.model.paths import TableBucket, TablePath
from fluss.model.positions import ChangesPosition, Positions
from fluss.model.predicates import ColumnRef, Predicate, col
from fluss.model.records import NO_COMMIT_TIMESTAMP, ChangeType, RecordBatch
from fluss.model.rows import GenericRow, InternalRow
from fluss.model.schema import Column, PrimaryKey, Schema, SchemaBuilder
from fluss.model.staging import StagedTask
from fluss.model.types import DataField, DataType, DataTypes

# The names that the Rust reference has for the same things.
ScanBatch = RecordBatch

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "NO_COMMIT_TIMESTAMP",
    "AggFunction",
    "AlreadyExistsError",
    "AuthenticationError",
    "ChangeType",
    "ChangesPosition",
    "Column",
    "ColumnRef",
    "Config",
    "ConfigEntry",
    "ConnectError",
    "CorruptDataError",
    "DataField",
    "DataType",
    "DataTypes",
    "DatabaseDescriptor",
    "DatabaseDescriptorBuilder",
    "DatabaseInfo",
    "ErrorCode",
    "FlussError",
    "GenericRow",
    "InternalRow",
    "InvalidRequestError",
    "KvFormat",
    "LakeSnapshot",
    "LogFormat",
    "MergeMode",
    "NotFoundError",
    "OffsetSpec",
    "PartitionInfo",
    "PartitionSpec",
    "Positions",
    "Predicate",
    "PrimaryKey",
    "RecordBatch",
    "ScanBatch",
    "ScanRecord",
    "ScanRecords",
    "Schema",
    "SchemaBuilder",
    "SchemaInfo",
    "SchemaMismatchError",
    "ServerNode",
    "ServerType",
    "StagedTask",
    "TableBucket",
    "TableDescriptor",
    "TableDescriptorBuilder",
    "TableInfo",
    "TablePath",
    "TableStats",
    "TimeoutError",
    "col",
]
