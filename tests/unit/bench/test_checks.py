from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from benchmarks.data import SCHEMA, batches, dicts, sum_of_ids
from benchmarks.workloads import CheckFailedError, check_rows

RIGHT = {"rows": 4, "distinct_ids": 4, "sum_of_ids": 6}


def test_the_written_rows_pass_their_own_check() -> None:
    data = pa.Table.from_batches(batches(25_000))
    assert data.schema == SCHEMA
    assert data.num_rows == 25_000
    assert pc.sum(data["id"]).as_py() == sum_of_ids(25_000)


def test_dicts_and_batches_hold_the_same_rows() -> None:
    assert list(dicts(50)) == pa.Table.from_batches(batches(50)).to_pylist()


def test_right_rows_pass() -> None:
    check_rows("corner", RIGHT, 4)


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 3, "distinct_ids": 3}, {"rows": 5}, {"distinct_ids": 3}, {"sum_of_ids": 7}],
    ids=["lost", "doubled", "replaced", "changed"],
)
def test_wrong_rows_are_an_error_that_names_the_corner(wrong: dict[str, Any]) -> None:
    with pytest.raises(CheckFailedError, match="some corner"):
        check_rows("some corner", {**RIGHT, **wrong}, 4)
