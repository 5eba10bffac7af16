"""Random rows for tables that are tiered: appended, upserted, in parts, and deleted."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa

from fluss.sync import FlussTable

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("part", pa.string()),
        ("name", pa.string()),
        ("small", pa.int16()),
        ("at", pa.timestamp("us")),
        ("version", pa.int32()),
    ]
)
PARTITIONS = ("a", "b-1", "c")


def write(table: FlussTable, dice: random.Random, kind: str) -> None:
    """Some requests of random rows; updates, and deletes where the table has them."""
    rows = [row(dice) for _ in range(dice.randrange(1, 60))]
    if not table.get_table_info().has_primary_key():
        writer = table.new_append().create_writer()
        for _ in range(3):
            writer.write_arrow(pa.Table.from_pylist(dice.choices(rows, k=10), COLUMNS))
            writer.flush()
        return
    upserter = table.new_upsert().create_writer()
    partial = table.new_upsert(["id", "name"]).create_writer() if kind == "partial updates" else None
    for _ in range(3):
        for item in dice.choices(rows, k=15):
            if dice.random() < 0.2 and kind not in ("first row", "versioned"):
                upserter.delete(item)
            elif partial is not None and dice.random() < 0.4:
                partial.upsert({"id": item["id"], "name": item["name"]})
            else:
                upserter.upsert(item)
        for writer in filter(None, (upserter, partial)):
            writer.flush()


def row(dice: random.Random) -> dict[str, Any]:
    return {
        "id": dice.randrange(40),
        "part": dice.choice(PARTITIONS),
        "name": dice.choice([None, "", "grün", "x" * dice.randrange(50)]),
        "small": dice.choice([None, -5, 3000]),
        "at": dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=dice.randrange(10**12)),
        "version": dice.randrange(5),
    }
