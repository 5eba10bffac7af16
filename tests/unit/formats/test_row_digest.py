"""Digests of rows: the same for the same rows however they are cut and ordered, another one when a value changes."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats import _kernel as plain
from fluss.formats import kernel
from fluss.formats.arrow import payload
from fluss.formats.arrow.payload import Codec, Compression
from fluss.formats.rows.digest import RowDigest, sum_of
from fluss.kernels.codes import CODE_FIXED_BYTES
from fluss.model.errors import SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.schema import Column, Schema
from tests.kit.formats.batches import batch_of
from tests.kit.formats.modes import COMPILED, needs_both
from tests.kit.formats.strategies import nested_tables, tables

Table = tuple[list[Column], list[tuple[Any, ...]]]
ANY_TABLE = st.one_of(tables(), nested_tables())
FUNCTIONS = ("add_hashes", "add_hashes_of_bytes", "sum_hashes")


def digest(*batches: pa.RecordBatch, kind: str = "") -> int:
    made = RowDigest(range(batches[0].num_columns), kind)
    for batch in batches:
        made.add(batch)
    assert made.row_count == sum(batch.num_rows for batch in batches)
    return made.value


def of_column(values: list[Any], arrow_type: pa.DataType) -> int:
    return digest(pa.record_batch({"c": pa.array(values, arrow_type)}))


@pytest.fixture(params=["in use", "plain"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        for name in FUNCTIONS:
            monkeypatch.setattr(kernel, name, getattr(plain, name))


def pieces(batch: pa.RecordBatch, chance: random.Random) -> Iterator[pa.RecordBatch]:
    start = 0
    while start < batch.num_rows:
        count = chance.randint(1, 4)
        yield batch.slice(start, count)
        start += count


@given(table=ANY_TABLE, chance=st.randoms(use_true_random=False))
def test_neither_order_nor_cut_matters(table: Table, chance: random.Random) -> None:
    columns, rows = table
    batch = batch_of(columns, rows)
    first = digest(batch)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    cut = list(pieces(batch_of(columns, shuffled), chance)) or [batch]
    assert digest(*cut) == first
    assert sum_of(digest(piece) for piece in cut) == first
    order = pa.array(chance.sample(range(len(rows)), len(rows)), pa.int64())
    assert digest(batch.take(order)) == first


@given(table=ANY_TABLE, codec=st.sampled_from([Codec(item) for item in Compression]), start=st.integers(0, 12))
def test_neither_do_buffers(table: Table, codec: Codec, start: int) -> None:
    """What was encoded, compressed and read again, or stands behind other rows, is the same."""
    columns, rows = table
    batch = batch_of(columns, rows)
    again = payload.decode(payload.encode(batch, codec), arrow_schema(Schema.of(columns)))
    assert digest(again) == digest(batch)
    assert digest(batch.slice(start)) == digest(batch_of(columns, rows[start:]))


@given(table=ANY_TABLE, data=st.data())
def test_another_value_makes_another_digest(table: Table, data: st.DataObject) -> None:
    columns, rows = table
    if not rows:
        return
    at = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, len(columns) - 1))
    other = data.draw(st.integers(0, len(rows) - 1))
    # A value of another row is one of its type.
    changed = [list(row) for row in rows]
    changed[at][column] = rows[other][column]
    before, after = batch_of(columns, rows), batch_of(columns, [tuple(row) for row in changed])
    assert (digest(before) == digest(after)) is _same_rows(before, after)


def _same_rows(one: pa.RecordBatch, two: pa.RecordBatch) -> bool:
    def keys(batch: pa.RecordBatch) -> list[str]:
        return sorted(map(repr, batch.to_pylist()))

    return keys(one) == keys(two)


@needs_both
@given(table=ANY_TABLE)
def test_the_compiled_kernel_and_the_plain_one_agree(table: Table) -> None:
    batch = batch_of(*table)
    values = []
    for implementation in (plain, COMPILED):
        with pytest.MonkeyPatch.context() as patch:
            for name in FUNCTIONS:
                patch.setattr(kernel, name, getattr(implementation, name))
            values.append(digest(batch))
    assert values[0] == values[1]


INNER = pa.struct([("x", pa.int64()), ("y", pa.string())])
DIFFERENT: list[tuple[pa.DataType, list[list[Any]]]] = [
    (pa.string(), [[], [None], [""], ["", ""], ["\0"], ["a"], ["ab"], ["a", "b"], ["b" * 8], ["b" * 16], ["b" * 17]]),
    (pa.binary(), [[b"a" * size] for size in range(40)]),
    (pa.int64(), [[0], [None], [1], [-1], [1, 1], [2], [2**63 - 1], [-(2**63)]]),
    (pa.int8(), [[0], [None], [-1], [127]]),
    (pa.bool_(), [[True], [False], [None], [True, False], [False, False]]),
    (pa.float64(), [[0.0], [-0.0], [math.inf], [-math.inf], [math.nan], [None], [1.0]]),
    (pa.float32(), [[0.0], [-0.0], [math.inf], [-math.inf], [math.nan], [None], [1.0]]),
    (pa.list_(pa.int64()), [[None], [[]], [[None]], [[0]], [[0, 0]], [[0], [0]], [[1, 2]], [[2, 1]], [[None, 1]]]),
    (pa.list_(pa.list_(pa.string())), [[[["a"], ["b"]]], [[["a", "b"]]], [[["ab"]]], [[[], ["a", "b"]]], [[[]]], [[]]]),
    (INNER, [[None], [{"x": None, "y": None}], [{"x": 0, "y": ""}], [{"x": 0, "y": None}], [{"x": None, "y": ""}]]),
    (pa.map_(pa.string(), pa.int64()), [[None], [[]], [[("a", 1)]], [[("a", None)]], [[("b", 1)]], [[("a", 1)] * 2]]),
    (pa.decimal128(38, 2), [[None], *([Decimal(value)] for value in (0, 1, -1, 10**30, -(10**30)))]),
]


@pytest.mark.parametrize(("arrow_type", "columns"), DIFFERENT, ids=lambda value: str(value)[:20])
def test_what_looks_alike_is_told_apart(mode: None, arrow_type: pa.DataType, columns: list[list[Any]]) -> None:
    assert len({of_column(values, arrow_type) for values in columns}) == len(columns)


def test_values_that_change_places_change_the_digest(mode: None) -> None:
    names = ["a", "b"]
    rows = [pa.record_batch([pa.array([left]), pa.array([right])], names) for left, right in ((1, 2), (2, 1), (2, 2))]
    assert len(set(map(digest, rows))) == 3
    # Also when both rows have the same values in all.
    assert digest(rows[0], rows[1]) != digest(
        pa.record_batch([pa.array([1, 2]), pa.array([1, 2])], names), rows[1].slice(1)
    )


@pytest.mark.parametrize(("arrow_type", "text"), [(pa.float64(), "<Q"), (pa.float32(), "<I")])
def test_all_nans_are_one(mode: None, arrow_type: pa.DataType, text: str) -> None:
    patterns = {
        "<Q": (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF),
        "<I": (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF),
    }[text]
    found = set()
    for pattern in patterns:
        array = pa.Array.from_buffers(arrow_type, 1, [None, pa.py_buffer(struct.pack(text, pattern))])
        found.add(digest(pa.record_batch([array], ["c"])))
    assert found == {of_column([math.nan], arrow_type)}


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"x"])
def test_what_lies_behind_a_null_does_not_matter(mode: None, fill: bytes) -> None:
    validity = pa.py_buffer(b"\x05" + fill)  # rows 0 and 2 are there
    numbers = pa.py_buffer(struct.pack("<q", 7) + fill * 8 + struct.pack("<q", 9))
    ends = pa.py_buffer(struct.pack("<4i", 0, 1, 3, 4))
    columns = {
        pa.int64(): ([validity, numbers], [7, None, 9]),
        pa.string(): ([validity, ends, pa.py_buffer(b"a" + fill * 2 + b"b")], ["a", None, "b"]),
    }
    for arrow_type, (buffers, values) in columns.items():
        array = pa.Array.from_buffers(arrow_type, 3, buffers)
        assert digest(pa.record_batch([array], ["c"])) == of_column(values, arrow_type)


def test_a_new_column_of_nulls_changes_nothing(mode: None) -> None:
    """So a batch may come again after its table got a column."""
    before = pa.record_batch({"a": [1, 2]})
    after = pa.record_batch({"a": [1, 2], "b": pa.nulls(2, pa.string())})
    assert digest(before) == digest(after)


def test_kinds_are_told_apart(mode: None) -> None:
    rows = pa.record_batch({"a": [1, 2]})
    assert len({digest(rows, kind=kind) for kind in ("", "deletes", "columns [0]", "columns [0, 1]")}) == 4


def test_many_rows_are_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.record_batch({"a": range(100_000), "b": [[number, None] for number in range(100_000)]})
    assert digest(rows) == digest(rows.slice(99_999), rows.slice(0, 99_999))
    assert digest(rows) != digest(rows.slice(0, 99_999), rows.slice(0, 1))


@pytest.mark.parametrize("ends", [(0, 4), (0, 1_000_000), (2, 1), (-1, 2)])
def test_offsets_out_of_bounds_are_refused(mode: None, ends: tuple[int, int]) -> None:
    with pytest.raises(SchemaMismatchError, match="An Arrow column has a value at bytes"):
        kernel.add_hashes_of_bytes(bytearray(8), 0, 1, (None, struct.pack("<2i", *ends), b"abc"), 0, 0)


@pytest.mark.parametrize("buffers", [(None, b"1234567"), (b"", b"12345678")])
def test_buffers_that_are_too_short_are_refused(mode: None, buffers: tuple[bytes | None, bytes]) -> None:
    with pytest.raises(SchemaMismatchError, match="bytes where"):
        kernel.add_hashes(bytearray(8), 0, CODE_FIXED_BYTES, 8, buffers, 0)


def test_no_collisions_among_many_rows() -> None:
    """Hashes of neighbouring numbers, and of short texts, are all different."""
    makers: list[Callable[[int], Any]] = [int, float, str, lambda number: f"{number:020}"]
    for maker in makers:
        values = [maker(number) for number in range(20_000)]
        assert len({digest(pa.record_batch({"a": [value]})) for value in values}) == len(values)


def test_known_digests(mode: None) -> None:
    """They are kept in catalogs: a change of the algorithm must not go unnoticed."""
    rows = pa.record_batch(
        {
            "a": pa.array([1, None], pa.int64()),
            "b": ["text", "a longer text of 29 characters"],
            "c": [[1.5, None], []],
            "d": [True, False],
        }
    )
    assert f"{digest(rows):016x}" == "44962c281983dd79"
