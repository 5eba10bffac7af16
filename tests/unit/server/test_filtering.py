"""Filters: which batches are left out, how far a fetch looked, what makes no sense."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.arrow.payload import Codec, Compression, encode
from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import encode_batch, walk
from fluss.formats.batches.statistics import ColumnStatistics
from fluss.model.types import DataType, DataTypes
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import encode_varint
from fluss.server.read.filter import leaf_test
from tests.kit.thread_server import (
    RunningServer,
    Wire,
    WireError,
    batch,
    checked_bucket,
    create_table,
    fetch_request,
    path,
    produce,
    rows,
)

LONG_WAIT_MS = 15_000
TYPES = [DataTypes.int(), DataTypes.string(), DataTypes.double()]
EQUAL, NOT_EQUAL, LESS, LESS_OR_EQUAL, GREATER, GREATER_OR_EQUAL = range(6)
IS_NULL, NOT_NULL, STARTS_WITH, CONTAINS, ENDS_WITH, IN, NOT_IN = range(6, 13)
AND, OR = 0, 1
INT, BIGINT, DOUBLE, STRING = 3, 4, 6, 8


def integer(value: int | None) -> pb.PbLiteralValue:
    return pb.PbLiteralValue(literal_type=INT, is_null=value is None, int_value=value)


def text(value: str) -> pb.PbLiteralValue:
    return pb.PbLiteralValue(literal_type=STRING, is_null=False, string_value=value)


def double(value: float) -> pb.PbLiteralValue:
    return pb.PbLiteralValue(literal_type=DOUBLE, is_null=False, double_value=value)


def leaf(function: int, field_id: int, *literals: pb.PbLiteralValue) -> pb.PbPredicate:
    return pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=function, field_id=field_id, literals=literals))


def compound(function: int, *children: pb.PbPredicate) -> pb.PbPredicate:
    return pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=function, children=children))


def with_statistics(count: int, start: int, columns: list[int] | None = None) -> bytearray:
    content = rows(count, start)
    block = statistics.encode(content, TYPES, [0, 1, 2] if columns is None else columns)
    payload = encode(content, Codec(Compression.NONE))
    return encode_batch(payload, schema_id=1, record_count=count, statistics=block)


def filtered(
    wire: Wire, table_id: int, predicate: pb.PbPredicate, offset: int = 0, schema_id: int | None = 1, **options: Any
) -> pb.PbFetchLogBucketResponse:
    request = fetch_request(table_id, (0, offset), **options)
    request.tables_req[0].filter_predicate.CopyFrom(predicate)
    if schema_id is not None:
        request.tables_req[0].filter_schema_id = schema_id
    return checked_bucket(wire.call(api_keys.FETCH_LOG, request))


def offsets(answer: pb.PbFetchLogBucketResponse) -> list[int]:
    return [header.base_offset for _, header in walk(answer.records)]


@pytest.fixture
def table_id(wire: Wire) -> int:
    """Batches of 10 rows with ids 0 to 99, names n0 to n99 and scores of half the id."""
    made = create_table(wire)
    for start in range(0, 100, 10):
        produce(wire, made, with_statistics(10, start))
    return made


def test_batches_that_can_not_match_are_left_out(wire: Wire, table_id: int) -> None:
    answer = filtered(wire, table_id, compound(AND, leaf(GREATER_OR_EQUAL, 0, integer(20)), leaf(LESS, 0, integer(35))))
    # The last batch always comes: a reader may wait for the end of the log.
    assert offsets(answer) == [20, 30, 90]
    assert not answer.HasField("filtered_end_offset")
    assert offsets(filtered(wire, table_id, leaf(IN, 0, integer(55), integer(71)))) == [50, 70, 90]
    assert offsets(filtered(wire, table_id, leaf(EQUAL, 2, double(4.5)))) == [0, 90]
    assert offsets(filtered(wire, table_id, leaf(STARTS_WITH, 1, text("n4")))) == [0, 40, 90]
    assert offsets(filtered(wire, table_id, leaf(IS_NULL, 0))) == [90]
    assert offsets(filtered(wire, table_id, leaf(NOT_NULL, 0))) == list(range(0, 100, 10))


def test_with_a_projection(wire: Wire, table_id: int) -> None:
    answer = filtered(wire, table_id, leaf(LESS, 0, integer(15)), projection=[1])
    assert offsets(answer) == [0, 10, 90]
    assert all(header.statistics_size_bytes == 0 for _, header in walk(answer.records))


def test_batches_without_statistics_are_kept(wire: Wire) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, batch(10))
    produce(wire, table_id, with_statistics(10, 10, columns=[1]))
    produce(wire, table_id, encode_batch(b"", schema_id=1, record_count=0))
    produce(wire, table_id, with_statistics(10, 20))
    damaged = with_statistics(10, 30)
    payload = encode(rows(10, 30), Codec(Compression.NONE))
    produce(wire, table_id, encode_batch(payload, schema_id=1, record_count=10, statistics=bytes(damaged[52:60])))
    produce(wire, table_id, with_statistics(10, 40))
    assert offsets(filtered(wire, table_id, leaf(LESS, 0, integer(-1)))) == [0, 10, 20, 31, 41]


def test_the_end_tells_how_far_the_server_looked(server: RunningServer, wire: Wire, table_id: int) -> None:
    request = fetch_request(table_id, (0, 100), max_wait_ms=LONG_WAIT_MS, min_bytes=1)
    request.tables_req[0].filter_predicate.CopyFrom(leaf(LESS, 0, integer(5)))
    request.tables_req[0].filter_schema_id = 1
    with server.connect() as writer:
        waiting = wire.send(api_keys.FETCH_LOG, request)
        wire.call(api_keys.METADATA, pb.MetadataRequest())
        produce(writer, table_id, with_statistics(10, 100))
        answer = checked_bucket(wire.receive_answer(waiting, api_keys.FETCH_LOG))
    assert (answer.records, answer.filtered_end_offset, answer.high_watermark) == (b"", 110, 110)


def test_a_tail_that_is_left_out(wire: Wire) -> None:
    table_id = create_table(wire)
    for start in range(0, 10_000, 1_000):
        produce(wire, table_id, with_statistics(1_000, start))
    limit_bytes = 5 * len(with_statistics(1_000, 9_000))
    answer = filtered(wire, table_id, leaf(LESS, 0, integer(1_500)), bucket_bytes=limit_bytes)
    assert offsets(answer) == [0, 1_000]
    assert 2_000 < answer.filtered_end_offset <= 6_000


def test_a_long_range_is_left_out_a_piece_at_a_time(wire: Wire) -> None:
    table_id = create_table(wire)
    request = pb.ProduceLogRequest(acks=-1, table_id=table_id, timeout_ms=10_000)
    for number in range(2_500):
        request.buckets_req.add(bucket_id=0, records=bytes(with_statistics(1, number)))
    wire.call(api_keys.PRODUCE_LOG, request)
    offset, seen = 0, []
    while offset < 2_500:
        answer = filtered(wire, table_id, leaf(GREATER, 0, integer(10_000)), offset)
        assert answer.HasField("filtered_end_offset") or answer.records
        found = offsets(answer)
        seen += found
        offset = max(answer.filtered_end_offset, found[-1] + 1 if found else 0)
    assert seen == [2_499]


def test_one_fetch_goes_on_into_the_next_segments(tmp_path: Path) -> None:
    with RunningServer(tmp_path, segment_size_bytes=10_000) as server, server.connect() as wire:
        table_id = create_table(wire)
        for start in range(0, 500, 10):
            produce(wire, table_id, with_statistics(10, start))
        assert len(list(tmp_path.glob("tables/*/0/*.log"))) > 3
        answer = filtered(wire, table_id, leaf(GREATER, 0, integer(455)), bucket_bytes=1)
        assert (offsets(answer), answer.HasField("filtered_end_offset")) == ([450], False)


def test_columns_are_found_by_field_id(wire: Wire, table_id: int) -> None:
    column = pb.PbAddColumn(
        column_name="more", data_type_json=json.dumps({"type": "INTEGER"}).encode(), column_position_type=0
    )
    wire.call(
        api_keys.ALTER_TABLE, pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False, add_columns=[column])
    )
    content = rows(10, 100).append_column("more", pa.array(range(10), pa.int32()))
    block = statistics.encode(content, [*TYPES, DataTypes.int()], [3, 0])
    payload = encode(content, Codec(Compression.NONE))
    produce(wire, table_id, encode_batch(payload, schema_id=2, record_count=10, statistics=block))
    produce(wire, table_id, batch(1))
    # Old batches do not have the column, so nothing is known of it.
    assert offsets(filtered(wire, table_id, leaf(GREATER, 3, integer(20)), schema_id=2)) == [*range(0, 100, 10), 110]
    assert offsets(filtered(wire, table_id, leaf(GREATER, 0, integer(95)), schema_id=2)) == [90, 100, 110]
    assert offsets(filtered(wire, table_id, leaf(GREATER, 0, integer(95)), schema_id=1)) == [90, 100, 110]


@pytest.mark.parametrize(
    ("predicate", "schema_id"),
    [
        (leaf(EQUAL, 0, integer(1)), None),
        (leaf(EQUAL, 0, integer(1)), 7),
        (leaf(EQUAL, 9, integer(1)), 1),
        (leaf(EQUAL, 0), 1),
        (leaf(EQUAL, 0, integer(1), integer(2)), 1),
        (leaf(IS_NULL, 0, integer(1)), 1),
        (leaf(13, 0, integer(1)), 1),
        (leaf(-1, 0, integer(1)), 1),
        (leaf(EQUAL, 0, text("1")), 1),
        (leaf(EQUAL, 0, pb.PbLiteralValue(literal_type=99, is_null=False)), 1),
        (leaf(EQUAL, 0, pb.PbLiteralValue(literal_type=INT, is_null=False, bigint_value=1)), 1),
        (leaf(STARTS_WITH, 0, integer(1)), 1),
        (compound(AND), 1),
        (compound(2, leaf(IS_NULL, 0)), 1),
        (pb.PbPredicate(type=0), 1),
        (pb.PbPredicate(type=1), 1),
        (pb.PbPredicate(type=5), 1),
        (leaf(IN, 0, *[integer(number) for number in range(10_001)]), 1),
    ],
)
def test_filters_that_make_no_sense(
    wire: Wire, table_id: int, predicate: pb.PbPredicate, schema_id: int | None
) -> None:
    with pytest.raises(WireError, match="filter is wrong") as raised:
        filtered(wire, table_id, predicate, schema_id=schema_id, max_wait_ms=LONG_WAIT_MS, min_bytes=1)
    assert raised.value.code == 2
    assert offsets(filtered(wire, table_id, leaf(EQUAL, 0, integer(95)))) == [90]


def _deep(table_id: int, levels: int) -> bytes:
    """A request whose filter has so many levels, which protobuf itself would not write."""
    nested = leaf(IS_NULL, 0).SerializeToString()
    for _ in range(levels):
        content = b"\x08\x00\x12" + encode_varint(len(nested)) + nested
        nested = b"\x08\x01\x1a" + encode_varint(len(content)) + content
    request = fetch_request(table_id, (0, 0))
    table = request.tables_req.pop()
    table.filter_schema_id = 1
    body = table.SerializeToString() + b"\x2a" + encode_varint(len(nested)) + nested
    return request.SerializeToString() + b"\x1a" + encode_varint(len(body)) + body


def test_a_filter_of_many_levels(wire: Wire, table_id: int) -> None:
    sent = wire.send_raw(api_keys.FETCH_LOG.key, _deep(table_id, 30))
    assert offsets(checked_bucket(wire.receive_answer(sent, api_keys.FETCH_LOG))) == [90]
    sent = wire.send_raw(api_keys.FETCH_LOG.key, _deep(table_id, 5_000))
    assert wire.receive_error(sent).code == 2
    assert offsets(filtered(wire, table_id, leaf(IS_NULL, 0))) == [90]


# --- one comparison against bounds


_ROW_TESTS: dict[int, Callable[[int, list[int]], bool]] = {
    EQUAL: lambda row, literals: row == literals[0],
    NOT_EQUAL: lambda row, literals: row != literals[0],
    LESS: lambda row, literals: row < literals[0],
    LESS_OR_EQUAL: lambda row, literals: row <= literals[0],
    GREATER: lambda row, literals: row > literals[0],
    GREATER_OR_EQUAL: lambda row, literals: row >= literals[0],
    IN: lambda row, literals: row in literals,
    NOT_IN: lambda row, literals: row not in literals,
}


def test_what_a_row_matches_is_never_left_out() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    left_out = 0
    for _ in range(5_000):
        function = generator.choice(list(_ROW_TESTS))
        literals = [generator.randrange(8) for _ in range(generator.randrange(4) if function >= IN else 1)]
        values = [generator.choice([None, *range(8)]) for _ in range(generator.randrange(1, 4))]
        known = [value for value in values if value is not None]
        column = ColumnStatistics(values.count(None), min(known, default=None), max(known, default=None))
        test = leaf_test(leaf(function, 0, *map(integer, literals)).leaf, DataTypes.int())
        matched = any(_ROW_TESTS[function](value, literals) for value in known)
        kept = test(column, len(values))
        assert kept or not matched, (function, literals, values)
        left_out += not kept
    assert left_out > 500


def _prefix_test(prefix: str) -> Callable[[ColumnStatistics, int], bool]:
    return leaf_test(leaf(STARTS_WITH, 0, text(prefix)).leaf, DataTypes.string())


def test_prefixes() -> None:
    column = ColumnStatistics(0, b"banana", b"cherry")
    assert [_prefix_test(prefix)(column, 2) for prefix in ("a", "b", "ban", "bb", "c", "cherry!", "d")] == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("column", "literal"),
    [
        (ColumnStatistics(0, 1.0, math.nan), 5.0),
        (ColumnStatistics(0, math.nan, 1.0), 5.0),
        (ColumnStatistics(0, 1.0, 2.0), math.nan),
        (ColumnStatistics(0, None, 2.0), 5.0),
    ],
)
def test_what_is_not_known_is_kept(column: ColumnStatistics, literal: float) -> None:
    for function in (EQUAL, LESS, GREATER, IN):
        assert leaf_test(leaf(function, 0, double(literal)).leaf, DataTypes.double())(column, 2)


@pytest.mark.parametrize(
    ("data_type", "code", "fields", "value"),
    [
        (DataTypes.boolean(), 0, {"boolean_value": True}, True),
        (DataTypes.tinyint(), 1, {"int_value": -3}, -3),
        (DataTypes.smallint(), 2, {"int_value": 300}, 300),
        (DataTypes.bigint(), 4, {"bigint_value": 2**40}, 2**40),
        (DataTypes.float(), 5, {"float_value": 0.1}, struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        (DataTypes.char(3), 8, {"string_value": "é"}, "é".encode()),
        (DataTypes.string(), 7, {"string_value": "x"}, b"x"),
        (DataTypes.decimal(10, 2), 9, {"decimal_value": -5}, -5),
        (DataTypes.decimal(30, 2), 9, {"decimal_bytes": b"\xff\x00"}, -256),
        (DataTypes.date(), 10, {"bigint_value": -1}, -1),
        (DataTypes.time(3), 11, {"int_value": 5}, 5),
        (DataTypes.timestamp(6), 12, {"timestamp_millis_value": -1, "timestamp_nano_of_millis_value": 7}, -999_993),
        (DataTypes.timestamp_ltz(3), 13, {"timestamp_millis_value": 2}, 2_000_000),
    ],
)
def test_literals_of_every_type(data_type: DataType, code: int, fields: dict[str, Any], value: Any) -> None:
    literal = pb.PbLiteralValue(literal_type=code, is_null=False, **fields)
    test = leaf_test(leaf(EQUAL, 0, literal).leaf, data_type)
    assert test(ColumnStatistics(0, value, value), 1)
    other = value + b"x" if isinstance(value, bytes) else False if value is True else value + 1
    assert not test(ColumnStatistics(0, other, other), 1)


def test_times_finer_than_their_statistics() -> None:
    literal = pb.PbLiteralValue(literal_type=11, is_null=False, int_value=10)
    column = ColumnStatistics(0, 5, 10)
    assert leaf_test(leaf(GREATER, 0, literal).leaf, DataTypes.time(6))(column, 2)
    assert not leaf_test(leaf(GREATER, 0, literal).leaf, DataTypes.time(3))(column, 2)
