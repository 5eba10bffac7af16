"""A scripted server with one primary-key table, whose rows a test puts into a dict."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from fluss.formats.rows.keys import primary_key_encoder
from fluss.formats.rows.python_rows import RowBuilder
from fluss.formats.rows.values import ValueCodec
from fluss.model.descriptor import TableDescriptor
from fluss.model.schema import Column, Schema
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import TABLE_ID, Refuse, ScriptedServer

LOOKUP, PREFIX_LOOKUP, SCHEMA, PARTITIONS, METADATA = 1017, 1034, 1011, 1009, 1012


def kv_descriptor(buckets: int = 1, **options: Any) -> TableDescriptor:
    columns = pa.schema([("id", pa.int64()), ("sub", pa.string()), ("name", pa.string())])
    return TableDescriptor(Schema(columns, ["id", "sub"]), bucket_count=buckets, **options)


class ScriptedKvServer(ScriptedServer):
    """Rows are found in whatever bucket they are asked for."""

    def __init__(self, table: TableDescriptor | None = None) -> None:
        super().__init__(table or kv_descriptor())
        self.schemas = {1: self.table.schema}
        self.values: dict[bytes, bytes] = {}
        self.partitions: dict[str, int] = {}
        self.encoder = primary_key_encoder(self.table)
        self.handlers |= {
            LOOKUP: self.lookup,
            PREFIX_LOOKUP: self.prefix_lookup,
            SCHEMA: self.table_schema,
            PARTITIONS: self.list_partitions,
        }

    @property
    def key_counts(self) -> list[int]:
        """How many keys each lookup asked for."""
        return [
            sum(len(item.keys) for item in message.buckets_req)  # type: ignore[attr-defined]
            for key, message in self.requests
            if key in (LOOKUP, PREFIX_LOOKUP)
        ]

    def put(self, *row: Any, schema_id: int = 1) -> None:
        self.put_all([row], schema_id)

    def put_all(self, rows: Iterable[tuple[Any, ...]], schema_id: int = 1) -> None:
        builder = RowBuilder(self.schemas[schema_id])
        for row in rows:
            builder.append(row)
        batch = builder.build()
        values = ValueCodec({schema_id: self.schemas[schema_id]}).encode(batch)
        keys: list[bytes] = self.encoder.encode(batch).to_pylist()
        self.values |= {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def add_column(self, column: Column) -> int:
        schema_id = max(self.schemas) + 1
        newest = self.schemas[schema_id - 1]
        self.schemas[schema_id] = Schema.of([*newest.columns, column], newest.get_primary_keys())
        return schema_id

    def lookup(self, request: pb.LookupRequest) -> pb.LookupResponse:
        answer = pb.LookupResponse()
        for item in request.buckets_req:
            entry = answer.buckets_resp.add(bucket_id=item.bucket_id)
            if item.HasField("partition_id"):
                entry.partition_id = item.partition_id
                if item.partition_id not in self.partitions.values():
                    entry.error_code = 21
                    continue
            for key in item.keys:
                entry.values.add(values=self.values.get(key))
        return answer

    def prefix_lookup(self, request: pb.PrefixLookupRequest) -> pb.PrefixLookupResponse:
        answer = pb.PrefixLookupResponse()
        for item in request.buckets_req:
            entry = answer.buckets_resp.add(bucket_id=item.bucket_id)
            for prefix in item.keys:
                values = [value for key, value in sorted(self.values.items()) if key.startswith(prefix)]
                entry.value_lists.add(values=values)
        return answer

    def table_schema(self, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
        schema = self.schemas[request.schema_id]
        return pb.GetTableSchemaResponse(schema_id=request.schema_id, schema_json=json.dumps(schema.to_json()).encode())

    def metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        answer = super().metadata(request)
        for path in request.partitions_path:
            if path.partition_name not in self.partitions:
                raise Refuse(36, f"no partition {path.partition_name}")
            item = answer.partition_metadata.add(
                table_id=TABLE_ID,
                partition_name=path.partition_name,
                partition_id=self.partitions[path.partition_name],
            )
            for bucket in range(self.bucket_count):
                item.bucket_metadata.add(bucket_id=bucket, leader_id=0)
        return answer

    def list_partitions(self, _: pb.ListPartitionInfosRequest) -> pb.ListPartitionInfosResponse:
        answer = pb.ListPartitionInfosResponse()
        for name, partition_id in self.partitions.items():
            item = answer.partitions_info.add(partition_id=partition_id)
            item.partition_spec.partition_key_values.add(key=self.table.partition_keys[0], value=name)
        return answer
