"""The fold of a changelog to the last change of each key, against one that goes row by row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.changelog import fold as changelog_fold
from fluss.lake import fold
from fluss.lake.fold import ChangeFold, Keys
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.schema import Schema

# Columns that have the names which the fold uses inside are no trouble.
COLUMNS = pa.schema([("key", pa.int64()), ("place", pa.string()), ("removed", pa.int16())])
CHANGES = pa.schema(
    [
        ("_change_type", pa.string()),
        ("_log_offset", pa.int64()),
        ("_commit_timestamp", pa.timestamp("ms", "UTC")),
        *COLUMNS,
    ]
)


def info_of(columns: pa.Schema, keys: list[str]) -> TableInfo:
    descriptor = TableDescriptor(Schema(columns, primary_keys=keys), bucket_count=1)
    return TableInfo(TablePath("db", "t"), 1, 1, descriptor, 1, 0, 0)


@pytest.fixture
def keys() -> Keys:
    return Keys(info_of(COLUMNS, ["key", "place"]))


def changes(rows: list[tuple[str, int, str, int | None]], first_offset: int = 0) -> pa.RecordBatch:
    """Changes: type, key, place, value."""
    return pa.RecordBatch.from_pylist(
        [
            {"_change_type": kind, "_log_offset": offset, "key": key, "place": place, "removed": value}
            for offset, (kind, key, place, value) in enumerate(rows, first_offset)
        ],
        CHANGES,
    )


def rows_of(folded: fold.FoldedChanges) -> list[dict[str, Any]]:
    return list(folded.rows.select([*COLUMNS.names, "__bucket", "__offset"]).to_pylist())


def test_the_last_change_of_each_key_counts(keys: Keys) -> None:
    folding = ChangeFold(keys, COLUMNS.names, 3)
    folding.add(changes([("+I", 1, "a", 1), ("+I", 1, "b", 2), ("-U", 1, "a", 1), ("+U", 1, "a", 5)]))
    folding.add(changes([("-D", 1, "b", 2), ("+I", 2, "b", None), ("-D", 9, "x", 0)], 4))
    folded = folding.take()
    assert folded is not None
    assert rows_of(folded) == [
        {"key": 1, "place": "a", "removed": 5, "__bucket": 3, "__offset": 3},
        {"key": 2, "place": "b", "removed": None, "__bucket": 3, "__offset": 5},
    ]
    touched = changes([("", 1, "a", 0), ("", 1, "b", 0), ("", 9, "x", 0), ("", 9, "a", 0)])
    assert keys.found_in([touched], folded.keys).to_pylist() == [True, True, True, False]
    assert folding.take() is None


def test_random_changes_in_small_steps(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    monkeypatch.setattr(changelog_fold, "PENDING_ROWS_MAX", 20)
    monkeypatch.setattr(fold, "FOLDED_ROWS_MAX", 30)
    folding = ChangeFold(keys, COLUMNS.names, 0)
    lake: dict[tuple[int, str], dict[str, Any]] = {}
    wanted: dict[tuple[int, str], tuple[int | None, int]] = {}
    offset, was_full = 0, False
    for _ in range(60):
        rows = []
        for place in range(dice.randrange(12)):
            kind, key = dice.choice(["+I", "+U", "-U", "-D"]), (dice.randrange(20), dice.choice("abc"))
            value = dice.choice([None, dice.randrange(100)])
            rows.append((kind, *key, value))
            if kind == "-D":
                wanted.pop(key, None)
            elif kind != "-U":
                wanted[key] = (value, offset + place)
        folding.add(changes(rows, offset))
        offset += len(rows)
        if folding.is_full:
            was_full = True
            _apply(keys, lake, folding.take())
    _apply(keys, lake, folding.take())
    assert was_full
    assert {key: (row["removed"], row["__offset"]) for key, row in lake.items()} == wanted


def _apply(keys: Keys, lake: dict[tuple[int, str], dict[str, Any]], folded: fold.FoldedChanges | None) -> None:
    if folded is None:
        return
    known = changes([("", *key, 0) for key in lake])
    for key, is_touched in zip(list(lake), keys.found_in([known], folded.keys).to_pylist(), strict=True):
        if is_touched:
            del lake[key]
    rows = rows_of(folded)
    assert [row["__offset"] for row in rows] == sorted(row["__offset"] for row in rows)
    lake.update({(row["key"], row["place"]): row for row in rows})


def test_keys_are_looked_up_in_slabs(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "LOOKED_UP_ROWS", 3)
    batches = [changes([("", number, "a", 0) for number in range(start, start + 2)]) for start in range(0, 9, 2)]
    wanted = keys.encode(changes([("", 1, "a", 0), ("", 6, "a", 0), ("", 7, "b", 0)]))
    assert keys.found_in(batches, wanted).to_pylist() == [number in (1, 6) for number in range(10)]
    assert keys.found_in([], wanted).to_pylist() == []


def test_times_that_the_lake_would_take_for_equal_are_no_keys() -> None:
    with pytest.raises(InvalidRequestError, match="'at'"):
        Keys(info_of(pa.schema([("at", pa.timestamp("ns"))]), ["at"]))
