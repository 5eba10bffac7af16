"""Schemas and descriptors: JSON and checks."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from fluss.model.descriptor import DatabaseDescriptor, KvFormat, LogFormat, TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Schema
from fluss.model.types import DataField, DataTypes

# What the Java client 0.9.1 writes for a table with one INT column.
JAVA_JSON = (
    '{"version":1,"schema":{"version":1,"columns":[{"name":"a","data_type":{"type":"INTEGER"},"id":0}],'
    '"highest_field_id":0},"partition_key":[],"properties":{},"custom_properties":{}}'
)


def schema(**columns: pa.DataType) -> Schema:
    return Schema(pa.schema(list(columns.items())))


def test_json_equals_javas() -> None:
    assert TableDescriptor(schema(a=pa.int32())).to_json().decode() == JAVA_JSON


def test_round_trip_with_everything() -> None:
    descriptor = (
        TableDescriptor.builder()
        .schema(
            Schema.builder()
            .column("id", DataTypes.int())
            .column("region", DataTypes.string(), "where")
            .column("nested", DataTypes.row([DataField("x", DataTypes.int()), DataField("y", DataTypes.string())]))
            .primary_key(["id", "region"])
            .build()
        )
        .partitioned_by(["region"])
        .distributed_by(3, ["id"])
        .log_format(LogFormat.ARROW)
        .kv_format(KvFormat.COMPACTED)
        .property("table.log.ttl", "3 d")
        .custom_property("owner", "data team")
        .custom_properties({"cost": "7"})
        .comment("all of it")
        .build()
    )
    again = TableDescriptor.from_json(descriptor.to_json())
    assert again == descriptor
    assert again.properties == {"table.log.format": "ARROW", "table.kv.format": "COMPACTED", "table.log.ttl": "3 d"}
    assert again.custom_properties == {"owner": "data team", "cost": "7"}
    assert (again.bucket_count, again.bucket_keys, again.partition_keys) == (3, ["id"], ["region"])
    assert again.comment == "all of it"
    value = json.loads(descriptor.to_json())
    # Nested fields are numbered by the same counter as columns, depth first.
    assert [column["id"] for column in value["schema"]["columns"]] == [0, 1, 2]
    assert [field["field_id"] for field in value["schema"]["columns"][2]["data_type"]["fields"]] == [3, 4]
    assert value["schema"]["highest_field_id"] == 4
    assert value["schema"]["columns"][0]["data_type"]["nullable"] is False, "key columns can't be null"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ({"bucket_keys": ["x"]}, 15, "'x'"),
        ({"partition_keys": ["x"]}, 15, "'x'"),
        ({"bucket_keys": ["a"], "partition_keys": ["a"]}, 15, "one or the other"),
        ({"bucket_count": 0}, 15, "at least 1"),
        ({"bucket_count": 10**9}, ErrorCode.BUCKET_MAX_NUM_EXCEPTION, "at most"),
        ({"properties": {"log.ttl": "1d"}}, 39, "custom_properties"),
        ({"properties": {"table.log.ttl": "soon"}}, 39, "duration"),
        ({"properties": {"table.log.arrow.compression.type": "GZIP"}}, 39, "ZSTD"),
        ({"properties": {"table.log.arrow.compression.zstd.level": "23"}}, 39, "1 to 22"),
        ({"properties": {"table.log.ttl": 7}}, 15, "strings"),
        ({"log_format": "parquet"}, 39, "INDEXED"),
    ],
)
def test_bad_descriptors_are_refused(arguments: dict[str, object], code: int, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text) as error:
        TableDescriptor(schema(a=pa.int32()), **arguments)  # type: ignore[arg-type]
    assert error.value.error_code == code


@pytest.mark.parametrize(
    "columns", [[], [("a", pa.int32()), ("a", pa.string())], [("__offset", pa.int64())], [("", pa.int32())]]
)
def test_bad_columns_are_refused(columns: list[tuple[str, pa.DataType]]) -> None:
    with pytest.raises(InvalidRequestError) as error:
        Schema(pa.schema(columns))
    assert error.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_nested_key_columns_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="scalar type"):
        TableDescriptor(schema(a=pa.list_(pa.int32())), bucket_keys=["a"])


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"null", b'{"schema": 3}', b"[" * 100_000])
def test_bad_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError) as error:
        TableDescriptor.from_json(data)
    assert error.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_properties_of_a_newer_server_are_kept() -> None:
    data = JAVA_JSON.replace('"properties":{}', '"properties":{"table.of.tomorrow":"yes"}', 1).encode()
    with pytest.raises(InvalidRequestError, match=r"table\.of\.tomorrow"):
        TableDescriptor.from_json(data)
    assert TableDescriptor.from_json(data, foreign_properties=True).properties == {"table.of.tomorrow": "yes"}


def test_database_descriptor_round_trip() -> None:
    descriptor = DatabaseDescriptor("for events", {"team": "web"})
    assert DatabaseDescriptor.from_json(descriptor.to_json()) == descriptor
    assert DatabaseDescriptor.from_json(DatabaseDescriptor().to_json()).comment is None
