"""Deletes as the JVM writes them: by position, and by the values of columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

from fluss.lake.format import EqualityDelete, LakeFile
from fluss.lake.iceberg.table import _DELETED_FROM_ID, _may_name
from fluss.lake.parquet import read_file


def field(name: str, number: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


SCHEMA = pa.schema([field("id", 1, pa.int64()), field("day", 2, pa.string()), field("note", 3, pa.string())])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.parquet"
    table = pa.table(
        {"id": range(100), "day": ["a", "b"] * 50, "note": [str(number) for number in range(100)]}, schema=SCHEMA
    )
    pq.write_table(table, path, row_group_size=30)
    return path


def positions(path: Path, rows: list[tuple[str, int]]) -> str:
    pq.write_table(pa.table({"file_path": [row[0] for row in rows], "pos": [row[1] for row in rows]}), path)
    return str(path)


def equals(path: Path, *columns: tuple[str, int, list[object]]) -> str:
    schema = pa.schema([field(name, number, SCHEMA.field(name).type) for name, number, _ in columns])
    pq.write_table(pa.table([values for _, _, values in columns], schema=schema), path)
    return str(path)


def ids(file: LakeFile, columns: tuple[str, ...] = ("id",), rows: int = 7) -> list[object]:
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fluss.lake.parquet.READ_ROWS", rows)
        return [value for batch in read_file(file, schema, {}) for value in batch.column(0).to_pylist()]


def test_rows_deleted_by_position(data: Path, tmp_path: Path) -> None:
    first = positions(tmp_path / "d1.parquet", [(str(data), 0), (str(data), 31), ("another.parquet", 5)])
    second = positions(tmp_path / "d2.parquet", [(str(data), 99)])
    file = LakeFile(str(data), (), 0, 100, 1, (first, second))
    assert ids(file) == [number for number in range(100) if number not in (0, 31, 99)]


def test_rows_deleted_by_value_of_columns_that_are_not_read(data: Path, tmp_path: Path) -> None:
    by_id = equals(tmp_path / "d1.parquet", ("id", 1, [3, 50, 1000]))
    more = equals(tmp_path / "d2.parquet", ("id", 1, [4]))
    both = equals(tmp_path / "d3.parquet", ("day", 2, ["b", "a"]), ("id", 1, [6, 8]))
    deletes = (EqualityDelete(by_id, (1,)), EqualityDelete(more, (1,)), EqualityDelete(both, (2, 1)))
    file = LakeFile(str(data), (), 0, 100, 1, (), deletes)
    # 6 is of day a: only (b, 6) was deleted.
    expected = [str(number) for number in range(100) if number not in (3, 4, 8, 50)]
    assert ids(file, ("note",)) == expected


def test_both_kinds_at_once(data: Path, tmp_path: Path) -> None:
    by_position = positions(tmp_path / "d1.parquet", [(str(data), 10)])
    by_id = equals(tmp_path / "d2.parquet", ("id", 1, [11]))
    file = LakeFile(str(data), (), 0, 100, 1, (by_position,), (EqualityDelete(by_id, (1,)),))
    assert ids(file, rows=1000) == [number for number in range(100) if number not in (10, 11)]


@pytest.mark.parametrize(
    ("first", "last", "path", "expected"),
    [
        (b"/b", b"/b", "/b", True),
        (b"/b", b"/b", "/a", False),
        (b"/b", b"/b", "/c", False),
        (b"/a", b"/c", "/b", True),
        (None, None, "/b", True),
    ],
)
def test_files_of_deletes_that_can_have_some_of_a_file(
    first: bytes | None, last: bytes | None, path: str, expected: bool
) -> None:
    bounds = [None if value is None else {_DELETED_FROM_ID: value} for value in (first, last)]
    assert _may_name(DataFile.from_args(lower_bounds=bounds[0], upper_bounds=bounds[1]), path) is expected
