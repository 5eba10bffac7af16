"""Primary-key tables of every kind with good batches for them, to be changed by fuzz tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

import fluss
from fluss import DataTypes
from fluss.formats.batches.kv_batch import encode_header, encode_records
from fluss.formats.rows.codecs import CompactedFormat, IndexedFormat
from fluss.formats.rows.keys import primary_key_encoder
from fluss.model.forms.arrow_types import arrow_schema
from tests.kit.batch_samples import NESTED, NESTED_ROWS

FLAT: Final = fluss.Schema(
    pa.schema(
        [
            ("part", pa.int32()),
            ("name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("flag", pa.bool_()),
            ("version", pa.int64()),
        ]
    ),
    ["part", "name"],
)
FLAT_ROWS: Final = [
    {
        "part": number % 3,
        "name": "n" * (number % 5) + str(number),
        "price": Decimal(number) / 4 if number % 4 else None,
        "flag": None if number % 3 == 0 else number % 2 == 0,
        "version": number - 5,
    }
    for number in range(20)
]
_NUMBERED: Final = fluss.Schema(
    pa.schema([("part", pa.int32()), ("name", pa.string()), ("number", pa.int64())]), ["part", "name"], "number"
)
_BITMAP: Final = bytes.fromhex("3a30000001000000000001001000000001000200")  # of the numbers 1 and 2
_AGGREGATES: Final = (
    ("sum", DataTypes.bigint(), 3),
    ("sum", DataTypes.decimal(12, 2), Decimal("1.50")),
    ("product", DataTypes.int(), -2),
    ("max", DataTypes.string(), "text"),
    ("min", DataTypes.double(), 0.5),
    ("first_value", DataTypes.string(), "first"),
    ("last_value_ignore_nulls", DataTypes.int(), 1),
    ("listagg", DataTypes.string(), "word"),
    ("bool_and", DataTypes.boolean(), True),
    ("rbm32", DataTypes.bytes(), _BITMAP),
)
KEY_COLUMNS: Final = (0, 1)


@dataclass
class KvSample:
    """A table, and rows for it."""

    name: str
    schema: fluss.Schema
    rows: Sequence[Mapping[str, Any]]
    properties: Mapping[str, str] = field(default_factory=dict)
    targets: Sequence[Sequence[int]] = ((), (0, 1, 2))
    """Of updates that are good."""

    def __post_init__(self) -> None:
        keys = self.schema.get_primary_keys()
        self.descriptor = fluss.TableDescriptor(
            self.schema, bucket_count=1, bucket_keys=keys[:1], properties=dict(self.properties)
        )
        is_indexed = self.properties.get("table.kv.format") == "INDEXED"
        columns = self.schema.columns
        self._format = IndexedFormat(columns) if is_indexed else CompactedFormat(columns)
        self._encoder = primary_key_encoder(self.descriptor)
        self.keys = self._encoder.encode(self._arrow(self.rows)).to_pylist()
        self.batches = self._batches()

    @property
    def path(self) -> fluss.TablePath:
        return fluss.TablePath("fluss", self.name)

    def _arrow(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=arrow_schema(self.schema))

    def _batches(self) -> list[bytes]:
        """All rows, all of them twice, half of them deleted, one of them, none, and one of an idempotent writer."""
        whole, count = self._arrow(self.rows), len(self.rows)
        is_deleted = pa.array([number % 2 == 0 for number in range(count)])
        rows = self._format.encode(whole)
        twice = pa.concat_batches([whole, whole])
        return [
            self._batch(self._encoder.encode(whole), rows),
            self._batch(self._encoder.encode(twice), self._format.encode(twice)),
            self._batch(self._encoder.encode(whole), pa.compute.if_else(is_deleted, None, rows)),
            self._batch(self._encoder.encode(whole)[:1], rows[:1]),
            self._batch(pa.array([], pa.binary()), pa.array([], pa.binary())),
            self._batch(self._encoder.encode(whole)[:2], rows[:2], writer_id=7, batch_sequence=0),
        ]

    @staticmethod
    def _batch(keys: pa.BinaryArray, rows: pa.BinaryArray, **writer: int) -> bytes:
        # Slices have offsets, which the encoder of records does not take.
        keys, rows = (pa.array(array.to_pylist(), pa.binary()) for array in (keys, rows))
        records = encode_records(keys, rows)
        return bytes(encode_header(records, schema_id=1, record_count=len(keys), **writer) + records)


def _nested() -> fluss.Schema:
    return fluss.Schema(NESTED.insert(1, pa.field("name", pa.string())), ["id", "name"])


def _aggregating() -> fluss.Schema:
    builder = fluss.Schema.builder().column("part", DataTypes.int()).column("name", DataTypes.string())
    for number, (function, data_type, _) in enumerate(_AGGREGATES):
        builder = builder.column(f"{function}_{number}", data_type, agg_function=function)
    return builder.primary_key(["part", "name"]).build()


def _aggregated() -> list[dict[str, Any]]:
    rows = []
    for number in range(12):
        row: dict[str, Any] = {"part": number % 3, "name": str(number % 4)}
        for column, (function, _, value) in enumerate(_AGGREGATES):
            row[f"{function}_{column}"] = None if number % 5 == 0 else value
        rows.append(row)
    return rows


def kv_samples() -> list[KvSample]:
    """One for each way of merging rows and of storing them."""
    nested_rows = [{**row, "name": str(row["id"] % 7)} for row in NESTED_ROWS.to_pylist()[:15]]
    numbered = [{"part": row["part"], "name": row["name"], "number": None} for row in FLAT_ROWS]
    indexed = {"table.kv.format": "INDEXED"}
    return [
        KvSample("fuzz_flat", FLAT, FLAT_ROWS, targets=((), (0, 1, 2), (0, 1))),
        KvSample("fuzz_indexed", FLAT, FLAT_ROWS, indexed),
        KvSample("fuzz_nested", _nested(), nested_rows),
        KvSample("fuzz_nested_indexed", _nested(), nested_rows, {**indexed, "table.log.format": "INDEXED"}),
        KvSample("fuzz_rows_in_log", FLAT, FLAT_ROWS, {"table.log.format": "COMPACTED"}),
        KvSample("fuzz_first_row", FLAT, FLAT_ROWS, {"table.merge-engine": "first_row"}, [()]),
        KvSample(
            "fuzz_versioned",
            FLAT,
            FLAT_ROWS,
            {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "version"},
            [()],
        ),
        KvSample("fuzz_sums", _aggregating(), _aggregated(), {"table.merge-engine": "aggregation"}),
        KvSample("fuzz_wal", FLAT, FLAT_ROWS, {"table.changelog.image": "WAL"}),
        KvSample("fuzz_numbered", _NUMBERED, numbered, targets=[KEY_COLUMNS]),
    ]
