"""ProduceLog: what is appended, what is refused, what is answered."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.arrow.payload import Codec, Compression, encode
from fluss.formats.batches.log_batch import encode_batch
from fluss.model.errors import RETRIABLE_CODES
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from tests.kit.thread_server import (
    RunningServer,
    StalledSyncs,
    Wire,
    WireError,
    batch,
    create_table,
    fetch,
    headers,
    path,
    produce,
    produce_request,
    rows,
)


def test_offsets_follow_each_other(wire: Wire) -> None:
    table_id = create_table(wire)
    assert [produce(wire, table_id, batch(count)) for count in (3, 1, 5)] == [0, 3, 4]
    answer = fetch(wire, table_id)
    assert answer.high_watermark == 9
    assert [header.record_count for header in headers(answer.records)] == [3, 1, 5]


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acks_is_answered_without_an_error_code(wire: Wire, acks: int) -> None:
    table_id = create_table(wire)
    response = wire.call(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch()), acks=acks))
    (entry,) = response.buckets_resp
    assert not entry.HasField("error_code")
    assert not entry.HasField("error_message")
    assert not entry.HasField("partition_id")
    assert entry.base_offset == 0


def test_acknowledged_is_visible_at_once(wire: Wire) -> None:
    table_id = create_table(wire)
    for number in range(20):
        produce(wire, table_id, batch(1))
        assert fetch(wire, table_id, number).high_watermark == number + 1


@pytest.mark.parametrize("acks", [7, 2, -2])
def test_other_acks_are_refused_for_the_whole_request(wire: Wire, acks: int) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError, match="0, 1 or -1") as raised:
        wire.call(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch()), acks=acks))
    assert raised.value.code == 18
    assert fetch(wire, table_id).high_watermark == 0


def test_buckets_fail_one_by_one(wire: Wire) -> None:
    table_id = create_table(wire, buckets=2)
    request = produce_request(table_id, (0, batch()), (5, batch()), (1, batch()), (0, batch(1)))
    entries = wire.call(api_keys.PRODUCE_LOG, request).buckets_resp
    assert [entry.bucket_id for entry in entries] == [0, 5, 1, 0]
    assert [entry.error_code for entry in entries] == [0, 21, 0, 0]
    assert [entry.base_offset for entry in entries] == [0, 0, 0, 3]
    assert not entries[1].HasField("base_offset")


def test_a_repeated_sequence_gets_the_first_offset(wire: Wire) -> None:
    table_id = create_table(wire)
    for sequence in range(3):
        assert produce(wire, table_id, batch(2, writer_id=9, sequence=sequence)) == 2 * sequence
    assert produce(wire, table_id, batch(2, writer_id=9, sequence=1)) == 2
    assert produce(wire, table_id, batch(2, writer_id=9, sequence=3)) == 6
    assert fetch(wire, table_id).high_watermark == 8


def test_a_repeat_that_overtakes_its_first_answer(wire: Wire) -> None:
    table_id = create_table(wire)
    request = produce_request(table_id, (0, batch(writer_id=9, sequence=0)))
    ids = [wire.send(api_keys.PRODUCE_LOG, request) for _ in range(3)]
    answers = [wire.receive_answer(request_id, api_keys.PRODUCE_LOG) for request_id in ids]
    assert [answer.buckets_resp[0].base_offset for answer in answers] == [0, 0, 0]
    assert fetch(wire, table_id).high_watermark == 3


@pytest.mark.parametrize(("first", "second"), [(1, None), (0, 2), (0, -1)])
def test_out_of_order_sequences_are_refused(wire: Wire, first: int, second: int | None) -> None:
    table_id = create_table(wire)
    sequences = [first] if second is None else [first, second]
    for sequence in sequences[:-1]:
        produce(wire, table_id, batch(writer_id=9, sequence=sequence))
    with pytest.raises(WireError) as raised:
        produce(wire, table_id, batch(writer_id=9, sequence=sequences[-1]))
    assert raised.value.code == 31
    assert produce(wire, table_id, batch(writer_id=8, sequence=0)) == 3 * (len(sequences) - 1)


def _flipped(at: int) -> bytearray:
    damaged = batch()
    damaged[at] ^= 0xFF
    return damaged


@pytest.mark.parametrize("at", [26, 30, 45, 60, 120, -1])
def test_damage_anywhere_below_the_checksum_is_a_corrupt_record(wire: Wire, at: int) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError) as raised:
        produce(wire, table_id, _flipped(at))
    assert raised.value.code in (14, 2)
    assert fetch(wire, table_id).high_watermark == 0


def test_a_bad_checksum_is_named(wire: Wire) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError, match="CRC-32C") as raised:
        produce(wire, table_id, _flipped(-1))
    assert raised.value.code == 14


def _with_magic(magic: int) -> bytearray:
    changed = batch()
    changed[12] = magic
    return changed


def _announcing(rows: int) -> bytearray:
    payload = pa.RecordBatch.from_pydict({"id": [1, 2, 3]}).serialize()
    return encode_batch(payload, schema_id=1, record_count=rows)


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (b"", "at least 48 bytes"),
        (b"\0" * 47, "at least 48 bytes"),
        (_with_magic(1), "statistics of -1 bytes"),
        (_with_magic(2), "can't be accepted"),
        (_with_magic(3), "magic 3 is not known"),
        (batch() + b"\0", "exactly one whole batch"),
        (batch() + batch(), "exactly one whole batch"),
        (batch()[:-1], "exactly one whole batch"),
        (encode_batch(b"not arrow", schema_id=1, record_count=3), "Arrow message"),
        (encode_batch(b"", schema_id=1, record_count=3), "Arrow message"),
        (_announcing(4), "its Arrow payload has 3"),
        (encode_batch(b"", schema_id=1, record_count=0, change_types=b""), "append-only"),
        (batch(schema_id=2), "schema id 2"),
    ],
)
def test_batches_that_can_never_be_accepted_get_codes_that_clients_do_not_retry(
    wire: Wire, records: bytes, text: str
) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError, match=text) as raised:
        produce(wire, table_id, records)
    assert raised.value.code > 0
    assert raised.value.code not in RETRIABLE_CODES
    assert fetch(wire, table_id).high_watermark == 0
    assert produce(wire, table_id, batch()) == 0


def test_an_empty_batch_takes_one_offset(wire: Wire) -> None:
    table_id = create_table(wire)
    assert produce(wire, table_id, encode_batch(b"", schema_id=1, record_count=0)) == 0
    assert produce(wire, table_id, batch()) == 1


def test_batches_above_the_limit_are_refused(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(batch_bytes_max=1_000)) as server, server.connect() as wire:
        table_id = create_table(wire)
        with pytest.raises(WireError, match="smaller batches") as raised:
            produce(wire, table_id, batch(100))
        assert raised.value.code == 13
        assert produce(wire, table_id, batch(1)) == 0


def test_unknown_tables_and_partitions(wire: Wire) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError) as raised:
        produce(wire, table_id + 1, batch())
    assert raised.value.code == 21
    request = produce_request(table_id, (0, batch()))
    request.buckets_req[0].partition_id = 3
    (entry,) = wire.call(api_keys.PRODUCE_LOG, request).buckets_resp
    assert (entry.error_code, entry.partition_id) == (21, 3)


def test_a_sync_that_takes_too_long_is_told_within_the_timeout(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    with StalledSyncs(server):
        request = produce_request(table_id, (0, batch(writer_id=1, sequence=0)), timeout_ms=50)
        (entry,) = wire.call(api_keys.PRODUCE_LOG, request).buckets_resp
        assert entry.error_code == 25
        assert not entry.HasField("base_offset")
        assert fetch(wire, table_id).high_watermark == 0
    # The retry of the client learns what became of the batch.
    assert produce(wire, table_id, batch(writer_id=1, sequence=0)) == 0
    assert fetch(wire, table_id).high_watermark == 3


def test_no_acks_do_not_wait_for_the_disk(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    with StalledSyncs(server):
        assert produce(wire, table_id, batch(), acks=0) == 0
        assert fetch(wire, table_id).high_watermark == 0


def test_a_table_dropped_under_a_waiting_write(server: RunningServer, wire: Wire) -> None:
    table_id = create_table(wire)
    with StalledSyncs(server), server.connect() as other:
        waiting = wire.send(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch())))
        wire.call(api_keys.METADATA, pb.MetadataRequest())
        other.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False))
        (entry,) = wire.receive_answer(waiting, api_keys.PRODUCE_LOG).buckets_resp
        assert entry.error_code == 21


# --- batches and their schema


def _encoded(columns: dict[str, list[Any]], schema: pa.Schema | None = None) -> bytearray:
    content = pa.RecordBatch.from_pydict(columns, schema=schema)
    return encode_batch(content.serialize(), schema_id=1, record_count=content.num_rows)


@pytest.mark.parametrize(
    "records",
    [
        _encoded({"id": [1, 2]}, pa.schema([("id", pa.int32())])),
        _encoded({"id": [1], "name": ["x"], "score": [1.5], "more": [1]}),
        _encoded(
            {"id": [1, 2], "name": ["x", "y"], "score": [1.5, 2.5]},
            pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float32())]),
        ),
        _encoded(
            {"id": [1], "name": [[1]], "score": [1.5]},
            pa.schema([("id", pa.int32()), ("name", pa.list_(pa.int32())), ("score", pa.float64())]),
        ),
        _encoded(
            {"id": [1] * 9, "name": [True] * 9, "score": [1.5] * 9},
            pa.schema([("id", pa.int32()), ("name", pa.bool_()), ("score", pa.float64())]),
        ),
    ],
    ids=["too few columns", "too many", "narrower", "a list", "no offsets"],
)
def test_batches_that_do_not_fit_their_schema(wire: Wire, records: bytearray) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError, match="Arrow message") as raised:
        produce(wire, table_id, records)
    assert raised.value.code == 2
    assert fetch(wire, table_id).high_watermark == 0


# --- magic 1 and 2


def _with_epoch(records: bytes | bytearray) -> bytes:
    (length,) = struct.unpack_from("<i", records, 8)
    head = records[:8] + struct.pack("<i", length + 4) + b"\x02" + records[13:21] + struct.pack("<i", 5)
    return bytes(head + records[21:])


def _with_statistics(count: int, **writer: int) -> bytearray:
    payload = encode(rows(count), Codec(Compression.NONE))
    return encode_batch(payload, schema_id=1, record_count=count, statistics=b"a block of statistics", **writer)


def test_all_layouts_are_stored_served_and_recovered(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = create_table(wire)
        assert produce(wire, table_id, batch(3, writer_id=4, sequence=0)) == 0
        assert produce(wire, table_id, _with_statistics(3, writer_id=4, batch_sequence=1)) == 3
        assert produce(wire, table_id, _with_epoch(_with_statistics(3, writer_id=4, batch_sequence=2))) == 6
        assert produce(wire, table_id, _with_epoch(_with_statistics(3, writer_id=4, batch_sequence=2))) == 6
        before = fetch(wire, table_id).records
        assert [header.magic for header in headers(before)] == [0, 1, 2]
    for disposable in (*tmp_path.glob("tables/*/*/*.index"), *tmp_path.glob("tables/*/*/*.writers")):
        disposable.unlink()
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert fetch(wire, table_id).records == before
        assert headers(fetch(wire, table_id, 7).records)[0].base_offset == 6
        assert produce(wire, table_id, _with_epoch(_with_statistics(3, writer_id=4, batch_sequence=2))) == 6
        assert produce(wire, table_id, batch(1)) == 9


@pytest.mark.parametrize("at", [25, 40, 48, 52, 60, 75, -1])
def test_damage_in_a_batch_with_statistics_is_found(wire: Wire, at: int) -> None:
    table_id = create_table(wire)
    for records in (_with_statistics(3), bytearray(_with_epoch(_with_statistics(3)))):
        records[at] ^= 0x04
        with pytest.raises(WireError) as raised:
            produce(wire, table_id, records)
        assert raised.value.code in (2, 14)
    assert fetch(wire, table_id).high_watermark == 0


# --- row formats


def _row_records(*row_sizes: int) -> bytearray:
    records = b"".join(struct.pack("<iB", 1 + size, 0) + b"r" * size for size in row_sizes)
    return encode_batch(records, schema_id=1, record_count=len(row_sizes))


def test_indexed_tables(wire: Wire) -> None:
    table_id = create_table(wire, properties={"table.log.format": "INDEXED"})
    assert produce(wire, table_id, _row_records(5, 1, 30)) == 0
    assert produce(wire, table_id, _row_records(7)) == 3
    answer = fetch(wire, table_id)
    assert [header.record_count for header in headers(answer.records)] == [3, 1]
    request = pb.LimitScanRequest(table_id=table_id, bucket_id=0, limit=1)
    assert len(headers(wire.call(api_keys.LIMIT_SCAN, request).records)) == 1
    for refused in (batch(3), _row_records(5)[:-1], encode_batch(b"\0" * 20, schema_id=1, record_count=2)):
        with pytest.raises(WireError) as raised:
            produce(wire, table_id, refused)
        assert raised.value.code == 2
    assert fetch(wire, table_id).high_watermark == 4


def test_rows_do_not_go_into_arrow_tables(wire: Wire) -> None:
    table_id = create_table(wire)
    with pytest.raises(WireError, match="Arrow message") as raised:
        produce(wire, table_id, _row_records(5, 1, 30))
    assert raised.value.code == 2
