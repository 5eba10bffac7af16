"""Everything that the append writers take, on a real server."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.testing import FlussServer

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us"))])
_numbers = itertools.count()


@pytest.fixture(scope="module")
def conn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fluss.FlussConnection]:
    with (
        FlussServer(tmp_path_factory.mktemp("server") / "data") as server,
        fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers})) as connection,
    ):
        yield connection


@pytest.fixture
def table(conn: fluss.FlussConnection) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", f"inputs_{next(_numbers)}")
    conn.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(COLUMNS)))
    return conn.get_table(path)


@pytest.fixture
def numbers(conn: fluss.FlussConnection) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", f"inputs_{next(_numbers)}")
    columns = [
        ("f", pa.float32()),
        ("n", pa.int8()),
        ("flag", pa.bool_()),
        pa.field("sure", pa.int32(), nullable=False),
    ]
    conn.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(pa.schema(columns))))
    return conn.get_table(path)


def with_sure(given: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"sure": [0] * len(next(iter(given.values()))), **given}


def rows_after(table: fluss.FlussTable, method: str, data: Any) -> list[dict[str, Any]]:
    writer = table.new_append().create_writer()
    getattr(writer, method)(data)
    writer.flush()
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    rows: list[dict[str, Any]] = scanner.to_arrow().to_pylist()
    return rows


def test_polars(table: fluss.FlussTable) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"name": ["a", None], "id": [1, 2]})
    assert rows_after(table, "write_arrow", frame) == [
        {"id": 1, "name": "a", "at": None},
        {"id": 2, "name": None, "at": None},
    ]


def test_duckdb(table: fluss.FlussTable) -> None:
    duckdb = pytest.importorskip("duckdb")
    result = duckdb.sql("select range as id, 'n' || range as name from range(3)")
    assert [row["name"] for row in rows_after(table, "write_arrow", result)] == ["n0", "n1", "n2"]


def test_a_reader_a_batch_and_anything_with_a_stream(table: fluss.FlussTable) -> None:
    batch = pa.record_batch({"id": [1]})

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.Table.from_batches([batch]).__arrow_c_stream__(requested_schema)

    for data in (batch, pa.Table.from_batches([batch]), batch.schema.empty_table(), Stream()):
        rows_after(table, "write_arrow", data)
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])
    assert [row["id"] for row in rows_after(table, "write_arrow", reader)] == [1] * 5
    with pytest.raises(fluss.InvalidRequestError, match="__arrow_c_stream__, not list"):
        table.new_append().create_writer().write_arrow([1])


def test_pandas(table: fluss.FlussTable) -> None:
    pandas = pytest.importorskip("pandas")
    when = dt.datetime(2026, 1, 2, 3)
    frame = pandas.DataFrame({"name": ["a", None], "id": [1, float("nan")], "at": [when, None]}, index=[7, 8])
    assert rows_after(table, "write_pandas", frame) == [
        {"id": 1, "name": "a", "at": when},
        {"id": None, "name": None, "at": None},
    ]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"f": [89.3, None, float("inf")]}, [pa.scalar(89.3, pa.float32()).as_py(), None, float("inf")]),
        ({"f": [True, False]}, [1.0, 0.0]),
        ({"n": [1.0, float("nan")]}, [1, None]),
        ({"n": [True, False]}, [1, 0]),
        ({"flag": [1, 0]}, [True, False]),
        ({"flag": [0.0, 2.5]}, [False, True]),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # of pandas, which tries whether inf is whole
def test_numbers_of_pandas_are_taken_as_pyfluss_takes_them(
    numbers: fluss.FlussTable, given: dict[str, list[Any]], kept: list[Any]
) -> None:
    pandas = pytest.importorskip("pandas")
    written = rows_after(numbers, "write_pandas", pandas.DataFrame(with_sure(given)))
    assert [row[next(iter(given))] for row in written] == kept
    extended = pandas.DataFrame(with_sure(given)).convert_dtypes()
    assert [row[next(iter(given))] for row in rows_after(numbers, "write_pandas", extended)] == kept * 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"f": [1.0, 1e39]}, "'f' expects float; float64 does not fit: a number is too large for a 32-bit float"),
        ({"f": [2**24 + 1]}, "'f' expects float"),
        ({"n": [300]}, "'n' expects int8.*300"),
        ({"n": [300.0]}, "'n' expects int8"),
        ({"n": [1.5]}, "'n' expects int8"),
        ({"sure": [1.0, float("nan")]}, "'sure' expects int NOT NULL, not null"),
    ],
)
def test_numbers_of_pandas_that_can_not_be_held_are_refused(
    numbers: fluss.FlussTable, given: dict[str, list[Any]], said: str
) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(fluss.SchemaMismatchError, match=said):
        numbers.new_append().create_writer().write_pandas(pandas.DataFrame(with_sure(given)))


def test_a_pandas_index_is_written_when_it_is_named_as_a_column(table: fluss.FlussTable) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [1, 2], "name": ["a", "b"]})
    assert [row["id"] for row in rows_after(table, "write_pandas", frame.set_index("id"))] == [1, 2]
    named = frame.rename_axis("line")
    assert [row["id"] for row in rows_after(table, "write_pandas", named)] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("columns", "said"),
    [({"id": ["x"]}, "'id' expects int64"), ({"id": [1.5]}, "'id'"), ({"no": [1]}, "no column 'no'")],
)
def test_a_pandas_column_that_does_not_fit_is_named(table: fluss.FlussTable, columns: Any, said: str) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(fluss.SchemaMismatchError, match=said) as caught:
        table.new_append().create_writer().write_pandas(pandas.DataFrame(columns))
    assert "\n" not in caught.value.message


def test_what_is_no_frame(table: fluss.FlussTable) -> None:
    with pytest.raises(fluss.InvalidRequestError, match="not list"):
        table.new_append().create_writer().write_pandas([1])
