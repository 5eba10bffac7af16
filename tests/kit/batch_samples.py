"""Good batches of every kind, to be changed by fuzz tests: magic 0, 1 and 2, Arrow and rows, nested, compressed."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

import fluss
from fluss.formats.arrow.payload import Codec, Compression, encode
from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import encode_batch
from fluss.formats.rows import codecs
from tests.kit.mutations import with_epoch

FLAT = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(10, 2)), ("flag", pa.bool_())])
NESTED = pa.schema(
    [
        ("id", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.float64()), ("deep", pa.list_(pa.list_(pa.int16())))])),
        ("attributes", pa.map_(pa.string(), pa.int64())),
        ("at", pa.timestamp("us")),
        ("raw", pa.binary()),
    ]
)
FLAT_ROWS = pa.record_batch(
    [
        pa.array([1, 2, None, 4], pa.int64()),
        pa.array(["a", None, "ccc" * 50, ""]),
        pa.array([Decimal("1.25"), None, Decimal("-3.00"), Decimal("0.01")], pa.decimal128(10, 2)),
        pa.array([True, None, False, True]),
    ],
    schema=FLAT,
)
NESTED_ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "id": number,
            "tags": ["a", None, "b" * number] if number % 3 else None,
            "point": {"x": number / 2, "deep": [[1, 2], [], [number]]},
            "attributes": [("k", number), ("l", None)],
            "at": number * 1_000,
            "raw": bytes(number),
        }
        for number in range(30)
    ],
    schema=NESTED,
)
CODECS = {
    "none": Codec(Compression.NONE),
    "zstd": Codec(Compression.ZSTD),
    "lz4": Codec(Compression.LZ4_FRAME),
}


def good_batches(rows: pa.RecordBatch, log_format: str, codec: str) -> list[bytes]:
    """The rows as batches of each magic that a client may send."""
    schema, count = fluss.Schema(rows.schema), rows.num_rows
    if log_format != "ARROW":
        return [bytes(encode_batch(codecs.encode(rows, schema, log_format), schema_id=1, record_count=count))]
    payload = encode(rows, CODECS[codec])
    types = [column.data_type for column in schema.columns]
    supported = [index for index, kind in enumerate(types) if statistics.is_supported(kind)]
    block = statistics.encode(rows, types, supported)
    with_block = encode_batch(payload, schema_id=1, record_count=count, statistics=block)
    plain = encode_batch(payload, schema_id=1, record_count=count)
    return [bytes(with_block), with_epoch(with_block), bytes(plain)]
