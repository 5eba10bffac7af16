"""What a storage may do after one of its files was damaged, and what it may not.

It is opened, read, written to, read again, closed and opened once more, as clients would do it. Whatever it gives must
be what was acknowledged, byte by byte. It may refuse with an error that names the damaged file, within the bucket whose
file it is; and it may refuse to start when a file of the whole directory is damaged. Then the file is put back, and
everything has to be there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa

from fluss.formats.batches.log_batch import parse_header
from fluss.formats.rows.keys import KeyEncoder
from fluss.model.paths import TableBucket
from fluss.storage.lake_snapshots import offsets_of
from fluss.storage.store import Storage
from tests.crash.kv_stored import rows_of
from tests.crash.rot_damage import SEALED_CHANGELOG, SEALED_SEGMENT, SEGMENTS, Damage
from tests.crash.rot_directory import (
    DONE,
    DROPPED,
    KEYS,
    LAKE,
    NUMBERS,
    PARTS,
    STAGED,
    UNDECIDED,
    Acknowledged,
    LogContent,
    RotTemplate,
    StagedContent,
    create_table,
    definition,
    descriptors,
    log_batch,
    now_ms,
    number_keys,
    numbers_of,
    options,
    stage,
    table_path,
)
from tests.crash.rot_judgement import Judgement, Scope, is_within
from tests.crash.rot_reader import RotReader, split
from tests.kit.directory_image import DirectoryImage
from tests.kit.loads import kv_model
from tests.kit.rows import Row, stored_batches

# A store that is found damaged while it is read is rebuilt at its next use.
READS_MAX: Final = 3
NEW_ROWS: Final = [Row(99, number) for number in range(3)]
NEW_KEY: Final = 5_000
NEW_ID: Final = 7_000
_KEY_ENCODER: Final = KeyEncoder(kv_model.SCHEMA.columns[:1])


class Examination:
    """One damage, or none: then all must be as it was."""

    def __init__(self, known: Acknowledged, image: DirectoryImage, damage: Damage | None) -> None:
        self._known = known
        self._image = image
        self._damage = damage
        self._judgement = Judgement(image, damage)
        self._problem, self._judge = self._judgement.problem, self._judgement.judge
        self._added: dict[TableBucket, dict[int, bytes]] = {}
        self._written: set[TableBucket] = set()
        self._keys: dict[int, list[kv_model.Row | None]] = {key: [row] for key, row in known.keys.items()}
        self._numbers = dict(known.numbers)
        self._numbers_used = set(known.numbers_used)
        self._writer_ids = set(known.writer_ids)
        self._lake_offset = known.lake.offset
        self._staged_done: list[Row] = []

    @property
    def problems(self) -> list[str]:
        return self._judgement.problems

    @property
    def errors(self) -> list[str]:
        return self._judgement.errors

    async def run(self, root: Path, *, damage_later: bool = False) -> None:
        """Use the directory in `root`, a copy of the image that is damaged, or will be once all was read."""
        storage = await self._open(root)
        if storage is None:
            if self._damage is not None and not self.problems:
                await self._restore(root, self._damage)
            return
        if damage_later and self._damage is not None:
            await self._check_all(storage)
            if self.errors:
                self._problem("before the damage", self.errors[0])
            self._damage.apply(root)
            self._judgement.was_verified = True
        await self._session(storage, self._use)
        self._judgement.was_verified = False
        storage = await self._open(root)
        if storage is not None:
            await self._session(storage, self._use_again)
        if self._damage is not None and self._can_be_put_back(self._damage):
            await self._put_back(root, self._damage)

    async def _session(self, storage: Storage, use: Callable[[Storage], Awaitable[None]]) -> None:
        try:
            await use(storage)
        finally:
            try:
                await storage.close()
            except Exception as error:
                self._problem("closing", f"{type(error).__name__}: {error}")

    async def _open(self, root: Path) -> Storage | None:
        try:
            storage = await Storage.open(options(root))
            await storage.staging.recover()
        except Exception as error:
            self._judgement.judge_start(error)
            return None
        return storage

    async def _restore(self, root: Path, damage: Damage) -> None:
        damage.undo(root, self._image)
        after = Examination(self._known, self._image, None)
        await after.run(root)
        for problem in after.problems:
            self._problem("restored after a refused start", problem)

    def _can_be_put_back(self, damage: Damage) -> bool:
        """Whether an operator who has the segment as it was can repair a bucket by it alone."""
        if damage.kind not in SEGMENTS or not self.errors or self.problems:
            return False
        return damage.kind in (SEALED_SEGMENT, SEALED_CHANGELOG) or not any(
            is_within(damage.path, bucket) for bucket in self._written
        )

    async def _put_back(self, root: Path, damage: Damage) -> None:
        """Then nothing is lost: the storage has kept all else."""
        damage.undo(root, self._image)
        self._judgement.expect_no_error()
        storage = await self._open(root)
        if storage is not None:
            await self._session(storage, self._use_again)
        if self.problems:
            self.problems.insert(0, "after the segment was put back")

    # --- the two sessions

    async def _use(self, storage: Storage) -> None:
        self._check_catalog(storage)
        await self._check_all(storage)
        await self._check_staged(storage)
        await self._check_lake(storage)
        await self._check_ids(storage)
        await self._write(storage)
        await self._check_all(storage)

    async def _use_again(self, storage: Storage) -> None:
        self._check_catalog(storage)
        await self._check_all(storage)
        await self._check_staged_rows(storage, self._bucket(STAGED))
        await self._new_writer(storage)
        self._check_latest(storage)

    def _check_catalog(self, storage: Storage) -> None:
        catalog = storage.catalog
        if catalog.table_exists(table_path(DROPPED)):
            self._problem("catalog", "a dropped table is back")
        for name, known in self._known.definitions.items():
            if not catalog.table_exists(table_path(name)):
                self._problem("catalog", f"table {name} is gone")
                continue
            try:
                found = definition(storage, name)[: len(known)]  # the test adds partitions
            except Exception as error:
                self._judge(error, f"table {name}", None)
                continue
            if found != known:
                self._problem("catalog", f"table {name} is {found}, not {known}")

    async def _check_all(self, storage: Storage) -> None:
        for content in self._known.logs:
            await self._check_log(storage, content)
        await self._check_keys(storage)
        await self._check_numbers(storage)

    # --- logs

    async def _check_log(self, storage: Storage, content: LogContent) -> None:
        bucket = content.bucket
        try:
            log = await storage.opened(bucket)
        except Exception as error:
            self._judge(error, bucket, bucket)
            return
        reader = RotReader(storage)
        added = self._added.get(bucket, {})
        end = max([content.end, *(parse_header(batch).next_offset for batch in added.values())])
        if log.high_watermark > end and content.table not in (STAGED, KEYS, NUMBERS):
            self._problem(bucket, f"has offsets up to {log.high_watermark}, {end} were written")
        self._compare(reader.fetch, bucket, content.start, end, content.batches | added)
        self._compare(reader.fetch_projected, bucket, content.start, content.end, content.projected)

    def _compare(
        self,
        fetch: Callable[[TableBucket, int], bytes],
        bucket: TableBucket,
        offset: int,
        end: int,
        expected: dict[int, bytes],
    ) -> None:
        """Read all; behind an error, go on with the batch that follows."""
        bases = sorted(expected)
        where = f"{bucket} by {fetch.__name__}"
        is_as_stored = fetch.__name__ == RotReader.fetch.__name__
        comparable = _without_commit_time if is_as_stored and self._judgement.was_verified else bytes
        while offset < end:
            try:
                answer = split(fetch(bucket, offset))
            except Exception as error:
                self._judge(error, f"{where} at {offset}", bucket)
                offset = next((base for base in bases if base > offset), end)
                continue
            if not answer:
                self._problem(where, f"nothing at offset {offset}, acknowledged up to {end}")
                return
            if min(answer) > offset:
                self._problem(where, f"offsets {offset} to {min(answer)} are left out")
            for base, batch in answer.items():
                if comparable(batch) != comparable(expected.get(base, b"")) and base < end:
                    self._problem(where, f"another batch at offset {base}")
            offset = max(offset + 1, parse_header(answer[max(answer)]).next_offset)

    # --- rows by key

    async def _check_keys(self, storage: Storage) -> None:
        bucket = self._bucket(KEYS)
        found = await self._read_rows(storage, bucket)
        if found is not None:
            rows = {row[0]: row for row in rows_of(found)} if found else {}
            wrong = [key for key in self._keys.keys() | rows.keys() if rows.get(key) not in self._keys.get(key, [None])]
            if wrong or len(rows) != len(found):
                self._problem(bucket, f"wrong rows in a scan at keys {sorted(wrong)[:5]}")
        keys = list(self._keys)
        values = await self._look_up(storage, bucket, _key_bytes(keys))
        for key, value in zip(keys, values or [], strict=False):
            row = None if value is None else rows_of([value])[0]
            if row not in self._keys[key]:
                self._problem(bucket, f"wrong row by look-up of {key}: {row}, not {self._keys[key]}")

    async def _check_numbers(self, storage: Storage) -> None:
        bucket = self._bucket(NUMBERS)
        found = await self._read_rows(storage, bucket)
        if found is not None and not self._numbers.items() <= numbers_of(found).items():
            self._problem(bucket, "wrong numbers in a scan")

    async def _read_rows(self, storage: Storage, bucket: TableBucket) -> list[bytes] | None:
        for _ in range(READS_MAX):
            try:
                return await RotReader(storage).rows(bucket)
            except Exception as error:
                self._judge(error, f"{bucket} by scan", bucket)
        return None

    async def _look_up(self, storage: Storage, bucket: TableBucket, keys: list[bytes]) -> list[bytes | None] | None:
        for _ in range(READS_MAX):
            try:
                few = storage.kv.get_few(bucket, keys)
                return await storage.kv.bucket(bucket).get_many(keys) if few is None else few
            except Exception as error:
                self._judge(error, f"{bucket} by look-up", bucket)
        return None

    # --- staged rows and lake snapshots

    async def _check_staged(self, storage: Storage) -> None:
        done = [content for content in self._known.staged if content.state == DONE]
        undone = [content for content in self._known.staged if content.state != DONE]
        await self._repeat_commit(storage, done[-1])
        done += [content for content in undone if await self._commit(storage, content)]
        self._staged_done = [row for content in done for row in content.rows]
        await self._check_staged_rows(storage, self._bucket(STAGED))

    async def _repeat_commit(self, storage: Storage, content: StagedContent) -> None:
        """As a query does that was not told that its last batch is done."""
        where = f"commit of {content.query} {content.batch_id} again"
        bucket = self._bucket(STAGED)
        try:
            await stage(storage, bucket, content)
            if not await storage.staging.commit(bucket.table_id, content.query, content.batch_id, content.tasks):
                self._problem(where, "it was done once more")
        except Exception as error:
            self._judge(error, where, self._staging_scope())

    async def _commit(self, storage: Storage, content: StagedContent) -> bool:
        """Commit what was not; a batch that can't be is written anew, as the error says."""
        where = f"commit of {content.query} {content.batch_id} ({content.state})"
        bucket = self._bucket(STAGED)
        for attempt in range(2):
            try:
                if attempt:
                    await stage(storage, bucket, content)
                before = await storage.staging.commit(bucket.table_id, content.query, content.batch_id, content.tasks)
            except Exception as error:
                self._judge(error, where, self._staging_scope())
                if attempt and content.state == UNDECIDED and self._staging_scope() != bucket:
                    self._problem(where, "the batch can't be written anew")
                continue
            self._written.add(bucket)
            if content.state == UNDECIDED and before and not attempt:
                self._problem(where, "it is said to be done already")
            return True
        return False

    def _staging_scope(self) -> Scope:
        bucket = self._bucket(STAGED)
        staging = f"tables/{bucket.table_id}/staging"
        return staging if self._damage is not None and self._damage.path.startswith(staging) else bucket

    async def _check_staged_rows(self, storage: Storage, bucket: TableBucket) -> None:
        """Once each, what was committed; what was to be, and failed, may be there in part."""
        content = next(content for content in self._known.logs if content.bucket == bucket)
        try:
            end = (await storage.opened(bucket)).high_watermark
            batches = RotReader(storage).batches(bucket, content.start, end)
        except Exception as error:
            self._judge(error, bucket, bucket)
            return
        found = [row for batch in batches.values() for row in stored_batches(batch)[0].rows]
        staged = {row for content in self._known.staged for row in content.rows}
        if len(set(found)) < len(found):
            self._problem(bucket, "staged rows are there twice")
        if missing := set(self._staged_done) - set(found):
            self._problem(bucket, f"{len(missing)} committed rows are not there")
        if more := set(found) - staged:
            self._problem(bucket, f"{len(more)} rows were never written")

    async def _check_lake(self, storage: Storage) -> None:
        table_id, lake = self._known.table_ids[LAKE], self._known.lake
        self._check_latest(storage)
        try:
            await storage.lake.commit(table_id, 2_000, lake.prepared_path, readable=True, earliest_to_keep=-1)
        except Exception as error:
            place = f"tables/{table_id}/lake-offsets"
            self._judge(error, "registering a lake snapshot", place)
            return
        self._lake_offset = lake.prepared_offset
        self._check_latest(storage)

    def _check_latest(self, storage: Storage) -> None:
        latest = storage.lake.latest(self._known.table_ids[LAKE])
        offset = None if latest is None else offsets_of(latest).get(self._bucket(LAKE))
        if offset != self._lake_offset:
            self._problem("lake", f"the latest snapshot reaches {offset}, not {self._lake_offset}")

    # --- ids and new rows

    async def _new_writer(self, storage: Storage) -> int:
        writer_id = storage.catalog.next_writer_id()
        if writer_id in self._writer_ids:
            self._problem("ids", f"writer id {writer_id} is given out twice")
        self._writer_ids.add(writer_id)
        return writer_id

    async def _check_ids(self, storage: Storage) -> None:
        catalog, name = storage.catalog, "new"
        try:
            table_id = await create_table(storage, name, descriptors("3")[DROPPED])
            await catalog.create_partitions(self._known.table_ids[PARTS], [name])
            partition = catalog.partition(catalog.table(table_path(PARTS)), name)
        except Exception as error:
            self._judge(error, "new table and partition", None)
            return
        if table_id in self._known.table_ids.values():
            self._problem("ids", f"table id {table_id} is given out twice")
        if partition.partition_id in self._known.partition_ids.values():
            self._problem("ids", f"partition id {partition.partition_id} is given out twice")

    async def _write(self, storage: Storage) -> None:
        writer_id = await self._new_writer(storage)
        for content in self._known.logs:
            if content.table in (KEYS, NUMBERS, STAGED):
                continue
            part = {found: name for name, found in self._known.partition_ids.items()}.get(content.bucket.partition_id)  # type: ignore[arg-type]
            await self._repeat(storage, content)
            for writer, sequence in [(writer_id, 0), *_continued(content)]:
                await self._append(storage, content, log_batch(NEW_ROWS, writer, sequence, part))
        await self._put(storage, writer_id)
        await self._number(storage)

    async def _repeat(self, storage: Storage, content: LogContent) -> None:
        """A batch whose answer was lost comes again: it is not stored again."""
        for writer_id, last in content.writers.items():
            where = f"{content.bucket}, batch {last.sequence} of writer {writer_id} again"
            try:
                log = await storage.opened(content.bucket)
                appended = log.append(bytearray(last.wire), parse_header(last.wire), now_ms())
                await appended.durable
            except Exception as error:
                self._judge(error, where, content.bucket)
                continue
            if not appended.duplicate or appended.base_offset != last.base_offset:
                self._problem(where, f"is stored at {appended.base_offset}, and was at {last.base_offset}")

    async def _append(self, storage: Storage, content: LogContent, batch: bytearray) -> None:
        bucket = content.bucket
        try:
            log = await storage.opened(bucket)
            appended = log.append(batch, parse_header(batch), now_ms())
            await appended.durable
        except Exception as error:
            self._judge(error, f"{bucket} append", bucket)
            return
        if appended.duplicate:
            self._problem(bucket, "a new batch is taken for a repeated one and not stored")
        elif appended.base_offset < content.end:
            self._problem(bucket, f"offset {appended.base_offset} is given out twice, {content.end} is the next")
        else:
            self._added.setdefault(bucket, {})[appended.base_offset] = bytes(batch)
            self._written.add(bucket)

    async def _put(self, storage: Storage, writer_id: int) -> None:
        bucket = self._bucket(KEYS)
        old = next(iter(self._known.keys))
        new: list[kv_model.Row] = [(NEW_KEY, "new", 1), (old, "newer", 2)]
        batch = kv_model.Batch([kv_model.Op(row[0], row) for row in new])
        try:
            await storage.kv.bucket(bucket).put(memoryview(batch.encode(writer_id, 0))).applied
        except Exception as error:
            self._judge(error, f"{bucket} put", bucket)
            for row in new:
                self._keys.setdefault(row[0], [None]).append(row)  # nobody knows
            return
        self._keys |= {row[0]: [row] for row in new}
        self._written.add(bucket)

    async def _number(self, storage: Storage) -> None:
        bucket = self._bucket(NUMBERS)
        ids = [NEW_ID, NEW_ID + 1]
        try:
            await storage.kv.bucket(bucket).insert_missing(number_keys(ids))
            found = await storage.kv.bucket(bucket).get_many(number_keys(ids))
        except Exception as error:
            self._judge(error, f"{bucket} new numbers", bucket)
            return
        numbers = numbers_of([value for value in found if value is not None])
        if set(numbers) != set(ids):
            self._problem(bucket, "new numbered rows are acknowledged and not there")
        if twice := self._numbers_used & set(numbers.values()):
            self._problem(bucket, f"numbers {twice} are given out twice")
        self._numbers |= numbers
        self._written.add(bucket)

    def _bucket(self, table: str) -> TableBucket:
        return TableBucket(self._known.table_ids[table], 0, None)


def _continued(content: LogContent) -> Iterable[tuple[int, int]]:
    """The writer that wrote last goes on."""
    if content.writers:
        writer_id, last = max(content.writers.items(), key=lambda item: item[1].base_offset)
        yield writer_id, last.sequence + 1


def _key_bytes(keys: list[int]) -> list[bytes]:
    columns = [pa.array(keys, pa.int32()), pa.nulls(len(keys), pa.string()), pa.nulls(len(keys), pa.int64())]
    batch = pa.RecordBatch.from_arrays(columns, schema=kv_model.ARROW_SCHEMA)
    found: list[bytes] = _KEY_ENCODER.encode(batch).to_pylist()
    return found


async def examine(
    root: Path, template: RotTemplate, image: DirectoryImage, damage: Damage | None, *, damage_later: bool = False
) -> Examination:
    """Damage a copy of `image`, before it is opened or while it is used; and the verdict."""
    if damage is not None and not damage_later:
        damage.apply(root)
    examination = Examination(template.known, image, damage)
    await examination.run(root, damage_later=damage_later)
    return examination


def _without_commit_time(batch: bytes) -> bytes:
    """What a reader of a plain fetch can rely on when bytes rot under a running server.

    They are sent as they are on disk. If they were verified before, a client finds what its checksum covers; a commit
    time is found to be wrong when the log is opened again, or by scrubbing.
    """
    return batch[:13] + batch[21:]
