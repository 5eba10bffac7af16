from __future__ import annotations

import enum
import math
import os
import pickle
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import pandas
import pyarrow as pa
import pytest

from fluss.formats import kernel
from fluss.formats.arrow import payload
from fluss.formats.arrow.payload import Codec, Compression
from fluss.formats.rows.python_rows import RowBuilder, to_rows, to_tuples
from fluss.model.errors import SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataField, DataType, DataTypes

SCHEMA = Schema.of([Column("id", DataTypes.bigint().not_null()), Column("name", DataTypes.string())])
EAST = timezone(timedelta(hours=2))


class _Row(NamedTuple):
    id: int
    name: str


class Colour(enum.IntEnum):
    RED = 3


class Shade(str, enum.Enum):  # noqa: UP042 - its str() is not its characters, unlike a StrEnum's
    DARK = "dark"


EVERY_SCALAR: list[tuple[DataType, Any]] = [
    (DataTypes.boolean(), True),
    (DataTypes.tinyint(), -1),
    (DataTypes.smallint(), -2),
    (DataTypes.int(), -3),
    (DataTypes.bigint(), -4),
    (DataTypes.float(), 0.5),
    (DataTypes.double(), 0.25),
    (DataTypes.char(5), "ä"),
    (DataTypes.string(), "text"),
    (DataTypes.binary(3), b"abc"),
    (DataTypes.bytes(), b""),
    (DataTypes.decimal(10, 2), Decimal("-1.25")),
    (DataTypes.decimal(38, 0), Decimal(-(10**37))),
    (DataTypes.date(), date(1969, 12, 31)),
    (DataTypes.time(3), time(1, 2, 3)),
    (DataTypes.time(6), time(1, 2, 3, 4)),
    (DataTypes.timestamp(6), datetime(1969, 1, 1, 0, 0, 0, 1)),
    (DataTypes.timestamp(9), datetime(1969, 1, 1, 0, 0, 0, 1)),
    (DataTypes.timestamp_ltz(3), datetime(2024, 1, 1, tzinfo=UTC)),
]

# pyarrow imports pandas, where it is installed, in many a place; that takes a second.
WITHOUT_PANDAS = """
import importlib.util, pickle, sys
from fluss.formats.arrow import payload
from fluss.formats.rows.python_rows import RowBuilder
from fluss.formats.rows.python_rows import to_rows
from fluss.model.schema import Column, Schema

types, values = zip(*pickle.load(sys.stdin.buffer))
builder = RowBuilder(Schema.of([Column(f"c{i}", data_type) for i, data_type in enumerate(types)]))
for count in (1, 500):
    for _ in range(count):
        builder.append(values)
    builder.append([None] * len(types))
    batch = builder.build()
    for codec in payload.Codec(payload.Compression.NONE), payload.Codec():
        rows = to_rows(payload.decode(payload.encode(batch, codec), batch.schema))
        assert tuple(rows[0].values()) == values and set(rows[-1].values()) == {None}, rows
assert payload.decode(b"", batch.schema).num_rows == 0
print(importlib.util.find_spec("pandas") is not None, "pandas" in sys.modules)
"""


def _one(data_type: DataType, value: Any) -> Any:
    builder = RowBuilder(Schema.of([Column("x", data_type)]))
    builder.append((value,))
    batch = builder.build()
    batch.validate(full=True)
    return to_rows(batch)[0]["x"]


@pytest.mark.parametrize(
    "row",
    [
        {"id": 1, "name": "a"},
        {"name": "a", "id": 1},
        [1, "a"],
        (1, "a"),
        _Row(1, "a"),
        MappingProxyType({"id": 1, "name": "a"}),
    ],
    ids=["dict", "dict in another order", "list", "tuple", "namedtuple", "mapping"],
)
def test_shapes_of_rows(row: Any) -> None:
    builder = RowBuilder(SCHEMA)
    builder.append(row)
    assert to_rows(builder.build()) == [{"id": 1, "name": "a"}]


def test_missing_nullable_column_is_null() -> None:
    builder = RowBuilder(SCHEMA)
    builder.append({"id": 1})
    assert to_rows(builder.build()) == [{"id": 1, "name": None}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": "a"}, "lacks the non-nullable field 'id' .*NOT NULL"),
        ({"id": None}, "'id' expects .*NOT NULL, not null"),
        ((None, "a"), "'id' expects .*NOT NULL, not null"),
        ({"id": 1, "nmae": "a"}, "no column 'nmae'; its columns are id, name"),
        ((1,), "1 values for 2 columns"),
        ((1, "a", 2), "3 values for 2 columns"),
        ("ab", "dict, list or tuple, not str"),
        (None, "not NoneType"),
        ({"id": "7"}, r"'id' expects (?i:bigint) NOT NULL, not str \('7'\)"),
        ({"id": 1, "name": 5}, r"'name' expects (?i:string), not int \(5\)"),
    ],
)
def test_row_that_does_not_fit_changes_nothing(row: Any, message: str) -> None:
    builder = RowBuilder(SCHEMA)
    builder.append((1, "before"))
    state = builder.row_count, builder.estimated_bytes
    with pytest.raises(SchemaMismatchError, match=message):
        builder.append(row)
    assert (builder.row_count, builder.estimated_bytes) == state
    builder.append((2, "after"))
    assert [row["name"] for row in to_rows(builder.build())] == ["before", "after"]


def test_builder_starts_anew_after_build() -> None:
    builder = RowBuilder(SCHEMA)
    assert builder.build().num_rows == 0
    added = builder.append((1, "12345"))
    assert builder.append((2, None)) == added - 5
    assert builder.estimated_bytes == 2 * added - 5
    assert builder.row_count == 2
    assert builder.build().num_rows == 2
    assert (builder.row_count, builder.estimated_bytes) == (0, 0)
    builder.append((3, "x"))
    assert to_rows(builder.build()) == [{"id": 3, "name": "x"}]


def test_estimate_is_near_the_arrow_size() -> None:
    columns = [Column("a", DataTypes.bigint()), Column("b", DataTypes.string()), Column("c", DataTypes.decimal(9, 2))]
    builder = RowBuilder(Schema.of(columns))
    for i in range(1000):
        builder.append((i, "ü" * (i % 20), Decimal(i)))
    estimated = builder.estimated_bytes
    assert abs(estimated - builder.build().nbytes) < 0.1 * estimated


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (DataTypes.tinyint(), 127, 127),
        (DataTypes.tinyint(), -128, -128),
        (DataTypes.smallint(), -(1 << 15), -(1 << 15)),
        (DataTypes.int(), (1 << 31) - 1, (1 << 31) - 1),
        (DataTypes.bigint(), -(1 << 63), -(1 << 63)),
        (DataTypes.int(), Colour.RED, 3),
        (DataTypes.double(), 7, 7.0),
        (DataTypes.double(), Decimal("0.25"), 0.25),
        (DataTypes.boolean(), numpy.bool_(True), True),
        (DataTypes.boolean(), numpy.bool_(False), False),
        (DataTypes.string(), numpy.str_("a"), "a"),
        (DataTypes.bytes(), numpy.bytes_(b"a"), b"a"),
        (DataTypes.date(), numpy.datetime64("1969-12-31"), date(1969, 12, 31)),
        (DataTypes.date(), numpy.datetime64("NaT"), None),
        (DataTypes.date(), pandas.NaT, None),
        (DataTypes.timestamp(6), numpy.datetime64("NaT"), None),
        (DataTypes.timestamp(6), numpy.datetime64("2020-01-01"), datetime(2020, 1, 1)),
        (
            DataTypes.timestamp(3),
            numpy.datetime64("1969-12-31T23:59:59.999999999"),
            datetime(1969, 12, 31, 23, 59, 59, 999_000),
        ),
        (DataTypes.timestamp_ltz(0), numpy.datetime64("2020-01-01T01", "h"), datetime(2020, 1, 1, 1, tzinfo=UTC)),
        (DataTypes.float(), 0.1, 0.10000000149011612),
        (DataTypes.float(), math.inf, math.inf),
        (DataTypes.bytes(), bytearray(b"ab"), b"ab"),
        (DataTypes.bytes(), memoryview(b"abcd")[::2], b"ac"),
        (DataTypes.binary(2), b"ab", b"ab"),
        (DataTypes.char(2), "\u00fc\u00fc", "\u00fc\u00fc"),
        (DataTypes.char(5), "ab", "ab"),
        (DataTypes.string(), "\U0001f600", "\U0001f600"),
        (DataTypes.decimal(5, 2), Decimal("1.5"), Decimal("1.50")),
        (DataTypes.decimal(5, 1), Decimal("1.500"), Decimal("1.5")),
        (DataTypes.decimal(5, 2), Decimal("9.9E2"), Decimal("990.00")),
        (DataTypes.decimal(5, 2), -12, Decimal("-12.00")),
        (DataTypes.decimal(38, 0), Decimal(10**38 - 1), Decimal(10**38 - 1)),
        (DataTypes.date(), date(1, 1, 1), date(1, 1, 1)),
        (DataTypes.time(0), time(1, 2, 3, 999_999), time(1, 2, 3)),
        (DataTypes.time(9), time(23, 59, 59, 999_999), time(23, 59, 59, 999_999)),
        (DataTypes.timestamp(3), datetime(2020, 1, 1, 0, 0, 0, 1999), datetime(2020, 1, 1, 0, 0, 0, 1000)),
        (DataTypes.timestamp(0), datetime(1969, 12, 31, 23, 59, 59, 1), datetime(1969, 12, 31, 23, 59, 59)),
        (DataTypes.timestamp(6), datetime(1, 1, 1), datetime(1, 1, 1)),
        (DataTypes.timestamp_ltz(6), datetime(2020, 1, 1, 12), datetime(2020, 1, 1, 12, tzinfo=UTC)),
        (DataTypes.timestamp_ltz(6), datetime(2020, 1, 1, 12, tzinfo=EAST), datetime(2020, 1, 1, 10, tzinfo=UTC)),
    ],
)
def test_accepted_values(data_type: DataType, value: Any, expected: Any) -> None:
    assert _one(data_type, value) == expected


@pytest.mark.parametrize(
    ("data_type", "value", "message"),
    [
        (DataTypes.tinyint(), 128, "does not fit"),
        (DataTypes.tinyint(), -129, "does not fit"),
        (DataTypes.smallint(), 1 << 15, "does not fit"),
        (DataTypes.int(), 1 << 31, "does not fit"),
        (DataTypes.int(), -(1 << 31) - 1, "does not fit"),
        (DataTypes.bigint(), 1 << 63, "does not fit"),
        (DataTypes.bigint(), 10**30, "does not fit"),
        pytest.param(DataTypes.bigint(), 10**5000, "too large to show does not fit", id="an int without text"),
        (DataTypes.int(), True, "not bool"),
        (DataTypes.int(), 1.0, "not float"),
        (DataTypes.int(), "1", "not str"),
        (DataTypes.int(), b"1", "not bytes"),
        (DataTypes.boolean(), 1, "not int"),
        (DataTypes.double(), True, "not bool"),
        (DataTypes.double(), "1", "not str"),
        (DataTypes.double(), Decimal("sNaN"), "does not fit"),
        (DataTypes.float(), Decimal("1e39"), "does not fit"),
        (DataTypes.double(), 10**400, "does not fit"),
        (DataTypes.float(), 1e39, "does not fit"),
        (DataTypes.string(), b"a", "not bytes"),
        (DataTypes.string(), "\ud800", "does not fit"),
        (DataTypes.char(2), "abc", "does not fit"),
        (DataTypes.binary(2), b"abc", "does not fit"),
        (DataTypes.binary(2), b"a", "does not fit"),
        (DataTypes.bytes(), "a", "not str"),
        (DataTypes.bytes(), [1], "not list"),
        (DataTypes.decimal(5, 2), Decimal("1.005"), "does not fit"),
        (DataTypes.decimal(5, 2), Decimal("1000"), "does not fit"),
        (DataTypes.decimal(5, 2), 1000, "does not fit"),
        (DataTypes.decimal(5, 2), Decimal("NaN"), "does not fit"),
        (DataTypes.decimal(5, 2), Decimal("-Infinity"), "does not fit"),
        (DataTypes.decimal(5, 2), Decimal("1E+999999"), "does not fit"),
        (DataTypes.decimal(5, 2), Decimal("1E-999999"), "does not fit"),
        (DataTypes.decimal(5, 2), 1.5, "not float"),
        (DataTypes.decimal(5, 2), True, "not bool"),
        (DataTypes.date(), datetime(2020, 1, 1), "not datetime"),
        (DataTypes.date(), pandas.Timestamp(2020, 1, 1), "not Timestamp"),
        (DataTypes.date(), numpy.datetime64("2020-01-01T00:00"), "not datetime64"),
        (DataTypes.timestamp(3), numpy.datetime64(1 << 40, "s"), "does not fit"),
        (DataTypes.timestamp(3), numpy.timedelta64(1, "s"), "not timedelta64"),
        (DataTypes.date(), "2020-01-01", "not str"),
        (DataTypes.time(3), time(1, tzinfo=UTC), "not time with a time zone"),
        (DataTypes.time(3), 5, "not int"),
        (DataTypes.timestamp(6), datetime(2020, 1, 1, tzinfo=UTC), "not datetime with a time zone"),
        (DataTypes.timestamp(6), date(2020, 1, 1), "not date"),
        (DataTypes.timestamp(9), datetime(2500, 1, 1), "does not fit"),
        (DataTypes.timestamp_ltz(9), datetime(1600, 1, 1, tzinfo=UTC), "does not fit"),
    ],
)
def test_refused_values(data_type: DataType, value: Any, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match="Column 'x' expects") as caught:
        _one(data_type, value)
    assert message in str(caught.value)
    assert str(data_type) in str(caught.value)


@pytest.mark.parametrize(
    ("data_type", "value", "room"),
    [
        (DataTypes.tinyint(), 128, "tinyint (-128 to 127); int 128 does not fit"),
        (DataTypes.bigint(), 1 << 63, "(-9223372036854775808 to 9223372036854775807)"),
        (DataTypes.char(2), "abc", "char(2) (up to 2 characters); str 'abc' does not fit"),
        (DataTypes.string(), "\ud800", "string (valid Unicode); str '\\ud800' does not fit"),
        (DataTypes.binary(2), b"a", "binary(2) (2 bytes); bytes b'a' does not fit"),
        (DataTypes.decimal(5, 2), 1000, "decimal(5,2) (3 digits before the point, 2 behind it); int 1000 does not fit"),
        (DataTypes.float(), 1e39, "float (up to 3.4e38); float 1e+39 does not fit"),
        (DataTypes.double(), 10**400, "double (up to 1.8e308)"),
        (DataTypes.timestamp(9), datetime(2500, 1, 1), "timestamp(9) (from 1677-09-22 to 2262-04-11)"),
    ],
)
def test_errors_say_what_fits(data_type: DataType, value: Any, room: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        _one(data_type, value)
    assert room in str(caught.value)


def test_nan_stays_nan() -> None:
    assert math.isnan(_one(DataTypes.float(), math.nan))
    assert math.isnan(_one(DataTypes.double(), math.nan))


def test_later_changes_of_a_value_are_not_seen() -> None:
    builder = RowBuilder(Schema.of([Column("b", DataTypes.bytes()), Column("l", DataTypes.array(DataTypes.int()))]))
    buffer, items = bytearray(b"ab"), [1]
    builder.append((buffer, items))
    buffer[0] = 0
    items.append(2)
    assert to_rows(builder.build()) == [{"b": b"ab", "l": [1]}]


def test_nested_values() -> None:
    row_type = DataTypes.row([DataField("x", DataTypes.int()), DataField("y", DataTypes.string())])
    schema = Schema.of(
        [
            Column("l", DataTypes.array(DataTypes.string())),
            Column("m", DataTypes.map(DataTypes.string(), DataTypes.int())),
            Column("r", row_type),
        ]
    )
    builder = RowBuilder(schema)
    assert builder.append((["a", None], {"k": 7}, {"x": 5, "y": "z"})) > 0
    builder.append((None, None, None))
    builder.append(([], {}, {"x": 1}))
    batch = builder.build()
    assert batch.to_pylist() == [
        {"l": ["a", None], "m": [("k", 7)], "r": {"x": 5, "y": "z"}},
        {"l": None, "m": None, "r": None},
        {"l": [], "m": [], "r": {"x": 1, "y": None}},
    ]
    assert builder.build().num_rows == 0
    for bad in ([1], 5), ({"k": 1}, {"k": "x"}), (None, None, {"z": 1}):
        with pytest.raises(SchemaMismatchError):
            builder.append((*bad, *[None] * (3 - len(bad))))
    assert builder.row_count == 0


def test_numbers_of_numpy_and_timestamps_of_pandas() -> None:
    assert _one(DataTypes.int(), numpy.int16(5)) == 5
    assert _one(DataTypes.double(), numpy.float32(0.5)) == 0.5
    with pytest.raises(SchemaMismatchError):
        _one(DataTypes.int(), numpy.float64(5))
    with pytest.raises(SchemaMismatchError):
        _one(DataTypes.int(), numpy.bool_(True))
    assert _one(DataTypes.timestamp(9), pandas.NaT) is None
    builder = RowBuilder(Schema.of([Column("t", DataTypes.timestamp(9))]))
    builder.append((pandas.Timestamp(1_000_000_007, unit="ns"),))
    builder.append((numpy.datetime64(-1, "ns"),))
    assert builder.build().column(0).cast(pa.int64()).to_pylist() == [1_000_000_007, -1]


def test_batch_has_the_table_s_arrow_schema() -> None:
    builder = RowBuilder(SCHEMA)
    assert builder.build().schema == pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def test_characters_of_a_text_subclass_count() -> None:
    assert _one(DataTypes.string(), Shade.DARK) == "dark"


@pytest.mark.parametrize("precision", [0, 3, 6, 9])
@pytest.mark.parametrize(
    "zone",
    [None, UTC, EAST, timezone(-timedelta(hours=3, seconds=7, microseconds=5))],
    ids=["none", "utc", "2h", "odd"],
)
def test_timestamps_are_exact(precision: int, zone: timezone | None) -> None:
    moments = [
        datetime(1969, 12, 31, 23, 59, 59, 999_999),
        datetime(1970, 1, 1),
        datetime(1900, 2, 28, 23, 59, 59, 1),
        datetime(2000, 2, 29, 12, 0, 0, 500_000),
    ]
    if precision < 9:
        moments += [datetime.min, datetime.max]
    epoch = datetime(1970, 1, 1, tzinfo=zone and UTC)
    builder = RowBuilder(Schema.of([Column("t", DataTypes.timestamp_ltz(precision))]))
    expected = []
    for moment in moments:
        aware = moment.replace(tzinfo=zone)
        builder.append((aware,))
        microseconds = (aware - epoch) // timedelta(microseconds=1)
        expected.append(microseconds * 1_000 if precision == 9 else microseconds // 10 ** (6 - precision))
    assert builder.build().column(0).view(pa.int64()).to_pylist() == expected


def test_every_day_of_the_calendar() -> None:
    builder = RowBuilder(Schema.of([Column("d", DataTypes.date())]))
    ordinals = range(1, date.max.toordinal() + 1, 1 if kernel.COMPILED else 97)
    for ordinal in ordinals:
        builder.append((date.fromordinal(ordinal),))
    epoch = date(1970, 1, 1).toordinal()
    days = builder.build().column(0).view(pa.int32()).to_pylist()
    assert days == [ordinal - epoch for ordinal in ordinals]


@pytest.mark.parametrize("row_count", [63, 64, 65, 1000])
def test_refused_rows_leave_nothing_behind(row_count: int) -> None:
    columns = [Column(f"c{index}", data_type) for index, (data_type, _) in enumerate(EVERY_SCALAR)]
    builder = RowBuilder(Schema.of([*columns, Column("last", DataTypes.boolean().not_null())]))
    rows = [
        tuple(None if (number + index) % 3 == 0 else value for index, (_, value) in enumerate(EVERY_SCALAR))
        for number in range(row_count)
    ]
    for number, row in enumerate(rows):
        size = builder.estimated_bytes
        with pytest.raises(SchemaMismatchError):
            builder.append((*rows[(number + 1) % row_count], None))
        assert (builder.row_count, builder.estimated_bytes) == (number, size)
        builder.append((*row, True))
    batch = builder.build()
    batch.validate(full=True)
    assert to_tuples(batch) == [(*row, True) for row in rows]
    assert builder.build().num_rows == 0


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.LZ4_FRAME])
def test_a_payload_of_few_rows_is_that_of_their_record_batch(compression: Compression) -> None:
    codec = Codec(compression)
    columns = [Column(f"c{index}", data_type) for index, (data_type, _) in enumerate(EVERY_SCALAR)]
    builder = RowBuilder(Schema.of([*columns, Column("last", DataTypes.boolean().not_null())]))
    for row_count in range(1, 8):
        rows = [
            (*(None if (number + index) % 4 == 0 else value for index, (_, value) in enumerate(EVERY_SCALAR)), True)
            for number in range(row_count)
        ]
        for row in rows:
            builder.append(row)
        expected = payload.encode(builder.build(), codec)
        for row in rows:
            with pytest.raises(SchemaMismatchError):
                builder.append((*row[1:], None, None))
            builder.append(row)
        assert builder.build_payload(codec) == expected.to_pybytes()
        assert builder.row_count == 0


def test_other_rows_have_no_payload_of_their_own() -> None:
    many, nested = RowBuilder(SCHEMA), RowBuilder(Schema.of([Column("l", DataTypes.array(DataTypes.int()))]))
    for _ in range(500):
        many.append((1, "a"))
    nested.append(([1],))
    for builder, row_count in ((many, 500), (nested, 1), (RowBuilder(SCHEMA), 0)):
        for _ in range(2):
            assert builder.build_payload(Codec()) is None
            assert builder.row_count == row_count
        payload.encode(builder.build(), Codec())


def test_a_column_is_refused_more_than_offsets_can_reach() -> None:
    builder = RowBuilder(Schema.of([Column("b", DataTypes.bytes())]))
    builder.append((b"0123456789",))
    with pytest.raises(SchemaMismatchError, match="'b': the rows take more than 2147483647 bytes; write fewer"):
        builder.append((bytes((1 << 31) - 10),))  # zeros that are not touched take no memory
    builder.append((b"x",))
    assert to_rows(builder.build()) == [{"b": b"0123456789"}, {"b": b"x"}]


def test_a_value_s_own_code_can_not_use_the_builder() -> None:
    class Number:
        def __init__(self, action: str) -> None:
            self.action = action

        def __index__(self) -> int:
            builder.append((2,)) if self.action == "append" else builder.build()
            return 1

    builder = RowBuilder(Schema.of([Column("x", DataTypes.int())]))
    builder.append((7,))
    for action in ("append", "build"):
        with pytest.raises(RuntimeError, match="one thread at a time"):
            builder.append((Number(action),))
    assert to_rows(builder.build()) == [{"x": 7}]


def test_rows_need_no_pandas_on_their_whole_way() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS],
        input=pickle.dumps(EVERY_SCALAR),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == [b"True", b"False"]


def test_a_gate_takes_rows_until_the_appender_has_enough() -> None:
    lock = threading.Lock()
    filled: list[int] = []
    builder = RowBuilder(Schema.of([Column("x", DataTypes.int())]))
    gate = kernel.RowGate(lock)
    assert gate.take([0]) is None
    with lock:
        gate.open(builder.appender, 10, "answer", lambda: filled.append(builder.row_count))
    assert [gate.take([number]) for number in range(2)] == ["answer"] * 2
    assert filled == [2]
    with pytest.raises(SchemaMismatchError):
        gate.take(["no number"])
    assert not lock.locked()
    with lock:
        gate.close()
    assert gate.take([2]) is None
    assert builder.build().column(0).to_pylist() == [0, 1]
