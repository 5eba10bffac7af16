"""Tables that are written to until the power fails, each with what it must have afterwards.

Each `step` writes something. `known` says what is safe at a moment: it is asked by whichever thread
loses the power, so it only copies. `check` compares a recovered storage with that; `carry_on` goes on where the loss
came: what was not acknowledged is sent again under the same number, and must be there once.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import fluss
from fluss.formats.batches.log_batch import parse_header
from fluss.model.clock import wall_clock_ms
from fluss.model.paths import TableBucket
from fluss.model.staging import StagedTask
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.lake_snapshots import offsets_of
from fluss.storage.staging.commit import StagedKey, StagedRequest, query_name
from fluss.storage.store import Storage
from tests.kit.rows import SCHEMA, Row, stored_batches, wire_batch

READ_BYTES = 1 << 20
ROWS_MAX = 6
KEEP_ALL = {"table.log.ttl": "0 s"}


class PoweredTable(ABC):
    """A table, and what is known of it across the losses of one seed."""

    name: ClassVar[str]
    buckets: ClassVar[int] = 1
    properties: ClassVar[dict[str, str]] = KEEP_ALL
    partition_keys: ClassVar[list[str]] = []

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.table_id: int | None = None  # once it is acknowledged

    def schema(self) -> fluss.Schema:
        return fluss.Schema(SCHEMA)

    @property
    def path(self) -> fluss.TablePath:
        return fluss.TablePath("fluss", self.name)

    async def create(self, storage: Storage) -> None:
        if storage.catalog.table_exists(self.path):
            self.table_id = storage.catalog.table(self.path).table_id
            return
        descriptor = fluss.TableDescriptor(
            self.schema(),
            bucket_count=self.buckets,
            partition_keys=self.partition_keys,
            properties={"table.log.arrow.compression.type": "NONE", **self.properties},
        )
        entry = await storage.catalog.create_table(
            self.path,
            descriptor.to_json().decode(),
            json.dumps(self.schema().to_json()),
            self.buckets,
            partition_keys=self.partition_keys,
        )
        self.table_id = entry.table_id

    def entry(self, storage: Storage) -> TableEntry:
        return storage.catalog.table(self.path)

    @abstractmethod
    async def step(self, storage: Storage) -> None:
        """Change something, and note what is acknowledged."""

    @abstractmethod
    def known(self, storage: Storage | None) -> Any:
        """What is safe by now; in any thread."""

    async def check(self, storage: Storage, known: Any) -> list[str]:
        """What a storage that was opened after the loss has lost, doubled or made up."""
        if not storage.catalog.table_exists(self.path):
            return ["the table is lost"]
        await self.create(storage)
        return await self.problems(storage, known)

    @abstractmethod
    async def problems(self, storage: Storage, known: Any) -> list[str]:
        """As `check`, of a table that is there; `known` is None if it need not be."""

    @abstractmethod
    async def carry_on(self, storage: Storage) -> list[str]:
        """Send again what was not acknowledged; what is wrong with the outcome."""


# --- logs


class Sent(NamedTuple):
    """A batch of an idempotent writer."""

    sequence: int
    rows: list[Row]
    base_offset: int


@dataclass
class LoggedBucket:
    """A log as it must be: which row is at which offset."""

    writer: int
    writer_id: int | None = None
    rows: list[Row] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    made: int = 0

    async def append(self, storage: Storage, bucket: TableBucket, chance: random.Random) -> Any:
        if self.writer_id is None:
            self.writer_id = storage.catalog.next_writer_id()
        count = chance.randint(1, ROWS_MAX)
        rows = [Row(self.writer, self.made + number) for number in range(count)]
        log = await storage.opened(bucket)
        batch = wire_batch(rows, self.writer_id, len(self.sent))
        appended = log.append(batch, parse_header(batch), wall_clock_ms())
        self.made += count
        self.sent.append(Sent(len(self.sent), rows, appended.base_offset))
        self.rows += rows
        return appended.durable

    async def problems(self, storage: Storage, bucket: TableBucket, safe: int, start_max: int) -> list[str]:
        log = await storage.opened(bucket)
        start, end = log.log_start_offset, log.high_watermark
        if not safe <= end <= len(self.rows):
            return [f"{bucket} ends at {end}, {safe} rows were safe of {len(self.rows)}"]
        if start > start_max:
            return [f"{bucket} begins at {start}, it was cut up to {start_max} at most"]
        if (found := read_rows(storage, bucket)) != self.rows[start:end]:
            return [f"{bucket} has other rows than were written: {found} instead of {self.rows[start:end]}"]
        del self.rows[end:]
        return []

    async def carry_on(self, storage: Storage, bucket: TableBucket) -> list[str]:
        """What was not safe goes out again, and is stored once, wherever it is."""
        log = await storage.opened(bucket)
        end = len(self.rows)
        stored = sum(sent.base_offset < end for sent in self.sent)
        again = self.sent[max(0, stored - 1) :]
        del self.sent[max(0, stored - 1) :]
        for sent in again:
            batch = wire_batch(sent.rows, self.writer_id or 0, sent.sequence)
            appended = log.append(batch, parse_header(batch), wall_clock_ms())
            if sent.base_offset < end and appended.base_offset != sent.base_offset:
                return [f"{bucket}: a repeated batch was stored again at {appended.base_offset}"]
            if sent.base_offset >= end:
                self.rows += sent.rows
            self.sent.append(sent._replace(base_offset=appended.base_offset))
            await appended.durable
        return []


def read_batches(storage: Storage, bucket: TableBucket) -> Iterator[list[Row]]:
    log = storage.bucket(bucket)
    offset = log.log_start_offset
    while offset < log.high_watermark:
        for batch in stored_batches(log.read(offset, READ_BYTES)):
            assert batch.base_offset == offset, f"offset {batch.base_offset} instead of {offset}"
            offset += len(batch.rows)
            yield batch.rows


def read_rows(storage: Storage, bucket: TableBucket) -> list[Row]:
    return [row for rows in read_batches(storage, bucket) for row in rows]


def safe_end(storage: Storage | None, bucket: TableBucket) -> int:
    """What readers may have seen."""
    log = None if storage is None else storage.open_log(bucket)
    return 0 if log is None else log.high_watermark


class LogTable(PoweredTable):
    """Batches of idempotent writers; some of them are waited for."""

    name = "log"
    buckets = 2
    start_is_zero = True

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.logged = [LoggedBucket(number) for number in range(self.buckets)]

    def bucket(self, number: int) -> TableBucket:
        assert self.table_id is not None
        return TableBucket(self.table_id, number)

    async def step(self, storage: Storage) -> None:
        number = self.chance.randrange(self.buckets)
        durable = await self.logged[number].append(storage, self.bucket(number), self.chance)
        if self.chance.random() < 0.4:
            await durable
        elif self.chance.random() < 0.5:
            await asyncio.sleep(0)

    def known(self, storage: Storage | None) -> Any:
        if self.table_id is None:
            return None
        return [safe_end(storage, self.bucket(number)) for number in range(self.buckets)]

    def start_max(self, number: int) -> int:
        return 0 if self.start_is_zero else len(self.logged[number].rows)

    async def problems(self, storage: Storage, known: Any) -> list[str]:
        found: list[str] = []
        for number, safe in enumerate(known or [0] * self.buckets):
            bucket = self.bucket(number)
            found += await self.logged[number].problems(storage, bucket, safe, self.start_max(number))
        return found

    async def carry_on(self, storage: Storage) -> list[str]:
        found: list[str] = []
        for number in range(self.buckets):
            found += await self.logged[number].carry_on(storage, self.bucket(number))
        return found


class RetainedTable(LogTable):
    """A log whose beginning goes with each pass of retention."""

    name = "retained"
    buckets = 1
    properties: ClassVar[dict[str, str]] = {}
    start_is_zero = False


class LakeTable(LogTable):
    """A log that is tiered: offsets are prepared and registered, and retention cuts no further than those."""

    name = "lake"
    buckets = 1
    properties: ClassVar[dict[str, str]] = {"table.datalake.enabled": "true"}
    start_is_zero = False

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.prepared: tuple[tuple[str, int], ...] = ()  # acknowledged and not registered, with their offsets
        self.registered: tuple[int, int] = (0, 0)  # the last one that was acknowledged, with its offset
        self.asked: tuple[int, int] = (0, 0)  # the last one

    async def step(self, storage: Storage) -> None:
        chosen = self.chance.random()
        if chosen < 0.5:
            await super().step(storage)
        elif chosen < 0.75 or not self.prepared:
            bucket = self.bucket(0)
            offset = (await storage.opened(bucket)).high_watermark
            path = await storage.lake.prepare(self.entry(storage), {bucket: offset}, merge=True)
            self.prepared = (*self.prepared, (path, offset))
        else:
            await self._register(storage, self.prepared[-1])

    async def _register(self, storage: Storage, prepared: tuple[str, int]) -> None:
        path, offset = prepared
        snapshot_id = self.asked[0] + 1
        self.asked = (snapshot_id, offset)
        self.prepared = ()  # earlier ones can't be registered from here on
        await storage.lake.commit(
            self.bucket(0).table_id, snapshot_id, path, readable=True, earliest_to_keep=self.chance.choice([None, -1])
        )
        self.registered = (snapshot_id, offset)

    def known(self, storage: Storage | None) -> Any:
        safe = super().known(storage)
        return None if safe is None else (self.registered, self.asked, self.prepared, safe)

    async def problems(self, storage: Storage, known: Any) -> list[str]:
        registered, asked, prepared, safe = known or ((0, 0), (0, 0), (), None)
        latest = storage.lake.latest(self.bucket(0).table_id)
        snapshot = (0, 0) if latest is None else (latest.snapshot_id, offsets_of(latest).get(self.bucket(0), 0))
        if snapshot not in (registered, asked):
            return [f"lake snapshot {snapshot} is registered; {registered} was acknowledged, {asked} asked for"]
        start = (await storage.opened(self.bucket(0))).log_start_offset
        if start > snapshot[1]:
            return [f"the log begins at {start}, the lake has it up to {snapshot[1]}"]
        found = await super().problems(storage, safe)
        self.registered = self.asked = snapshot
        self.prepared = prepared
        return found

    async def carry_on(self, storage: Storage) -> list[str]:
        if self.prepared:
            # Its file was acknowledged, and the lake may name it.
            await self._register(storage, self.prepared[-1])
        return await super().carry_on(storage)


# Live ones by name, ids of dropped ones, names under way, and how much of each live one is safe.
_Partitions: TypeAlias = tuple[dict[str, int], frozenset[int], tuple[str, ...], dict[int, int]]


class PartitionedTable(PoweredTable):
    """Partitions that come and go."""

    name = "parts"
    partition_keys: ClassVar[list[str]] = ["filler"]

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.live: dict[str, int] = {}  # acknowledged, by name
        self.dropped: frozenset[int] = frozenset()
        self.under_way: tuple[str, ...] = ()  # names that are being made or dropped
        self.logged: dict[int, LoggedBucket] = {}
        self._number = 0

    async def step(self, storage: Storage) -> None:
        chosen = self.chance.random()
        assert self.table_id is not None
        if chosen < 0.25 or not self.live:
            await self._create(storage, f"p{self.chance.randrange(6)}")
        elif chosen < 0.4:
            await self._drop(storage, self.chance.choice(sorted(self.live)))
        else:
            partition_id = self.live[self.chance.choice(sorted(self.live))]
            bucket = TableBucket(self.table_id, 0, partition_id)
            durable = await self.logged[partition_id].append(storage, bucket, self.chance)
            if self.chance.random() < 0.5:
                await durable

    async def _create(self, storage: Storage, name: str) -> None:
        if name in self.live:
            return
        entry = self.entry(storage)
        self.under_way = (name,)
        await storage.catalog.create_partitions(entry.table_id, [name])
        partition_id = storage.catalog.partition(entry, name).partition_id
        self._number += 1
        self.logged[partition_id] = LoggedBucket(self._number)
        self.live = {**self.live, name: partition_id}
        self.under_way = ()

    async def _drop(self, storage: Storage, name: str) -> None:
        self.under_way = (name,)
        await storage.catalog.drop_partitions(self.entry(storage).table_id, [name])
        self.dropped |= {self.live[name]}
        self.live = {other: number for other, number in self.live.items() if other != name}
        self.under_way = ()

    def known(self, storage: Storage | None) -> Any:
        if (table_id := self.table_id) is None:
            return None
        under_way, live = self.under_way, self.live
        safe = {number: safe_end(storage, TableBucket(table_id, 0, number)) for number in live.values()}
        return (live, self.dropped, under_way, safe)

    async def problems(self, storage: Storage, known: Any) -> list[str]:
        nothing: _Partitions = ({}, frozenset(), (), {})
        live, self.dropped, under_way, safe = known or nothing
        entries = {entry.name: entry.partition_id for entry in storage.catalog.partitions(self.entry(storage))}
        lost = [name for name, number in live.items() if entries.get(name) != number and name not in under_way]
        back = [name for name, number in entries.items() if number in self.dropped]
        made_up = [name for name in entries.keys() - live.keys() if name not in under_way]
        if lost or back or made_up:
            return [f"partitions {lost} are lost, {back} are back, {made_up} were never made"]
        found: list[str] = []
        for number in entries.values():
            self._number += 1
            logged = self.logged.setdefault(number, LoggedBucket(self._number))
            found += await logged.problems(storage, TableBucket(self.table_id or 0, 0, number), safe.get(number, 0), 0)
        self.live, self.under_way = entries, ()
        return found

    async def carry_on(self, storage: Storage) -> list[str]:
        found: list[str] = []
        for number in self.live.values():
            found += await self.logged[number].carry_on(storage, TableBucket(self.table_id or 0, 0, number))
        return found


# --- staged writes


class StagedBatch(NamedTuple):
    """The batch that a query is at."""

    number: int
    rows: tuple[tuple[Row, ...], ...]  # by task
    attempt: int
    staged: int  # tasks whose request was acknowledged
    is_asked: bool  # whether its commit was asked for


class StagedTable(PoweredTable):
    """Batches of one query, each staged in parts and committed."""

    name = "staged"
    query = "query"

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.state: tuple[int, StagedBatch | None] = (-1, None)  # the last one committed, the one under way
        self.rows: list[list[Row]] = []  # by batch
        self.made = 0

    @property
    def bucket(self) -> TableBucket:
        assert self.table_id is not None
        return TableBucket(self.table_id, 0)

    def _begin(self) -> StagedBatch:
        tasks = []
        for _ in range(self.chance.randint(1, 3)):
            count = self.chance.randint(1, ROWS_MAX)
            tasks.append(tuple(Row(0, self.made + number) for number in range(count)))
            self.made += count
        self.rows.append([row for rows in tasks for row in rows])
        return StagedBatch(len(self.rows) - 1, tuple(tasks), 0, 0, False)

    async def step(self, storage: Storage) -> None:
        committed, batch = self.state
        if batch is None:
            self.state = (committed, self._begin())
        elif batch.staged < len(batch.rows):
            await self._stage(storage, batch)
        else:
            await self._commit(storage, batch)

    async def _stage(self, storage: Storage, batch: StagedBatch) -> None:
        key = StagedKey(self.bucket.table_id, query_name(self.query), batch.number, batch.staged, batch.attempt, 0)
        request = self.request(list(batch.rows[batch.staged]))
        await storage.staging.stage(key, self.query, request)
        self.state = (self.state[0], batch._replace(staged=batch.staged + 1))

    def read(self, storage: Storage) -> list[Row]:
        return read_rows(storage, self.bucket)

    def request(self, rows: list[Row]) -> StagedRequest:
        return StagedRequest([(self.bucket, memoryview(wire_batch(rows)))])

    async def _commit(self, storage: Storage, batch: StagedBatch) -> None:
        self.state = (self.state[0], batch._replace(is_asked=True))
        tasks = [StagedTask(number, batch.attempt, 1) for number in range(len(batch.rows))]
        await storage.staging.commit(self.bucket.table_id, self.query, batch.number, tasks)
        self.state = (batch.number, None)

    def known(self, storage: Storage | None) -> Any:
        return None if self.table_id is None else self.state

    async def problems(self, storage: Storage, known: Any) -> list[str]:
        committed, batch = known or (-1, None)
        await storage.staging.recover()
        count, problems = await self._stored(storage)
        is_asked = batch is not None and batch.is_asked
        if problems or not committed + 1 <= count <= committed + 1 + is_asked:
            return problems or [
                f"{count} batches are there, {committed + 1} were committed, asked for more: {is_asked}"
            ]
        if batch is None or count > batch.number:
            del self.rows[count:]
            self.state = (count - 1, None)
            return []
        del self.rows[batch.number + 1 :]
        self.state = (committed, batch)
        return []

    async def carry_on(self, storage: Storage) -> list[str]:
        """What was staged is there and can be committed, once, however often that is asked for."""
        batch = self.state[1]
        if batch is None:
            return []
        if batch.staged < len(batch.rows):
            batch = batch._replace(staged=0, attempt=batch.attempt + 1)
        while batch.staged < len(batch.rows):
            await self._stage(storage, batch)
            batch = self.state[1] or batch
        await self._commit(storage, batch)
        tasks = [StagedTask(number, batch.attempt, 1) for number in range(len(batch.rows))]
        await storage.staging.commit(self.bucket.table_id, self.query, batch.number, tasks)
        count, problems = await self._stored(storage)
        return problems or (
            [] if count == batch.number + 1 else [f"{count} batches after {batch.number} was committed"]
        )

    async def _stored(self, storage: Storage) -> tuple[int, list[str]]:
        """How many batches are there, whole and once each."""
        await storage.opened(self.bucket)
        rows = self.read(storage)
        expected: list[Row] = []
        for count, batch in enumerate([[], *self.rows]):
            expected += batch
            if rows == expected:
                return count, []
        return 0, [f"the rows {rows} are not those of some batches {self.rows}"]


async def quietly(work: Any) -> None:
    """What goes on after the power was lost may fail in any way."""
    with suppress(fluss.FlussError):
        await work
