"""The backup that a server makes, one at a time, and how far it has come."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from fluss.doors import clock
from fluss.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from fluss.storage.backup.backup import Backup
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.store import Storage

_log = logging.getLogger(__name__)


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
