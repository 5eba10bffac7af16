from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from benchmarks.data import (
    BATCH_ROWS,
    LOG_SCHEMA,
    ROW_BYTES,
    WrongResultError,
    checksum,
    checksum_of_rows,
    deserialized,
    dicts,
    kv_batches,
    kv_dicts,
    log_batches,
    serialized,
)
from benchmarks.workloads import check, log_checksum

ROWS = pa.Table.from_batches(log_batches(1_000, BATCH_ROWS))


def _changed(column: str, index: int, value: object) -> pa.Table:
    values = ROWS[column].to_pylist()
    values[index] = value
    field = ROWS.schema.field(column)
    return ROWS.set_column(ROWS.schema.get_field_index(column), field, pa.array(values, field.type))


def test_rows_have_the_size_that_reports_name() -> None:
    assert ROWS.schema == LOG_SCHEMA
    assert ROWS.nbytes == pytest.approx(ROW_BYTES * ROWS.num_rows, rel=0.01)
    assert {len(value) for value in serialized(20)} == {ROW_BYTES}


@pytest.mark.parametrize("batch_rows", [1, 7, 300, 5_000])
def test_rows_are_the_same_in_batches_of_any_size(batch_rows: int) -> None:
    assert pa.Table.from_batches(log_batches(1_000, batch_rows)) == ROWS
    assert pa.Table.from_batches([*log_batches(400, batch_rows), *log_batches(600, batch_rows, first=400)]) == ROWS


def test_dicts_batches_and_bytes_hold_the_same_rows() -> None:
    assert list(dicts(50)) == ROWS.slice(0, 50).to_pylist()
    unpacked = [deserialized(value) for value in serialized(50)]
    wanted = [(row["id"], 20, row["sensor"].encode(), row["reading"], row["quality"]) for row in dicts(50)]
    assert [(*values[:4], values[5]) for values in unpacked] == wanted


def test_keyed_dicts_and_batches_hold_the_same_rows() -> None:
    assert list(kv_dicts(500, 2)) == pa.Table.from_batches(kv_batches(500, BATCH_ROWS, 2)).to_pylist()


def test_a_checksum_does_not_mind_the_order_of_rows() -> None:
    assert checksum(ROWS.take(list(reversed(range(1_000))))) == checksum(ROWS) == log_checksum(1_000)


@pytest.mark.parametrize(
    "wrong",
    [
        ROWS.slice(1),
        pa.concat_tables([ROWS, ROWS.slice(5, 1)]),
        pa.concat_tables([ROWS.slice(0, 999), ROWS.slice(5, 1)]),
        _changed("id", 5, 6),
        _changed("sensor", 5, "warehouse-sensor-xyz"),
        _changed("sensor", 5, "short"),
        _changed("reading", 5, -1.0),
        _changed("at", 5, ROWS["at"][6].as_py()),
        _changed("quality", 5, 200),
    ],
    ids=["lost", "doubled", "replaced", "id", "sensor", "length", "reading", "at", "quality"],
)
def test_a_checksum_sees_what_is_wrong(wrong: pa.Table) -> None:
    assert checksum(wrong) != checksum(ROWS)


def test_values_that_changed_places_are_seen() -> None:
    quality = ROWS["quality"].to_pylist()
    quality[1], quality[2] = quality[2], quality[1]
    swapped = ROWS.set_column(4, ROWS.schema.field("quality"), pa.array(quality, pa.int32()))
    assert checksum(swapped) != checksum(ROWS)


def test_the_checksum_of_single_rows_is_what_a_reader_adds_up() -> None:
    assert checksum_of_rows(100) == sum(row["id"] * row["quality"] for row in dicts(100))


def test_right_answers_pass() -> None:
    check("corner", {"rows": 4, "checksum": 7, "seconds": 1.0}, rows=4, checksum=7)


@pytest.mark.parametrize("wrong", [{"rows": 3}, {"checksum": 8}])
def test_wrong_answers_are_an_error_that_names_the_corner(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongResultError, match="some corner"):
        check("some corner", {"rows": 4, "checksum": 7, **wrong}, rows=4, checksum=7)
