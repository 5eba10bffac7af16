"""Jobs of the server: partitions made ahead of time and dropped when they are old; and backups, one at a time.

Partitions: each run compares what there is with what there should be now, so one that was cut short, or missed while
the server was down, is made good by the next. Partitions that the table's time unit could not have named are left to
those who made them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss.doors import clock
from fluss.model.clock import Clock
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError
from fluss.model.tables import options
from fluss.model.tables.auto_partition import AutoPartition
from fluss.storage.catalog.catalog import Catalog, TableEntry
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.store import Storage

if TYPE_CHECKING:
    from fluss.storage.backup.backup import Backup

_log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 600.0


class AutoPartitioner:
    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        *,
        check_interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self.clock = clock
        self._catalog = catalog
        self._check_interval_s = check_interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after all tables, now and from time to time."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Changes under way run to their end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.run_all()
            except Exception:
                _log.exception("auto-partitioning failed, the next try is in %g s", self._check_interval_s)
            await asyncio.sleep(self._check_interval_s)

    def now(self) -> dt.datetime:
        """The time by which partitions are named; a clock that jumped does not move it until it is confirmed."""
        return dt.datetime.fromtimestamp(self.clock.now_ms() / 1_000, dt.UTC)

    async def run_all(self) -> None:
        for entry in self._catalog.all_tables():
            if entry.partition_keys:
                await self.run(entry.table_id)
                await asyncio.sleep(0)  # others have their turn between many tables

    async def run(self, table_id: int) -> None:
        """Bring one table up to date; what goes wrong is logged, and tried again next time."""
        entry = self._catalog.table_by_id(table_id)
        rule = None if entry is None else rule_of(entry)
        if entry is None or rule is None or not rule.enabled:
            return
        may_drop = self.clock.expiry_ms() is not None
        now = self.now()
        try:
            expired = self._expired(entry, rule, now) if may_drop else []
            if expired:
                await self._catalog.drop_partitions(table_id, expired, ignore_if_not_exists=True)
                _log.info("table %s: dropped old partitions %s", entry.path, ", ".join(expired))
            await self._catalog.create_partitions(table_id, rule.values_ahead(now), ignore_if_exists=True)
        except FlussError as error:
            _log.warning("table %s: auto-partitioning failed, the next try is later: %s", entry.path, error)

    def _expired(self, entry: TableEntry, rule: AutoPartition, now: dt.datetime) -> list[str]:
        oldest = rule.oldest_value(now)
        if oldest is None:
            return []
        names = [partition.name for partition in self._catalog.partitions(entry)]
        values = [(rule.time_value(name), name) for name in names]
        return [name for value, name in values if value < oldest and rule.could_have_made(value)]


def rule_of(entry: TableEntry) -> AutoPartition | None:
    """The rule of a partitioned table, None if it can't be read."""
    properties = json.loads(entry.table_json).get("properties", {})
    try:
        return AutoPartition.of(properties, entry.partition_keys)
    except FlussError as error:
        # Such as a time zone that this machine's time zone data does not have.
        _log.warning("table %s: %s is not kept: %s", entry.path, options.AUTO_PARTITION_ENABLED, error)
        return None


class RunningBackup:
    """It goes on to its end, whether somebody asks for it or not."""

    def __init__(self, backup_id: str, backup: Backup) -> None:
        self.backup_id = backup_id
        self.backup = backup
        self._began_s = clock.monotonic()
        self._ended_s: float | None = None
        self.task = asyncio.get_running_loop().create_task(backup.run())
        self.task.add_done_callback(self._done)

    @property
    def elapsed_ms(self) -> int:
        return round(((self._ended_s or clock.monotonic()) - self._began_s) * 1_000)

    @property
    def error(self) -> BaseException | None:
        """Why it failed, if it did."""
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None

    def _done(self, task: asyncio.Task[None]) -> None:
        self._ended_s = clock.monotonic()
        if self.error is not None:
            _log.error("backup %s failed: %s", self.backup_id, self.error)


class Backups:
    def __init__(self, storage: Storage, kv_snapshots: KvSnapshots) -> None:
        self._storage = storage
        self._kv_snapshots = kv_snapshots
        self._last: RunningBackup | None = None
        self._closed = False

    def start(self, backup_id: str, target: Path) -> None:
        """Begin a backup, unless it is this one that runs, or ran last."""
        last = self._last
        if last is not None and last.backup_id == backup_id:
            return
        if self._closed or (last is not None and not last.task.done()):
            reason = (
                "the server is stopping" if self._closed or last is None else f"it makes one to {last.backup.target}"
            )
            raise InvalidRequestError(
                f"The server can't begin a backup now, {reason}; try again later.", ErrorCode.INVALID_CONFIG_EXCEPTION
            )
        # Imported here: an idle server does without.
        from fluss.storage.backup.backup import Backup

        self._last = RunningBackup(backup_id, Backup(self._storage, self._kv_snapshots, target))

    def find(self, backup_id: str) -> RunningBackup:
        """The one that runs, or ran last; the server remembers no others."""
        if self._last is None or self._last.backup_id != backup_id:
            raise NotFoundError(
                "The server does not know this backup: it was restarted, or has begun another one since. Without "
                "its backup.json it is not finished; remove it and make it anew.",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        return self._last

    async def close(self) -> None:
        """Return when no backup is being made; one that was is removed."""
        self._closed = True
        if self._last is not None:
            self._last.backup.stop()
            await asyncio.wait([self._last.task])
