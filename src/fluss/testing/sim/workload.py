"""What clients do in a simulation: they write, read and look up, blocking and awaiting, and note what they were told.

A `Workload` makes clients for one server. Each is a thread of some client process and has random numbers of its own, so
that what one does hangs on the others only through what it is told. After the last fault `last_look` reads everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa

import fluss
import fluss.aio
import fluss.sync
from fluss.model.errors import FlussError
from fluss.testing.sim.history import (
    Action,
    Append,
    Bucket,
    ClientCall,
    Close,
    Delete,
    Fate,
    Get,
    History,
    Offsets,
    Poll,
    Record,
    Row,
    Subscribe,
    Upsert,
)
from fluss.testing.sim.logs import Content
from fluss.testing.sim.oracles import report, violations
from fluss.testing.sim.scheduler import SimThread
from fluss.testing.sim.world import ADDRESS, World

DATABASE: Final = "sim"
LOG, KEYED = "log", "keyed"
_LOG_SCHEMA: Final = fluss.Schema(pa.schema([("id", pa.int64()), ("text", pa.string())]))
_KEYED_SCHEMA: Final = fluss.Schema(
    pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("w", pa.int64())]), primary_keys=["k"]
)
_POLL_MS: Final = 300
_CHANGES: Final = ("+A", "+I", "-U", "+U", "-D")


class Sizes(NamedTuple):
    """How much there is of everything."""

    buckets: int = 2
    keys: int = 12
    calls: int = 40
    """Of each client"""
    rows_max: int = 12
    """Of an append"""
    pause_s_max: float = 0.05


@dataclass
class Workload:
    """Clients of a world, and what they were told."""

    world: World
    seed: int
    sizes: Sizes
    options: dict[str, Any]
    """Of connections"""
    history: History = field(init=False)
    rows: int = 0
    contents: dict[Bucket, Content] = field(default_factory=dict)
    tables: dict[str, dict[Any, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scheduler = self.world.scheduler
        self.history = History(lambda: scheduler.now_ns / 1e9)
        self._ids = count(1)
        self._numbers = count(1)

    def path(self, table: str) -> fluss.TablePath:
        return fluss.TablePath(DATABASE, table)

    def begin(self, client: str, action: Action) -> ClientCall:
        self.world.trace.add(client, type(action).__name__)
        return self.history.begin(client, action)

    def end(self, call: ClientCall, result: Any = None, fate: Fate = Fate.DONE, error: object = "") -> None:
        self.world.trace.add(call.began, int(fate), str(result))
        self.history.end(call, result, fate, error)

    def failed(self, call: ClientCall, error: FlussError) -> None:
        """A write may have been done all the same, and may yet be; a read has not."""
        is_write = isinstance(call.action, Append | Upsert | Delete)
        self.end(call, fate=Fate.UNKNOWN if is_write else Fate.FAILED, error=f"{type(error).__name__}: {error}")

    # --- clients

    def set_up(self) -> None:
        """Make the tables; in a thread of a client process."""
        with fluss.sync.connect(ADDRESS, **self.options) as connection:
            admin = connection.get_admin()
            admin.create_database(DATABASE, ignore_if_exists=True)
            for table, schema in ((LOG, _LOG_SCHEMA), (KEYED, _KEYED_SCHEMA)):
                descriptor = fluss.TableDescriptor(schema, bucket_count=self.sizes.buckets)
                admin.create_table(self.path(table), descriptor, ignore_if_exists=True)

    def blocking(self, name: str) -> Callable[[], None]:
        """A client that blocks."""
        return lambda: BlockingClient(self, name).run()

    def awaiting(self, name: str, tasks: int) -> Callable[[], Any]:
        """A client that awaits, with several tasks on one connection."""
        return lambda: AwaitingClient(self, name).run(tasks)

    def next_ids(self, number: int) -> tuple[int, ...]:
        self.rows += number
        return tuple(next(self._ids) for _ in range(number))

    def number(self) -> int:
        return next(self._numbers)

    def records(self, table: str, records: Iterable[Any]) -> tuple[Record, ...]:
        """What a scanner returned, as histories have it."""
        if table == LOG:
            return tuple(Record(record.offset, record.row["id"]) for record in records)
        return tuple(
            Record(record.offset, None, _CHANGES[record.change_type], record.row["k"], tuple(record.row.values()))
            for record in records
        )

    # --- the end

    def last_look(self) -> None:
        """Read everything that is stored; in a thread of a client process."""
        with fluss.sync.connect(ADDRESS) as connection:
            admin = connection.get_admin()
            buckets = list(range(self.sizes.buckets))
            for table in (LOG, KEYED):
                path = self.path(table)
                starts = admin.list_offsets(path, buckets, fluss.OffsetSpec.earliest())
                ends = admin.list_offsets(path, buckets, fluss.OffsetSpec.latest())
                for bucket in buckets:
                    with connection.get_table(path).new_scan().create_log_scanner() as scanner:
                        scanner.subscribe(bucket, starts[bucket])
                        found: list[Record] = []
                        while scanner.get_subscribed_buckets()[0][1] < ends[bucket]:
                            found += self.records(table, scanner.poll(_POLL_MS))
                    content = Content(starts[bucket], ends[bucket], found, has_gaps=table == KEYED)
                    self.contents[Bucket(table, bucket)] = content
            lookuper = connection.get_table(self.path(KEYED)).new_lookup().create_lookuper()
            rows = {key: lookuper.lookup({"k": key}) for key in range(self.sizes.keys)}
            self.tables[KEYED] = {key: tuple(row.values()) for key, row in rows.items() if row is not None}

    def judge(self) -> str:
        """What is wrong; empty if nothing is."""
        found = violations(self.history, self.contents, self.tables)
        return report(self.history, found) if found else ""

    def spawn(self, blocking: int, awaiting: int) -> list[SimThread]:
        """Start clients of two processes."""
        world, threads = self.world, []
        for number in range(blocking):
            process = world.process(f"host-b{number % 2}")
            threads.append(world.spawn(process, f"b{number}", self.blocking(f"b{number}")))
        for number in range(awaiting):
            process = world.process(f"host-a{number % 2}")
            threads.append(world.spawn_loop(process, f"a{number}", self.awaiting(f"a{number}", 3)))
        return threads


class BlockingClient:
    """A client of `fluss.sync` in one thread."""

    def __init__(self, workload: Workload, name: str) -> None:
        self._workload = workload
        self._name = name
        self._chance = Random(f"{workload.seed} {name}")
        self._writer = workload.number()

    def run(self) -> None:
        """Do everything, and close."""
        workload, sizes, chance = self._workload, self._workload.sizes, self._chance
        connection = _connected(workload)
        try:
            log = _until_done(workload, lambda: connection.get_table(workload.path(LOG)))
            keyed = _until_done(workload, lambda: connection.get_table(workload.path(KEYED)))
            self._appends = log.new_append().create_writer()
            self._upserts = keyed.new_upsert().create_writer()
            self._partial = keyed.new_upsert().partial_update_by_name(["k", "w"]).create_writer()
            self._lookups = keyed.new_lookup().create_lookuper()
            self._tables = {LOG: log, KEYED: keyed}
            self._admin = connection.get_admin()
            self._scanner: Any = None
            for _ in range(sizes.calls):
                self._step()
                workload.world.scheduler.sleep(chance.random() * sizes.pause_s_max)
        finally:
            closing = workload.begin(self._name, Close())
            try:
                connection.close()
            except FlussError as error:
                workload.end(closing, fate=Fate.DOUBTFUL, error=error)
            else:
                workload.end(closing)

    def _step(self) -> None:
        draw = self._chance.random()
        try:
            if draw < 0.3:
                self._append()
            elif draw < 0.6:
                self._put()
            elif draw < 0.8:
                self._get()
            elif draw < 0.95:
                self._poll()
            else:
                self._offsets()
        except FlussError as error:
            self._workload.failed(self._call, error)

    def _begin(self, action: Action) -> None:
        self._call = self._workload.begin(self._name, action)

    def _append(self) -> None:
        ids = self._workload.next_ids(self._chance.randint(1, self._workload.sizes.rows_max))
        self._begin(Append(LOG, ids, self._writer))
        for number in ids:
            self._appends.append({"id": number, "text": "x" * (number % 50)})
        self._appends.flush()
        self._workload.end(self._call)

    def _put(self) -> None:
        action, writer = _drawn_put(self._workload, self._chance)
        self._begin(action)
        if writer == "delete":
            self._upserts.delete({"k": action.key})
            self._upserts.flush()
        elif writer == "partial":
            self._partial.upsert({"k": action.key, "w": action.row[2]})
            self._partial.flush()
        else:
            self._upserts.upsert(dict(zip("kvw", action.row, strict=True)))
            self._upserts.flush()
        self._workload.end(self._call)

    def _get(self) -> None:
        key = self._chance.randrange(self._workload.sizes.keys)
        self._begin(Get(KEYED, key))
        row = self._lookups.lookup({"k": key})
        self._workload.end(self._call, None if row is None else tuple(row.values()))

    def _poll(self) -> None:
        workload, chance = self._workload, self._chance
        if self._scanner is None or chance.random() < 0.1:
            self._table = chance.choice((LOG, KEYED))
            self._bucket = chance.randrange(workload.sizes.buckets)
            self._reader = workload.number()
            self._begin(Subscribe(Bucket(self._table, self._bucket), self._reader, -1))
            scanner = self._tables[self._table].new_scan().create_log_scanner()
            scanner.subscribe(self._bucket, 0)
            self._scanner = scanner
            workload.end(self._call)
        self._begin(Poll(Bucket(self._table, self._bucket), self._reader))
        records = self._scanner.poll(_POLL_MS)
        workload.end(self._call, workload.records(self._table, records))

    def _offsets(self) -> None:
        workload = self._workload
        table, bucket = self._chance.choice((LOG, KEYED)), self._chance.randrange(workload.sizes.buckets)
        self._begin(Offsets(Bucket(table, bucket)))
        first = self._admin.list_offsets(workload.path(table), [bucket], fluss.OffsetSpec.earliest())
        last = self._admin.list_offsets(workload.path(table), [bucket], fluss.OffsetSpec.latest())
        workload.end(self._call, (first[bucket], last[bucket]))


class AwaitingClient:
    """A client of `fluss.aio` with several tasks on one loop."""

    def __init__(self, workload: Workload, name: str) -> None:
        self._workload = workload
        self._name = name

    async def run(self, tasks: int) -> None:
        """Do everything, and close."""
        workload = self._workload
        connection = await self._connected()
        try:
            await asyncio.gather(*(self._task(connection, number) for number in range(tasks)))
        finally:
            closing = workload.begin(self._name, Close())
            try:
                await connection.close()
            except FlussError as error:
                workload.end(closing, fate=Fate.DOUBTFUL, error=error)
            else:
                workload.end(closing)

    async def _connected(self) -> fluss.aio.FlussConnection:
        while True:
            try:
                return await fluss.aio.connect(ADDRESS, **self._workload.options)
            except FlussError:
                await asyncio.sleep(0.1)

    async def _task(self, connection: fluss.aio.FlussConnection, number: int) -> None:
        workload, sizes = self._workload, self._workload.sizes
        chance = Random(f"{workload.seed} {self._name} {number}")
        log, keyed = await self._table(connection, LOG), await self._table(connection, KEYED)
        writer = workload.number()
        appends, upserts = log.new_append().create_writer(), keyed.new_upsert().create_writer()
        partial = keyed.new_upsert().partial_update_by_name(["k", "w"]).create_writer()
        lookups = keyed.new_lookup().create_lookuper()
        for _ in range(sizes.calls):
            draw = chance.random()
            action: Any
            kind = ""
            if draw < 0.35:
                action = Append(LOG, workload.next_ids(chance.randint(1, sizes.rows_max)), writer)
            elif draw < 0.7:
                action, kind = _drawn_put(workload, chance)
            else:
                action = Get(KEYED, chance.randrange(sizes.keys))
            call = workload.begin(self._name, action)
            try:
                if isinstance(action, Append):
                    handles = [appends.append({"id": one, "text": ""}) for one in action.ids]
                    await (appends.flush() if chance.random() < 0.5 else _all_stored(handles))
                    workload.end(call)
                elif isinstance(action, Get):
                    row = await lookups.lookup({"k": action.key})
                    workload.end(call, None if row is None else tuple(row.values()))
                elif kind == "delete":
                    await upserts.delete({"k": action.key})
                    workload.end(call)
                elif kind == "partial":
                    await partial.upsert({"k": action.key, "w": action.row[2]})
                    workload.end(call)
                else:
                    await upserts.upsert(dict(zip("kvw", action.row, strict=True)))
                    workload.end(call)
            except FlussError as error:
                workload.failed(call, error)
            await asyncio.sleep(chance.random() * sizes.pause_s_max)

    async def _table(self, connection: fluss.aio.FlussConnection, name: str) -> fluss.aio.FlussTable:
        while True:
            try:
                return await connection.get_table(self._workload.path(name))
            except FlussError:
                await asyncio.sleep(0.1)


async def _all_stored(handles: list[Any]) -> None:
    for handle in handles:
        await handle


def _drawn_put(workload: Workload, chance: Random) -> tuple[Any, str]:
    key, number = chance.randrange(workload.sizes.keys), workload.next_ids(1)[0]
    draw = chance.random()
    if draw < 0.2:
        return Delete(KEYED, key), "delete"
    if draw < 0.4:
        return Upsert(KEYED, key, (key, None, number), (0, 2)), "partial"
    return Upsert(KEYED, key, (key, number, -number)), "whole"


def _connected(workload: Workload) -> fluss.sync.FlussConnection:
    return _until_done(workload, lambda: fluss.sync.connect(ADDRESS, **workload.options))


def _until_done(workload: Workload, work: Callable[[], Any]) -> Any:
    while True:
        try:
            return work()
        except FlussError:
            workload.world.scheduler.sleep(0.1)
