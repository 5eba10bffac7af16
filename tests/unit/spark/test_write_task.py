"""Changes as upserts and deletes: few batches, and those of one key in their order."""

from __future__ import annotations

import random
import re

import pyarrow as pa
import pytest

from fluss.model.errors import SchemaMismatchError
from fluss.spark.source_options import SourceOptions
from fluss.spark.write.plan import WriteMode, WritePlan
from fluss.spark.write.writer import Translation, with_rows

TABLE = pa.schema(
    [
        pa.field("region", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
    ]
)
OPTIONS = SourceOptions.parse({"bootstrap.servers": "127.0.0.1:9123", "table": "d.t"})
UPSERT = {"+I", "+U", "+A"}
Change = tuple[str, str, int, int | None]


def _translation(mode: WriteMode = WriteMode.CHANGELOG, *, ignore_delete: bool = False) -> Translation:
    plan = WritePlan(OPTIONS, 1, mode, tuple(TABLE.names), ("region", "id"), False, ignore_delete)
    return Translation(plan, TABLE)


def _batch(changes: list[Change]) -> pa.RecordBatch:
    types, regions, ids, values = (list(column) for column in zip(*changes, strict=True))
    columns = [pa.array(types, pa.string()), pa.array(regions), pa.array(ids), pa.array(values, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["_change_type", "region", "id", "value"])


def _by_key(operations: list[tuple[str, str, int, int | None]]) -> dict[tuple[str, int], list[tuple[str, int | None]]]:
    found: dict[tuple[str, int], list[tuple[str, int | None]]] = {}
    for kind, region, number, value in operations:
        found.setdefault((region, number), []).append((kind, value))
    return found


def _translated(translation: Translation, changes: list[Change]) -> tuple[int, list[tuple[str, str, int, int | None]]]:
    operations: list[tuple[str, str, int, int | None]] = []
    batch_count = 0
    for is_delete, rows in translation(_batch(changes)):
        batch_count += 1
        kind = "delete" if is_delete else "upsert"
        operations += [(kind, row["region"], row["id"], row.get("value")) for row in rows.to_pylist()]
    return batch_count, operations


@pytest.mark.parametrize("key_count", [1, 3, 200])
@pytest.mark.parametrize("ignore_delete", [False, True])
def test_changes_of_a_key_keep_their_order(key_count: int, ignore_delete: bool) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    changes: list[Change] = []
    for number in range(1_000):
        kind = draw.choice(["+I", "+U", "+A", "-U", "-D"])
        # What a delete says besides the key may be null even where the table has no nulls.
        value = None if kind == "-D" else number
        changes.append((kind, draw.choice("ab"), draw.randrange(key_count), value))
    expected = [
        ("upsert" if kind in UPSERT else "delete", region, number, value if kind in UPSERT else None)
        for kind, region, number, value in changes
        if kind in UPSERT or (kind == "-D" and not ignore_delete)
    ]
    batch_count, operations = _translated(_translation(ignore_delete=ignore_delete), changes)
    assert _by_key(operations) == _by_key(expected)
    assert batch_count <= 1 if ignore_delete else batch_count <= len(expected)


def test_a_mix_of_many_keys_is_few_batches() -> None:
    """Each key is inserted, updated and deleted, all of it interleaved: two batches, not one for each turn."""
    changes: list[Change] = []
    for number in range(3_000):
        kind = ("+I", "-U", "+U", "-D")[number % 4]
        changes.append((kind, "a", number // 4 % 500, number))
    batch_count, operations = _translated(_translation(), changes)
    assert len(operations) == 2_250
    # 750 groups of four over 500 keys: a key of the first 250 comes twice.
    assert batch_count == 4


def test_one_kind_is_one_batch() -> None:
    upserts: list[Change] = [("+I", "a", number % 7, number) for number in range(100)]
    assert _translated(_translation(), upserts)[0] == 1
    deletes: list[Change] = [("-D", "a", number % 7, None) for number in range(100)]
    assert _translated(_translation(), deletes) == (1, [("delete", "a", number % 7, None) for number in range(100)])
    before: list[Change] = [("-U", "a", 1, 1)]
    assert _translated(_translation(), before) == (0, [])
    assert _translated(_translation(ignore_delete=True), deletes) == (0, [])


@pytest.mark.parametrize("kind", ["insert", "+D", "", None])
def test_strange_change_types_are_refused(kind: str) -> None:
    with pytest.raises(
        SchemaMismatchError, match=rf"'_change_type' of changes of d\.t has {re.escape(repr(kind))}; it may"
    ):
        _translated(_translation(), [("+I", "a", 1, 1), (kind, "a", 2, 2)])


def test_an_upsert_without_a_value_that_must_be_there_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'value' of d\.t can't be null"):
        _translated(_translation(), [("-D", "a", 1, None), ("+I", "a", 2, None)])
    with pytest.raises(SchemaMismatchError, match=r"'id' of d\.t can't be null"):
        _translated(_translation(), [("-D", "a", None, None), ("+I", "a", 2, 2)])  # type: ignore[list-item]


def test_batches_without_rows_are_left_out() -> None:
    rows = _batch([("+I", "a", 1, 1)])
    assert with_rows(iter([rows.slice(1), rows.slice(1)])) is None
    assert with_rows(iter([])) is None
    found = with_rows(iter([rows.slice(1), rows, rows.slice(1), rows]))
    assert found is not None
    assert list(found) == [rows, rows]
