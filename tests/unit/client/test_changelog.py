"""Changes as Arrow rows, and what they leave when they are folded."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.scan.batches import ChangelogFold, FetchedBatch, as_inserts, changelog_schema, with_changes
from fluss.client.write.routing import row_numbers
from fluss.formats.changelog import fold as changelog_fold
from fluss.formats.rows.keys import primary_key_encoder
from fluss.model.descriptor import TableDescriptor
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.paths import TableBucket
from fluss.model.schema import Schema

# Columns may be called as the fold's own are.
TABLE = TableDescriptor(Schema(pa.schema([("key", pa.int32()), ("removed", pa.string())]), ["key"]), bucket_count=1)
SCHEMA = arrow_schema(TABLE.schema)
BUCKET = TableBucket(1, 0)


def fetched(rows: list[tuple[int, str]], change_types: bytes | None, base_offset: int = 0) -> FetchedBatch:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], []]
    batch = pa.record_batch([pa.array(columns[0], pa.int32()), pa.array(columns[1], pa.string())], schema=SCHEMA)
    return FetchedBatch(batch, BUCKET, base_offset, base_offset + len(rows) - 1, 1_000, change_types)


def test_change_columns() -> None:
    changes = with_changes(fetched([(1, "a"), (1, "a"), (1, "b"), (1, "b")], bytes([1, 2, 3, 4]), 40)).batch
    assert changes.schema == changelog_schema(SCHEMA)
    assert changes.column(0).to_pylist() == ["+I", "-U", "+U", "-D"]
    assert changes.column(1).to_pylist() == [40, 41, 42, 43]
    assert changes.column(2).to_pylist() == [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)] * 4
    assert changes.column(4).to_pylist() == ["a", "a", "b", "b"]
    changes.validate(full=True)


def test_appended_rows_and_rows_with_gaps() -> None:
    appended = fetched([(1, "a"), (2, "b"), (3, "c")], None, 7)
    assert with_changes(appended).batch.column(0).to_pylist() == ["+A"] * 3
    kept = appended.filter(pa.array([True, False, True]))
    assert kept is not None
    assert with_changes(kept).batch.column(1).to_pylist() == [7, 9]
    assert with_changes(appended.slice(1, 2)).batch.column(1).to_pylist() == [8, 9]


def test_current_rows_as_inserts() -> None:
    inserts = as_inserts(fetched([(1, "a"), (2, "b")], None).batch, 99)
    assert inserts.schema == changelog_schema(SCHEMA)
    assert inserts.to_pylist()[1] == {
        "_change_type": "+I",
        "_log_offset": 99,
        "_commit_timestamp": None,
        "key": 2,
        "removed": "b",
    }
    inserts.validate(full=True)


def test_row_numbers() -> None:
    assert row_numbers(8, 5).to_pylist() == [5, 6, 7]
    assert row_numbers(0).to_pylist() == []
    assert row_numbers(1).type == pa.int64()


@pytest.mark.parametrize("pending_rows_max", [1, 10, 10_000])
def test_a_fold_leaves_what_the_changes_say(monkeypatch: pytest.MonkeyPatch, pending_rows_max: int) -> None:
    monkeypatch.setattr(changelog_fold, "PENDING_ROWS_MAX", pending_rows_max)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    keys = primary_key_encoder(TABLE)
    fold = ChangelogFold(keys, SCHEMA)
    state: dict[int, Any] = {}
    for _ in range(50):
        rows, kinds = [], bytearray()
        for _ in range(chance.randint(0, 20)):
            key, value = chance.randint(-20, 300), str(chance.random())
            if key in state and chance.random() < 0.3:
                rows.append((key, state.pop(key)))
                kinds.append(4)
                continue
            if key in state:
                rows.append((key, state[key]))
                kinds.append(2)
            kinds.append(3 if key in state else 1)
            rows.append((key, value))
            state[key] = value
        fold.add([fetched(rows, bytes(kinds))])
    folded = fold.result()
    found = pa.Table.from_batches(folded.rows(0, len(folded)), SCHEMA)
    assert dict(zip(found["key"].to_pylist(), found["removed"].to_pylist(), strict=True)) == state
    assert found.num_rows == len(state)
    encoded = folded.keys.to_pylist()
    assert encoded == sorted(set(encoded))
    middle = encoded[len(encoded) // 2]
    place = folded.place_after(middle)
    assert place == len(encoded) // 2 + 1
    parts = [*folded.rows(0, place), *folded.rows(place, len(folded))]
    assert pa.Table.from_batches(parts, SCHEMA).equals(found)


def test_a_fold_of_nothing() -> None:
    folded = ChangelogFold(primary_key_encoder(TABLE), SCHEMA).result()
    assert len(folded) == 0
    assert folded.place_after(b"a") == 0
    assert folded.rows(0, 0) == []
