"""Merging column by column against a model: a dict, one record at a time, one Python function per aggregate."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from datetime import datetime, time
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.batches.kv_batch import KvRecords
from fluss.formats.changelog import aggregation
from fluss.formats.changelog.aggregation import CHANGES_SIZE_MAX_BYTES
from fluss.formats.changelog.fold import FoldedPuts, Folder
from fluss.formats.rows.python_rows import to_tuples
from fluss.formats.rows.values import ValueCodec
from fluss.model.aggregation import AggFunction
from fluss.model.descriptor import KvFormat
from fluss.model.errors import InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.tables.merge_rules import DeleteBehavior, MergeEngine, MergeRules
from fluss.model.types import DataType, DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.strategies import SCALARS

Row = tuple[Any, ...]
INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
ALLOW, IGNORE = DeleteBehavior.ALLOW, DeleteBehavior.IGNORE
KEY = 1  # not the first column, so that indexes and order are not the same by chance


class Case(NamedTuple):
    """A column's type and function, its values, and what the function does with two that are not null."""

    data_type: DataType
    function: AggFunction | None
    values: st.SearchStrategy[Any]
    merge: Callable[[Any, Any], Any]

    def of(self, old: Any, new: Any) -> Any:
        if self.function == AggFunction("last_value"):
            return new
        if old is None or new is None:
            return new if old is None else old
        return self.merge(old, new)


def _wrapped(bits: int, merge: Callable[[int, int], int], left: int, right: int) -> int:
    pattern = merge(left, right) & ((1 << bits) - 1)
    return pattern - (1 << bits) if pattern >> (bits - 1) else pattern


def _single(number: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def _product(precision: int, scale: int, left: Decimal, right: Decimal) -> Decimal | None:
    with localcontext() as context:
        context.prec = 100
        product = (left * right).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        return product if abs(product) < Decimal(10) ** (precision - scale) else None


def _sum(precision: int, scale: int, left: Decimal, right: Decimal) -> Decimal | None:
    with localcontext() as context:
        context.prec = 100
        total = left + right
        return total if abs(total) < Decimal(10) ** (precision - scale) else None


def _cases() -> list[Case]:
    cases = []
    integers = [(8, DataTypes.tinyint()), (16, DataTypes.smallint()), (32, DataTypes.int()), (64, DataTypes.bigint())]
    for bits, data_type in integers:
        limit = 1 << (bits - 1)
        numbers = st.integers(-limit, limit - 1) | st.integers(-2, 2)
        for name, merge in (("sum", int.__add__), ("product", int.__mul__)):
            cases.append(Case(data_type, AggFunction(name), numbers, partial(_wrapped, bits, merge)))
    singles, doubles = st.floats(width=32, allow_nan=False), st.floats(allow_nan=False)
    small = st.floats(-1e6, 1e6, width=32)  # infinite ones of different sign add up to NaN, see below
    cases += [
        Case(DataTypes.float(), AggFunction("sum"), small, lambda a, b: _single(a + b)),
        Case(DataTypes.float(), AggFunction("product"), small, lambda a, b: _single(a * b)),
        Case(DataTypes.double(), AggFunction("sum"), small, float.__add__),
        Case(DataTypes.double(), AggFunction("product"), small, float.__mul__),
        Case(DataTypes.boolean(), AggFunction("bool_and"), st.booleans(), lambda a, b: a and b),
        Case(DataTypes.boolean(), AggFunction("bool_or"), st.booleans(), lambda a, b: a or b),
    ]
    for precision, scale in ((38, 0), (38, 37), (19, 2)):
        limit = 10**precision
        decimals = (st.integers(1 - limit, limit - 1) | st.integers(-30, 30)).map(
            lambda unscaled, scale=scale: Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
        )
        kind = DataTypes.decimal(precision, scale)
        for name, function in (("sum", _sum), ("product", _product)):
            cases.append(Case(kind, AggFunction(name), decimals, partial(function, precision, scale)))
    cases.append(
        Case(DataTypes.decimal(18, 2), AggFunction("sum"), st.integers(-9, 9).map(Decimal), lambda a, b: a + b)
    )
    for data_type, values in SCALARS:
        cases.append(Case(data_type, None, values, lambda old, new: new))
        cases.append(Case(data_type, AggFunction("last_value"), values, lambda old, new: new))
        cases.append(Case(data_type, AggFunction("last_value_ignore_nulls"), values, lambda old, new: new))
        cases.append(Case(data_type, AggFunction("first_value"), values, lambda old, new: old))
        cases.append(Case(data_type, AggFunction("first_value_ignore_nulls"), values, lambda old, new: old))
        if str(data_type) not in ("boolean", "bytes") and not str(data_type).startswith("binary"):
            numbers = {"float": singles, "double": doubles}.get(str(data_type), values)
            cases.append(Case(data_type, AggFunction("max"), numbers, lambda a, b: max(a, b, key=_order)))
            cases.append(Case(data_type, AggFunction("min"), numbers, lambda a, b: min(a, b, key=_order)))
    texts = st.text("aä€😀,|", max_size=4)
    cases += [
        Case(DataTypes.string(), AggFunction("listagg"), texts, lambda a, b: f"{a},{b}"),
        Case(DataTypes.string(), AggFunction("string_agg", {"delimiter": "→"}), texts, lambda a, b: f"{a}→{b}"),
    ]
    lists = st.lists(st.none() | st.integers(0, 9), max_size=3)
    cases.append(Case(DataTypes.array(DataTypes.int()), None, lists, lambda old, new: new))
    cases.append(Case(DataTypes.array(DataTypes.int()), AggFunction("first_value"), lists, lambda old, new: old))
    return cases


def _order(value: Any) -> Any:
    """Java's: texts by their bytes, and -0.0 before 0.0."""
    if isinstance(value, str):
        return value.encode()
    return (value, math.copysign(1.0, value)) if isinstance(value, float) else value


CASES = _cases()


class Table:
    """A table of some cases, and the model of it."""

    def __init__(
        self, cases: Sequence[Case], deletes: DeleteBehavior | None = None, kv_format: str = KvFormat.COMPACTED
    ) -> None:
        columns = [Column(f"c{i}", case.data_type, None, case.function) for i, case in enumerate(cases)]
        columns.insert(KEY, Column("id", DataTypes.int()))
        self.cases: list[Case | None] = [*cases[:KEY], None, *cases[KEY:]]
        self.schema = Schema.of(columns, ["id"])
        self.codec = ValueCodec({1: self.schema}, kv_format)
        self.rules = MergeRules(MergeEngine.AGGREGATION, delete_behavior=deletes)
        self.folder = Folder(self.rules, self.codec)
        self.rows: dict[int, Row] = {}

    def fold(
        self, batch: Sequence[tuple[int, Row | None]], targets: Sequence[int] = (), overwrite: bool = False
    ) -> FoldedPuts:
        encoded = self.values([row for _, row in batch if row is not None])
        records = KvRecords(
            [key_of(key) for key, _ in batch], [None if row is None else encoded.pop(0) for _, row in batch]
        )
        keys = self.folder.keys_to_read(records, targets, overwrite=overwrite)
        stored = dict(zip(map(key_of, self.rows), self.values(list(self.rows.values())), strict=True))
        return self.folder.fold(records, {key: stored.get(key) for key in keys}, targets, overwrite=overwrite)

    def values(self, rows: list[Row]) -> list[bytes]:
        return self.codec.encode(batch_of(self.schema.columns, rows))

    def check(
        self, batch: Sequence[tuple[int, Row | None]], targets: Sequence[int] = (), overwrite: bool = False
    ) -> list[tuple[int, Row]]:
        """Fold a batch and compare; the model then has it too."""
        changes = self.fold(batch, targets, overwrite)
        expected: list[tuple[int, Row]] = []
        changed: dict[int, Row | None] = {}
        for key, new in batch:
            old = self.rows.get(key)
            if new is None and (old is None or (self.rules.deletes is IGNORE and not overwrite)):
                continue
            left = self._left(old, key, new, targets, overwrite)
            if left is None:
                assert old is not None
                expected.append((DELETE, old))
                del self.rows[key]
            else:
                expected += [(INSERT, left)] if old is None else [(BEFORE, old), (AFTER, left)]
                self.rows[key] = left
            changed[key] = left
        assert list(zip(changes.change_types, to_tuples(changes.rows), strict=True)) == expected
        assert changes.keys == [key_of(row[KEY]) for _, row in expected]
        assert list(changes.state) == [key_of(key) for key in changed]
        remaining = [value for value in changes.state.values() if value is not None]
        assert to_tuples(self.codec.decode(remaining)) == [row for row in changed.values() if row is not None]
        assert [value is None for value in changes.state.values()] == [row is None for row in changed.values()]
        return expected

    def _left(self, old: Row | None, key: int, new: Row | None, targets: Sequence[int], overwrite: bool) -> Row | None:
        chosen = set(targets or range(len(self.cases)))
        if new is None:
            if old is None or all(value is None for i, value in enumerate(old) if i not in chosen):
                return None
            return tuple(None if i in chosen and i != KEY else value for i, value in enumerate(old))
        row = []
        for i, case in enumerate(self.cases):
            before = None if old is None else old[i]
            if case is None:
                row.append(key)
            elif i not in chosen:
                row.append(before)
            else:
                row.append(new[i] if overwrite or old is None else case.of(before, new[i]))
        return tuple(row)


def key_of(key: int) -> bytes:
    return bytes([key])


@st.composite
def tables_and_batches(draw: st.DrawFn, deletes: bool) -> Any:
    cases = [CASES[i] for i in draw(st.lists(st.integers(0, len(CASES) - 1), min_size=1, max_size=6))]
    table = Table(cases, ALLOW if deletes else None, draw(st.sampled_from(list(KvFormat))))
    keys = st.integers(0, 2)
    values = [st.none() | case.values for case in cases]
    rows = st.tuples(keys, *values).map(lambda row: (*row[1 : KEY + 1], row[0], *row[KEY + 1 :]))
    table.rows = {row[KEY]: row for row in draw(st.lists(rows, max_size=2))}
    batch = draw(st.lists(st.tuples(rows, st.booleans()), max_size=10))
    return table, [(row[KEY], None if is_delete else row) for row, is_delete in batch]


def _as_stored(content: Any) -> Any:
    """Times of day have milliseconds, whatever the column's precision: as rows keep them."""
    table, batch = content
    kept = to_tuples(table.codec.decode(table.values([row for _, row in batch if row is not None])))
    return table, [(key, None if row is None else kept.pop(0)) for key, row in batch]


@given(content=tables_and_batches(deletes=False).map(_as_stored))
def test_whole_rows(content: Any) -> None:
    table, batch = content
    table.rows = {row[KEY]: row for row in to_tuples(table.codec.decode(table.values(list(table.rows.values()))))}
    table.check(batch)


@given(content=tables_and_batches(deletes=True).map(_as_stored), data=st.data(), overwrite=st.booleans())
def test_partial_updates_and_deletes(content: Any, data: st.DataObject, overwrite: bool) -> None:
    table, batch = content
    table.rows = {row[KEY]: row for row in to_tuples(table.codec.decode(table.values(list(table.rows.values()))))}
    others = data.draw(st.sets(st.integers(0, len(table.cases) - 1)))
    if overwrite and others <= {KEY}:
        others = {0}  # With the key alone a default update changes nothing; test_changelog.py has that.
    table.check(batch, sorted({*others, KEY}) if others else (), overwrite)


def fold_one(case: Case, *values: Any) -> list[Any]:
    """What each of some values, put one after the other in one batch at one key, leaves."""
    table = Table([case])
    changes = table.fold([(1, (value, 1)) for value in values])
    kept = [change in (INSERT, AFTER) for change in changes.change_types]
    return changes.rows.column(0).filter(pa.array(kept)).to_pylist()


def _case(data_type: DataType, name: str) -> Case:
    return Case(data_type, AggFunction(name), st.nothing(), max)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("data_type", [DataTypes.float(), DataTypes.double()])
@pytest.mark.parametrize(
    ("name", "values", "left"),
    [
        # As Apache Fluss 0.9.1 answers.
        ("max", [1.0, NAN, 2.0], [1.0, NAN, NAN]),
        ("min", [1.0, NAN, 2.0], [1.0, 1.0, 1.0]),
        ("sum", [1.0, NAN, 2.0], [1.0, NAN, NAN]),
        ("max", [0.0, -0.0, 0.0], [0.0, 0.0, 0.0]),
        ("min", [0.0, -0.0, 0.0], [0.0, -0.0, -0.0]),
        ("product", [0.0, -0.0, 0.0], [0.0, -0.0, -0.0]),
        ("sum", [INF, -INF, 3.0], [INF, NAN, NAN]),
        ("max", [-INF, -3.5, -4.5, INF], [-INF, -3.5, -3.5, INF]),
        ("min", [INF, 3.5, 4.5, -INF], [INF, 3.5, 3.5, -INF]),
        ("max", [1.5, 2.5, 2.0, -7.0], [1.5, 2.5, 2.5, 2.5]),
    ],
)
def test_floats(data_type: DataType, name: str, values: list[float], left: list[float]) -> None:
    assert str(fold_one(_case(data_type, name), *values)) == str(left)


def test_sums_of_32_bits_round_each_time() -> None:
    assert fold_one(_case(DataTypes.float(), "sum"), 2.0**24, 1.0, 1.0) == [2.0**24] * 3
    assert fold_one(_case(DataTypes.double(), "sum"), 2.0**24, 1.0, 1.0)[-1] == 2.0**24 + 2
    assert fold_one(_case(DataTypes.float(), "sum"), 3e38, 3e38)[-1] == INF
    assert fold_one(_case(DataTypes.float(), "product"), -3e38, 3e38)[-1] == -INF


def test_decimals_with_too_many_digits() -> None:
    long, short = DataTypes.decimal(20, 2), DataTypes.decimal(5, 2)
    most = Decimal("9" * 18 + ".99")
    assert fold_one(_case(long, "sum"), most, Decimal("0.01"), Decimal(1)) == [most, None, Decimal("1.00")]
    assert fold_one(_case(short, "product"), Decimal("999.99"), Decimal(10)) == [Decimal("999.99"), None]
    assert fold_one(_case(short, "product"), Decimal("0.15"), Decimal("0.10")) == [Decimal("0.15"), Decimal("0.02")]
    assert fold_one(_case(short, "product"), Decimal("-0.15"), Decimal("0.10"))[-1] == Decimal("-0.02")
    with pytest.raises(InvalidRequestError, match=r"A sum in 'c0' has more digits than its type decimal\(5,2\) holds"):
        fold_one(_case(short, "sum"), Decimal("999.99"), Decimal("0.01"))


def test_times_are_compared_as_numbers() -> None:
    before, epoch = datetime(1969, 12, 31, 23), datetime(1970, 1, 1)
    assert fold_one(_case(DataTypes.timestamp(3), "max"), epoch, before) == [epoch, epoch]
    assert fold_one(_case(DataTypes.timestamp(9), "min"), epoch, before, epoch) == [epoch, before, before]
    assert fold_one(_case(DataTypes.time(), "max"), time(1), time(23), time(2)) == [time(1), time(23), time(23)]


def bitmap(numbers: Any) -> bytes:
    pyroaring = pytest.importorskip("pyroaring")
    made = pyroaring.BitMap(numbers)
    made.run_optimize()
    return made.serialize()


def test_bitmaps() -> None:
    case = _case(DataTypes.bytes(), "rbm32")
    # The bytes are those that Apache Fluss 0.9.1 leaves.
    first = bytes.fromhex("3a300000010000000000020010000000010002000300")
    second = bytes.fromhex("3a3000000200000000000300010000001800000020000000010002000300050070 11".replace(" ", ""))
    assert fold_one(case, bitmap([1, 2, 3]), None, bitmap([5, 70_000])) == [first, first, second]
    runs = bytes.fromhex(
        "3b300100030000 1bfc 0100 8f5f 0300 0100 0200 0500 0000 e803 17fc 0100 0000 8f5f".replace(" ", "")
    )
    assert fold_one(case, second, bitmap(range(1000, 90_000)))[-1] == runs
    with pytest.raises(InvalidRequestError, match="'c0' is not a 32-bit Roaring bitmap"):
        fold_one(case, b"xx", first)


def test_a_null_row_and_a_null_value() -> None:
    assert fold_one(_case(DataTypes.int(), "last_value"), 1, None, 2) == [1, None, 2]
    for name in ("sum", "max", "min", "product", "first_value", "last_value_ignore_nulls"):
        assert fold_one(_case(DataTypes.int(), name), None, None, 4, None) == [None, None, 4, 4]


def test_an_aggregate_can_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * 1000
    rows = [(1, (text, 1))] * 1000  # together 500 MB
    assert CHANGES_SIZE_MAX_BYTES < 500 * 1000 * 1000
    with pytest.raises(InvalidRequestError, match="write fewer rows at a time") as caught:
        Table([_case(DataTypes.string(), "listagg")]).fold(rows)
    assert caught.value.error_code == 13
    monkeypatch.setattr(aggregation, "CHANGES_SIZE_MAX_BYTES", 10_000)
    lists = Case(DataTypes.array(DataTypes.string()), AggFunction("first_value"), st.nothing(), max)
    mapped = Case(
        DataTypes.map(DataTypes.int(), DataTypes.array(DataTypes.string())),
        AggFunction("last_value"),
        st.nothing(),
        max,
    )
    for case, value in ((lists, [text, None]), (mapped, [(1, [text])])):
        table = Table([case])
        table.fold([(1, (value, 1))])
        with pytest.raises(InvalidRequestError, match=r"take \d+ bytes, and 10000 are allowed"):
            table.fold([(1, (value, 1))] * 6)
    bitmaps = Table([_case(DataTypes.bytes(), "rbm32")])
    with pytest.raises(InvalidRequestError, match="are allowed"):
        bitmaps.fold([(1, (bitmap([number * 70_000 for number in range(500)]), 1))] * 3)


def test_a_result_that_can_not_be_null() -> None:
    columns = [
        Column("id", DataTypes.int()),
        Column("d", DataTypes.decimal(19, 0).not_null(), None, AggFunction("sum")),
    ]
    codec = ValueCodec({1: Schema.of(columns, ["id"])})
    most = Decimal(10) ** 19 - 1
    values = codec.encode(batch_of(columns, [(1, most), (1, Decimal(1))]))
    with pytest.raises(InvalidRequestError, match="'d' is NOT NULL, and a row would have no value there"):
        Folder(MergeRules(MergeEngine.AGGREGATION), codec).fold(KvRecords([b"\1"] * 2, values), {})


def test_older_rows_have_no_new_columns() -> None:
    older = Schema.of([Column("id", DataTypes.int()), Column("a", DataTypes.int(), None, AggFunction("sum"))], ["id"])
    newer = Schema.of([*older.columns, Column("b", DataTypes.int(), None, AggFunction("sum"))], ["id"])
    codec = ValueCodec({1: older, 2: newer})
    folder = Folder(MergeRules(MergeEngine.AGGREGATION), codec)
    (old,) = ValueCodec({1: older}).encode(batch_of(older.columns, [(1, 5)]))
    new = codec.encode(batch_of(newer.columns, [(1, 1, 7)]))
    changes = folder.fold(KvRecords([b"\1"] * 3, [old, *new, old]), {b"\1": old})
    assert to_tuples(changes.rows)[1::2] == [(1, 10, None), (1, 11, 7), (1, 16, 7)]
    assert to_tuples(codec.decode([changes.state[b"\1"] or b""])) == [(1, 16, 7)]
