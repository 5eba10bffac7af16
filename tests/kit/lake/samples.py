"""Tables of all kinds and types, filled in two turns, for those who read the lake with other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.peers.ourclient import OurPeer
from tests.peers.peer import Row
from tests.peers.samples import COLUMNS, EMPTY, FULL, NESTED, NESTED_EMPTY, NESTED_FULL, NESTED_HOLLOW

DATALAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1s"}
REGIONS = ("north", "south-2")


@dataclass(frozen=True)
class Sample:
    """A table, and what is written to it."""

    name: str
    columns: Mapping[str, str]
    turns: tuple[list[Row], list[Row]]
    deleted: list[Row] = field(default_factory=list)
    """Keys that go in the second turn, after its rows."""
    options: Mapping[str, Any] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    """Columns that come between the turns."""

    @property
    def is_keyed(self) -> bool:
        return "primary_keys" in self.options

    def renamed(self, name: str) -> Sample:
        return replace(self, name=name)

    def create(self, peer: OurPeer, database: str, await_table: Callable[..., None] = lambda *_: None) -> None:
        """Make the table and its partitions."""
        options = {"bucket_count": 2, **self.options, "properties": DATALAKE}
        peer.create_table(database, self.name, self.columns, **options)
        if "partition_keys" not in self.options:
            await_table(database, self.name)
            return
        for region in REGIONS:
            peer.create_partition(database, self.name, {"region": region})
            await_table(database, self.name, region)

    @property
    def has_time(self) -> bool:
        return any(kind.startswith("TIME(") for kind in self.columns.values())

    def write(self, peer: OurPeer, database: str, turn: int) -> None:
        """Write the rows of the first or second turn."""
        if turn == 1 and self.added:
            peer.alter_table(database, self.name, add_columns=self.added)
        if self.is_keyed:
            peer.upsert_rows(database, self.name, self.turns[turn])
        else:
            peer.append_rows(database, self.name, self.turns[turn])
        if turn == 1 and self.deleted:
            peer.delete_rows(database, self.name, self.deleted)


def _numbered(columns: Mapping[str, str]) -> dict[str, str]:
    return {"id": "BIGINT", **columns}


def _without_time(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "clock"}


def _keyed(*rows: Row) -> list[Row]:
    return [{"id": number, **row} for number, row in enumerate(rows)]


def _regions(numbers: range, text: str) -> list[Row]:
    return [{"id": n, "region": REGIONS[n % 2], "text": f"{text} {n}"} for n in numbers]


_TEXT = {"id": "BIGINT", "text": "STRING"}
_BY_REGION = {"id": "BIGINT", "region": "STRING", "text": "STRING"}

LOG = Sample(
    "log",
    _TEXT,
    ([{"id": n, "text": f"row {n}"} for n in range(50)], [{"id": n, "text": None} for n in range(50, 70)]),
)
KEYED_LOG = Sample(
    "keyed_log",
    _TEXT,
    ([{"id": n, "text": f"row {n}"} for n in range(50)], [{"id": n, "text": f"row {n}"} for n in range(40, 70)]),
    options={"bucket_count": 3, "bucket_keys": ["text"]},
)
PARTITIONED_LOG = Sample(
    "partitioned_log",
    _BY_REGION,
    (_regions(range(40), "first"), _regions(range(40, 60), "second")),
    options={"partition_keys": ["region"]},
)
PRIMARY_KEY = Sample(
    "primary_key",
    _TEXT,
    (
        [{"id": n, "text": f"first {n}"} for n in range(60)],
        [{"id": n, "text": f"second {n}"} for n in range(50, 80)],
    ),
    deleted=[{"id": n} for n in (*range(10), *range(55, 65))],
    options={"primary_keys": ["id"]},
)
PARTITIONED_PRIMARY_KEY = Sample(
    "partitioned_primary_key",
    _BY_REGION,
    (_regions(range(40), "first"), _regions(range(30, 50), "second")),
    deleted=[{"id": n, "region": REGIONS[n % 2]} for n in range(25, 35)],
    options={"primary_keys": ["id", "region"], "partition_keys": ["region"]},
)
TYPES = Sample("types", COLUMNS, ([FULL, EMPTY], [FULL]))
KEYED_TYPES = Sample(
    "keyed_types",
    _numbered(_without_time(COLUMNS)),
    (_keyed(*map(_without_time, (FULL, EMPTY, FULL))), _keyed(*map(_without_time, (EMPTY, FULL)))),
    deleted=[{"id": 2}],
    options={"primary_keys": ["id"]},
)
NESTED_TYPES = Sample("nested", NESTED, ([NESTED_FULL, NESTED_EMPTY], [NESTED_HOLLOW, NESTED_FULL]))
KEYED_NESTED = Sample(
    "keyed_nested",
    _numbered(NESTED),
    (_keyed(NESTED_FULL, NESTED_EMPTY), _keyed(NESTED_HOLLOW, NESTED_FULL, NESTED_FULL)),
    options={"primary_keys": ["id"]},
)
EVOLVED = Sample(
    "evolved",
    _TEXT,
    (LOG.turns[0], [{"id": n, "text": "t", "price": None if n % 2 else n / 2, "tags": ["a"]} for n in range(20)]),
    added={"price": "DOUBLE", "tags": "ARRAY<STRING>"},
)

KINDS = (LOG, KEYED_LOG, PARTITIONED_LOG, PRIMARY_KEY, PARTITIONED_PRIMARY_KEY)
SAMPLES = (*KINDS, TYPES, KEYED_TYPES, NESTED_TYPES, KEYED_NESTED, EVOLVED)
