"""A small data directory with every kind of file, and what was acknowledged while it was made.

It is made by the storage layer in one process. Copies are taken on the way, so that an old version of a file can be put
back; one while the storage is open and idle, which is what a kill leaves; and one after it was closed.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

import fluss
from fluss.formats.arrow.payload import Codec, Compression, encode
from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import encode_batch, parse_header
from fluss.formats.rows.keys import KeyEncoder
from fluss.formats.rows.values import ValueCodec
from fluss.model.errors import FlussError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.paths import TableBucket
from fluss.model.staging import StagedTask
from fluss.model.tables.options import AUTO_INCREMENT_CACHE_SIZE, DATALAKE_ENABLED
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.staging.commit import StagedKey, StagedRequest, query_name
from fluss.storage.store import Storage, StorageOptions
from tests.crash.kv_stored import rows_of
from tests.crash.rot_reader import RotReader
from tests.kit import rows
from tests.kit.directory_image import DirectoryImage
from tests.kit.loads import kv_model
from tests.kit.rows import Row

SEGMENT_SIZE_BYTES: Final = 2 << 10
LOG, PARTS, LAKE, STAGED = "log", "parts", "lake", "staged"
KEYS, NUMBERS, DROPPED = "keys", "numbers", "dropped"
PARTITIONS: Final = ("a", "b")
WRITERS: Final = 3
PHASES: Final = 3
KEYS_MAX: Final = 60
TASKS: Final = 2
TASK_REQUESTS: Final = 2
DONE, DECIDED, UNDECIDED = "done", "decided", "undecided"

NUMBERS_SCHEMA: Final = fluss.Schema(pa.schema([("id", pa.int32()), ("number", pa.int64())]), ["id"], "number")
_PARTS_SCHEMA: Final = rows.SCHEMA.append(pa.field("part", pa.string()))
_NUMBERS_CODEC: Final = ValueCodec({1: NUMBERS_SCHEMA})
_NUMBERS_KEYS: Final = KeyEncoder(NUMBERS_SCHEMA.columns[:1])
_UNCOMPRESSED: Final = {"table.log.arrow.compression.type": "NONE"}


class LastBatch(NamedTuple):
    """What a writer was last told of."""

    sequence: int
    base_offset: int
    last_offset: int
    wire: bytes


@dataclass
class LogContent:
    """The acknowledged batches of a bucket, byte by byte."""

    bucket: TableBucket
    table: str
    start: int
    end: int
    batches: dict[int, bytes]  # by base offset
    projected: dict[int, bytes]
    writers: dict[int, LastBatch]


class StagedContent(NamedTuple):
    """A batch that was staged: its commit was acknowledged, decided, or never asked for."""

    query: str
    batch_id: int
    tasks: tuple[StagedTask, ...]
    requests: list[tuple[int, int, list[Row]]]  # task, sequence, rows
    state: str

    @property
    def rows(self) -> list[Row]:
        """In the order of a commit."""
        return [row for _, _, written in self.requests for row in written]


class LakeContent(NamedTuple):
    snapshot_id: int = -1
    offset: int = -1
    prepared_path: str = ""  # of a snapshot that is not registered
    prepared_offset: int = -1


@dataclass
class Acknowledged:
    """All that clients were told."""

    table_ids: dict[str, int] = field(default_factory=dict)  # the dropped one is among them
    partition_ids: dict[str, int] = field(default_factory=dict)
    definitions: dict[str, tuple[object, ...]] = field(default_factory=dict)  # of the tables that are left
    writer_ids: set[int] = field(default_factory=set)
    logs: list[LogContent] = field(default_factory=list)
    keys: dict[int, kv_model.Row] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    numbers_used: set[int] = field(default_factory=set)
    staged: list[StagedContent] = field(default_factory=list)
    lake: LakeContent = field(default_factory=LakeContent)


@dataclass
class RotTemplate:
    """A directory that is made once and damaged many times."""

    number: int
    known: Acknowledged
    earlier: list[DirectoryImage]
    killed: DirectoryImage
    stopped: DirectoryImage


def options(root: Path) -> StorageOptions:
    return StorageOptions(root, segment_size_bytes=SEGMENT_SIZE_BYTES, disk_free_bytes_min=0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def log_batch(written: Sequence[Row], writer_id: int = -1, sequence: int = -1, part: str | None = None) -> bytearray:
    """Rows as a client sends them, with statistics for filters."""
    batch = rows.arrow_batch(list(written))
    schema = rows.SCHEMA
    if part is not None:
        batch = batch.append_column("part", pa.array([part] * len(written)))
        schema = _PARTS_SCHEMA
    types = [column.data_type for column in fluss.Schema(schema).columns]
    return encode_batch(
        encode(batch, Codec(Compression.NONE)),
        schema_id=rows.FIRST_SCHEMA_ID,
        record_count=len(written),
        writer_id=writer_id,
        batch_sequence=sequence,
        statistics=statistics.encode(batch, types, range(len(types))),
    )


def number_keys(ids: Sequence[int]) -> list[bytes]:
    columns = [pa.array(ids, pa.int32()), pa.nulls(len(ids), pa.int64())]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(NUMBERS_SCHEMA))
    found: list[bytes] = _NUMBERS_KEYS.encode(batch).to_pylist()
    return found


def numbers_of(values: Sequence[bytes]) -> dict[int, int]:
    """Numbers by id."""
    if not values:
        return {}
    batch = _NUMBERS_CODEC.decode(list(values))
    return dict(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def descriptors(block: str) -> dict[str, fluss.TableDescriptor]:
    """The tables to make, in order."""
    plain = fluss.Schema(rows.SCHEMA)
    return {
        LOG: fluss.TableDescriptor(plain, bucket_count=2, properties=_UNCOMPRESSED),
        PARTS: fluss.TableDescriptor(
            fluss.Schema(_PARTS_SCHEMA), bucket_count=1, partition_keys=["part"], properties=_UNCOMPRESSED
        ),
        LAKE: fluss.TableDescriptor(plain, bucket_count=1, properties={**_UNCOMPRESSED, DATALAKE_ENABLED: "true"}),
        STAGED: fluss.TableDescriptor(plain, bucket_count=1, properties=_UNCOMPRESSED),
        KEYS: fluss.TableDescriptor(kv_model.SCHEMA, bucket_count=1, bucket_keys=["id"]),
        NUMBERS: fluss.TableDescriptor(
            NUMBERS_SCHEMA, bucket_count=1, bucket_keys=["id"], properties={AUTO_INCREMENT_CACHE_SIZE: block}
        ),
        DROPPED: fluss.TableDescriptor(plain, bucket_count=1),
    }


def definition(storage: Storage, name: str) -> tuple[object, ...]:
    """All that the catalog says of a table."""
    catalog = storage.catalog
    entry = catalog.table(table_path(name))
    schema = catalog.schema_json(entry.table_id, entry.schema_id)
    partitions = [found[:3] for found in catalog.partitions(entry)] if entry.partition_keys else []
    return (*entry, schema, *partitions)


def table_path(name: str) -> fluss.TablePath:
    return fluss.TablePath("fluss", name)


async def create_table(storage: Storage, name: str, descriptor: fluss.TableDescriptor) -> int:
    entry = await storage.catalog.create_table(
        table_path(name),
        descriptor.to_json().decode(),
        json.dumps(descriptor.schema.to_json()),
        descriptor.bucket_count or 1,
        partition_keys=descriptor.partition_keys,
        partitions=PARTITIONS if descriptor.partition_keys else (),
    )
    return entry.table_id


async def stage(storage: Storage, bucket: TableBucket, content: StagedContent) -> None:
    """Stage all requests of a batch."""
    for task, sequence, written in content.requests:
        key = StagedKey(bucket.table_id, query_name(content.query), content.batch_id, task, 0, sequence)
        request = StagedRequest([(bucket, memoryview(log_batch(written)))])
        await storage.staging.stage(key, content.query, request)


class Builder:
    """Makes one directory; what varies is drawn from the template's number."""

    def __init__(self, root: Path, number: int) -> None:
        self._root = root
        self._number = number
        self._chance = random.Random(f"template {number}")
        self._model = kv_model.Model()
        self._sequences: dict[tuple[TableBucket, int], int] = {}
        self._last: dict[tuple[TableBucket, int], LastBatch] = {}
        self._row_sequences = [0] * (WRITERS + 1)
        self._stored: dict[TableBucket, list[Row]] = {}
        self.known = Acknowledged()

    async def run(self) -> RotTemplate:
        """All phases; restarts in between leave checkpoints in the middle of segments."""
        earlier = []
        storage = await Storage.open(options(self._root))
        await self._create(storage)
        for phase in range(PHASES):
            await self._write(storage, phase)
            if phase == PHASES - 1:
                break
            if self._chance.random() < 0.5:
                await storage.close()
                storage = await Storage.open(options(self._root))
            earlier.append(DirectoryImage.take(self._root))
        await self._leave_undone(storage)
        await self._note_all(storage)
        killed = DirectoryImage.take(self._root)
        await storage.close()
        return RotTemplate(self._number, self.known, earlier, killed, DirectoryImage.take(self._root))

    async def _create(self, storage: Storage) -> None:
        block = self._chance.choice(["3", "100000"])
        for name, descriptor in descriptors(block).items():
            if name != DROPPED:
                self.known.table_ids[name] = await create_table(storage, name, descriptor)
        self._note_partitions(storage)

    def _note_partitions(self, storage: Storage) -> None:
        for entry in storage.catalog.partitions(storage.catalog.table(table_path(PARTS))):
            self.known.partition_ids[entry.name] = entry.partition_id

    def bucket(self, table: str, number: int = 0, partition: str | None = None) -> TableBucket:
        partition_id = None if partition is None else self.known.partition_ids[partition]
        return TableBucket(self.known.table_ids[table], number, partition_id)

    def _log_buckets(self) -> Iterator[tuple[TableBucket, str | None]]:
        yield self.bucket(LOG, 0), None
        yield self.bucket(LOG, 1), None
        for name in PARTITIONS:
            yield self.bucket(PARTS, 0, name), name
        yield self.bucket(LAKE), None

    # --- one phase

    async def _write(self, storage: Storage, phase: int) -> None:
        ids = [storage.catalog.next_writer_id() for _ in range(WRITERS)]
        self.known.writer_ids.update(ids)
        for bucket, part in self._log_buckets():
            for _ in range(self._chance.randint(4, 7)):
                writer = self._chance.randrange(WRITERS)
                await self._append(storage, bucket, writer, ids[writer], part)
        await self._put(storage, ids[0])
        await self._number_rows(storage, phase)
        await self._stage(storage, "steady", phase, DONE)
        await storage.staging.commit(self.known.table_ids[STAGED], "steady", phase, self.known.staged[-1].tasks)
        await self._tier(storage, phase)
        if phase < PHASES - 1:
            snapshots = KvSnapshots(storage, storage.kv.bucket)
            for name in (KEYS, NUMBERS):
                await snapshots.make(self.bucket(name))
            if phase == 1 and self._chance.random() < 0.5:
                await self._cut(storage, snapshots)

    def _new_rows(self, writer: int, count: int) -> list[Row]:
        first = self._row_sequences[writer]
        self._row_sequences[writer] += count
        return [Row(writer, first + number) for number in range(count)]

    async def _append(
        self, storage: Storage, bucket: TableBucket, writer: int, writer_id: int, part: str | None
    ) -> None:
        written = self._new_rows(writer, self._chance.randint(1, 6))
        sequence = self._sequences.get((bucket, writer_id), -1) + 1
        wire = log_batch(written, writer_id, sequence, part)
        log = await storage.opened(bucket)
        appended = log.append(bytearray(wire), parse_header(wire), now_ms())
        await appended.durable
        self._sequences[bucket, writer_id] = sequence
        self._last[bucket, writer_id] = LastBatch(sequence, appended.base_offset, appended.last_offset, bytes(wire))
        self._stored.setdefault(bucket, []).extend(written)

    async def _put(self, storage: Storage, writer_id: int) -> None:
        kv = storage.kv.bucket(self.bucket(KEYS))
        for sequence in range(self._chance.randint(3, 5)):
            batch = kv_model.random_batch(self._chance, KEYS_MAX, 12)
            self._model.apply(batch)
            await kv.put(memoryview(batch.encode(writer_id, sequence)), batch.targets).applied

    async def _number_rows(self, storage: Storage, phase: int) -> None:
        kv = storage.kv.bucket(self.bucket(NUMBERS))
        new = [100 * phase + number for number in range(self._chance.randint(3, 6))]
        for group in (new[:2], new[2:]):
            await kv.insert_missing(number_keys(group))
        found = await kv.get_many(number_keys(new))
        self.known.numbers |= numbers_of([value for value in found if value is not None])
        self.known.numbers_used.update(self.known.numbers.values())

    async def _stage(self, storage: Storage, query: str, batch_id: int, state: str) -> None:
        requests = [
            (task, sequence, self._new_rows(WRITERS, self._chance.randint(1, 3)))
            for task in range(TASKS)
            for sequence in range(TASK_REQUESTS)
        ]
        tasks = tuple(StagedTask(task, 0, TASK_REQUESTS) for task in range(TASKS))
        content = StagedContent(query, batch_id, tasks, requests, state)
        await stage(storage, self.bucket(STAGED), content)
        self.known.staged.append(content)
        if state == DONE:
            self._stored.setdefault(self.bucket(STAGED), []).extend(content.rows)

    async def _tier(self, storage: Storage, phase: int) -> None:
        table_id = self.known.table_ids[LAKE]
        end = (await storage.opened(self.bucket(LAKE))).high_watermark
        path = await self._prepare(storage, end)
        await storage.lake.commit(table_id, 1_000 + phase, path, readable=True, earliest_to_keep=-1)
        self.known.lake = LakeContent(1_000 + phase, end)

    async def _prepare(self, storage: Storage, offset: int) -> str:
        table = storage.catalog.table(table_path(LAKE))
        return await storage.lake.prepare(table, {self.bucket(LAKE): offset}, merge=True)

    async def _cut(self, storage: Storage, snapshots: KvSnapshots) -> None:
        """What retention does."""
        log = await storage.opened(self.bucket(LOG, 1))
        await log.remove_before(log.high_watermark // 2)
        kept = (await snapshots.snapshots_of(self.bucket(KEYS)))[-1].log_offset
        await (await storage.opened(self.bucket(KEYS))).remove_before(kept)

    # --- the end

    async def _leave_undone(self, storage: Storage) -> None:
        """A commit that is decided and half done, one that nobody asked for, a lake snapshot that is not registered."""
        table_id = self.known.table_ids[STAGED]
        await self._stage(storage, "interrupted", 0, DECIDED)
        directory = storage.staging_path(table_id)
        tasks = tuple(self.known.staged[-1].tasks)
        await storage.staging._decide(table_id, "interrupted", 0, tasks)
        missing = directory / StagedKey(table_id, query_name("interrupted"), 0, 1, 0, 0).file_name
        with _out_of_reach(missing), suppress(FlussError):
            await storage.staging.commit(table_id, "interrupted", 0, tasks)
        assert storage.catalog.staged_queries()[table_id, "interrupted"].decided is not None
        await self._stage(storage, "waiting", 0, UNDECIDED)
        lake = self.known.lake
        for _ in range(2):
            await self._append(storage, self.bucket(LAKE), 0, max(self.known.writer_ids), None)
        end = (await storage.opened(self.bucket(LAKE))).high_watermark
        self.known.lake = lake._replace(prepared_path=await self._prepare(storage, end), prepared_offset=end)
        await self._drop_some(storage)

    async def _drop_some(self, storage: Storage) -> None:
        """The last ids that were given out belong to nothing that is left."""
        table_id = self.known.table_ids[PARTS]
        await storage.catalog.create_partitions(table_id, ["c"])
        self._note_partitions(storage)
        await storage.catalog.drop_partitions(table_id, ["c"])
        self.known.table_ids[DROPPED] = await create_table(storage, DROPPED, descriptors("3")[DROPPED])
        await storage.catalog.drop_table(table_path(DROPPED))

    async def _note_all(self, storage: Storage) -> None:
        self.known.keys = dict(self._model.rows)
        self.known.definitions = {name: definition(storage, name) for name in self.known.table_ids if name != DROPPED}
        reader = RotReader(storage)
        names = {table_id: name for name, table_id in self.known.table_ids.items()}
        buckets = [bucket for bucket, _ in self._log_buckets()]
        buckets += [self.bucket(name) for name in (STAGED, KEYS, NUMBERS)]
        for bucket in buckets:
            log = await storage.opened(bucket)
            await log.flush()
            start, end = log.log_start_offset, log.high_watermark
            batches, projected = reader.batches(bucket, start, end), reader.projected(bucket, start, end)
            last = {writer_id: last for (of, writer_id), last in self._last.items() if of == bucket}
            content = LogContent(bucket, names[bucket.table_id], start, end, batches, projected, last)
            self.known.logs.append(content)
            self._check_rows(content)
        found = await reader.rows(self.bucket(KEYS))
        assert {row[0]: row for row in rows_of(found)} == self.known.keys
        assert numbers_of(await reader.rows(self.bucket(NUMBERS))) == self.known.numbers

    def _check_rows(self, content: LogContent) -> None:
        """What is read back is what was written: the oracle does not stand on what it judges."""
        if content.table in (LOG, LAKE, STAGED):
            stored = [row for batch in content.batches.values() for row in rows.stored_batches(batch)[0].rows]
            written = self._stored[content.bucket][content.start :]
            assert stored[: len(written)] == written, content.bucket


@contextmanager
def _out_of_reach(path: Path) -> Iterator[None]:
    aside = path.with_name("aside")
    path.rename(aside)
    yield
    aside.rename(path)
