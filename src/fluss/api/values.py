"""Value classes, the same objects in all three facades. None of them needs pyarrow to be imported."""

from fluss.model.config import Config
from fluss.model.descriptor import DatabaseDescriptor, KvFormat, LogFormat, TableDescriptor, TableDescriptorBuilder
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
from fluss.model.infos import DatabaseInfo, LakeSnapshot, PartitionInfo, ServerNode, ServerType, TableInfo
from fluss.model.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.model.paths import TableBucket, TablePath
from fluss.model.records import ChangeType, RecordBatch, ScanRecord, ScanRecords
from fluss.model.schema import Column, PrimaryKey, Schema, SchemaBuilder
from fluss.model.types import DataField, DataType, DataTypes

__all__ = [
    "EARLIEST_OFFSET",
    "LATEST_OFFSET",
    "AlreadyExistsError",
    "AuthenticationError",
    "ChangeType",
    "Column",
    "Config",
    "ConnectError",
    "CorruptDataError",
    "DataField",
    "DataType",
    "DataTypes",
    "DatabaseDescriptor",
    "DatabaseInfo",
    "ErrorCode",
    "FlussError",
    "InvalidRequestError",
    "KvFormat",
    "LakeSnapshot",
    "LogFormat",
    "NotFoundError",
    "OffsetSpec",
    "PartitionInfo",
    "PrimaryKey",
    "RecordBatch",
    "ScanRecord",
    "ScanRecords",
    "Schema",
    "SchemaBuilder",
    "SchemaMismatchError",
    "ServerNode",
    "ServerType",
    "TableBucket",
    "TableDescriptor",
    "TableDescriptorBuilder",
    "TableInfo",
    "TablePath",
    "TimeoutError",
]
