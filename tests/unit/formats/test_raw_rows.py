"""Rows read without Arrow are those that Arrow reads, and what is not sound is left to it."""

from __future__ import annotations

import contextlib
import random
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.messages import parse_metadata
from fluss.formats.arrow.payload import ROWS_MAX, Codec, Compression, RawRows
from fluss.formats.rows.python_rows import to_rows
from fluss.model.errors import FlussError

SCHEMA = pa.schema(
    [
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("int", pa.int32()),
        ("big", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("s", pa.timestamp("s")),
        ("ms", pa.timestamp("ms")),
        ("us", pa.timestamp("us", "UTC")),
        ("ns", pa.timestamp("ns")),
    ]
)
AT = datetime(2026, 1, 2, 3, 4, 5)
ROW: dict[str, Any] = {
    "tiny": -7,
    "small": 300,
    "int": -70_000,
    "big": 1 << 60,
    "float": 0.5,
    "double": 0.1,
    "text": "größer",
    "bytes": b"\x00\xff",
    "s": AT,
    "ms": AT,
    "us": AT.replace(tzinfo=UTC),
    "ns": AT,
}


def message(rows: list[dict[str, Any]], codec: Compression = Compression.ZSTD, schema: pa.Schema = SCHEMA) -> bytearray:
    payload = arrow_payload.encode(pa.RecordBatch.from_pylist(rows, schema=schema), Codec(codec))
    return bytearray(memoryview(payload).cast("B"))


def read(payload: bytearray, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]] | None:
    reader = RawRows.of(schema)
    assert reader is not None
    return reader.read(memoryview(payload))


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("seed", range(5))
def test_rows_are_those_of_arrow(codec: Compression, count: int, seed: int) -> None:
    chance = random.Random(seed)
    rows = [{name: value for name, value in ROW.items() if chance.random() < (seed + 1) / 5} for _ in range(count)]
    payload = message(rows, codec)
    found = read(payload)
    assert found == to_rows(arrow_payload.decode(bytes(payload), SCHEMA)) == [dict.fromkeys(ROW) | row for row in rows]
    assert [list(row) for row in found] == [list(ROW)] * count


def test_what_needs_arrow_is_left_to_it() -> None:
    assert RawRows.of(pa.schema([("id", pa.int64()), ("flag", pa.bool_())])) is None
    assert RawRows.of(pa.schema([("items", pa.list_(pa.int64()))])) is None
    assert read(message([ROW] * ROWS_MAX, Compression.NONE)) == [ROW] * ROWS_MAX
    assert read(message([ROW] * (ROWS_MAX + 1), Compression.NONE)) is None
    text = pa.schema([("text", pa.string())])
    assert read(message([{"text": "x" * 10_000}], schema=text), text) is None
    assert read(message([{"text": "x"}], schema=text)) is None
    assert read(bytearray()) is None


def test_nulls_need_bits_that_say_so() -> None:
    schema = pa.schema([("id", pa.int64())])
    payload = message([{}] * 9, Compression.NONE, schema)
    assert read(payload, schema) == [{"id": None}] * 9
    start, _, *values = parse_metadata(memoryview(payload)).buffers
    at = payload.index(struct.pack("<4q", start, 2, *values))
    payload[at + 8] = 1
    assert read(payload, schema) is None


def test_damage_is_never_read_otherwise_than_arrow_reads_it() -> None:
    chance = random.Random(5)
    sound = message([ROW, dict.fromkeys(ROW), ROW])
    for _ in range(3_000):
        payload = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            payload[chance.randrange(len(payload))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        found = read(payload)
        if found is None:
            continue
        with contextlib.suppress(FlussError):  # for parts of the metadata that say nothing of the rows
            assert repr(found) == repr(to_rows(arrow_payload.decode(bytes(payload), SCHEMA)))
