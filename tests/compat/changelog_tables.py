"""Primary-key tables of every kind, and random rows for them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import fluss
from fluss.model.aggregation import AggFunction
from tests.compat.raw_table import Put
from tests.peers.columns import arrow_schema
from tests.peers.samples import COLUMNS, NESTED, NESTED_FULL, NESTED_HOLLOW

Row = dict[str, Any]

KEYS = 6
NULL_PROBABILITY = 0.2
RECORDS = (1, 1, 2, 3, 8)

_INTEGERS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}
_TEXTS = ("", "a", "b", "longer than seven", "Stra\u00dfe, \u6cb3, \U0001f30a")
_EPOCH = dt.datetime(1970, 1, 1)
# One that Java keeps in one word and one that takes two.
_MOMENTS_US = (0, -1_000, 1_234_567_890_123_000, 1_234_567_890_123_456, -62_135_596_800_000_000)


@dataclass(frozen=True)
class KeyedTable:
    """How a table is made and what is put into it."""

    columns: Mapping[str, str]
    primary_keys: tuple[str, ...] = ("k",)
    properties: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, AggFunction] = field(default_factory=dict)
    auto_increment: str | None = None
    targets: tuple[tuple[str, ...], ...] = ((),)
    """Columns of partial updates to choose from; none for whole rows."""
    deletes: float = 0.25
    overwrites: float = 0.0
    can_fail: bool = False
    """Whether good batches may be refused because of what is stored already."""

    def descriptor(self) -> fluss.TableDescriptor:
        schema = fluss.Schema(
            arrow_schema(self.columns), list(self.primary_keys), self.auto_increment, dict(self.functions)
        )
        return fluss.TableDescriptor(schema, bucket_count=1, properties=dict(self.properties))

    def puts(self, rng: random.Random, count: int) -> list[Put]:
        """Batches of upserts and deletes of a few keys."""
        keys: list[Row] = []
        while len(keys) < KEYS:
            keys += [key for key in [self._key(rng)] if key not in keys]
        return [self._put(rng, keys) for _ in range(count)]

    def _key(self, rng: random.Random) -> Row:
        return {name: random_value(rng, self.columns[name], nullable=False) for name in self.primary_keys}

    def _put(self, rng: random.Random, keys: list[Row]) -> Put:
        names = rng.choice(self.targets)
        columns = list(self.columns)
        records: list[tuple[Row, Row | None]] = []
        for _ in range(rng.choice(RECORDS)):
            key = rng.choice(keys)
            row = {name: random_value(rng, kind) for name, kind in self.columns.items()}
            # Clients write nulls where a partial update says nothing.
            row = {name: value if not names or name in names else None for name, value in row.items()}
            records.append((key, None if rng.random() < self.deletes else {**row, **key}))
        targets = tuple(columns.index(name) for name in names)
        return Put(records, targets, overwrite=rng.random() < self.overwrites)


def random_value(rng: random.Random, kind: str, *, nullable: bool = True) -> Any:
    """A value of a Fluss type, now and then one at the edge of it."""
    if nullable and rng.random() < NULL_PROBABILITY:
        return None
    root, _, rest = kind.partition("(")
    if root in _INTEGERS:
        limit = 1 << _INTEGERS[root]
        return rng.choice([rng.randrange(-100, 100), rng.randrange(-limit, limit), limit - 1, -limit])
    if root in ("FLOAT", "DOUBLE"):
        return rng.choice([0.0, 1.5, -2.25, rng.randrange(-1000, 1000) / 8, float("inf")])
    if root == "DECIMAL":
        precision, scale = (int(part) for part in rest.strip(")").split(","))
        whole = rng.choice([rng.randrange(-1000, 1000), 10**precision - 1, 1 - 10**precision])
        return Decimal(f"{whole}E-{scale}")
    if root == "BOOLEAN":
        return rng.random() < 0.5
    if root == "STRING":
        return rng.choice(_TEXTS)
    if root == "BYTES":
        return rng.choice(_TEXTS).encode()
    if root == "BINARY":
        # Apache Fluss 0.9.1 takes zeros at the end of an indexed value for padding, and fails.
        return bytes(rng.randrange(1, 256) for _ in range(int(rest.strip(")"))))
    if root == "DATE":
        return dt.date(1970, 1, 1) + dt.timedelta(days=rng.choice([0, -1, 20_000, rng.randrange(-9_999, 9_999)]))
    if root == "TIME":
        return dt.time(rng.randrange(24), rng.randrange(60), rng.randrange(60), rng.randrange(1_000) * 1_000)
    if root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        unit_us = 10 ** (6 - int(rest.strip(")")))
        moment = _EPOCH + dt.timedelta(microseconds=rng.choice(_MOMENTS_US) // unit_us * unit_us)
        return moment.replace(tzinfo=dt.UTC) if root == "TIMESTAMP_LTZ" else moment
    raise ValueError(f"no random values of {kind}")


_PLAIN = {"k": "INT", "a": "STRING", "b": "BIGINT", "c": "DOUBLE"}
_PARTS = ((), ("k", "a"), ("k", "b"), ("k", "b", "c"), ("k",))
_KEYED_BY_ALL = {"k": "INT", **COLUMNS}
_ORDERED = {name: kind for name, kind in COLUMNS.items() if kind not in ("BOOLEAN", "BYTES", "BINARY(4)")}
_NUMBERS = {name: COLUMNS[name] for name in ("tiny", "small", "number", "big", "single", "exact", "price", "huge")}


def _image(image: str, **properties: str) -> dict[str, str]:
    return {"table.changelog.image": image, **{f"table.{key.replace('_', '-')}": v for key, v in properties.items()}}


def _versioned(kind: str, image: str) -> KeyedTable:
    properties = _image(image, merge_engine="versioned") | {"table.merge-engine.versioned.ver-column": "v"}
    return KeyedTable({"k": "INT", "v": kind, "a": "STRING"}, properties=properties)


def _aggregating(columns: Mapping[str, str], *names: str, **options: Any) -> KeyedTable:
    """A column of each type for each function."""
    kinds = {f"{column}_{name}": kind for name in names for column, kind in columns.items()}
    functions = {f"{column}_{name}": AggFunction(name) for name in names for column in columns}
    options["properties"] = {"table.merge-engine": "aggregation", **options.get("properties", {})}
    return KeyedTable({"k": "INT", **kinds}, functions=functions, **options)


_SOME_COLUMNS = {name: COLUMNS[name] for name in ("flag", "number", "text", "blob", "huge", "wall")}
_ALLOW = {"table.delete.behavior": "allow"}
_INDEXED = {"table.kv.format": "INDEXED"}

TABLES: dict[str, KeyedTable] = {
    "plain": KeyedTable(_PLAIN),
    "plain, partial": KeyedTable(_PLAIN, targets=_PARTS),
    "plain, WAL": KeyedTable(_PLAIN, properties=_image("wal")),
    "plain, WAL, partial": KeyedTable(_PLAIN, properties=_image("wal"), targets=_PARTS),
    "plain, deletes ignored": KeyedTable(_PLAIN, properties={"table.delete.behavior": "ignore"}, targets=_PARTS),
    "plain, deletes disabled": KeyedTable(_PLAIN, properties={"table.delete.behavior": "disable"}, deletes=0.1),
    "plain, indexed": KeyedTable(_PLAIN, properties=_INDEXED, targets=_PARTS),
    "every type": KeyedTable(_KEYED_BY_ALL, targets=((), ("k", "text", "huge"), ("k", "flag", "wall", "clock"))),
    "every type, indexed": KeyedTable(_KEYED_BY_ALL, properties=_INDEXED),
    "every type as key": KeyedTable(
        {**COLUMNS, "v": "INT"}, tuple(name for name in COLUMNS if name not in ("single", "exact")), deletes=0.4
    ),
    "key behind its columns": KeyedTable({"a": "STRING", "k": "BIGINT", "b": "INT", "j": "STRING"}, ("j", "k")),
    "log COMPACTED": KeyedTable(_KEYED_BY_ALL, properties={"table.log.format": "COMPACTED"}),
    "uncompressed": KeyedTable(_PLAIN, properties={"table.log.arrow.compression.type": "NONE"}),
    "first row": KeyedTable(_PLAIN, properties=_image("full", merge_engine="first_row")),
    "first row, WAL": KeyedTable(_PLAIN, properties=_image("wal", merge_engine="first_row")),
    "first row, deletes disabled": KeyedTable(
        _PLAIN, properties={"table.merge-engine": "first_row", "table.delete.behavior": "disable"}, deletes=0.1
    ),
    "versioned INT": _versioned("INT", "full"),
    "versioned BIGINT": _versioned("BIGINT", "full"),
    "versioned BIGINT, WAL": _versioned("BIGINT", "wal"),
    "versioned TIMESTAMP(6)": _versioned("TIMESTAMP(6)", "full"),
    "versioned TIMESTAMP_LTZ(3)": _versioned("TIMESTAMP_LTZ(3)", "full"),
    "sums": _aggregating(_NUMBERS, "sum", deletes=0.1, properties=_ALLOW, can_fail=True),
    "products": _aggregating(_NUMBERS, "product"),
    "extremes": _aggregating(_ORDERED, "min", "max", deletes=0.1, properties=_ALLOW),
    "firsts and lasts": _aggregating(
        _SOME_COLUMNS,
        "first_value",
        "first_value_ignore_nulls",
        "last_value",
        "last_value_ignore_nulls",
        deletes=0.1,
        properties=_ALLOW,
    ),
    "texts": _aggregating({"text": "STRING"}, "listagg", "string_agg"),
    "booleans": _aggregating({"flag": "BOOLEAN"}, "bool_and", "bool_or"),
    "aggregation by default": KeyedTable(_PLAIN, properties={"table.merge-engine": "aggregation"}),
    "aggregation, partial": _aggregating(
        {"number": "BIGINT"},
        "sum",
        "max",
        "last_value",
        targets=((), ("k", "number_sum"), ("k", "number_max", "number_last_value"), ("k",)),
        properties=_ALLOW,
    ),
    "aggregation, overwritten": _aggregating(_NUMBERS, "sum", overwrites=0.4, can_fail=True),
}

AUTO_INCREMENT = KeyedTable(
    {"k": "INT", "id": "BIGINT", "a": "STRING", "b": "INT"},
    auto_increment="id",
    targets=(("k", "a", "b"), ("k", "a"), ("k", "b")),
)
BITMAPS = KeyedTable(
    {"k": "INT", "numbers": "BYTES"},
    properties={"table.merge-engine": "aggregation"},
    functions={"numbers": AggFunction("rbm32")},
)
NESTED_TABLE = KeyedTable({"k": "INT", **NESTED})
NESTED_ROWS: list[Row] = [NESTED_FULL, NESTED_HOLLOW]
