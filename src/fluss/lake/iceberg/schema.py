"""The Iceberg schema, partition spec and properties of a Fluss table, as Apache Fluss's server makes them, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fluss.lake.format import BUCKET, OFFSET, SYSTEM_COLUMNS
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.tables.options import DATALAKE_ICEBERG_PREFIX, names_lake
from fluss.model.trust import warn_once
from fluss.model.types import DataType, TypeRoot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.types import IcebergType

# Where fields of a spec are numbered from, by Iceberg's specification.
_SPEC_FIELD_ID = 1000
_FLUSS = "fluss."
_ICEBERG = "iceberg."
# Commits never retry on their own: one that lost a race must not be put on top of the winner's.
OWN_PROPERTIES = {"commit.retry.num-retries": "0"}
_PRIMARY_KEY_PROPERTIES = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}


def iceberg_schema(info: TableInfo) -> Schema:
    """Columns of the table and the system columns, top-level ones numbered first; the catalog numbers them anew."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, LongType, NestedField, TimestamptzType

    columns = info.schema.columns
    ids = iter(range(len(columns) + len(SYSTEM_COLUMNS) + 1, 2**31))
    fields = [
        NestedField(
            number,
            column.name,
            iceberg_type(column.data_type, ids),
            required=not column.data_type.nullable,
            doc=column.comment,
        )
        for number, column in enumerate(columns, 1)
    ]
    for name, kind in zip(SYSTEM_COLUMNS, (IntegerType(), LongType(), TimestamptzType()), strict=True):
        fields.append(NestedField(len(fields) + 1, name, kind, required=True))
    keys = info.primary_keys
    for column in columns:
        if column.name in keys and column.data_type.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
            raise InvalidRequestError(
                f"The key column {column.name!r} of {info.table_path} is {column.data_type}, which Iceberg has no "
                "keys of; use DECIMAL."
            )
    return Schema(*fields, identifier_field_ids=[field.field_id for field in fields if field.name in keys])


def iceberg_type(data_type: DataType, ids: Iterator[int]) -> IcebergType:
    """The type that holds a column's values; fields inside nested ones take their numbers from `ids`."""
    from pyiceberg import types as ice

    plain: dict[TypeRoot, type[IcebergType]] = {
        TypeRoot.BOOLEAN: ice.BooleanType,
        TypeRoot.TINYINT: ice.IntegerType,
        TypeRoot.SMALLINT: ice.IntegerType,
        TypeRoot.INTEGER: ice.IntegerType,
        TypeRoot.BIGINT: ice.LongType,
        TypeRoot.FLOAT: ice.FloatType,
        TypeRoot.DOUBLE: ice.DoubleType,
        TypeRoot.CHAR: ice.StringType,
        TypeRoot.STRING: ice.StringType,
        TypeRoot.BINARY: ice.BinaryType,
        TypeRoot.BYTES: ice.BinaryType,
        TypeRoot.DATE: ice.DateType,
        TypeRoot.TIME: ice.TimeType,
        TypeRoot.TIMESTAMP: ice.TimestampType,
        TypeRoot.TIMESTAMP_LTZ: ice.TimestamptzType,
    }
    if data_type.root in plain:
        return plain[data_type.root]()
    if data_type.root is TypeRoot.DECIMAL:
        return ice.DecimalType(data_type.precision, data_type.scale)
    if data_type.element is not None:
        element = iceberg_type(data_type.element, ids)
        return ice.ListType(next(ids), element, element_required=not data_type.element.nullable)
    if data_type.key is not None and data_type.value is not None:
        key_id, value_id = next(ids), next(ids)
        key, value = iceberg_type(data_type.key, ids), iceberg_type(data_type.value, ids)
        return ice.MapType(key_id, key, value_id, value, value_required=not data_type.value.nullable)
    fields = []
    for item in data_type.fields:
        kind = iceberg_type(item.data_type, ids)
        required = not item.data_type.nullable
        fields.append(ice.NestedField(next(ids), item.name, kind, required=required, doc=item.description))
    return ice.StructType(*fields)


def partition_spec(info: TableInfo, schema: Schema) -> PartitionSpec:
    """The partition columns, and the bucket last: by its key's hash, or as it is where there is no key."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import BucketTransform, IdentityTransform
    from pyiceberg.types import StringType

    fields: list[PartitionField] = []
    for key in info.partition_keys:
        if not isinstance(schema.find_type(key), StringType):
            raise InvalidRequestError(
                f"Partition column {key!r} of {info.table_path} is not a STRING, as the lake needs."
            )
        fields.append(
            PartitionField(schema.find_field(key).field_id, _SPEC_FIELD_ID + len(fields), IdentityTransform(), key)
        )
    keys = info.get_bucket_keys()
    if len(keys) > 1:
        raise InvalidRequestError(
            f"{info.table_path} has bucket keys {keys}; the lake takes one: choose it as bucket.key."
        )
    source = schema.find_field(keys[0] if keys else BUCKET).field_id
    transform = BucketTransform(info.num_buckets) if keys else IdentityTransform()
    name = f"{keys[0]}_bucket" if keys else BUCKET
    fields.append(PartitionField(source, _SPEC_FIELD_ID + len(fields), transform, name))
    return PartitionSpec(*fields)


def sort_order(schema: Schema) -> SortOrder:
    """Rows of a file are in the order of their offsets."""
    from pyiceberg.table.sorting import SortField, SortOrder

    return SortOrder(SortField(schema.find_field(OFFSET).field_id))


def lake_properties(info: TableInfo) -> dict[str, str]:
    """Properties of the lake table: those of the Fluss table, and what its commits need."""
    found = dict(_PRIMARY_KEY_PROPERTIES) if info.has_primary_key() else {}
    for key, value in {**info.properties, **info.custom_properties}.items():
        if key.startswith(DATALAKE_ICEBERG_PREFIX):
            continue  # where the lake is, it knows itself
        if names_lake(key):
            warn_once(f"{info.table_path} has the property {key}, which is not for users to set: it is left out.")
        else:
            found[key.removeprefix(_ICEBERG) if key.startswith(_ICEBERG) else _FLUSS + key] = value
    return found | OWN_PROPERTIES


def file_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a lake table's files; it carries the field ids, which Parquet keeps."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=True)
