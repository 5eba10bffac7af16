"""Primary-key tables that are written to until the power fails; some have an auto-increment column."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import pyarrow as pa

import fluss
from fluss.model.paths import TableBucket
from fluss.storage.kv.bucket import KvBucket
from fluss.storage.kv.put import Put
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.staging.commit import StagedRequest
from fluss.storage.store import Storage
from tests.crash.kv_stored import changes_of, read_rows
from tests.crash.power_tables import PoweredTable, StagedTable, safe_end
from tests.kit.loads.kv_model import SCHEMA, Batch, Change, Model, Op, Row, random_batch
from tests.kit.rows import Row as StagedRow

KEYS = 12
ROWS_MAX = 5
NUMBERS_CACHED = "3"  # few, so that blocks are reserved often
_KINDS = ("+A", "+I", "-U", "+U", "-D")
_NUMBERED = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string()), ("count", pa.int64())]), ["id"], "count")


_snapshots: WeakKeyDictionary[Storage, KvSnapshots] = WeakKeyDictionary()


def snapshots_in(storage: Storage) -> KvSnapshots:
    """The snapshots of a storage: it makes one at a time."""
    if storage not in _snapshots:
        _snapshots[storage] = KvSnapshots(storage, storage.kv.bucket, on_demand_gap_ms=0)
    return _snapshots[storage]


class KeyTable(PoweredTable):
    name = "keys"
    properties: ClassVar[dict[str, str]] = {"table.auto-increment.cache-size": NUMBERS_CACHED}

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.is_numbered = chance.random() < 0.5
        self.batches: list[Batch] = []
        self.models = [Model()]  # after each number of batches
        self.writer_id: int | None = None
        self.acknowledged = self.stored = 0  # batches
        self.snapshot_end = 0  # of the newest one that was acknowledged
        self.numbered: dict[int, int] = {}  # offset by number

    def schema(self) -> fluss.Schema:
        return _NUMBERED if self.is_numbered else SCHEMA

    @property
    def bucket(self) -> TableBucket:
        assert self.table_id is not None
        return TableBucket(self.table_id, 0)

    async def step(self, storage: Storage) -> None:
        if self.chance.random() < 0.12:
            await self._snapshot(storage)
            return
        batch = self._batch()
        model = Model(dict(self.models[-1].rows), list(self.models[-1].changes))
        model.apply(batch)
        self.models.append(model)
        self.batches.append(batch)
        put = await self._put(storage, len(self.batches) - 1)
        if self.chance.random() < 0.5:
            number = len(self.batches)
            await put.applied
            self.acknowledged = number
        elif self.chance.random() < 0.5:
            await asyncio.sleep(0)

    def _batch(self) -> Batch:
        if not self.is_numbered:
            return random_batch(self.chance, KEYS, ROWS_MAX)
        keys = [self.chance.randrange(KEYS * 4) for _ in range(self.chance.randint(1, ROWS_MAX))]
        return Batch([Op(key, (key, f"name-{self.chance.randrange(1_000)}", None)) for key in keys], (0, 1))

    async def _put(self, storage: Storage, number: int) -> Put:
        if self.writer_id is None:
            self.writer_id = storage.catalog.next_writer_id()
        await storage.opened(self.bucket)
        batch = self.batches[number]
        return storage.kv.bucket(self.bucket).put(memoryview(batch.encode(self.writer_id, number)), batch.targets)

    async def _snapshot(self, storage: Storage) -> None:
        snapshots = snapshots_in(storage)
        await snapshots.make(self.bucket)
        self.snapshot_end = max((made.log_offset for made in await snapshots.snapshots_of(self.bucket)), default=0)

    def known(self, storage: Storage | None) -> Any:
        if self.table_id is None:
            return None
        return (self.acknowledged, self.snapshot_end, safe_end(storage, self.bucket))

    async def problems(self, storage: Storage, known: Any) -> list[str]:
        self.acknowledged, self.snapshot_end, safe = known or (0, 0, 0)
        log = await storage.opened(self.bucket)
        start, end = log.log_start_offset, log.high_watermark
        ends = [len(model.changes) for model in self.models]
        if end < safe or end not in ends or (count := ends.index(end)) < self.acknowledged:
            return [f"the log ends at {end}, of {ends}; {self.acknowledged} puts and {safe} offsets were safe"]
        model = self.models[count]
        changes = changes_of(storage, self.bucket)
        if [self._plain(change) for change in changes] != model.changes[start:]:
            return [f"the changes from {start} on are {changes}, not {model.changes[start:]}"]
        found = await self._snapshot_problems(storage) + self._number_problems(changes, start)
        self.stored = count
        return found or await self._row_problems(storage, model)

    async def _snapshot_problems(self, storage: Storage) -> list[str]:
        made = await snapshots_in(storage).snapshots_of(self.bucket)
        newest = max((snapshot.log_offset for snapshot in made), default=0)
        return [f"the newest snapshot is of {newest}, not {self.snapshot_end}"] if newest < self.snapshot_end else []

    def _number_problems(self, changes: list[Change | None], start: int) -> list[str]:
        if not self.is_numbered:
            return []
        found = []
        self.numbered = {number: offset for number, offset in self.numbered.items() if offset < start}
        for offset, change in enumerate(changes, start):
            if change is not None and change[0] == "+I":
                number = change[1][2]
                if number is None or number in self.numbered:
                    found.append(
                        f"number {number} was given to offset {offset} and to {self.numbered.get(number or 0)}"
                    )
                else:
                    self.numbered[number] = offset
        return found

    async def _row_problems(self, storage: Storage, model: Model) -> list[str]:
        kv: KvBucket = storage.kv.bucket(self.bucket)
        offset, rows = await read_rows(kv)
        plain = {key: self._plain_row(row) for key, row in rows.items()}
        if (offset, plain) != (len(model.changes), model.rows):
            return [f"the rows as of {offset} are {rows}, not {model.rows}"]
        numbers = [row[2] for row in rows.values()]
        if self.is_numbered and len(set(numbers)) < len(numbers):
            return [f"rows share a number: {rows}"]
        return []

    async def carry_on(self, storage: Storage) -> list[str]:
        """What is there changes nothing, what was lost is put."""
        for number in range(max(0, self.stored - 1), len(self.batches)):
            await (await self._put(storage, number)).applied
        end = storage.bucket(self.bucket).high_watermark
        self.acknowledged = len(self.batches)
        expected = len(self.models[-1].changes)
        return [] if end == expected else [f"the log ends at {end} after puts were repeated, not {expected}"]

    def _plain(self, change: Change | None) -> Change | None:
        return None if change is None else (change[0], self._plain_row(change[1]))

    def _plain_row(self, row: Row) -> Row:
        """Without what the server has chosen."""
        return (row[0], row[1], None) if self.is_numbered else row


class StagedKeyTable(StagedTable):
    """Staged batches of new keys."""

    name = "staged_keys"

    def schema(self) -> fluss.Schema:
        return SCHEMA

    def request(self, rows: list[StagedRow]) -> StagedRequest:
        batch = Batch([Op(row.sequence, (row.sequence, "staged", row.writer)) for row in rows])
        return StagedRequest([(self.bucket, memoryview(batch.encode()))])

    def read(self, storage: Storage) -> list[StagedRow]:
        changes = changes_of(storage, self.bucket)
        assert all(change is None or change[0] == "+I" for change in changes), changes
        return [StagedRow(0, change[1][0]) for change in changes if change is not None]
