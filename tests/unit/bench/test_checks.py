"""A wrong result is seen: the checks that `fluss bench` relies on."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.bench import data
from fluss.bench.data import WrongResultError, check_equal, check_rows, joined, kv_batches, log_batches, prefix_batches

EXPECTED = joined(log_batches(1_000, 300))


def _changed(column: str, index: int, value: object) -> pa.Table:
    values = EXPECTED[column].to_pylist()
    values[index] = value
    position, field = EXPECTED.schema.get_field_index(column), EXPECTED.schema.field(column)
    return EXPECTED.set_column(position, field, pa.array(values, field.type))


def test_the_right_rows_in_any_order_and_cut() -> None:
    check_rows(EXPECTED, EXPECTED)
    check_rows(pa.concat_tables([EXPECTED.slice(500), EXPECTED.slice(0, 500)]), EXPECTED)
    check_rows(EXPECTED.select(["reading", "id"]), EXPECTED.select(["id", "reading"]))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (EXPECTED.slice(1), "999 rows came, 1,000 were expected."),
        (pa.concat_tables([EXPECTED, EXPECTED.slice(7, 1)]), "1,001 rows came"),
        (pa.concat_tables([EXPECTED.slice(1), EXPECTED.slice(7, 1)]), "Column id is wrong"),
        (_changed("reading", 17, -1.0), "Column reading is wrong in 1 rows: the row with id 17 has -1.0, not"),
        (_changed("sensor", 999, None), "the row with id 999 has None, not 'sensor-"),
        (EXPECTED.set_column(4, "quality", EXPECTED["quality"].cast(pa.int64())), "the type int64, not int32"),
    ],
)
def test_wrong_rows(found: pa.Table, text: str) -> None:
    with pytest.raises(WrongResultError, match=re.escape(text)):
        check_rows(found, EXPECTED)


def test_wrong_values() -> None:
    check_equal({"id": 1}, {"id": 1})
    with pytest.raises(WrongResultError, match=r"None came, \{'id': 1\} was expected"):
        check_equal(None, {"id": 1})


@pytest.mark.parametrize("batch_rows", [1, 7, 1_000])
def test_the_data_is_whole(batch_rows: int) -> None:
    old, new = (kv_batches(25, batch_rows, version) for version in (1, 2))
    assert all(batch.num_rows <= batch_rows for batch in old)
    assert joined(old)["id"].to_pylist() == joined(new)["id"].to_pylist() == list(range(25))
    payloads = joined(old)["payload"].to_pylist() + joined(new)["payload"].to_pylist()
    assert len(set(payloads)) == 50
    assert {len(payload) for payload in payloads} == {100}
    assert joined(prefix_batches(25, batch_rows))["owner"].to_pylist() == [number // 10 for number in range(25)]
    assert joined(log_batches(25, batch_rows))["id"].to_pylist() == list(range(25))


def test_the_file_of_rows_can_be_loaded_beside_another_fluss() -> None:
    """The workers of `benchmarks/` load it in the interpreters of other clients."""
    nodes = list(ast.walk(ast.parse(Path(data.__file__).read_text())))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in found} == {"__future__", "typing", "numpy", "pyarrow"}
