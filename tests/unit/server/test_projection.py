"""Projected fetches: columns of every kind, older schemas, statistics, memory."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.arrow.payload import Codec, Compression, decode, encode
from fluss.formats.batches.log_batch import encode_batch, payload_of, verify_crc, walk
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.schema import Schema
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.read.fetch_plan import BATCHES_PER_FETCH_MAX
from fluss.storage.log import index as scan
from fluss.storage.log.index import BATCHES_PER_ENTRY_MAX
from tests.kit.formats.message_layout import MessageLayout
from tests.kit.thread_server import (
    MIB,
    SCHEMA,
    RunningServer,
    Wire,
    WireError,
    batch,
    checked_bucket,
    create_table,
    fetch,
    fetch_request,
    headers,
    path,
    produce,
    rows,
)

LONG_WAIT_MS = 15_000
CODECS = ["NONE", "LZ4_FRAME", "ZSTD"]
NESTED = Schema(
    pa.schema(
        [
            ("a", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]))),
            ("b", pa.int64()),
            ("c", pa.map_(pa.string(), pa.list_(pa.float64()))),
            ("d", pa.struct([("p", pa.bool_()), ("q", pa.map_(pa.int32(), pa.string()))])),
            ("e", pa.string()),
        ]
    )
)


def _properties(codec: str) -> dict[str, str]:
    return {"table.log.arrow.compression.type": codec}


def _read(records: bytes, schema: pa.Schema) -> pa.Table:
    found = [decode(payload_of(records, position, header)[1], schema) for position, header in walk(records)]
    return pa.Table.from_batches(found, schema)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("indexes", [[0], [1], [0, 2], [1, 2]])
def test_projected_columns(wire: Wire, codec: str, indexes: list[int]) -> None:
    table_id = create_table(wire, properties=_properties(codec))
    produce(wire, table_id, batch(4, writer_id=5, sequence=0))
    produce(wire, table_id, batch(2, start=4))
    full = headers(fetch(wire, table_id).records)
    records = fetch(wire, table_id, projection=indexes).records
    projected = headers(records, projected=True)
    for before, after in zip(full, projected, strict=True):
        assert before._replace(length=0) == after._replace(length=0)
    assert _read(records, rows().select(indexes).schema).equals(pa.Table.from_batches([rows(6)]).select(indexes))


@pytest.mark.parametrize("codec", CODECS)
def test_nested_columns(wire: Wire, codec: str) -> None:
    schema = arrow_schema(NESTED)
    table_id = create_table(wire, schema=NESTED.to_json(), properties=_properties(codec))
    written = pa.RecordBatch.from_pylist(
        [
            {
                "a": [{"x": i, "y": None}, None] if i % 3 else None,
                "b": i,
                "c": [("k", [0.5, None])] if i % 2 else None,
                "d": {"p": True, "q": [(i, "v")]} if i % 4 else None,
                "e": str(i),
            }
            for i in range(100)
        ],
        schema=schema,
    )
    payload = encode(written, Codec.of(_properties(codec)))
    produce(wire, table_id, encode_batch(payload, schema_id=1, record_count=100))
    for size in range(1, 5):
        for indexes in itertools.combinations(range(5), size):
            records = fetch(wire, table_id, projection=list(indexes)).records
            expected = written.select(indexes)
            assert _read(records, expected.schema).equals(pa.Table.from_batches([expected]))


def test_projection_of_all_columns_changes_nothing(wire: Wire) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, batch(4))
    assert fetch(wire, table_id, projection=[0, 1, 2]).records == fetch(wire, table_id).records


def test_an_empty_batch_passes(wire: Wire) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, encode_batch(b"", schema_id=1, record_count=0))
    produce(wire, table_id, batch(2))
    found = headers(fetch(wire, table_id, projection=[1]).records, projected=True)
    assert [header.record_count for header in found] == [0, 2]


@pytest.mark.parametrize("indexes", [[], [1, 0], [0, 0], [3], [-1], [0, 99]])
def test_bad_projections(wire: Wire, indexes: list[int]) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, batch())
    with pytest.raises(WireError, match="ascending") as raised:
        fetch(wire, table_id, projection=indexes, max_wait_ms=LONG_WAIT_MS, min_bytes=1)
    assert raised.value.code == 34


def test_only_arrow_tables_are_projected(wire: Wire) -> None:
    table_id = create_table(wire, properties={"table.log.format": "INDEXED"})
    with pytest.raises(WireError, match="Only ARROW") as raised:
        fetch(wire, table_id, projection=[0], max_wait_ms=LONG_WAIT_MS, min_bytes=1)
    assert raised.value.code == 34


def test_a_projected_fetch_waits_and_is_woken_too(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    request = fetch_request(table_id, (0, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=1, projection=[1])
    with server.connect() as writer:
        waiting = wire.send(api_keys.FETCH_LOG, request)
        wire.call(api_keys.METADATA, pb.MetadataRequest())
        produce(writer, table_id, batch(2))
        response = wire.receive_answer(waiting, api_keys.FETCH_LOG)
    assert headers(checked_bucket(response).records, projected=True)[0].record_count == 2


def _add_column(wire: Wire, name: str, data_type: dict[str, Any]) -> None:
    column = pb.PbAddColumn(column_name=name, data_type_json=json.dumps(data_type).encode(), column_position_type=0)
    wire.call(
        api_keys.ALTER_TABLE,
        pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False, add_columns=[column]),
    )


@pytest.mark.parametrize("codec", CODECS)
def test_batches_older_than_a_column_have_nulls_in_it(wire: Wire, codec: str) -> None:
    table_id = create_table(wire, properties=_properties(codec))
    table_codec = Codec.of(_properties(codec))
    produce(wire, table_id, encode_batch(encode(rows(3), table_codec), schema_id=1, record_count=3))
    _add_column(wire, "tags", {"type": "ARRAY", "element_type": {"type": "STRING"}})
    _add_column(wire, "more", {"type": "BIGINT"})
    new = rows(2, 3).append_column("tags", pa.array([["x"], None])).append_column("more", pa.array([7, 8]))
    produce(wire, table_id, encode_batch(encode(new, table_codec), schema_id=3, record_count=2))
    expected = pa.concat_tables(
        [pa.Table.from_batches([rows(3)]), pa.Table.from_batches([new])], promote_options="default"
    )
    for indexes in ([0], [1, 4], [3], [3, 4], [0, 1, 2, 3, 4]):
        records = fetch(wire, table_id, projection=indexes).records
        assert [header.schema_id for header in headers(records, projected=True)] == [1, 3]
        found = _read(records, expected.select(indexes).schema)
        assert found.equals(expected.select(indexes))


def _with_epoch(records: bytes | bytearray) -> bytes:
    (length,) = struct.unpack_from("<i", records, 8)
    head = records[:8] + struct.pack("<i", length + 4) + b"\x02" + records[13:21] + bytes(4)
    return bytes(head + records[21:])


def test_statistics_are_dropped(wire: Wire) -> None:
    table_id = create_table(wire)
    payload = encode(rows(5), Codec(Compression.NONE))
    records = encode_batch(payload, schema_id=1, record_count=5, statistics=b"whatever they say")
    produce(wire, table_id, records)
    produce(wire, table_id, _with_epoch(records))
    found = fetch(wire, table_id, projection=[0, 2]).records
    assert [(h.magic, h.statistics_size_bytes) for h in headers(found, projected=True)] == [(1, 0), (2, 0)]
    expected = pa.Table.from_batches([rows(5), rows(5)]).select([0, 2])
    assert _read(found, expected.schema).equals(expected)


def test_the_limit_holds_for_what_is_read(wire: Wire) -> None:
    table_id = create_table(wire)
    for _ in range(10):
        produce(wire, table_id, batch(1_000))
    size_bytes = len(batch(1_000))
    records = fetch(wire, table_id, projection=[0], bucket_bytes=3 * size_bytes).records
    assert 1 <= len(headers(records, projected=True)) <= 3
    assert len(headers(fetch(wire, table_id, projection=[0], bucket_bytes=1).records, projected=True)) == 1


def test_many_small_batches_take_several_fetches(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    request = pb.ProduceLogRequest(acks=-1, table_id=table_id, timeout_ms=10_000)
    for _ in range(1_500):
        request.buckets_req.add(bucket_id=0, records=bytes(batch(1)))
    wire.call(api_keys.PRODUCE_LOG, request)
    offset = fetches = 0
    while offset < 1_500:
        records = fetch(wire, table_id, offset, projection=[2]).records
        offset = headers(records, projected=True)[-1].next_offset
        fetches += 1
    assert fetches == 2


def _bomb(announced: int) -> bytearray:
    """A small batch with a buffer that says it becomes very large; the columns beside it are sound."""
    payload = bytearray(encode(rows(1_000), Codec(Compression.ZSTD)))
    layout = MessageLayout.of(memoryview(payload))
    offset = struct.unpack_from("<q", payload, layout.buffers_at + 16 * 4)[0]  # the text
    struct.pack_into("<q", payload, layout.body_start + offset, announced)
    return encode_batch(payload, schema_id=1, record_count=1_000)


def test_a_bomb_costs_nothing(wire: Wire, server: RunningServer, tmp_path: Path) -> None:
    table_id = create_table(wire, properties=_properties("ZSTD"))
    with pytest.raises(WireError, match="would take"):
        produce(wire, table_id, _bomb(1 << 40))
    for _ in range(50):
        produce(wire, table_id, _bomb(900 * MIB))
    before = _peak_kib()
    for indexes in ([0], [1], [0, 1]):
        found = headers(fetch(wire, table_id, projection=indexes, bucket_bytes=16 * MIB).records, projected=True)
        assert len(found) == 50
    assert _peak_kib() - before < 64 << 10
    assert _read(fetch(wire, table_id, projection=[0]).records, SCHEMA.empty_table().select([0]).schema).num_rows


def _peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_one_fetch_verifies_a_bounded_number_of_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, verified = BATCHES_PER_FETCH_MAX + 500, []

    def counted(*args: Any) -> None:
        verified.append(args)
        verify_crc(*args)

    with RunningServer(tmp_path, durability="os") as server, server.connect() as wire:
        table_id = create_table(wire)
        for _ in range(count):
            produce(wire, table_id, batch(1))
        monkeypatch.setattr(scan, "verify_crc", counted)
        offset = 0
        while offset < count:
            verified.clear()
            found = list(walk(fetch(wire, table_id, offset, bucket_bytes=16 * MIB, projection=[0]).records))
            assert 0 < len(found) <= len(verified) <= BATCHES_PER_FETCH_MAX + 2 * BATCHES_PER_ENTRY_MAX
            offset += len(found)
        assert offset == count


def test_one_fetch_after_a_start_verifies_a_bounded_number_of_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all buckets together, of which it may name thousands."""
    buckets, count, verified = range(8), 400, []

    def counted(*args: Any) -> None:
        verified.append(args)
        verify_crc(*args)

    with RunningServer(tmp_path, durability="os") as server, server.connect() as wire:
        table_id = create_table(wire, buckets=len(buckets))
        request = pb.ProduceLogRequest(acks=-1, table_id=table_id, timeout_ms=10_000)
        for _ in range(count):
            for bucket in buckets:
                request.buckets_req.add(bucket_id=bucket, records=bytes(batch(1)))
        wire.call(api_keys.PRODUCE_LOG, request)
    with RunningServer(tmp_path, durability="os") as server, server.connect() as wire:
        fetch(wire, table_id)  # opens the log
        offsets = dict.fromkeys(buckets, 0)
        for bucket in buckets:
            fetch(wire, table_id, bucket=bucket, bucket_bytes=1)
        monkeypatch.setattr(scan, "verify_crc", counted)
        while any(offset < count for offset in offsets.values()):
            verified.clear()
            (answer,) = wire.call(api_keys.FETCH_LOG, fetch_request(table_id, *offsets.items())).tables_resp
            assert len(verified) <= BATCHES_PER_FETCH_MAX + 2 * BATCHES_PER_ENTRY_MAX
            read = {entry.bucket_id: len(list(walk(entry.records))) for entry in answer.buckets_resp}
            assert any(read.values())
            offsets = {bucket: offset + read[bucket] for bucket, offset in offsets.items()}
