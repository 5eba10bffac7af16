"""Bytes that other implementations wrote, by the numbers of the protocol brief's section 11."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from fluss.model.schema import Column
from fluss.model.types import DataField, DataTypes

COMPACTED_1_A = bytes.fromhex("00010161")
COMPACTED_MINUS_1_NULL = bytes.fromhex("02ffffffff0f")
LOG_EMPTY_APPEND_ONLY = bytes.fromhex(
    "000000000000000024000000000000000000000000417f62310100010000000007000000000000000300000000000000"
)
LOG_EMPTY_CHANGELOG = bytes.fromhex(
    "000000000000000024000000000000000000000000ac02683c0100000000000007000000000000000300000000000000"
)
LOG_EMPTY_CHANGELOG_SERVER = bytes.fromhex(
    "000000000000000024000000004ff503dea10100002e2928210100000000000003000000000000000000000000000000"
)
LOG_INDEXED_ROW = bytes.fromhex(
    "000000000000000033000000000000000000000000acd6ef1701000100000000070000000000000003000000010000000b"
    "0000000000010000000100000061"
)
COMPACTED_WIDE = bytes.fromhex(
    "00000801fe2c01ac02ffffffffffffffffff010000c03f00000000000004c0036162630668c3a96c6c6f02010203ff0001b96008eeddef0b"
    "82167eeb8b9e01d7dcc902a4dbbca3f232a4dbbca3f232b88506a4dbbca3f232a4dbbca3f232948d06"
)
COMPACTED_NESTED = bytes.fromhex(
    "001803000000020000000100000000000000030000000000000038030000000400000073686f727400008511000000200000000000000000"
    "0000006c6f6e676572207468616e20736576656e00000000000000241000000001000000000000006b000000000000810100000000000000"
    "0700000000000000040005017a"
)
INDEXED_1_A = bytes.fromhex("00010000000100000061")
INDEXED_NULL_HELLO = bytes.fromhex("010500000068656c6c6f")
INDEXED_WIDE = bytes.fromhex(
    "0000080600000003000000080000000000000001fe2c012c010000ffffffffffffffff0000c03f00000000000004c061626368c3a96c6c6f"
    "0102ff00013930000000000000eeddef0b82167eeb0b4f0000576e5200a42d6f2497010000a42d6f2497010000b8820100a42d6f24970100"
    "00a42d6f249701000094860100"
)
LOG_TWO_ROWS = bytes.fromhex(
    "00000000000000002401000000000000000000000032daf8ac0100010100000007000000000000000300000002000000ffffffffc8000000"
    "14000000000000000c0016000e001500100004000c0000003000000000000000000004001000000000030a0018000c00080004000a000000"
    "1400000068000000020000000000000000000000050000000000000000000000010000000000000008000000000000000800000000000000"
    "1000000000000000010000000000000018000000000000000c00000000000000280000000000000001000000000000000000000002000000"
    "0200000000000000000000000000000002000000000000000100000000000000030000000000000001000000020000000100000000000000"
    "000000000100000001000000000000006100000000000000"
)

AB_COLUMNS = [Column("a", DataTypes.int()), Column("b", DataTypes.string())]

WIDE_COLUMNS = [
    Column(f"c{index}", data_type)
    for index, data_type in enumerate(
        [
            DataTypes.boolean(),
            DataTypes.tinyint(),
            DataTypes.smallint(),
            DataTypes.int(),
            DataTypes.bigint(),
            DataTypes.float(),
            DataTypes.double(),
            DataTypes.char(3),
            DataTypes.string(),
            DataTypes.binary(2),
            DataTypes.bytes(),
            DataTypes.decimal(10, 2),
            DataTypes.decimal(20, 2),
            DataTypes.date(),
            DataTypes.time(3),
            DataTypes.timestamp(3),
            DataTypes.timestamp(6),
            DataTypes.timestamp_ltz(3),
            DataTypes.timestamp_ltz(9),
            DataTypes.string(),
        ]
    )
]
# The last timestamp has 99988 ns behind the millisecond; Python's datetime ends at 99 us.
WIDE_ROW: tuple[Any, ...] = (
    True,
    -2,
    300,
    300,
    -1,
    1.5,
    -2.5,
    "abc",
    "h\u00e9llo",
    b"\x01\x02",
    b"\xff\x00\x01",
    Decimal("123.45"),
    Decimal("-12345678901234567.89"),
    date(2025, 5, 27),
    time(1, 30, 2, 199000),
    datetime(2025, 5, 31, 3, 42, 35, 428000),
    datetime(2025, 5, 31, 3, 42, 35, 428099),
    datetime(2025, 5, 31, 3, 42, 35, 428000, tzinfo=UTC),
    datetime(2025, 5, 31, 3, 42, 35, 428099, tzinfo=UTC),
    None,
)

NESTED_COLUMNS = [
    Column("a", DataTypes.array(DataTypes.int())),
    Column("b", DataTypes.array(DataTypes.string())),
    Column("m", DataTypes.map(DataTypes.string(), DataTypes.int())),
    Column("r", DataTypes.row([DataField("x", DataTypes.int()), DataField("y", DataTypes.string())])),
]
NESTED_ROW: tuple[Any, ...] = (
    [1, None, 3],
    ["short", "longer than seven", None],
    [("k", 7)],
    {"x": 5, "y": "z"},
)

KEY_COLUMNS = {
    "id": Column("id", DataTypes.int().not_null()),
    "name": Column("name", DataTypes.string().not_null()),
    "ts": Column("ts", DataTypes.bigint().not_null()),
}
# Key, encoded key, hash, buckets of 3, 7 and 16.
KEYS: list[tuple[dict[str, Any], str, int, tuple[int, int, int]]] = [
    ({"id": 1}, "01", -386724586, (0, 4, 12)),
    ({"name": "a"}, "0161", -1819928467, (1, 0, 11)),
    ({"ts": 3}, "03", 156767528, (1, 3, 11)),
    ({"id": 1, "name": "a", "ts": 3}, "01016103", 385809776, (1, 1, 9)),
    ({"id": -5}, "fbffffff0f", 97555451, (0, 2, 13)),
    ({"name": "longer than seven"}, "116c6f6e676572207468616e20736576656e", 2054636930, (2, 5, 4)),
    ({"ts": 1234567890123}, "cb89ec8ff723", -2045574075, (0, 6, 0)),
]
# Keys as above, as Paimon has them.
ALIGNED_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"id": 1}, "00000000000000000100000000000000"),
    ({"name": "a"}, "00000000000000006100000000000081"),
    ({"ts": 3}, "00000000000000000300000000000000"),
    ({"id": 1, "name": "a", "ts": 3}, "0000000000000000010000000000000061000000000000810300000000000000"),
    ({"id": -5}, "0000000000000000fbffffff00000000"),
    (
        {"name": "longer than seven"},
        "000000000000000011000000100000006c6f6e676572207468616e20736576656e00000000000000",
    ),
    ({"ts": 1234567890123}, "0000000000000000cb04fb711f010000"),
]
# INT keys, the bucket of 16 that Java computes, the one that pyfluss 1.0.0 does.
KEYS_WITH_HIGH_BYTES = [(128, 2, 7), (200, 6, 10), (300, 5, 11), (5000, 15, 5)]
