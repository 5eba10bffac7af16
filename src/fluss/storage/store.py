"""One data directory, opened: the catalog and the logs of all buckets.

Logs are opened when first asked for and closed again when too many are open, the longest unused first; one that
somebody waits on, that has unsynced batches, or that failed stays. A caller must not keep a log across an await
without a waiter on it: ask `bucket()` again. Files of a dropped table are removed after the drop is committed; what a
crash leaves of them is removed at the next start, and only what the catalog knows it once issued.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.catalog import Catalog
from fluss.storage.commit import THREADS, GroupCommit
from fluss.storage.directory import DataDirectory, DataDirectoryError
from fluss.storage.failpoints import Site
from fluss.storage.log import SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES_MAX, BucketLog, LogOptions
from fluss.storage.writers import EXPIRY_MS

_log = logging.getLogger(__name__)

OPEN_LOGS_MAX: Final = 256
# How many of the longest unused logs are looked at beyond those to be closed; bounds the work of one turn.
_EVICTION_CANDIDATES: Final = 8


@dataclass(frozen=True, slots=True)
class StorageOptions:
    data_dir: str | Path
    durability: Literal["fsync", "os"] = "fsync"
    segment_size_bytes: int = SEGMENT_SIZE_BYTES
    open_logs_max: int = OPEN_LOGS_MAX
    sync_threads: int = THREADS
    writer_expiry_ms: int = EXPIRY_MS

    def __post_init__(self) -> None:
        if self.durability not in ("fsync", "os"):
            raise ValueError(f"durability must be 'fsync' or 'os', not {self.durability!r}")
        if not 0 < self.segment_size_bytes <= SEGMENT_SIZE_BYTES_MAX:
            raise ValueError(f"segment_size_bytes must be between 1 and {SEGMENT_SIZE_BYTES_MAX}")


class Storage:
    def __init__(self, options: StorageOptions, directory: DataDirectory, catalog: Catalog) -> None:
        self.options = options
        self.catalog = catalog
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._commit = GroupCommit(self._loop, options.sync_threads)
        self._logs: OrderedDict[TableBucket, BucketLog] = OrderedDict()
        self._eviction_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_options = LogOptions(
            fsync=options.durability == "fsync",
            segment_size_bytes=options.segment_size_bytes,
            writer_expiry_ms=options.writer_expiry_ms,
        )
        catalog.on_drop(self._table_dropped)

    @classmethod
    async def open(cls, options: StorageOptions) -> Storage:
        """Lock the directory, open the catalog, remove what dropped tables left. Buckets are opened when asked for."""
        directory = DataDirectory.open(Path(options.data_dir))
        try:
            _check_catalog_present(directory)
            catalog = await Catalog.open(directory.catalog_path)
        except BaseException:
            directory.close()
            raise
        storage = cls(options, directory, catalog)
        try:
            orphans = _orphans(directory, catalog)
            for path in orphans:
                await storage._remove(path)
        except BaseException:
            await storage.close()
            raise
        return storage

    def bucket(self, bucket: TableBucket) -> BucketLog:
        """The log of a bucket, opened if need be; code 21 for one that the catalog does not know."""
        log = self._logs.get(bucket)
        if log is not None:
            self._logs.move_to_end(bucket)
            return log
        entry = self.catalog.table_by_id(bucket.table_id)
        if entry is None or bucket.partition_id is not None or not 0 <= bucket.bucket_id < entry.num_buckets:
            raise FlussError(f"{bucket} does not exist.", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        path = self._directory.bucket_path(bucket)
        try:
            log = BucketLog(path, self._directory.root, self._commit, self._loop, self._log_options)
        except OSError as error:
            raise FlussError(f"{path}: the bucket can't be opened: {error}", ErrorCode.LOG_STORAGE_EXCEPTION) from error
        self._logs[bucket] = log
        if len(self._logs) > self.options.open_logs_max and not self._eviction_scheduled:
            # Not here: the caller may hold other logs until its turn of the loop ends.
            self._eviction_scheduled = True
            self._loop.call_soon(self._evict)
        return log

    async def close(self) -> None:
        """Make everything durable, leave checkpoints, free the directory."""
        try:
            while self._tasks:
                await asyncio.wait(self._tasks)
            for log in self._logs.values():
                log.request_sync()
            for log in list(self._logs.values()):
                await log.close()
            self._logs.clear()
            self._commit.close()
            await self.catalog.close()
        finally:
            self._directory.close()

    def _evict(self) -> None:
        self._eviction_scheduled = False
        excess = len(self._logs) - self.options.open_logs_max
        candidates = list(islice(self._logs.items(), max(excess, 0) + _EVICTION_CANDIDATES))
        for bucket, log in candidates:
            if len(self._logs) <= self.options.open_logs_max:
                return
            if log.is_idle:
                del self._logs[bucket]
                log.release()
            else:
                # With durability "os" nothing else makes a quiet log durable, and so fit to be closed.
                log.request_sync()

    def _table_dropped(self, table_id: int) -> None:
        logs = [self._logs.pop(bucket) for bucket in list(self._logs) if bucket.table_id == table_id]
        for log in logs:
            log.end()
        self._start(self._remove_table(table_id, logs))

    async def _remove_table(self, table_id: int, logs: list[BucketLog]) -> None:
        for log in logs:
            await log.discard()
        await self._remove(self._directory.table_path(table_id))

    async def _remove(self, path: Path) -> None:
        try:
            await self._commit.run(partial(files.remove_tree, path, Site.TABLE_REMOVE))
        except OSError as error:
            _log.warning("%s is left over from a dropped table and can't be removed now: %s", path, error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_catalog_present(directory: DataDirectory) -> None:
    """Without its catalog every table would look dropped, and be removed."""
    if directory.tables_path.exists() and not directory.catalog_path.exists():
        raise DataDirectoryError(
            f"{directory.catalog_path} is missing but {directory.tables_path} has data. Restore it from a backup."
        )


def _orphans(directory: DataDirectory, catalog: Catalog) -> list[Path]:
    """What tables dropped before the last stop have left behind."""
    if not directory.tables_path.exists():
        return []
    orphans = []
    for path in directory.tables_path.iterdir():
        if not path.name.isdigit():
            continue
        table_id = int(path.name)
        if table_id >= catalog.table_id_next:
            raise DataDirectoryError(
                f"{path} belongs to a table that {directory.catalog_path} has never heard of, so the catalog is older "
                "than the data. Restore the matching catalog, or move the directory away."
            )
        if catalog.table_by_id(table_id) is None:
            orphans.append(path)
    return orphans
