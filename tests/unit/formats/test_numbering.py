"""Auto-increment columns: what becomes of rows that are new, by the rules of Apache Fluss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fluss.formats.batches.kv_batch import KvRecords
from fluss.formats.changelog.fold import Folder
from fluss.formats.rows.python_rows import to_tuples
from fluss.formats.rows.values import ValueCodec
from fluss.model.errors import InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.tables.merge_rules import DeleteBehavior, MergeEngine, MergeRules
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of

Row = tuple[Any, ...]
INSERT, BEFORE, AFTER = 1, 2, 3
SCHEMA = Schema.of(
    [Column("id", DataTypes.int()), Column("n", DataTypes.bigint()), Column("b", DataTypes.int())], ["id"], "n"
)
ENGINES = [MergeRules(), MergeRules(MergeEngine.AGGREGATION, delete_behavior=DeleteBehavior.ALLOW)]


class Numbered:
    """A table with an auto-increment column; columns 0 and 2 are written."""

    def __init__(self, rules: MergeRules, schema: Schema = SCHEMA) -> None:
        self.codec = ValueCodec({1: schema})
        self.folder = Folder(rules, self.codec)
        self.rows: dict[bytes, bytes | None] = {}
        self.numbers = iter(range(1, 1000))
        self.asked: list[int] = []

    def put(self, *records: tuple[int, int | None, bool], targets: Sequence[int] = (0, 2)) -> list[tuple[int, Row]]:
        rows = batch_of(self.codec.schema.columns, [(key, 77, value) for key, value, _ in records])
        values = self.codec.encode(rows)
        kept = [None if is_delete else value for value, (_, _, is_delete) in zip(values, records, strict=True)]
        folded = self.folder.fold(
            KvRecords([bytes([key]) for key, _, _ in records], kept), self.rows, targets, number=self.number
        )
        self.rows.update(folded.state)
        return list(zip(folded.change_types, to_tuples(folded.rows), strict=True))

    def number(self, count: int) -> list[int]:
        self.asked.append(count)
        return [next(self.numbers) for _ in range(count)]


@pytest.mark.parametrize("rules", ENGINES)
def test_new_rows_are_numbered(rules: MergeRules) -> None:
    # As Apache Fluss 0.9.1 does it, a delete of all that can be written included: the number keeps the row.
    table = Numbered(rules)
    assert table.folder.numbers_rows
    assert table.put((1, 5, False), (2, 6, False), (1, None, False)) == [
        (INSERT, (1, 1, 5)),
        (INSERT, (2, 2, 6)),
        (BEFORE, (1, 1, 5)),
        (AFTER, (1, 1, 5 if rules.engine else None)),
    ]
    assert table.put((2, None, True), (9, None, True)) == [(BEFORE, (2, 2, 6)), (AFTER, (2, 2, None))]
    again = table.put((2, 9, False), (3, 1, False), (3, None, True), (3, 2, False), (4, 4, False))
    assert again == [
        (BEFORE, (2, 2, None)),
        (AFTER, (2, 2, 9)),
        (INSERT, (3, 3, 1)),
        (BEFORE, (3, 3, 1)),
        (AFTER, (3, 3, None)),
        (BEFORE, (3, 3, None)),
        (AFTER, (3, 3, 2)),
        (INSERT, (4, 4, 4)),
    ]
    assert table.asked == [2, 2]


def test_rows_of_their_key_alone_are_numbered() -> None:
    table = Numbered(MergeRules())
    assert table.put((1, None, False), (1, None, False), targets=[0]) == [(INSERT, (1, 1, None))]
    assert table.put((1, None, False), targets=[0]) == []


@pytest.mark.parametrize("targets", [(), (0, 1, 2), (0, 1)])
def test_the_numbered_column_can_not_be_written(targets: Sequence[int]) -> None:
    table = Numbered(MergeRules())
    with pytest.raises(InvalidRequestError, match="'n' is filled by the server: write the other columns") as caught:
        table.put((1, 1, False), targets=targets)
    assert caught.value.error_code == 35
    assert table.asked == []


def test_numbers_end_with_the_type() -> None:
    columns = [Column("id", DataTypes.int()), Column("n", DataTypes.int().not_null()), Column("b", DataTypes.int())]
    table = Numbered(MergeRules(), Schema.of(columns, ["id"], "n"))
    table.numbers = iter([2**31 - 1, 2**31])
    assert table.put((1, 5, False)) == [(INSERT, (1, 2**31 - 1, 5))]
    with pytest.raises(InvalidRequestError, match="no number is left for a new row"):
        table.put((2, 5, False))
