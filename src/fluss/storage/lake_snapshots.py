"""Snapshots of tables in the lake: which are registered, and how far they reach.

A tiering job prepares one: the offsets up to which it has read go into a file, whose path the job writes into the
snapshot that it commits to the lake. Then it registers the snapshot here, and from then on readers split there and
retention may cut up to there. Offsets never go back, so a job that was overtaken can't register. A job that died in
between is no harm: the next one finds the path in the lake and registers what it left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, error_from_code
from fluss.model.paths import TableBucket
from fluss.model.tables.options import DATALAKE_ENABLED
from fluss.storage import files, lake_offsets
from fluss.storage.catalog.catalog import LakeSnapshotEntry, TableEntry
from fluss.storage.catalog.view import lake_freshness_ms

if TYPE_CHECKING:
    from fluss.storage.store import Storage

_log = logging.getLogger(__name__)

SNAPSHOTS_MAX: Final = 1_000  # of one table; then the oldest are forgotten
OFFSETS_BYTES_MAX: Final = 64 << 20  # of all snapshots of one table, which are kept in memory
KEEP_ALL: Final = -1
_DECODED_MAX: Final = 64

_T = TypeVar("_T")


@lru_cache(_DECODED_MAX)
def offsets_of(entry: LakeSnapshotEntry) -> Mapping[TableBucket, int]:
    """How far a snapshot reaches, by bucket."""
    return lake_offsets.decode(entry.offsets, entry.table_id, entry.file_name)


class LakeSnapshots:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = asyncio.Lock()
        self._tasks: dict[asyncio.Task[Any], int] = {}  # that use files, with their table

    def latest(self, table_id: int) -> LakeSnapshotEntry | None:
        """The one that was registered last."""
        snapshots = self._storage.catalog.lake_snapshots(table_id)
        return snapshots[-1] if snapshots else None

    def find(self, table: TableEntry, snapshot_id: int | None, *, readable: bool) -> LakeSnapshotEntry:
        """The latest, the latest that readers may use, or one by its id; code 53 if there is none."""
        for entry in reversed(self._storage.catalog.lake_snapshots(table.table_id)):
            if (snapshot_id is None or entry.snapshot_id == snapshot_id) and (entry.readable or not readable):
                return entry
        raise error_from_code(ErrorCode.LAKE_SNAPSHOT_NOT_EXIST, _none_found(table, snapshot_id))

    def log_kept_from(self, bucket: TableBucket) -> int:
        """The offset from which on a table that is tiered needs its log."""
        latest = self.latest(bucket.table_id)
        return 0 if latest is None else offsets_of(latest).get(bucket, 0)

    # --- preparing

    async def prepare(self, table: TableEntry, offsets: Mapping[TableBucket, int], *, merge: bool) -> str:
        """Write down how far the next snapshot reaches, with `merge` on top of the latest: the path of the file."""
        if lake_freshness_ms(table.table_json) is None:
            raise InvalidRequestError(
                f"Table {table.path} is not tiered to a lake; set {DATALAKE_ENABLED} to true first.",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        await self._check_ends(table, offsets)
        async with self._lock:
            latest = self.latest(table.table_id)
            before = {} if latest is None else offsets_of(latest)
            self._check_not_back(table, before, {**before, **offsets})
            # Partitions that were dropped since have no log that could be read on.
            kept = {bucket: offset for bucket, offset in before.items() if merge and self._storage.exists(bucket)}
            data = lake_offsets.encode(table.table_id, {**kept, **offsets})
            self._storage.disk_guard.admit(len(data))
            directory = self._storage.lake_offsets_path(table.table_id)
            write = partial(lake_offsets.write, directory, self._storage.root, data, self._used(table.table_id))
            path = await self._run(table.table_id, write)
        if self._storage.catalog.table_by_id(table.table_id) is None:
            raise _gone(table.table_id)
        return str(path)

    async def _check_ends(self, table: TableEntry, offsets: Mapping[TableBucket, int]) -> None:
        latest = self.latest(table.table_id)
        before = {} if latest is None else offsets_of(latest)
        for bucket, offset in offsets.items():
            if before.get(bucket) == offset and self._storage.exists(bucket):
                continue
            _check_known(self._storage, table, bucket)
            end = (await self._storage.opened(bucket)).high_watermark
            if not 0 <= offset <= end:
                raise InvalidRequestError(
                    f"{bucket} has offsets from 0 to {end}, so a lake snapshot of it can't reach {offset}.",
                    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
                )

    # --- registering

    async def commit(
        self, table_id: int, snapshot_id: int, path: str, *, readable: bool, earliest_to_keep: int | None
    ) -> None:
        """Register a snapshot, durably. Earlier ones are forgotten, but for those from `earliest_to_keep` on, or all.

        To register one again changes nothing.
        """
        name = lake_offsets.name_in(path, table_id)
        async with self._lock:
            table = self._storage.catalog.table_by_id(table_id)
            if table is None:
                raise _gone(table_id)
            earlier = self._storage.catalog.lake_snapshots(table_id)
            same = next((entry for entry in earlier if entry.snapshot_id == snapshot_id), None)
            if same is not None:
                if same.file_name == name:
                    return
                raise _stale(table, f"its lake snapshot {snapshot_id} is registered with other offsets")
            data = await self._run(
                table_id, partial(lake_offsets.read, self._storage.lake_offsets_path(table_id), name)
            )
            offsets = lake_offsets.decode(data, table_id, name)
            self._check_not_back(table, offsets_of(earlier[-1]) if earlier else {}, offsets)
            number = earlier[-1].number + 1 if earlier else 0
            new = LakeSnapshotEntry(table_id, number, snapshot_id, name, int(readable), data)
            kept_from = _kept_from([*earlier, new], earliest_to_keep)
            await self._storage.catalog.put_lake_snapshot(new, kept_from)
            await self._remove(table_id, {entry.file_name for entry in earlier if entry.number < kept_from})

    async def forget(self, table_id: int) -> None:
        """Forget all snapshots of a table, durably: its lake was dropped, so its whole log is to be tiered again."""
        async with self._lock:
            earlier = self._storage.catalog.lake_snapshots(table_id)
            await self._storage.catalog.delete_lake_snapshots(table_id)
            await self._remove(table_id, {entry.file_name for entry in earlier})

    def _check_not_back(
        self, table: TableEntry, before: Mapping[TableBucket, int], after: Mapping[TableBucket, int]
    ) -> None:
        for bucket, offset in before.items():
            if after.get(bucket, 0) < offset and self._storage.exists(bucket):
                raise _stale(
                    table,
                    f"a lake snapshot of {bucket} up to {offset} is registered, and this one has {after.get(bucket)}",
                )

    async def _remove(self, table_id: int, names: set[str]) -> None:
        names -= self._used(table_id)
        if not names:
            return
        try:
            remove = partial(lake_offsets.remove, self._storage.lake_offsets_path(table_id), names)
            await self._run(table_id, remove)
        except FlussError as error:
            _log.warning("offsets files of table %d are left over: %s", table_id, error)

    def _used(self, table_id: int) -> set[str]:
        return {entry.file_name for entry in self._storage.catalog.lake_snapshots(table_id)}

    # --- beginning and end

    async def load(self) -> None:
        """Remove what writes that a stop interrupted have left."""
        for table_id in self._with_files():
            directory = self._storage.lake_offsets_path(table_id)
            await self._run(table_id, partial(lake_offsets.remove_temporary, directory))

    async def remove_unused(self, now_ms: int) -> None:
        """Remove files that no lake snapshot can name any more; for a time that can be trusted."""
        for table_id in self._with_files():
            async with self._lock:
                latest = self.latest(table_id)
                if latest is None:
                    continue
                directory, used = self._storage.lake_offsets_path(table_id), self._used(table_id)
                await self._run(
                    table_id, partial(lake_offsets.remove_unused, directory, used, latest.file_name, now_ms)
                )

    def _with_files(self) -> list[int]:
        return [
            table.table_id
            for table in self._storage.catalog.all_tables()
            if self.latest(table.table_id) is not None or lake_freshness_ms(table.table_json) is not None
        ]

    def end(self, table_id: int) -> set[asyncio.Task[Any]]:
        """The table is gone, and its files are about to be: what is still at work on them."""
        return {task for task, of_table in self._tasks.items() if of_table == table_id}

    async def close(self) -> None:
        """Return when nothing uses files any more."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _run(self, table_id: int, work: Callable[[], _T]) -> _T:
        """Work on files in a thread, to its end even if the caller goes away."""
        task = asyncio.ensure_future(self._storage.run_blocking(work))
        self._tasks[task] = table_id
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except OSError as error:
            _log.error("the offsets files of table %d can't be used: %s", table_id, error)
            raise FlussError(
                f"The offsets of lake snapshots of table {table_id} can't be used: {files.reason(error)}.",
                ErrorCode.STORAGE_EXCEPTION,
            ) from error

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            # The caller may have gone away: mark a failure as seen, or asyncio complains.
            task.exception()


def _kept_from(snapshots: list[LakeSnapshotEntry], earliest_to_keep: int | None) -> int:
    """The number of the first that stays; the last one always does."""
    new, first = snapshots[-1], 0
    if earliest_to_keep is None:
        first = len(snapshots) - 1
    elif earliest_to_keep != KEEP_ALL:
        # Ids of Iceberg are no numbers in order. One that is not there says nothing, so all stay.
        ids = [entry.snapshot_id for entry in snapshots]
        first = ids.index(earliest_to_keep) if earliest_to_keep in ids else 0
    kept = snapshots[first:][-SNAPSHOTS_MAX:]
    size_bytes = sum(len(entry.offsets) for entry in kept)
    while size_bytes > OFFSETS_BYTES_MAX and kept[0] is not new:
        size_bytes -= len(kept.pop(0).offsets)
    return kept[0].number


def _check_known(storage: Storage, table: TableEntry, bucket: TableBucket) -> None:
    if storage.exists(bucket):
        return
    if bucket.partition_id is not None and table.partition_keys and 0 <= bucket.bucket_id < table.num_buckets:
        raise NotFoundError(
            f"Table {table.path} has no partition with id {bucket.partition_id}; it may have been dropped, so begin a "
            "new round.",
            ErrorCode.PARTITION_NOT_EXISTS,
        )
    raise InvalidRequestError(
        f"{bucket} is not a bucket of table {table.path}, which has {table.num_buckets} "
        f"{'in each partition' if table.partition_keys else 'and no partitions'}.",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )


def _none_found(table: TableEntry, snapshot_id: int | None) -> str:
    if snapshot_id is not None:
        return (
            f"Table {table.path} has no lake snapshot {snapshot_id}; later ones have taken its place, or it never was."
        )
    if lake_freshness_ms(table.table_json) is None:
        return (
            f"Table {table.path} has no lake snapshot, for it is not tiered to a lake; make a table with "
            f"{DATALAKE_ENABLED}=true."
        )
    return f"Table {table.path} has no lake snapshot: nothing of it was written to a lake yet; run a tiering job."


def _stale(table: TableEntry, reason: str) -> FlussError:
    return FlussError(
        f"Another job has tiered table {table.path} meanwhile: {reason}; begin a new round.",
        ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
    )


def _gone(table_id: int) -> FlussError:
    return error_from_code(ErrorCode.TABLE_NOT_EXIST, f"There is no table with id {table_id} any more.")
