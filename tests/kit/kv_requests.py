"""Primary-key tables over raw sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fluss.formats.batches.kv_batch import encode_header, encode_records
from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.keys import KeyEncoder
from fluss.formats.rows.values import ValueCodec
from fluss.model.schema import Column, Schema
from fluss.model.types import DataType, TypeRoot
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import Wire, WireError, descriptor, path

KV_SCHEMA = Schema.of(
    [
        Column("id", DataType(TypeRoot.INTEGER)),
        Column("name", DataType(TypeRoot.STRING)),
        Column("score", DataType(TypeRoot.DOUBLE)),
    ],
    ["id"],
)
CODEC = ValueCodec({1: KV_SCHEMA})
_KEYS = KeyEncoder(KV_SCHEMA.columns[:1])
_ROWS = CompactedFormat(KV_SCHEMA.columns)

Row = tuple[int, str | None, float | None]


def create_kv_table(wire: Wire, name: str = "t", buckets: int = 1, **overrides: Any) -> int:
    """Make a table of KV_SCHEMA; returns its id."""
    table_json = kv_descriptor(bucket_count=buckets, **overrides)
    wire.call(
        api_keys.CREATE_TABLE,
        pb.CreateTableRequest(table_path=path(name), table_json=table_json, ignore_if_exists=False),
    )
    return wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name))).table_id


def kv_descriptor(properties: dict[str, str] | None = None, **overrides: Any) -> bytes:
    schema = overrides.pop("schema", None) or KV_SCHEMA.to_json()
    return descriptor(
        schema=schema, properties=properties or {}, bucket_key=overrides.pop("bucket_key", []), **overrides
    )


def key(number: int) -> bytes:
    return _KEYS.encode_row([number])


def kv_batch(
    rows: Sequence[Row] = (),
    deletes: Sequence[int] = (),
    *,
    writer_id: int = -1,
    sequence: int = -1,
    schema_id: int = 1,
) -> bytes:
    """A batch of upserts, then deletes."""
    keys = [key(row[0]) for row in rows] + [key(number) for number in deletes]
    values = [_ROWS.encode_row(list(row)) for row in rows] + [None] * len(deletes)
    return raw_batch(keys, values, writer_id=writer_id, sequence=sequence, schema_id=schema_id)


def raw_batch(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    *,
    writer_id: int = -1,
    sequence: int = -1,
    schema_id: int = 1,
) -> bytes:
    """A batch of any keys and rows."""
    records = encode_records(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    header = encode_header(
        records, schema_id=schema_id, record_count=len(keys), writer_id=writer_id, batch_sequence=sequence
    )
    return bytes(header + records)


def put_request(table_id: int, *buckets: tuple[int, bytes], acks: int = -1, **fields: Any) -> pb.PutKvRequest:
    request = pb.PutKvRequest(acks=acks, table_id=table_id, timeout_ms=fields.pop("timeout_ms", 10_000), **fields)
    for bucket_id, records in buckets:
        request.buckets_req.add(bucket_id=bucket_id, records=records)
    return request


def call(wire: Wire, api: api_keys.Api[Any, Any], request: Any, version: int) -> Any:
    return wire.receive_answer(wire.send_raw(api.key, request.SerializeToString(), version), api)


def put(
    wire: Wire, table_id: int, records: bytes, bucket: int = 0, *, acks: int = -1, version: int = 2, **fields: Any
) -> int:
    """Put one batch; returns its log end offset, or raises the bucket's error."""
    response = call(wire, api_keys.PUT_KV, put_request(table_id, (bucket, records), acks=acks, **fields), version)
    (entry,) = response.buckets_resp
    assert entry.bucket_id == bucket
    checked(entry)
    assert entry.HasField("log_end_offset")
    return int(entry.log_end_offset)


def checked(entry: Any) -> Any:
    """The entry of a bucket, or its error."""
    if entry.HasField("error_code"):
        assert entry.error_message
        raise WireError(entry.error_code, entry.error_message)
    return entry


def lookup_raw(wire: Wire, table_id: int, keys: Sequence[bytes], bucket: int = 0, **fields: Any) -> list[bytes | None]:
    """The stored values at keys."""
    request = pb.LookupRequest(table_id=table_id, **fields)
    request.buckets_req.add(bucket_id=bucket, keys=keys)
    (entry,) = call(wire, api_keys.LOOKUP, request, 1).buckets_resp
    assert entry.bucket_id == bucket
    checked(entry)
    return [item.values if item.HasField("values") else None for item in entry.values]


def lookup(wire: Wire, table_id: int, *numbers: int, **fields: Any) -> list[Row | None]:
    """The rows of keys."""
    values = lookup_raw(wire, table_id, [key(number) for number in numbers], **fields)
    found = iter(rows_of([value for value in values if value is not None]))
    return [None if value is None else next(found) for value in values]


def rows_of(values: list[bytes]) -> list[Row]:
    return [(row["id"], row["name"], row["score"]) for row in CODEC.decode(values).to_pylist()] if values else []


def prefix_lookup(wire: Wire, table_id: int, *prefixes: bytes, bucket: int = 0) -> list[list[bytes]]:
    """The stored values at keys with each prefix."""
    request = pb.PrefixLookupRequest(table_id=table_id)
    request.buckets_req.add(bucket_id=bucket, keys=prefixes)
    (entry,) = call(wire, api_keys.PREFIX_LOOKUP, request, 1).buckets_resp
    checked(entry)
    return [list(item.values) for item in entry.value_lists]


def limit_scan(wire: Wire, table_id: int, limit: int, bucket: int = 0) -> bytes:
    """The value batch of a limit scan."""
    request = pb.LimitScanRequest(table_id=table_id, bucket_id=bucket, limit=limit)
    response = checked(wire.call(api_keys.LIMIT_SCAN, request))
    assert response.HasField("is_log_table")
    assert not response.is_log_table
    return bytes(response.records)


def scan_request(table_id: int, bucket: int = 0, limit: int | None = None, **fields: Any) -> pb.ScanKvRequest:
    """The request that begins a scan."""
    begin = pb.PbScanKvBucketRequest(table_id=table_id, bucket_id=bucket, limit=limit)
    return pb.ScanKvRequest(**{"bucket_scan_req": begin, "call_seq_id": 0, "batch_size_bytes": 1_000_000, **fields})


def scan(wire: Wire, request: pb.ScanKvRequest) -> pb.ScanKvResponse:
    return checked(wire.call(api_keys.SCAN_KV, request))  # type: ignore[no-any-return]
