"""The compiled kernel and the plain one are the same files, and must do the same, bad input included."""

from __future__ import annotations

import copy
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats import _kernel as plain
from fluss.formats import kernel
from fluss.formats.rows.codecs import RowFormat, column_codec
from fluss.formats.rows.python_rows import RowBuilder
from fluss.formats.rows.specs import kind_of, spec_of
from fluss.kernels.codes import LAYOUT_COMPACTED, LAYOUT_INDEXED, LAYOUT_KEY
from fluss.model.errors import FlussError
from fluss.model.records import ChangeType
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.modes import EXPECT_COMPILED, damage_bytes, in_both_modes, needs_both, outcome_of
from tests.kit.formats.strategies import ANYTHING, SCALARS, nested_tables, tables

LAYOUTS = st.sampled_from([LAYOUT_KEY, LAYOUT_COMPACTED, LAYOUT_INDEXED])


def test_the_compiled_kernel_is_in_use_where_it_must_be() -> None:
    assert kernel.COMPILED or not EXPECT_COMPILED


def test_plain_kernel_says_so() -> None:
    assert plain.COMPILED is False
    assert kernel.COMPILED is (kernel.NAME == "fluss.formats._kernel_c")


def test_environment_selects_the_plain_kernel() -> None:
    script = "import fluss.formats.kernel as k; print(k.COMPILED, k.NAME)"
    environment = {**os.environ, "FLUSS_PURE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "fluss.formats._kernel"]


def test_plain_kernel_runs_without_cython() -> None:
    script = (
        "import sys; sys.modules['cython'] = None\n"
        "from fluss.formats import _kernel as k\n"
        "from fluss.kernels._cyshim import cython\n"
        "print(cython.__name__, k.hash_key(bytes.fromhex('01020304ff'), True))"
    )
    environment = {**os.environ, "FLUSS_PURE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fluss.kernels._cyshim", "303003815"]


@needs_both
@given(table=tables(), layout=LAYOUTS)
def test_encoding_and_decoding_agree(table: tuple[list[Column], list[tuple[Any, ...]]], layout: int) -> None:
    columns, rows = table
    builder = RowBuilder(Schema.of(columns))
    for row in rows:
        builder.append(row)
    batch = builder.build()
    codecs = [column_codec(column.name, column.data_type, layout) for column in columns]
    specs = [codec.spec for codec in codecs]
    sources = [codec.source(array) for codec, array in zip(codecs, batch.columns, strict=True)]
    encoded, again = in_both_modes(lambda k: k.encode_columns(sources, len(rows), layout))
    assert encoded == again
    if encoded[0] != "returned":
        return
    data, offsets = encoded[1]
    one, two = in_both_modes(lambda k: k.decode_columns(data, offsets, len(rows), specs, layout))
    assert one == two
    one, two = in_both_modes(lambda k: k.buckets(data, offsets, len(rows), 16, True))
    assert one == two


@needs_both
@given(
    choice=st.lists(st.integers(0, len(SCALARS) - 1), min_size=1, max_size=4),
    rows=st.lists(st.binary(max_size=40), max_size=5),
    layout=LAYOUTS,
)
def test_random_bytes_decode_the_same(choice: list[int], rows: list[bytes], layout: int) -> None:
    specs = [spec_of(SCALARS[index][0], layout) for index in choice]
    data, offsets = _joined(rows)
    one, two = in_both_modes(lambda k: k.decode_columns(data, offsets, len(rows), specs, layout))
    assert one == two
    one, two = in_both_modes(lambda k: k.decode_aligned(data, offsets, len(rows), specs))
    assert one == two


@needs_both
@given(data=st.data(), table=tables(max_rows=3, max_columns=5), layout=LAYOUTS)
def test_damaged_rows_decode_the_same(
    data: st.DataObject, table: tuple[list[Column], list[tuple[Any, ...]]], layout: int
) -> None:
    columns, rows = table
    codecs = [column_codec(column.name, column.data_type, layout) for column in columns]
    builder = RowBuilder(Schema.of(columns))
    for row in rows:
        builder.append(row)
    sources = [codec.source(array) for codec, array in zip(codecs, builder.build().columns, strict=True)]
    outcome = outcome_of(lambda: plain.encode_columns(sources, len(rows), layout))
    if outcome[0] != "returned" or not outcome[1][0]:
        return
    buf, offsets = outcome[1]
    damage_bytes(data, buf)
    specs = [codec.spec for codec in codecs]
    one, two = in_both_modes(lambda k: k.decode_columns(buf, offsets, len(rows), specs, layout))
    assert one == two


@needs_both
@given(
    values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**11), 10**12), max_size=5),
    units=st.sampled_from([1, 10**3, 10**6, 10**9]),
    zone=st.sampled_from([None, UTC]),
)
def test_times_are_the_same(values: list[int | None], units: int, zone: tzinfo | None) -> None:
    def made(k: Any) -> Any:
        try:
            return k.datetimes_of(values, units, zone)
        except OverflowError as error:
            return str(error)

    one, two = in_both_modes(made)
    assert one == two


@needs_both
@given(moment=st.datetimes())
def test_every_time_comes_back(moment: datetime) -> None:
    microseconds = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    one, two = in_both_modes(lambda k: k.datetimes_of([microseconds], 10**6, None))
    assert one == two == ("returned", [moment])


@needs_both
def test_rows_and_records_are_the_same() -> None:
    names, columns = ["a", "b"], [[1, None, 3], ["x", "y", None]]
    one, two = in_both_modes(lambda k: k.rows_of_columns(names, columns, 3))
    assert one == two == ("returned", [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 3, "b": None}])
    one, two = in_both_modes(lambda k: k.rows_of_columns(names, columns, 2))
    assert one == two == ("ValueError", "a column of 3 values among rows of 2")
    rows = [{"a": 1}, {"a": 2}]
    kinds = tuple(ChangeType)
    (_, one), (_, two) = in_both_modes(lambda k: k.records_of_rows(rows, 0, [7, 9], 5, kinds, b"\1\4"))
    assert repr(one) == repr(two)
    assert [record.change_type for record in one] == [ChangeType.Insert, ChangeType.Delete]
    assert [(record.offset, record.timestamp, record.row) for record in two] == [(7, 5, {"a": 1}), (9, 5, {"a": 2})]
    (_, one), (_, two) = in_both_modes(lambda k: k.records_of_rows(rows, 3, None, 5, kinds, None))
    assert repr(one) == repr(two)
    assert [(record.offset, record.change_type) for record in one] == [(3, 0), (4, 0)]


@pytest.mark.parametrize("kernel_in_use", [plain, kernel])
def test_a_record_is_a_value(kernel_in_use: Any) -> None:
    record = kernel_in_use.ScanRecord(7, 5, ChangeType.Insert, {"a": 1})
    assert record == kernel_in_use.ScanRecord(offset=7, timestamp=5, change_type=ChangeType.Insert, row={"a": 1})
    assert record != kernel_in_use.ScanRecord(8, 5, ChangeType.Insert, {"a": 1})
    assert record != (7, 5, ChangeType.Insert, {"a": 1})
    assert repr(record) == "ScanRecord(offset=7, timestamp=5, change_type=<ChangeType.Insert: 1>, row={'a': 1})"
    assert copy.copy(record) == pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(AttributeError):
        record.offset = 8
    with pytest.raises(TypeError):
        hash(record)
    match record:
        case kernel_in_use.ScanRecord(offset, _, _, {"a": value}):
            assert (offset, value) == (7, 1)
        case _:
            pytest.fail("no match")


@needs_both
def test_unset_bytes_have_their_size() -> None:
    one, two = in_both_modes(lambda k: len(k.unset_bytes(1 << 20)))
    assert one == two == ("returned", 1 << 20)


def _joined(rows: list[bytes]) -> tuple[bytes, bytes]:
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row))
    return b"".join(rows), b"".join(end.to_bytes(4, "little") for end in ends)


@needs_both
@pytest.mark.parametrize("ends", [[0, 5], [3, 1], [-1, 2], [0, 1 << 30]])
def test_offsets_that_lead_outside_are_refused(ends: list[int]) -> None:
    offsets = b"".join(end.to_bytes(4, "little", signed=True) for end in ends)
    spec = spec_of(SCALARS[0][0])
    one, two = in_both_modes(lambda k: k.decode_columns(b"\0\0\0\0", offsets, 1, [spec], LAYOUT_COMPACTED))
    assert one == two
    assert one[0] == "CorruptDataError"
    one, two = in_both_modes(lambda k: k.decode_columns(b"\0\0\0\0", offsets[:4], 1, [spec], LAYOUT_COMPACTED))
    assert one == two
    assert one[0] == "CorruptDataError"


@needs_both
@given(choice=st.integers(0, len(SCALARS) - 1), value=ANYTHING, nullable=st.booleans(), as_dict=st.booleans())
def test_any_value_is_taken_or_refused_alike(choice: int, value: Any, nullable: bool, as_dict: bool) -> None:
    data_type = SCALARS[choice][0] if nullable else SCALARS[choice][0].not_null()
    row = {"x": value} if as_dict else [value]

    def append(module: Any) -> Any:
        appender = module.RowAppender(["x"], [kind_of(data_type)])
        converted = appender.convert(row)
        size = appender.append(row)
        key = module.encode_values(["x"], [spec_of(data_type)], converted, True)
        return size, repr(converted), repr(appender.take()), key

    one, two = in_both_modes(append)
    assert one == two


@needs_both
@given(table=tables(), refused=st.sets(st.integers(0, 12)))
def test_buffers_agree(table: tuple[list[Column], list[tuple[Any, ...]]], refused: set[int]) -> None:
    columns, rows = table
    last_not_null = [*columns, Column("last", SCALARS[0][0].not_null())]

    def collect(module: Any) -> Any:
        kinds = [kind_of(column.data_type) for column in last_not_null]
        appender = module.RowAppender([column.name for column in last_not_null], kinds)
        for number, row in enumerate(rows):
            if number in refused:  # in its last column, when all others are written
                with pytest.raises(FlussError):
                    appender.append((*reversed_nulls(row), None))
            appender.append((*row, True))
        count, parts = appender.take()
        return count, [_visible(count, column) for column in parts], appender.take()

    def reversed_nulls(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if value is not None else other for value, other in zip(row, rows[-1], strict=True))

    one, two = in_both_modes(collect)
    assert one == two
    assert one[1][0] == len(rows)


def _visible(count: int, column: tuple[bytearray | None, bytearray, bytearray | None]) -> list[Any]:
    """Bits behind the last row have no particular value."""
    validity, values, data = column
    bits = None if validity is None else [validity[i >> 3] >> (i & 7) & 1 for i in range(count)]
    if len(values) == (count + 7) // 8 and data is None:
        return [bits, [values[i >> 3] >> (i & 7) & 1 for i in range(count)]]
    return [bits, values, data]


@needs_both
@given(
    ends=st.lists(st.one_of(st.integers(0, 12), st.integers(-(1 << 31), (1 << 31) - 1)), max_size=6),
    data=st.binary(max_size=12),
    start=st.integers(-1, 3),
    text=st.booleans(),
    in_order=st.booleans(),
)
def test_soundness_of_strings_agrees(ends: list[int], data: bytes, start: int, text: bool, in_order: bool) -> None:
    ends = sorted(ends) if in_order else ends
    offsets = b"".join(end.to_bytes(4, "little", signed=True) for end in ends)
    count = max(len(ends) - 1 - start, 0)
    one, two = in_both_modes(lambda k: k.are_strings_sound(memoryview(offsets), memoryview(data), start, count, text))
    assert one == two
    used = ends[start:] if start >= 0 else []
    expected = bool(used) and used == sorted(used) and used[0] >= 0 and used[-1] <= len(data)
    assert one[1] == (expected and (not text or data[used[0] : used[-1]].isascii()))


@needs_both
@pytest.mark.parametrize("row", [{}, {"x": 1, "y": 2}, {"y": 2}, [], [1, 2], 5, None, "x", {1: 2}, range(1)])
def test_shapes_are_refused_alike(row: Any) -> None:
    kind = kind_of(SCALARS[3][0].not_null())
    one, two = in_both_modes(lambda k: k.RowAppender(["x"], [kind]).append(row))
    assert one == two
    assert one[0] == "SchemaMismatchError"


@needs_both
@given(key=st.binary(max_size=40), count=st.integers(-1, 1 << 31), sign_extend=st.booleans())
def test_hashes_agree(key: bytes, count: int, sign_extend: bool) -> None:
    one, two = in_both_modes(lambda k: (k.hash_key(key, sign_extend), k.bucket_of(key, count, sign_extend)))
    assert one == two


@needs_both
@given(table=nested_tables(max_rows=4), layout=st.sampled_from([LAYOUT_COMPACTED, LAYOUT_INDEXED]), data=st.data())
def test_nested_rows_agree(table: tuple[list[Column], list[tuple[Any, ...]]], layout: int, data: st.DataObject) -> None:
    columns, rows = table
    row_format = RowFormat(columns, layout)
    batch = batch_of(columns, rows)

    def with_kernel(module: Any, call: Callable[[], Any]) -> Any:
        with mock_kernel(module):
            return call()

    encoded, again = in_both_modes(lambda k: with_kernel(k, lambda: row_format.encode(batch).to_pylist()))
    assert encoded == again
    assert encoded[0] == "returned"
    damaged = [bytearray(row) for row in encoded[1]]
    for row in damaged:
        if data.draw(st.booleans()):
            damage_bytes(data, row)
    one, two = in_both_modes(lambda k: with_kernel(k, lambda: row_format.decode([bytes(row) for row in damaged])))
    assert one == two


@contextmanager
def mock_kernel(module: Any) -> Iterator[None]:
    """Run the formats on one of the two kernels."""
    names = [name for name in vars(kernel) if name.startswith(("encode_", "decode_", "split_", "join_"))]
    before = {name: getattr(kernel, name) for name in names}
    try:
        for name in names:
            setattr(kernel, name, getattr(module, name))
        yield
    finally:
        for name, function in before.items():
            setattr(kernel, name, function)


@needs_both
@given(rows=st.lists(st.binary(max_size=40), max_size=5), choice=st.integers(0, len(SCALARS) - 1), data=st.data())
def test_random_arrays_and_maps_decode_the_same(rows: list[bytes], choice: int, data: st.DataObject) -> None:
    rows = [struct.pack("<i", data.draw(st.integers(0, 4))) + row if data.draw(st.booleans()) else row for row in rows]
    content, offsets = _joined(rows)
    validity = data.draw(st.none() | st.binary(min_size=1, max_size=1))
    spec = spec_of(SCALARS[choice][0])
    one, two = in_both_modes(lambda k: k.decode_arrays(content, offsets, validity, len(rows), spec))
    assert one == two
    one, two = in_both_modes(lambda k: k.split_maps(content, offsets, validity, len(rows)))
    assert one == two


@needs_both
@given(rows=st.lists(st.binary(max_size=9), max_size=5), damage=st.booleans(), data=st.data())
def test_records_agree(rows: list[bytes], damage: bool, data: st.DataObject) -> None:
    content, offsets = _joined(rows)
    changes = bytes(data.draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows))))
    joined, again = in_both_modes(lambda k: k.join_records(content, offsets, len(rows), changes))
    assert joined == again
    assert joined[0] == "returned"
    records = bytearray(joined[1])
    if damage and records:
        damage_bytes(data, records)
    count = len(rows) + data.draw(st.integers(-1, 1)) if damage else len(rows)
    one, two = in_both_modes(lambda k: k.split_records(records, count))
    assert one == two
    one, two = in_both_modes(lambda k: k.are_records_sound(bytes(records), count))
    assert one == two


@needs_both
@given(choice=st.integers(0, len(SCALARS) - 1), value=ANYTHING)
@pytest.mark.parametrize("wrap", [DataTypes.array, lambda inner: DataTypes.map(DataTypes.int(), inner)])
def test_any_nested_value_is_taken_or_refused_alike(wrap: Callable[[Any], Any], choice: int, value: Any) -> None:
    data_type = wrap(SCALARS[choice][0])
    for row in [value], [[value]], [{1: value}], [{value: 1}] if isinstance(value, str) else [[[value, value]]]:
        one, two = in_both_modes(lambda k, row=row: k.RowAppender(["x"], [kind_of(data_type)]).append(row))
        assert one == two
