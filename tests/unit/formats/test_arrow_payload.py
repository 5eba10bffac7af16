from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given

from fluss.formats.arrow import messages
from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.payload import Codec, Compression
from fluss.formats.batches import log_batch
from fluss.formats.rows.python_rows import RowBuilder, to_tuples
from fluss.model.errors import CorruptDataError, InvalidRequestError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.schema import Column, Schema
from tests.kit.formats.message_layout import MessageLayout
from tests.kit.formats.strategies import tables
from tests.kit.formats.vectors import AB_COLUMNS, LOG_TWO_ROWS

CODECS = [Codec(Compression.NONE), Codec(Compression.LZ4_FRAME), Codec(), Codec(Compression.ZSTD, 1)]
CODEC_IDS = ["none", "lz4", "zstd3", "zstd1"]
AB = arrow_schema(Schema.of(AB_COLUMNS))


def _batch(row_count: int = 1000) -> pa.RecordBatch:
    rows = {"a": list(range(row_count)), "b": [None if i % 7 == 0 else f"text {i}" for i in range(row_count)]}
    return pa.RecordBatch.from_pydict(rows, schema=AB)


def test_java_batch_decodes_and_our_own_decodes_equal() -> None:
    header = log_batch.parse_header(LOG_TWO_ROWS)
    changes, batch = arrow_payload.decode_changes(LOG_TWO_ROWS, 0, header, AB)
    assert changes is None
    assert batch.to_pylist() == [{"a": 1, "b": "a"}, {"a": 2, "b": None}]
    for codec in CODECS:
        ours = log_batch.encode_batch(arrow_payload.encode(batch, codec), schema_id=1, record_count=2)
        assert arrow_payload.decode_changes(ours, 0, log_batch.parse_header(ours), AB)[1].equals(batch)


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
@pytest.mark.parametrize("row_count", [1, 5, 1000, 50_000])
def test_payload_is_one_record_batch_message(codec: Codec, row_count: int) -> None:
    batch = _batch(row_count)
    payload = arrow_payload.encode(batch, codec)
    reader = ipc.MessageReader.open_stream(payload)
    message = reader.read_next_message()
    assert message.type == "record batch"
    assert message.metadata_version == ipc.MetadataVersion.V5
    with pytest.raises(StopIteration):
        reader.read_next_message()
    assert arrow_payload.decode(payload, AB).equals(batch)


@pytest.mark.parametrize("row_count", [500, 50_000])
@pytest.mark.parametrize("chosen", pa.supported_memory_backends())
def test_rows_are_put_where_no_huge_pages_are_asked_for(chosen: str, row_count: int) -> None:
    pools = {name: getattr(pa, f"{name}_memory_pool")() for name in pa.supported_memory_backends()}
    payload = arrow_payload.encode(_batch(row_count), Codec())
    default = pa.default_memory_pool()
    pa.set_memory_pool(pools[chosen])
    try:
        before = {name: pool.bytes_allocated() for name, pool in pools.items()}
        batch = arrow_payload.decode(payload, AB)
        used = {name for name, pool in pools.items() if pool.bytes_allocated() - before[name] >= batch.nbytes}
    finally:
        pa.set_memory_pool(default)
    assert used == {"system" if chosen == "mimalloc" else chosen}


def test_codecs_compress_as_they_say() -> None:
    sizes = {codec: arrow_payload.encode(_batch(20_000), codec).size for codec in CODECS}
    none, lz4, zstd, _ = (sizes[codec] for codec in CODECS)
    assert zstd < lz4 < none
    best = arrow_payload.encode(_batch(20_000), Codec(Compression.ZSTD, 19)).size
    assert best < zstd


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
def test_slices_carry_only_their_rows(codec: Codec) -> None:
    part = _batch(10_000).slice(4003, 5)
    payload = arrow_payload.encode(part, codec)
    assert payload.size < 1_000
    assert arrow_payload.decode(payload, AB).equals(part)


@pytest.mark.parametrize("codec", CODECS[1:], ids=CODEC_IDS[1:])
def test_small_batches_are_stored_raw_under_the_table_s_codec(codec: Codec) -> None:
    nested = pa.schema(
        [("l", pa.list_(pa.string())), ("s", pa.struct([("x", pa.int8()), ("y", pa.decimal128(20, 2))]))]
    )
    rows = [{"l": ["a", None], "s": {"x": 1, "y": None}}, {"l": None, "s": None}]
    for batch in (_batch(1), _batch(5), _batch(90).slice(77, 3), pa.RecordBatch.from_pylist(rows, schema=nested)):
        for _ in range(2):  # the first of a shape makes the template
            payload = arrow_payload.encode(batch, codec)
            message = messages.parse_record_batch_message(memoryview(payload).cast("B"))
            assert message.compressed
            assert message.metadata.row_count == batch.num_rows
            assert message.metadata.body_start + message.metadata.body_size_bytes == payload.size
            assert payload.size % 8 == 0
            sizes = _announced_sizes(payload)
            assert sizes
            assert set(sizes) == {-1}
            assert ipc.read_record_batch(payload, batch.schema).equals(batch)
            assert arrow_payload.decode(payload, batch.schema).equals(batch)
            assert payload.size <= arrow_payload._encode_compressed(batch, codec).size
    assert -1 not in _announced_sizes(arrow_payload.encode(_batch(100), codec))


def _announced_sizes(payload: pa.Buffer) -> list[int]:
    view = memoryview(payload).cast("B")
    layout = MessageLayout.of(view)
    numbers = struct.unpack_from(f"<{2 * layout.buffer_count}q", view, layout.buffers_at)
    return [
        struct.unpack_from("<q", view, layout.body_start + start)[0]
        for start, size in zip(numbers[::2], numbers[1::2], strict=True)
        if size
    ]


def test_no_rows_have_no_payload() -> None:
    assert arrow_payload.encode(_batch(0), Codec()).size == 0
    empty = arrow_payload.decode(b"", AB)
    assert (empty.num_rows, empty.schema) == (0, AB)


@given(table=tables())
@pytest.mark.parametrize("codec", CODECS[:3], ids=CODEC_IDS[:3])
def test_rows_come_back_as_they_went_in(codec: Codec, table: tuple[list[Column], list[tuple[object, ...]]]) -> None:
    columns, rows = table
    builder = RowBuilder(Schema.of(columns))
    for row in rows:
        builder.append(row)
    batch = builder.build()
    batch.validate(full=True)
    decoded = arrow_payload.decode(arrow_payload.encode(batch, codec), batch.schema)
    assert to_tuples(decoded) == rows


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
@pytest.mark.parametrize("shift", range(8))
def test_payload_may_lie_anywhere(codec: Codec, shift: int) -> None:
    batch = _batch(100)
    shifted = memoryview(bytes(shift) + arrow_payload.encode(batch, codec).to_pybytes())[shift:]
    decoded = arrow_payload.decode(shifted, AB)
    assert decoded.equals(batch)
    for column in decoded.columns:
        assert all(buffer.address % 8 == 0 for buffer in column.buffers() if buffer is not None and buffer.size)


def test_changes_are_split_from_rows() -> None:
    batch = _batch(4)
    buf = log_batch.encode_batch(
        arrow_payload.encode(batch, Codec()), schema_id=1, record_count=4, change_types=b"\x01\x02\x03\x04"
    )
    changes, rows = arrow_payload.decode_changes(buf, 0, log_batch.parse_header(buf), AB)
    assert changes == b"\x01\x02\x03\x04"
    assert rows.equals(batch)


def test_unknown_change_type_is_corrupt() -> None:
    payload = arrow_payload.encode(_batch(2), Codec())
    buf = log_batch.encode_batch(payload, schema_id=1, record_count=2, change_types=b"\x01\x05")
    with pytest.raises(CorruptDataError, match="change type 5"):
        arrow_payload.decode_changes(buf, 0, log_batch.parse_header(buf), AB)


def test_row_count_must_be_the_header_s() -> None:
    buf = log_batch.encode_batch(arrow_payload.encode(_batch(2), Codec()), schema_id=1, record_count=3)
    with pytest.raises(CorruptDataError, match="3 records announced, the payload has 2"):
        arrow_payload.decode_changes(buf, 0, log_batch.parse_header(buf), AB)


@pytest.mark.parametrize("codec", CODECS[:3], ids=CODEC_IDS[:3])
def test_cut_payload_is_corrupt(codec: Codec) -> None:
    payload = arrow_payload.encode(_batch(20), codec).to_pybytes()
    for size in range(1, len(payload)):
        with pytest.raises(CorruptDataError):
            arrow_payload.decode(payload[:size], AB)


@pytest.mark.parametrize("codec", CODECS[:3], ids=CODEC_IDS[:3])
def test_damaged_metadata_raises_nothing_else(codec: Codec) -> None:
    payload = arrow_payload.encode(_batch(20), codec).to_pybytes()
    message = messages.parse_metadata(memoryview(payload))
    refused = 0
    for at in range(message.body_start):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(payload)
            damaged[at] ^= flip
            try:
                arrow_payload.decode(damaged, AB)
            except CorruptDataError:
                refused += 1
    assert refused > message.body_start


STRINGS = pa.schema([("s", pa.string()), ("b", pa.binary()), ("n", pa.string())])


def _strings(row_count: int) -> pa.RecordBatch:
    texts = [f"text {i}" for i in range(row_count)]
    columns = [texts, [text.encode() for text in texts], [None if i % 5 == 0 else texts[i] for i in range(row_count)]]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind) for values, kind in zip(columns, STRINGS.types, strict=True)], schema=STRINGS
    )


@pytest.mark.parametrize("row_count", [20, 1000])
def test_damaged_strings_are_found_as_arrow_finds_them(row_count: int) -> None:
    payload = arrow_payload.encode(_strings(row_count), CODECS[0]).to_pybytes()
    body_start = messages.parse_metadata(memoryview(payload)).body_start
    refused = 0
    for at in range(body_start, len(payload), 1 + row_count // 50):
        damaged = bytearray(payload)
        damaged[at] ^= 0x80
        batch = ipc.read_record_batch(pa.py_buffer(damaged), STRINGS)
        try:
            batch.validate(full=True)
        except pa.ArrowException:
            refused += 1
            with pytest.raises(CorruptDataError):
                arrow_payload.decode(damaged, STRINGS)
        else:
            assert arrow_payload.decode(damaged, STRINGS).equals(batch)
    assert refused > 10


@pytest.mark.parametrize("row_count", [20, 1000])
@pytest.mark.parametrize("null_count", [1, 3, 1000, 1001])
def test_wrong_null_count_is_corrupt(row_count: int, null_count: int) -> None:
    payload = bytearray(arrow_payload.encode(_strings(row_count), CODECS[0]).to_pybytes())
    layout = MessageLayout.of(memoryview(payload))
    struct.pack_into("<q", payload, layout.nodes_at + 2 * 16 + 8, null_count)
    with pytest.raises(CorruptDataError):
        arrow_payload.decode(payload, STRINGS)


def test_text_that_is_not_ascii_comes_back() -> None:
    schema = pa.schema([("s", pa.string())])
    batch = pa.RecordBatch.from_pydict({"s": ["ä€😀", None, "a"] * 300}, schema=schema)
    for codec in CODECS:
        assert arrow_payload.decode(arrow_payload.encode(batch, codec), schema).equals(batch)


def test_announced_sizes_are_checked_before_memory_is_taken() -> None:
    payload = bytearray(arrow_payload.encode(_batch(1000), Codec()).to_pybytes())
    message = messages.parse_record_batch_message(memoryview(payload))
    assert message.compressed
    assert 4 * 1000 < message.decoded_size_bytes < 100_000
    first_size_at = message.metadata.body_start
    struct.pack_into("<q", payload, first_size_at, 1 << 50)
    with pytest.raises(CorruptDataError, match="would take"):
        arrow_payload.decode(payload, AB)
    struct.pack_into("<q", payload, first_size_at, -2)
    with pytest.raises(CorruptDataError, match="announces -2"):
        arrow_payload.decode(payload, AB)


def test_schema_message_is_not_a_payload() -> None:
    with pytest.raises(CorruptDataError, match="not a record batch"):
        arrow_payload.decode(AB.serialize(), AB)


def test_payload_of_another_schema_is_refused() -> None:
    wider = AB.append(pa.field("c", pa.int64()))
    with pytest.raises(CorruptDataError):
        arrow_payload.decode(arrow_payload.encode(_batch(10), Codec()), wider)


def test_codec_from_table_properties() -> None:
    key, level_key = "table.log.arrow.compression.type", "table.log.arrow.compression.zstd.level"
    assert Codec.of({}) == Codec(Compression.ZSTD, 3)
    assert Codec.of({key: "none", "table.log.ttl": "1 d"}) == Codec(Compression.NONE)
    assert Codec.of({key: "LZ4_FRAME"}).compression is Compression.LZ4_FRAME
    assert Codec.of({level_key: "22"}) == Codec(Compression.ZSTD, 22)
    for properties in ({key: "GZIP"}, {level_key: "23"}, {level_key: "x"}):
        with pytest.raises(InvalidRequestError):
            Codec.of(properties)


@pytest.mark.parametrize("codec", CODECS, ids=CODEC_IDS)
def test_nested_arrays_that_java_sends_without_offsets_can_be_used(codec: Codec) -> None:
    inner = pa.list_(pa.field("item", pa.map_(pa.string(), pa.struct([("x", pa.list_(pa.string()))]))))
    # Without elements, so that the offsets of all that is inside are left out.
    unset = pa.Array.from_buffers(inner, 0, [None, pa.py_buffer(b"")], children=[pa.nulls(0, inner.value_type)])
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 0, 0], pa.int32()), unset)
    rows = pa.StructArray.from_arrays([lists], names=["deep"])
    schema = pa.schema([("n", pa.int32()), ("lists", lists.type), ("row", rows.type)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int32()), lists, rows], schema=schema)
    payload = arrow_payload.encode(batch, codec)
    metadata = messages.parse_metadata(memoryview(payload).cast("B"))
    assert 0 in metadata.nodes[::2]

    decoded = arrow_payload.decode(payload, schema)
    assert decoded.to_pylist() == [{"n": n, "lists": [], "row": {"deep": []}} for n in (1, 2, 3)]
    decoded.validate(full=True)
    assert decoded.column("n").buffers()[1].size == 12
    for array in (decoded.column("lists").values, decoded.column("row").field(0).values):
        assert array.buffers()[1].size >= 4
        assert array.nbytes >= 0
        assert pa.concat_arrays([array, array]).to_pylist() == []
