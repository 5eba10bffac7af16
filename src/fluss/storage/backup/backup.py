"""A copy of the whole data directory as of one moment, made while the server goes on.

The moment is one turn of the loop, in which no change of the catalog is under way: the catalog, the ends of all logs
and the state of their writers belong together. What was acknowledged before is in it, and what a log had appended by
then, too. Then links hold all files that belong to that moment; meanwhile no table is made or dropped, nothing is
committed from what was staged, and no segment or snapshot is removed, while rows are written and read as always. After
that everybody goes on, and the files are linked or copied into the backup.

Stores of primary-key tables are left out: they are rebuilt from their snapshots, which are in it, and the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.backup import files as backup_manifest
from fluss.storage.backup.files import (
    BackupManifest,
    BackupRange,
    Holder,
    Placer,
    copied_bytes,
    make_target,
    remove_target,
)
from fluss.storage.catalog.db import file_checksum
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.directory import CATALOG_NAME, FORMAT_VERSION, VERSION_NAME, disk_free_bytes
from fluss.storage.failpoints import Site
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.log.log import BucketLog, LogCut
from fluss.storage.log.segment import list_base_offsets
from fluss.storage.staging.commit import names_of
from fluss.storage.store import Storage

_log = logging.getLogger(__name__)

# Buckets looked at in one job of a thread.
_SURVEY_BUCKETS: Final = 64


class Backup:
    """One backup to `target`: `run` it once. The counts may be looked at meanwhile."""

    def __init__(self, storage: Storage, kv_snapshots: KvSnapshots | None, target: Path) -> None:
        self._storage = storage
        self._kv_snapshots = kv_snapshots
        self.target = target
        self._closed_logs: dict[TableBucket, LogCut] = {}  # what those had that were closed since it began
        self._stopped = False
        self.table_count = 0
        self.bucket_count = 0
        self.bytes_total = 0
        self.bytes_done = 0

    def stop(self) -> None:
        """Let it fail soon."""
        self._stopped = True

    async def run(self) -> None:
        """Return when the backup is whole and on disk; one that fails is removed again."""
        self._check_target()
        run = self._storage.run_blocking
        holder = Holder(self._storage.root, self._storage.held_path)
        try:
            was_made = await run(partial(make_target, self.target))
        except OSError as error:
            raise _refused(f"{self.target} can't be made: {files.reason(error)}.") from error
        try:
            await self._make(holder)
        except BaseException as error:
            _log.error("the backup to %s failed: %s", self.target, error)
            await run(partial(_try, partial(remove_target, self.target, was_made=was_made)))
            if isinstance(error, OSError):
                text = f"The backup to {self.target} failed: {files.reason(error)}. Nothing is left of it."
                raise FlussError(text, ErrorCode.UNKNOWN_SERVER_ERROR) from error
            raise
        finally:
            await run(partial(_try, holder.release))
        _log.info("backup to %s: %d tables, %d bytes", self.target, self.table_count, self.bytes_total)

    def _check_target(self) -> None:
        root, target = self._storage.root.resolve(), self.target.resolve()
        if not self.target.is_absolute():
            raise _refused(f"{str(self.target)!r} is not a whole path; name a directory on the server's machine.")
        if target.is_relative_to(root) or root.is_relative_to(target):
            raise _refused(f"{self.target} and the data directory lie in each other; name another directory.")

    async def _make(self, holder: Holder) -> None:
        run = self._storage.run_blocking
        self._storage.on_release = self._closing
        try:
            await run(holder.begin)
            await self._open_all()
            placer = Placer(self.target)
            time_ms, cuts = await self._hold(holder, placer)
        finally:
            self._storage.on_release = None
            self._closed_logs.clear()
        await self._place(holder, placer)
        ranges = [BackupRange(bucket, cut.base_offsets[0], cut.end_offset) for bucket, cut in cuts.items()]
        await run(partial(_finish, self.target, placer, ranges, time_ms))

    # --- the moment

    def _closing(self, bucket: TableBucket, log: BucketLog) -> None:
        cut = log.cut()
        if cut is not None:
            self._closed_logs[bucket] = cut

    async def _open_all(self) -> None:
        """Open each log that has files: from then on its end is known, whether it is open or was closed again."""
        buckets = self._buckets()
        while chunk := list(islice(buckets, _SURVEY_BUCKETS)):
            self._check_stopped()
            for bucket in await self._storage.run_blocking(partial(_with_files, chunk)):
                if self._storage.exists(bucket):
                    await self._storage.opened(bucket)

    def _buckets(self) -> Iterator[tuple[TableBucket, Path]]:
        catalog = self._storage.catalog
        for table_id in [entry.table_id for entry in catalog.all_tables()]:
            entry = catalog.table_by_id(table_id)
            if entry is not None:
                for bucket in self._storage.buckets(entry):
                    yield bucket, self._storage.bucket_path(bucket)

    async def _hold(self, holder: Holder, placer: Placer) -> tuple[int, dict[TableBucket, LogCut]]:
        storage = self._storage
        async with AsyncExitStack() as held:
            if self._kv_snapshots is not None:
                await held.enter_async_context(self._kv_snapshots.unchanged())
            await held.enter_async_context(storage.segments_lock)
            await held.enter_async_context(storage.catalog.unchanged())
            time_ms = storage.clock.now_ms()
            cuts = dict(self._cut())
            self.table_count = len(storage.catalog.all_tables())
            self.bucket_count = len(cuts)
            logs = [(storage.bucket_path(bucket), cut, self._has_rows(bucket)) for bucket, cut in cuts.items()]
            await storage.run_blocking(partial(_hold, holder, logs, self._other_files(), self._offsets_directories()))
            await storage.catalog.copy_to(self.target / CATALOG_NAME)
            placer.note(CATALOG_NAME)
        return time_ms, cuts

    def _cut(self) -> Iterator[tuple[TableBucket, LogCut]]:
        for entry in self._storage.catalog.all_tables():
            for bucket in self._storage.buckets(entry):
                log = self._storage.open_log(bucket)
                cut = self._closed_logs.get(bucket) if log is None else log.cut()
                if cut is not None:
                    yield bucket, cut

    def _has_rows(self, bucket: TableBucket) -> bool:
        entry = self._storage.catalog.table_by_id(bucket.table_id)
        return entry is not None and has_primary_key(entry.table_json)

    def _other_files(self) -> list[Path]:
        """What commits that were decided have yet to append, and the offsets of lake snapshots."""
        storage = self._storage
        found = []
        for (table_id, query_id), entry in storage.catalog.staged_queries().items():
            if entry.decided is not None:
                names = names_of(table_id, query_id, entry.decided.batch_id, entry.decided.tasks)
                found += [storage.staging_path(table_id) / name for name in names]
        for table in storage.catalog.all_tables():
            snapshots = storage.catalog.lake_snapshots(table.table_id)
            found += [storage.lake_offsets_path(table.table_id) / snapshot.file_name for snapshot in snapshots]
        return found

    def _offsets_directories(self) -> list[Path]:
        """Directories of offsets files, where those of lake snapshots that were not registered yet may be, too."""
        return [self._storage.lake_offsets_path(table.table_id) for table in self._storage.catalog.all_tables()]

    # --- after it

    async def _place(self, holder: Holder, placer: Placer) -> None:
        run = self._storage.run_blocking
        held = [*holder.files, *(log.log for log in holder.logs)]
        self.bytes_total = sum(file.size_bytes for file in held)
        needed_bytes = await run(partial(copied_bytes, held, self._storage.held_path, self.target))
        if needed_bytes > (free_bytes := await run(partial(disk_free_bytes, self.target))):
            raise _refused(
                f"{self.target} has room for {free_bytes} bytes, the backup needs {needed_bytes}; free some space or "
                "name a directory on another disk."
            )
        for file in holder.files:
            self._check_stopped()
            await run(partial(placer.place, file))
            self.bytes_done += file.size_bytes
        for log in holder.logs:
            self._check_stopped()
            await run(partial(placer.place_log, log))
            self.bytes_done += log.log.size_bytes

    def _check_stopped(self) -> None:
        if self._stopped:
            raise FlussError("The server is stopping; make the backup anew later.", ErrorCode.UNKNOWN_SERVER_ERROR)


def _with_files(buckets: Sequence[tuple[TableBucket, Path]]) -> list[TableBucket]:
    return [bucket for bucket, path in buckets if list_base_offsets(path)]


def _hold(
    holder: Holder,
    logs: Sequence[tuple[Path, LogCut, bool]],
    others: Sequence[Path],
    offsets_directories: Sequence[Path],
) -> None:
    for path, cut, has_rows in logs:
        holder.log(path, cut)
        if has_rows:
            holder.snapshots(path, cut.end_offset)
    holder.hold_all(others)
    known = set(others)
    for directory in offsets_directories:
        for path in sorted(directory.glob("*.offsets")):
            if path not in known:
                holder.hold_if_there(path)


def _finish(target: Path, placer: Placer, ranges: Sequence[BackupRange], time_ms: int) -> None:
    placer.sync_directories()
    files.replace(target / VERSION_NAME, f"{FORMAT_VERSION}\n".encode(), Site.BACKUP_FINISH, durable=True)
    placer.note(VERSION_NAME)
    _, catalog_crc = file_checksum(target / CATALOG_NAME)
    backup_manifest.write(target, BackupManifest(FORMAT_VERSION, time_ms, ranges, placer.sizes, catalog_crc))


def _try(work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        _log.warning("something of a backup is left over: %s", error)


def _refused(text: str) -> FlussError:
    return InvalidRequestError(text, ErrorCode.INVALID_CONFIG_EXCEPTION)
