"""The columns of upsert writers: targets of partial updates, keys, and the rows and keys that fit them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fluss.client.write.upsert import KeyBuilder, UpsertColumns
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, SchemaMismatchError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.rows import GenericRow
from fluss.model.schema import Schema

COLUMNS = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.int64()), ("d", pa.float64())])


def info_of(columns: pa.Schema = COLUMNS, keys: tuple[str, ...] = ("c", "a"), auto: str | None = None) -> TableInfo:
    descriptor = TableDescriptor(Schema(columns, list(keys), auto), bucket_count=1)
    return TableInfo(TablePath("db", "t"), 1, 1, descriptor, 1, 0, 0)


def built(columns: UpsertColumns, *rows: Any) -> list[dict[str, Any]]:
    builder = columns.row_builder()
    for row in rows:
        builder.append(row)
    result: list[dict[str, Any]] = columns.widen(builder.build()).to_pylist()
    return result


def keys_of(columns: UpsertColumns, *keys: Any) -> list[dict[str, Any]]:
    builder = KeyBuilder(columns)
    for key in keys:
        builder.append(key)
    result: list[dict[str, Any]] = builder.build().to_pylist()
    return result


def test_names_and_indexes_say_the_same() -> None:
    named = UpsertColumns.named(info_of(), ["d", "a", "c"])
    numbered = UpsertColumns.numbered(info_of(), [3, 0, 2])
    assert named.targets == numbered.targets == (3, 0, 2)
    assert named.schema.column_names == ["d", "a", "c"]
    assert UpsertColumns(info_of()).targets == ()


BAD_TARGETS: list[tuple[Any, str]] = [
    (["a", "c", "x"], "no column 'x'; its columns are a, b, c, d"),
    (["a", "b"], "all columns of the primary key; 'c' is not among a, b"),
    ([], "'c' is not among none"),
    (["a", "c", "a"], "names column 'a' twice"),
]


@pytest.mark.parametrize(("names", "text"), BAD_TARGETS)
def test_bad_targets(names: list[str], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text) as caught:
        UpsertColumns.named(info_of(), names)
    assert caught.value.error_code == ErrorCode.INVALID_TARGET_COLUMN


@pytest.mark.parametrize("index", [4, -1, "a", None])
def test_bad_indexes(index: Any) -> None:
    with pytest.raises(InvalidRequestError, match="range 0 to 3"):
        UpsertColumns.numbered(info_of(), [0, 2, index])


@pytest.mark.parametrize("names", ["ac", None, 5])
def test_targets_are_a_list(names: Any) -> None:
    with pytest.raises(InvalidRequestError, match="list of column names"):
        UpsertColumns.named(info_of(), names)


def test_a_partial_update_needs_columns_that_may_be_null() -> None:
    columns = pa.schema([("a", pa.int32()), ("b", pa.string()), pa.field("c", pa.int64(), nullable=False)])
    with pytest.raises(InvalidRequestError, match="'c' is bigint NOT NULL") as caught:
        UpsertColumns.named(info_of(columns, ("a",)), ["a", "c"])
    assert caught.value.error_code == ErrorCode.INVALID_TARGET_COLUMN


def test_rows_of_a_partial_update() -> None:
    columns = UpsertColumns.named(info_of(), ["d", "a", "c"])
    rows = [
        {"a": 1, "c": 2, "d": 3.0},
        {"c": 2, "a": 1},
        [3.0, 1, 2],
        (1, None, 2, 3.0),
        GenericRow.from_data([1, None, 2, 3.0]),
    ]
    whole = {"a": 1, "b": None, "c": 2, "d": 3.0}
    assert built(columns, *rows) == [whole, {**whole, "d": None}, whole, whole, whole]


BAD_ROWS: list[tuple[Any, str]] = [
    ({"a": 1, "c": 2, "b": "x"}, "'b' is not among those of the partial update: d, a, c"),
    ({"a": 1, "c": 2, "x": 1}, "no column 'x'"),
    ({"a": 1, "d": 1.0}, "lacks the non-nullable field 'c'"),
    ([1, "x", 2, 3.0], "'b' is not among"),
    ([1, 2], "2 values for 3 columns"),
    ([3.0, None, 2], "'a'.*NOT NULL"),
]


@pytest.mark.parametrize(("row", "text"), BAD_ROWS)
def test_bad_rows_of_a_partial_update(row: Any, text: str) -> None:
    columns = UpsertColumns.named(info_of(), ["d", "a", "c"])
    builder = columns.row_builder()
    with pytest.raises(SchemaMismatchError, match=text):
        builder.append(row)
    assert builder.row_count == 0


def test_a_row_with_as_many_values_as_the_table_has_columns() -> None:
    columns = UpsertColumns.named(info_of(), ["d", "c", "b", "a"])
    whole = {"a": 1, "b": "x", "c": 2, "d": 3.0}
    assert built(columns, [3.0, 2, "x", 1], GenericRow.from_data([1, "x", 2, 3.0]), whole) == [whole] * 3


def test_keys() -> None:
    columns = UpsertColumns(info_of())
    whole = [1, "x", 2, None]
    keys = [
        {"a": 1, "c": 2},
        [2, 1],
        (2, 1),
        {"c": 2, "a": 1, "b": 5},
        whole,
        tuple(whole),
        GenericRow.from_data(whole),
    ]
    assert keys_of(columns, *keys) == [{"c": 2, "a": 1}] * 7


def test_keys_of_a_table_with_nothing_but_key_columns() -> None:
    columns = UpsertColumns(info_of(COLUMNS, ("d", "c", "b", "a")))
    key = {"d": 4.0, "c": 3, "b": "x", "a": 1}
    assert keys_of(columns, [4.0, 3, "x", 1], GenericRow.from_data([1, "x", 3, 4.0]), key) == [key] * 3


@pytest.mark.parametrize("key", [[1], [1, 2, 3], {"a": 1}, {"a": 1, "c": 2, "x": 3}, [2, None], ["x", 1], "ca", None])
def test_bad_keys(key: Any) -> None:
    builder = KeyBuilder(UpsertColumns(info_of()))
    with pytest.raises(SchemaMismatchError):
        builder.append(key)
    assert builder.row_count == 0


@pytest.mark.parametrize("nullable", [True, False])
def test_a_numbered_column_is_left_to_the_server(nullable: bool) -> None:
    fields = pa.schema([("a", pa.int32()), pa.field("n", pa.int64(), nullable=nullable), ("b", pa.string())])
    info = info_of(fields, ("a",), "n")
    columns = UpsertColumns(info)
    assert columns.targets == (0, 2)
    filler = None if nullable else 0
    assert built(columns, {"a": 1, "b": "x"}, [1, "x"], [1, None, "x"]) == [{"a": 1, "n": filler, "b": "x"}] * 3
    for row in ({"a": 1, "n": 5}, [1, 5, "x"]):
        with pytest.raises(SchemaMismatchError, match="'n' is numbered by the server"):
            built(columns, row)
    with pytest.raises(InvalidRequestError, match="'n' is numbered by the server"):
        UpsertColumns.named(info, ["a", "n"])


def test_a_numbered_column_beside_one_that_is_not_null() -> None:
    fields = pa.schema([("a", pa.int32()), ("n", pa.int64()), pa.field("b", pa.string(), nullable=False)])
    with pytest.raises(FlussError, match=r"auto-increment column 'n'.*'b' is string NOT NULL"):
        UpsertColumns(info_of(fields, ("a",), "n"))
