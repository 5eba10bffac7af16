"""Columns cut out of Arrow messages: every type and codec, missing columns, what does not fit a schema."""

from __future__ import annotations

import itertools
import random
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from fluss.formats.arrow.messages import (
    NULLS_SIZE_MAX_BYTES,
    ArrowLayout,
    ColumnSlicer,
    parse_metadata,
    parse_record_batch_message,
)
from fluss.formats.arrow.payload import Codec, Compression, decode, encode
from fluss.model.errors import CorruptDataError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.schema import Schema
from tests.kit.formats.message_layout import MessageLayout

SCHEMA = Schema(
    pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.string()),
            ("c", pa.list_(pa.int64())),
            ("d", pa.map_(pa.string(), pa.list_(pa.int8()))),
            ("e", pa.struct([("x", pa.int16()), ("y", pa.struct([("z", pa.string())]))])),
            ("f", pa.bool_()),
            ("g", pa.decimal128(30, 2)),
        ]
    )
)
ARROW = arrow_schema(SCHEMA)
TYPES = [column.data_type for column in SCHEMA.columns]
LAYOUT = ArrowLayout(TYPES)
NONE = ArrowLayout([])
CODECS = [Codec(compression) for compression in Compression]


def _rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "a": i if i % 3 else None,
                "b": "x" * i if i % 4 else None,
                "c": [i, None, 2] if i % 5 else None,
                "d": [("k", [1, None])] if i % 2 else None,
                "e": {"x": i, "y": {"z": str(i)} if i % 2 else None} if i % 3 else None,
                "f": bool(i % 2),
                "g": Decimal(i),
            }
            for i in range(count)
        ],
        schema=ARROW,
    )


def _payload(rows: pa.RecordBatch, codec: Codec) -> memoryview:
    return memoryview(encode(rows, codec)).cast("B")


def _check(payload: memoryview | bytes, layout: ArrowLayout) -> None:
    message = parse_record_batch_message(memoryview(payload))
    layout.check(message.metadata.row_count, message.metadata.nodes, message.decoded_sizes)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.compression)
@pytest.mark.parametrize("count", [1, 50, 3_000])
def test_any_columns_of_any_type(count: int, codec: Codec) -> None:
    rows = _rows(count)
    payload = _payload(rows, codec)
    _check(payload, LAYOUT)
    for size in range(1, len(TYPES)):
        for columns in itertools.combinations(range(len(TYPES)), size):
            pieces, size_bytes = ColumnSlicer(LAYOUT, columns, NONE).slice(payload)
            cut = b"".join(pieces)
            assert len(cut) == size_bytes
            assert decode(cut, pa.schema([ARROW.field(column) for column in columns])).equals(rows.select(columns))
            _check(cut, ArrowLayout([TYPES[column] for column in columns]))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.compression)
@pytest.mark.parametrize("count", [1, 50, 200_000])
def test_columns_that_are_not_there_are_null(count: int, codec: Codec) -> None:
    rows = pa.RecordBatch.from_pydict({"a": pa.array(range(count), pa.int32())})
    layout = ArrowLayout(TYPES[:1])
    pieces, _ = ColumnSlicer(layout, [0], ArrowLayout(TYPES[1:])).slice(_payload(rows, codec))
    cut = b"".join(pieces)
    _check(cut, LAYOUT)
    found = decode(cut, ARROW)
    assert found.column(0).equals(rows.column(0))
    assert all(column.null_count == count for column in found.columns[1:])


def test_nulls_have_a_limit() -> None:
    count = NULLS_SIZE_MAX_BYTES // 16 + 1
    rows = pa.RecordBatch.from_pydict({"f": pa.array([True]).take(pa.array([0] * 8))})
    payload = bytearray(_payload(rows, Codec(Compression.NONE)))
    at = MessageLayout.of(memoryview(payload)).row_count_at
    struct.pack_into("<q", payload, at, count)
    slicer = ColumnSlicer(ArrowLayout(TYPES[5:6]), [0], ArrowLayout(TYPES[6:]))
    with pytest.raises(CorruptDataError, match="would take"):
        slicer.slice(memoryview(payload))


def _aligned_to_64(rows: pa.RecordBatch) -> bytes:
    """The message as writers lay it out that align buffers to 64 bytes."""
    plain = bytearray(rows.serialize().to_pybytes())
    layout = MessageLayout.of(memoryview(plain))
    numbers = list(struct.unpack_from(f"<{2 * layout.buffer_count}q", plain, layout.buffers_at))
    body = b""
    for at in range(0, len(numbers), 2):
        start = layout.body_start + numbers[at]
        numbers[at] = len(body)
        body += plain[start : start + numbers[at + 1]]
        body += bytes(-len(body) % 64)
    struct.pack_into(f"<{2 * layout.buffer_count}q", plain, layout.buffers_at, *numbers)
    struct.pack_into("<q", plain, layout.body_size_at, len(body))
    return bytes(plain[: layout.body_start] + body)


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_buffers_come_out_aligned(shift: int) -> None:
    rows = _rows(40)
    payload = bytearray(_aligned_to_64(rows))
    if shift:
        # Odd offsets, which nobody writes: bytes are put in front of all buffers.
        layout = MessageLayout.of(memoryview(payload))
        numbers = list(struct.unpack_from(f"<{2 * layout.buffer_count}q", payload, layout.buffers_at))
        numbers[::2] = [offset + shift for offset in numbers[::2]]
        struct.pack_into(f"<{2 * layout.buffer_count}q", payload, layout.buffers_at, *numbers)
        payload[layout.body_start : layout.body_start] = b"\xaa" * shift
        struct.pack_into("<q", payload, layout.body_size_at, len(payload) - layout.body_start)
    for columns in ([1], [0, 4], [2, 3, 6]):
        cut = b"".join(ColumnSlicer(LAYOUT, columns, NONE).slice(memoryview(payload))[0])
        metadata = parse_metadata(memoryview(cut))
        assert all(offset % 8 == 0 for offset in metadata.buffers[::2])
        assert metadata.body_start % 8 == 0
        assert decode(cut, pa.schema([ARROW.field(column) for column in columns])).equals(rows.select(columns))


def test_neighbours_stay_in_one_piece() -> None:
    pieces, _ = ColumnSlicer(LAYOUT, [1, 2, 3], NONE).slice(memoryview(_aligned_to_64(_rows(40))))
    assert sum(len(piece) > 8 for piece in pieces) == 2, "metadata and one slice"


def test_the_same_bytes_many_times_are_refused() -> None:
    payload = bytearray(_payload(_rows(100), Codec(Compression.NONE)))
    layout = MessageLayout.of(memoryview(payload))
    body_size = len(payload) - layout.body_start
    struct.pack_into(f"<{2 * layout.buffer_count}q", payload, layout.buffers_at, *[0, body_size] * layout.buffer_count)
    with pytest.raises(CorruptDataError, match="in a body of"):
        parse_metadata(memoryview(payload))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"nodes": slice(0, -2)}, "nodes and"),
        ({"sizes": slice(0, -1)}, "buffers"),
        ({"rows": 11}, "has 10 rows, not 11"),
        ({"rows": 2**31}, "rows"),
        ({"node": (0, 9)}, "9 rows, not 10"),
        ({"node": (1, 11)}, "11 nulls"),
        ({"node": (1, -1)}, "-1 nulls"),
        ({"size": (0, 1)}, "validity"),
        ({"size": (1, 39)}, "values or offsets"),
        ({"size": (3, 43)}, "values or offsets"),
        ({"size": (-1, 159)}, "values or offsets"),
    ],
)
def test_what_does_not_fit_the_schema(numbers: dict[str, object], text: str) -> None:
    message = parse_record_batch_message(_payload(_rows(10), Codec(Compression.NONE)))
    rows, nodes, sizes = message.metadata.row_count, list(message.metadata.nodes), message.decoded_sizes
    LAYOUT.check(rows, nodes, sizes)
    for name, value in numbers.items():
        if isinstance(value, slice):
            nodes, sizes = (nodes[value], sizes) if name == "nodes" else (nodes, sizes[value])
        elif isinstance(value, tuple):
            (nodes if name == "node" else sizes)[value[0]] = value[1]
        else:
            rows = int(str(value))
    with pytest.raises(CorruptDataError, match=text):
        LAYOUT.check(rows, nodes, sizes)


def test_damaged_messages_are_cut_or_refused() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    slicer = ColumnSlicer(LAYOUT, [1, 3], ArrowLayout(TYPES[2:3]))
    payload = _payload(_rows(20), Codec(Compression.ZSTD))
    size = parse_metadata(payload).body_start
    for _ in range(3_000):
        damaged = bytearray(payload)
        for _ in range(generator.randrange(1, 4)):
            damaged[generator.randrange(size)] = generator.randrange(256)
        try:
            _, size_bytes = slicer.slice(memoryview(damaged))
        except CorruptDataError:
            continue
        assert size_bytes <= len(payload) + NULLS_SIZE_MAX_BYTES + 10_000
