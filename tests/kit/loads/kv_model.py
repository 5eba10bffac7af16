"""A primary-key table as a dict, and batches of puts made at random: what the real one is compared with.

Rows are (id, name, count). A batch is a list of puts and deletes, whole or of some columns only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

import pyarrow as pa

import fluss
from fluss.formats.batches.kv_batch import encode_header, encode_records
from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.keys import KeyEncoder
from fluss.model.forms.arrow_types import arrow_schema
from fluss.testing.sim.history import Delete, Upsert
from fluss.testing.sim.models import Replacing

KEYS = 200
BATCH_ROWS_MAX = 40
DELETE_SHARE = 0.25
PARTIAL_SHARE = 0.3
NULL_SHARE = 0.2
PARTIALS = ((0, 1), (0, 2))

SCHEMA = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("count", pa.int64())]), ["id"])
ARROW_SCHEMA = arrow_schema(SCHEMA)
_KEYS = KeyEncoder(SCHEMA.columns[:1])
_ROWS = CompactedFormat(SCHEMA.columns)
_RULES = Replacing()

Row: TypeAlias = tuple[int, str | None, int | None]
Change: TypeAlias = tuple[str, Row]


class Op(NamedTuple):
    """A put, or a delete when there is no row."""

    key: int
    row: Row | None


@dataclass
class Batch:
    ops: list[Op]
    targets: tuple[int, ...] = ()

    def encode(self, writer_id: int = -1, sequence: int = -1, schema_id: int = 1) -> bytearray:
        """As a client sends it."""
        keys = _KEYS.encode(_arrow([(op.key, None, None) for op in self.ops]))
        rows = _ROWS.encode(_arrow([op.row or (0, None, None) for op in self.ops]))
        deleted = pa.array([op.row is None for op in self.ops], pa.bool_())
        records = encode_records(keys, pa.compute.if_else(deleted, None, rows))
        header = encode_header(
            records, schema_id=schema_id, record_count=len(self.ops), writer_id=writer_id, batch_sequence=sequence
        )
        return header + records


def random_batch(chance: random.Random, keys: int = KEYS, rows_max: int = BATCH_ROWS_MAX) -> Batch:
    targets = chance.choice(PARTIALS) if chance.random() < PARTIAL_SHARE else ()
    ops = []
    for _ in range(chance.randint(0 if chance.random() < 0.05 else 1, rows_max)):
        key = chance.randrange(keys)
        if chance.random() < DELETE_SHARE:
            ops.append(Op(key, None))
            continue
        name = None if chance.random() < NULL_SHARE else f"name-{chance.randrange(1_000)}"
        count = None if chance.random() < NULL_SHARE else chance.randrange(1 << 40)
        # What is not a target is null in the row that travels, and means nothing.
        ops.append(
            Op(
                key,
                (key, name if 1 in targets or not targets else None, count if 2 in targets or not targets else None),
            )
        )
    return Batch(ops, targets)


@dataclass
class Model:
    """The rows of a table, and all its changes so far."""

    rows: dict[int, Row] = field(default_factory=dict)
    changes: list[Change | None] = field(default_factory=list)
    """By offset; None where a batch has changed nothing."""

    def apply(self, batch: Batch) -> None:
        found: list[Change] = []
        for op in batch.ops:
            found += self._apply(op, batch.targets)
        self.changes += found or [None]

    def _apply(self, op: Op, targets: tuple[int, ...]) -> list[Change]:
        old = self.rows.get(op.key)
        write = Delete("", op.key, targets) if op.row is None else Upsert("", op.key, op.row, targets)
        new = cast("Row | None", _RULES.apply(old, write))
        if new is None:
            return [] if self.rows.pop(op.key, None) is None else [("-D", cast(Row, old))]
        self.rows[op.key] = new
        return [("+I", new)] if old is None else [("-U", old), ("+U", new)]


def fold(changes: Sequence[Change]) -> dict[int, Row]:
    """The rows that changes leave; a change that does not fit the ones before it is an error."""
    rows: dict[int, Row] = {}
    for number, (kind, row) in enumerate(changes):
        place = f"change {number}: {kind} {row}"
        if kind == "+I":
            assert row[0] not in rows, place
            rows[row[0]] = row
        elif kind == "-U":
            assert rows.get(row[0]) == row, place
            following = changes[number + 1]
            assert following[0] == "+U", place
            assert following[1][0] == row[0], place
        elif kind == "+U":
            assert row[0] in rows, place
            rows[row[0]] = row
        else:
            assert kind == "-D", place
            assert rows.pop(row[0], None) == row, place
    return rows


def _arrow(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, ARROW_SCHEMA.types, strict=True)], schema=ARROW_SCHEMA
    )
