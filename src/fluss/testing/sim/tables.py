"""The tables of a simulation: how they are made, what is put into them, and what must become of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pyarrow as pa

import fluss
from fluss.testing.sim.history import Delete, Record, Row, Upsert
from fluss.testing.sim.models import (
    Aggregating,
    FirstRow,
    RegisterModel,
    Replacing,
    Versioned,
    combine_max,
    combine_sum,
)

DATABASE: Final = "sim"
LOG, PARTED, BRIEF, TIERED = "log", "parted", "brief", "tiered"
KEYED, FIRST, VERSIONED, SUMMED = "keyed", "first", "versioned", "summed"
PARTITIONS: Final = ("p0", "p1")
BRIEF_S: Final = 5.0
_CHANGES: Final = ("+A", "+I", "-U", "+U", "-D")
_VERSIONS_MAX: Final = 50


@dataclass(frozen=True)
class SimTable:
    """A log table whose rows have an `id`, or with a model a key table whose key is `k`."""

    name: str
    schema: fluss.Schema
    buckets: int
    properties: Mapping[str, str] = field(default_factory=dict)
    partition_keys: tuple[str, ...] = ()
    model: RegisterModel | None = None
    has_partial_updates: bool = False

    @property
    def path(self) -> fluss.TablePath:
        return fluss.TablePath(DATABASE, self.name)

    @property
    def descriptor(self) -> fluss.TableDescriptor:
        return fluss.TableDescriptor(
            self.schema,
            bucket_count=self.buckets,
            properties=dict(self.properties),
            partition_keys=list(self.partition_keys) or None,
        )

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.schema.column_names]

    def row(self, values: Mapping[str, Any] | None) -> Row | None:
        """What a lookup returned, as histories have it."""
        return None if values is None else tuple(values[name] for name in self.columns)

    def record(self, record: Any) -> Record:
        """What a scanner returned, as histories have it."""
        if self.model is None:
            return Record(record.offset, record.row["id"])
        row = self.row(record.row)
        return Record(record.offset, None, _CHANGES[record.change_type], record.row["k"], row)

    def drawn_put(self, chance: Random, keys: int, number: int) -> Upsert | Delete:
        """A write of some key; `number` is nobody else's."""
        key, draw = chance.randrange(keys), chance.random()
        if draw < 0.15:
            return Delete(self.name, key)
        if self.has_partial_updates and draw < 0.45:
            columns, row = ((0, 2), (key, None, number)) if draw < 0.3 else ((0, 1), (key, number, None))
            return Upsert(self.name, key, row, columns)
        if self.name == VERSIONED:
            return Upsert(self.name, key, (key, chance.randrange(_VERSIONS_MAX), number))
        return Upsert(self.name, key, (key, number, number if self.name == SUMMED else -number))


def _log(name: str, buckets: int, *more: pa.Field, **options: Any) -> SimTable:
    return SimTable(
        name, fluss.Schema(pa.schema([("id", pa.int64()), ("text", pa.string()), *more])), buckets, **options
    )


def _keyed(name: str, buckets: int, model: RegisterModel, engine: str = "", **options: Any) -> SimTable:
    columns = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("w", pa.int64())])
    functions = {"v": "sum", "w": "max"} if engine == "AGGREGATION" else None
    schema = fluss.Schema(columns, primary_keys=["k"], agg_functions=functions)
    properties = {"table.merge-engine": engine} if engine else {}
    if engine == "VERSIONED":
        properties["table.merge-engine.versioned.ver-column"] = "v"
    return SimTable(name, schema, buckets, properties, model=model, **options)


def drawn_tables(chance: Random) -> dict[str, SimTable]:
    """A log and a key table, and some of the others."""
    buckets = chance.randint(1, 3)
    others: list[Callable[[], SimTable]] = [
        lambda: _log(PARTED, 1, ("p", pa.string()), partition_keys=("p",)),
        lambda: _log(BRIEF, 1, properties={"table.log.ttl": f"{BRIEF_S:g} s"}),
        lambda: _log(TIERED, 1, properties={"table.datalake.enabled": "true"}),
        lambda: _keyed(FIRST, 1, FirstRow(), "FIRST_ROW"),
        lambda: _keyed(VERSIONED, 1, Versioned(1), "VERSIONED"),
        lambda: _keyed(SUMMED, 2, Aggregating({1: combine_sum, 2: combine_max}), "AGGREGATION"),
    ]
    chosen = [_log(LOG, buckets), _keyed(KEYED, buckets, Replacing(), has_partial_updates=True)]
    chosen += [make() for make in chance.sample(others, chance.randint(0, 3))]
    return {table.name: table for table in chosen}
