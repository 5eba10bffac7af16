"""What clients do in a simulation: they write, read and look up, blocking and awaiting, and note what they were told.

Each client is a thread of some process, and has random numbers of its own. Its calls are written once, as coroutines:
with a connection of `fluss.sync` nothing in them ever waits, so one step runs them to their end. After the last fault
`last_look` reads everything, and `judge` compares it with what clients were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple, TypeVar, cast

import pyarrow as pa

import fluss
import fluss.aio
import fluss.sync
from fluss.api.operations import ClusterOperations
from fluss.client import runtime
from fluss.client.admin import LakeCore
from fluss.doors import clock
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.testing.sim.history import (
    Action,
    Administer,
    Append,
    Bucket,
    ClientCall,
    Close,
    Delete,
    Fate,
    Get,
    History,
    LakeEnd,
    Offsets,
    Poll,
    Record,
    Row,
    Staged,
    Subscribe,
    Tier,
)
from fluss.testing.sim.logs import Content
from fluss.testing.sim.oracles import Rules, report, violations
from fluss.testing.sim.scheduler import SimThread
from fluss.testing.sim.tables import BRIEF, BRIEF_S, DATABASE, KEYED, LOG, PARTED, PARTITIONS, TIERED, SimTable
from fluss.testing.sim.world import ADDRESS, World

T = TypeVar("T")

_POLL_MS: Final = 300
_AGAIN_S: Final = 0.1
_STAGED_TRIES: Final = 3
_CANCELLED_SHARE: Final = 0.1
_UNAWAITED_SHARE: Final = 0.1
# For a message of a slow network, which takes a second, a slow sync, which takes two, and what is done behind them.
_SETTLE_S: Final = 4.0


class Sizes(NamedTuple):
    """How much there is of everything."""

    keys: int = 12
    calls: int = 40
    """Of each client"""
    rows_max: int = 12
    """Of an append"""
    pause_s_max: float = 0.05


async def given(value: Awaitable[T] | T) -> T:
    """What a call of either facade returns, awaited if it has to be."""
    return await cast(Awaitable[T], value) if isawaitable(value) else value


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in which nothing waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("a blocking client has awaited something")


@dataclass
class SimWorkload:
    """Clients of a world, and what they were told."""

    world: World
    seed: int
    tables: dict[str, SimTable]
    sizes: Sizes
    options: dict[str, Any]
    """Of connections"""
    keeps_brief: bool = True
    """Whether rows are kept for as long as their table says: not where the clock jumps"""
    history: History = field(init=False)
    contents: dict[Bucket, Content] = field(default_factory=dict)
    rows: dict[str, dict[Any, Row]] = field(default_factory=dict)
    operations: int = 0
    """Rows written, looked up and read, and other calls"""

    def __post_init__(self) -> None:
        scheduler = self.world.scheduler
        self.history = History(lambda: scheduler.now_ns / 1e9)
        self._ids = count(1)
        self._numbers = count(1)

    def begin(self, client: str, action: Action) -> ClientCall:
        self.world.trace.add(client, type(action).__name__)
        return self.history.begin(client, action)

    def end(self, call: ClientCall, result: Any = None, fate: Fate = Fate.DONE, error: object = "") -> None:
        self.world.trace.add(call.began, int(fate), str(result))
        self.operations += len(result) if isinstance(call.action, Poll) and result else 1
        self.history.end(call, result, fate, error)

    def failed(self, call: ClientCall, error: FlussError) -> None:
        """What writes may have been done all the same, and may yet be; a read has not."""
        is_read = isinstance(call.action, Get | Poll | Offsets | LakeEnd | Subscribe)
        text = f"{type(error).__name__}: {error}"
        self.end(call, fate=Fate.FAILED if is_read else Fate.UNKNOWN, error=text)

    def next_ids(self, number: int) -> tuple[int, ...]:
        self.operations += number - 1
        return tuple(next(self._ids) for _ in range(number))

    def number(self) -> int:
        return next(self._numbers)

    def spawn(self, blocking: int, awaiting: int) -> list[SimThread]:
        """Start clients, in two processes for each kind."""
        world, threads = self.world, []
        for number in range(blocking):
            process = world.process(f"host-b{number % 2}")
            client = SimClient(self, f"b{number}", is_blocking=True)
            threads.append(world.spawn(process, client.name, lambda client=client: drive(client.run(1))))  # type: ignore[misc]
        for number in range(awaiting):
            process = world.process(f"host-a{number % 2}")
            client = SimClient(self, f"a{number}", is_blocking=False)
            threads.append(world.spawn_loop(process, client.name, lambda client=client: client.run(3)))  # type: ignore[misc]
        return threads

    # --- before and after; in threads of client processes

    def set_up(self) -> None:
        """Make the tables."""
        with fluss.sync.connect(ADDRESS, **self.options) as connection:
            admin = connection.get_admin()
            admin.create_database(DATABASE, ignore_if_exists=True)
            for table in self.tables.values():
                admin.create_table(table.path, table.descriptor, ignore_if_exists=True)
                for partition in PARTITIONS if table.partition_keys else ():
                    admin.create_partition(table.path, {"p": partition})

    def last_look(self) -> None:
        """Read everything that is stored, when what clients left on its way has come to rest."""
        clock.sleep(_SETTLE_S)
        with fluss.sync.connect(ADDRESS) as connection:
            admin = connection.get_admin()
            for table in self.tables.values():
                opened = connection.get_table(table.path)
                if table.partition_keys:
                    for info in admin.list_partition_infos(table.path):
                        self._look_at(connection, table, info.partition_id, info.partition_name)
                else:
                    self._look_at(connection, table, None, "")
                if table.model is not None:
                    lookups = opened.new_lookup().create_lookuper()
                    found = {key: table.row(lookups.lookup({"k": key})) for key in range(self.sizes.keys)}
                    self.rows[table.name] = {key: row for key, row in found.items() if row is not None}

    def _look_at(self, connection: Any, table: SimTable, partition_id: int | None, partition: str) -> None:
        admin, buckets = connection.get_admin(), list(range(table.buckets))
        earliest, latest = fluss.OffsetSpec.earliest(), fluss.OffsetSpec.latest()
        if partition_id is None:
            starts = admin.list_offsets(table.path, buckets, earliest)
            ends = admin.list_offsets(table.path, buckets, latest)
        else:
            starts = admin.list_partition_offsets(table.path, partition, buckets, earliest)
            ends = admin.list_partition_offsets(table.path, partition, buckets, latest)
        name = f"{table.name}/{partition}" if partition else table.name
        info = connection.get_table(table.path).get_table_info()
        for bucket in buckets:
            start, found = starts[bucket], list[Record]()
            with connection.get_table(table.path).new_scan().create_log_scanner() as scanner:
                scanner.subscribe_positions({TableBucket(info.table_id, bucket, partition_id): start})
                while scanner.get_subscribed_buckets()[0][1] < ends[bucket]:
                    try:
                        found += map(table.record, scanner.poll(_POLL_MS))
                    except InvalidRequestError:
                        # Its beginning has expired meanwhile.
                        if table.name != BRIEF:
                            raise
                        start, found = admin.list_offsets(table.path, [bucket], earliest)[bucket], []
                        scanner.subscribe(bucket, start)
            self.contents[Bucket(name, bucket)] = Content(start, ends[bucket], found, has_gaps=table.model is not None)

    def judge(self) -> str:
        """What is wrong; empty if nothing is."""
        models = {name: table.model for name, table in self.tables.items() if table.model is not None}
        rules = Rules(models, {BRIEF: BRIEF_S if self.keeps_brief else 0.0})
        found = violations(self.history, self.contents, self.rows, rules)
        return report(self.history, found) if found else ""


class SimClient:
    """A client with one connection, of either facade; with `fluss.aio` it may do several things at a time."""

    def __init__(self, workload: SimWorkload, name: str, *, is_blocking: bool) -> None:
        self.workload = workload
        self.name = name
        self.is_blocking = is_blocking
        self.connection: Any = None

    async def run(self, tasks: int) -> None:
        """Do everything, and close."""
        workload = self.workload
        connect = fluss.sync.connect if self.is_blocking else fluss.aio.connect
        self.connection = await self.until_done(lambda: connect(ADDRESS, **workload.options))
        try:
            if self.is_blocking:
                await ClientTask(self, 0).run()
            else:
                await asyncio.gather(*(ClientTask(self, number).run() for number in range(tasks)))
        finally:
            closing = workload.begin(self.name, Close())
            try:
                await given(self.connection.close())
            except FlussError as error:
                workload.end(closing, fate=Fate.DOUBTFUL, error=error)
            else:
                workload.end(closing)

    async def until_done(self, work: Callable[[], Any]) -> Any:
        """Try until it works."""
        while True:
            try:
                return await given(work())
            except FlussError:
                await self.pause(_AGAIN_S)

    async def pause(self, seconds: float) -> None:
        if self.is_blocking:
            clock.sleep(seconds)
        else:
            await asyncio.sleep(seconds)


class ClientTask:
    """One call after the other."""

    def __init__(self, client: SimClient, number: int) -> None:
        self._client = client
        self._workload = client.workload
        self._chance = Random(f"{client.workload.seed} {client.name} {number}")
        self._query = f"{client.name}-{number}"
        self._batch = 0
        self._writer = self._workload.number()
        self._opened: dict[str, Any] = {}
        self._writers: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._scanner: Any = None
        self._snapshots = 0

    async def run(self) -> None:
        workload, chance = self._workload, self._chance
        calls = [self._append, self._put, self._get, self._poll, self._offsets, self._scan, self._staged, self._alter]
        weights = [30, 30, 20, 15, 5, 2, 5, 1]
        if TIERED in workload.tables and self._query == "b0-0":
            # Of one table, one at a time registers snapshots.
            calls.append(self._tier)
            weights.append(10)
        if self._client.is_blocking:
            calls += [self._back_up, self._scratch]
            weights += [1, 2]
        for name, table in workload.tables.items():
            self._opened[name] = await self._client.until_done(
                lambda table=table: self._client.connection.get_table(table.path)  # type: ignore[misc]
            )
        for _ in range(workload.sizes.calls):
            (call,) = chance.choices(calls, weights)
            try:
                await self._bounded(call)
            except FlussError as error:
                workload.failed(self._call, error)
            except TimeoutError:
                # Cancelled from outside: a poll has taken no rows, a write may go on.
                workload.end(self._call, fate=Fate.UNKNOWN, error="cancelled")
            await self._client.pause(chance.random() * workload.sizes.pause_s_max)

    async def _bounded(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it, or now and then only a part of it."""
        if self._client.is_blocking or call == self._scan or self._chance.random() > _CANCELLED_SHARE:
            await call()
        else:
            async with asyncio.timeout(self._chance.random() ** 2):
                await call()

    def _begin(self, action: Action) -> None:
        self._call = self._workload.begin(self._client.name, action)

    def _end(self, result: Any = None) -> None:
        self._workload.end(self._call, result)

    def _drawn_table(self, *, is_keyed: bool) -> SimTable:
        tables = [table for table in self._workload.tables.values() if (table.model is not None) == is_keyed]
        return self._chance.choice(tables)

    async def _append(self) -> None:
        table, chance = self._drawn_table(is_keyed=False), self._chance
        ids = self._workload.next_ids(chance.randint(1, self._workload.sizes.rows_max))
        more = {"p": chance.choice(PARTITIONS)} if table.name == PARTED else {}
        self._begin(Append(f"{PARTED}/{more['p']}" if more else table.name, ids, self._writer))
        writer = self._writers.get((table.name, ()))
        if writer is None:
            writer = self._writers[table.name, ()] = self._opened[table.name].new_append().create_writer()
        handles = [writer.append({"id": number, "text": "x" * (number % 40), **more}) for number in ids]
        if chance.random() < _UNAWAITED_SHARE:
            self._workload.end(self._call, fate=Fate.UNKNOWN, error="nobody waits")
            return
        await self._stored(writer, handles)
        self._end()

    async def _put(self) -> None:
        table = self._drawn_table(is_keyed=True)
        (number,) = self._workload.next_ids(1)
        action = table.drawn_put(self._chance, self._workload.sizes.keys, number)
        self._begin(action)
        writer = self._upserts(table, action.columns)
        if isinstance(action, Delete):
            handle = writer.delete({"k": action.key})
        else:
            values = dict(zip(table.columns, action.row, strict=True))
            chosen = action.columns or range(len(table.columns))
            handle = writer.upsert({table.columns[at]: values[table.columns[at]] for at in chosen})
        await self._stored(writer, [handle])
        self._end()

    def _upserts(self, table: SimTable, columns: tuple[int, ...]) -> Any:
        writer = self._writers.get((table.name, columns))
        if writer is None:
            upsert = self._opened[table.name].new_upsert()
            if columns:
                upsert = upsert.partial_update_by_index(list(columns))
            writer = self._writers[table.name, columns] = upsert.create_writer()
        return writer

    async def _stored(self, writer: Any, handles: list[Any]) -> None:
        if self._chance.random() < 0.5:
            await given(writer.flush())
        else:
            for handle in handles:
                await given(handle.wait())

    async def _get(self) -> None:
        table, key = self._drawn_table(is_keyed=True), self._chance.randrange(self._workload.sizes.keys)
        self._begin(Get(table.name, key))
        self._end(table.row(await given(self._opened[table.name].new_lookup().create_lookuper().lookup({"k": key}))))

    async def _scan(self) -> None:
        """Read a whole key table: a lookup of each key, all at the same time."""
        workload, table = self._workload, self._drawn_table(is_keyed=True)
        gets = [workload.begin(self._client.name, Get(table.name, key)) for key in range(workload.sizes.keys)]
        try:
            found = await given(self._opened[table.name].new_scan().to_arrow())
        except FlussError as error:
            for call in gets:
                workload.failed(call, error)
            return
        rows = {row["k"]: table.row(row) for row in found.to_pylist()}
        for call in gets:
            workload.end(call, rows.get(call.action.key))

    async def _poll(self) -> None:
        workload, chance = self._workload, self._chance
        if self._scanner is None or chance.random() < 0.1:
            self._scanned = self._drawn_table(is_keyed=chance.random() < 0.5)
            if self._scanned.partition_keys:
                self._scanned = workload.tables[LOG]
            self._bucket = Bucket(self._scanned.name, chance.randrange(self._scanned.buckets))
            self._reader = workload.number()
            self._begin(Subscribe(self._bucket, self._reader, -1))
            self._scanner = await given(self._opened[self._scanned.name].new_scan().create_log_scanner())
            self._scanner.subscribe(self._bucket.number, fluss.EARLIEST_OFFSET)
            self._end()
        self._begin(Poll(self._bucket, self._reader))
        self._end(tuple(map(self._scanned.record, await given(self._scanner.poll(_POLL_MS)))))

    async def _offsets(self) -> None:
        table = self._workload.tables[self._chance.choice((LOG, KEYED))]
        bucket = self._chance.randrange(table.buckets)
        self._begin(Offsets(Bucket(table.name, bucket)))
        first, last = [await self._offset(table, bucket, kind) for kind in ("earliest", "latest")]
        self._end((first, last))

    async def _offset(self, table: SimTable, bucket: int, kind: str) -> int:
        admin = await given(self._client.connection.get_admin())
        found: dict[int, int] = await given(admin.list_offsets(table.path, [bucket], offset_type=kind))
        return found[bucket]

    async def _staged(self) -> None:
        """Write a batch of a query, again and again until it is stored."""
        workload, chance = self._workload, self._chance
        ids = workload.next_ids(chance.randint(1, workload.sizes.rows_max))
        for attempt in range(_STAGED_TRIES):
            self._begin(Staged(LOG, self._query, self._batch, ids))
            try:
                write = self._opened[LOG].new_staged_write(self._query, self._batch)
                writer = write.create_writer(0, attempt)
                await given(writer.write_arrow_batch(pa.record_batch({"id": list(ids), "text": [""] * len(ids)})))
                await given(write.commit([await given(writer.finish())]))
            except FlussError as error:
                workload.failed(self._call, error)
                await self._client.pause(_AGAIN_S)
            else:
                self._end()
                self._batch += 1
                return
        self._batch, self._query = 0, f"{self._query}+"  # the next batch of a query that may be anywhere is refused

    async def _alter(self) -> None:
        self._begin(Administer("alter", LOG))
        admin = await given(self._client.connection.get_admin())
        column = (f"c{self._workload.number()}", fluss.DataTypes.int())
        await given(admin.alter_table(self._workload.tables[LOG].path, add_columns=[column]))
        self._end()

    async def _scratch(self) -> None:
        """Make a table, write to it, and drop it."""
        table = self._workload.tables[self._chance.choice((LOG, KEYED))]
        path = fluss.TablePath(DATABASE, f"scratch{self._workload.number()}")
        self._begin(Administer("make and drop", path.table_name))
        connection = self._client.connection
        admin = connection.get_admin()
        admin.create_table(path, table.descriptor)
        opened = connection.get_table(path)
        if table.model is None:
            opened.new_append().create_writer().append({"id": 1, "text": ""}).wait()
        else:
            opened.new_upsert().create_writer().upsert({"k": 1, "v": 1, "w": 1}).wait()
        admin.drop_table(path)
        self._end()

    async def _back_up(self) -> None:
        number = self._workload.number()
        self._begin(Administer("back up", str(number)))
        directory = self._workload.world.disk.root.with_name(f"backup-{number}")
        ClusterOperations(self._client.connection).back_up(str(directory), lambda _: None)
        self._end()

    async def _tier(self) -> None:
        """Register how far a lake would have a table."""
        table, opened = self._workload.tables[TIERED], self._opened[TIERED]
        info, bucket = opened.get_table_info(), Bucket(TIERED)
        lake = LakeCore(self._client.connection._core.cluster)
        self._begin(LakeEnd(bucket))
        found = runtime.run(lake.find_snapshot(table.path))
        known = {} if found is None else found.table_buckets_offset
        self._end(next(iter(known.values()), None))
        self._snapshots = max(self._snapshots, 0 if found is None else found.snapshot_id) + 1
        offset = await self._offset(table, 0, "latest")
        offsets = {TableBucket(info.table_id, 0): offset}
        self._begin(Tier(bucket, offset))
        path = runtime.run(lake.prepare(info, offsets))
        runtime.run(lake.commit(info, self._snapshots, path, offsets, None))
        self._end()
