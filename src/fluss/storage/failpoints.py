"""Named places at which a crash or an I/O error can be made to happen.

A crash test must be able to stop the process at each step that touches the disk, and must know that it missed none. So
the steps are a closed list: `Site` says where in the storage layer, the step says before, in the middle of, or after
what. Armed by `FLUSS_FAIL_POINT="name[:count[:action]]"`: at the count-th hit (default the first) the process kills
itself with SIGKILL, or, by action, raises `FailPointError` ("raise") or an OSError ("eio", "enospc", "emfile"). An
armed point fires once.
"""

from __future__ import annotations

import errno
import os
import signal
from enum import StrEnum
from typing import Final, NoReturn

from fluss.doors import threads

ENVIRONMENT_VARIABLE: Final = "FLUSS_FAIL_POINT"
_ERRNOS: Final = {"eio": errno.EIO, "enospc": errno.ENOSPC, "emfile": errno.EMFILE}
ACTIONS: Final = ("kill", "raise", *_ERRNOS)


class Site(StrEnum):
    """A kind of call site; one site's steps are hit in the order of `STEPS`."""

    DIRECTORY_CREATE = "directory.create"
    FORMAT_REPLACE = "format.replace"
    LOCK_PID = "lock.pid"
    MARKS_CREATE = "marks.create"
    MARKS_WRITE = "marks.write"
    CATALOG_CREATE = "catalog.create"
    CATALOG_COMMIT = "catalog.commit"
    BUCKET_DIRECTORY = "bucket.directory"
    SEGMENT_CREATE = "segment.create"
    SEGMENT_NAME = "segment.name"
    SEGMENT_APPEND = "segment.append"
    SEGMENT_COMMIT = "segment.commit"
    SEGMENT_SEAL = "segment.seal"
    SEGMENT_RECOVER = "segment.recover"
    SEGMENT_CUT = "segment.cut"
    SEGMENT_REMOVE = "segment.remove"
    INDEX_REPLACE = "index.replace"
    WRITERS_REPLACE = "writers.replace"
    TABLE_REMOVE = "table.remove"
    PARTITION_REMOVE = "partition.remove"
    KV_CREATE = "kv.create"
    KV_COMMIT = "kv.commit"
    KV_RESTORE = "kv.restore"
    KV_CHECKPOINT = "kv.checkpoint"
    KV_CHECKPOINT_REMOVE = "kv.checkpoint.remove"
    KV_NUMBERS = "kv.numbers"
    STAGING_DIRECTORY = "staging.directory"
    STAGING_REPLACE = "staging.replace"
    STAGING_REMOVE = "staging.remove"
    LAKE_DIRECTORY = "lake.directory"
    LAKE_REPLACE = "lake.replace"
    LAKE_REMOVE = "lake.remove"
    BACKUP_HOLD = "backup.hold"
    BACKUP_COPY = "backup.copy"
    BACKUP_FINISH = "backup.finish"
    BACKUP_REMOVE = "backup.remove"
    SCRUB_REPORT = "scrub.report"
    CLOCK_NOTE = "clock.note"
    REPAIR_KEEP = "repair.keep"
    REPAIR_REPLACE = "repair.replace"


class Step(StrEnum):
    BEFORE_CREATE = "before_create"
    AFTER_CREATE = "after_create"
    BEFORE_WRITE = "before_write"
    TORN_WRITE = "torn_write"
    AFTER_WRITE = "after_write"
    BEFORE_TRUNCATE = "before_truncate"
    AFTER_TRUNCATE = "after_truncate"
    BEFORE_SYNC = "before_sync"
    AFTER_SYNC = "after_sync"
    BEFORE_RENAME = "before_rename"
    AFTER_RENAME = "after_rename"
    BEFORE_SYNC_DIRECTORY = "before_sync_directory"
    AFTER_SYNC_DIRECTORY = "after_sync_directory"
    BEFORE_REMOVE = "before_remove"
    AFTER_REMOVE = "after_remove"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


_CREATE: Final = (Step.BEFORE_CREATE, Step.AFTER_CREATE)
_WRITE: Final = (Step.BEFORE_WRITE, Step.TORN_WRITE, Step.AFTER_WRITE)
_TRUNCATE: Final = (Step.BEFORE_TRUNCATE, Step.AFTER_TRUNCATE)
_SYNC: Final = (Step.BEFORE_SYNC, Step.AFTER_SYNC)
_RENAME: Final = (Step.BEFORE_RENAME, Step.AFTER_RENAME)
_SYNC_DIRECTORY: Final = (Step.BEFORE_SYNC_DIRECTORY, Step.AFTER_SYNC_DIRECTORY)
_REMOVE: Final = (Step.BEFORE_REMOVE, Step.AFTER_REMOVE)
_COMMIT: Final = (Step.BEFORE_COMMIT, Step.AFTER_COMMIT)

STEPS: Final[dict[Site, tuple[Step, ...]]] = {
    Site.DIRECTORY_CREATE: _CREATE + _SYNC_DIRECTORY,
    Site.FORMAT_REPLACE: _WRITE + _SYNC + _RENAME + _SYNC_DIRECTORY,
    Site.LOCK_PID: _WRITE,
    Site.MARKS_CREATE: _CREATE + _SYNC_DIRECTORY,
    Site.MARKS_WRITE: _WRITE + _SYNC,
    Site.CATALOG_CREATE: _SYNC_DIRECTORY,
    Site.CATALOG_COMMIT: _COMMIT,
    Site.BUCKET_DIRECTORY: _CREATE + _SYNC_DIRECTORY,
    Site.SEGMENT_CREATE: _CREATE + _SYNC_DIRECTORY,
    Site.SEGMENT_NAME: _RENAME + _SYNC_DIRECTORY,
    Site.SEGMENT_APPEND: _WRITE,
    Site.SEGMENT_COMMIT: _SYNC,
    Site.SEGMENT_SEAL: _SYNC,
    Site.SEGMENT_RECOVER: _SYNC + _SYNC_DIRECTORY,
    Site.SEGMENT_CUT: _CREATE + _WRITE + _TRUNCATE + _SYNC,
    Site.SEGMENT_REMOVE: _SYNC + _SYNC_DIRECTORY + _REMOVE,
    Site.INDEX_REPLACE: _WRITE + _RENAME,
    Site.WRITERS_REPLACE: _WRITE + _RENAME,
    Site.TABLE_REMOVE: _REMOVE,
    Site.PARTITION_REMOVE: _REMOVE,
    Site.KV_CREATE: _CREATE + _SYNC_DIRECTORY,
    Site.KV_COMMIT: _COMMIT,
    Site.KV_RESTORE: _REMOVE + _CREATE,
    Site.KV_CHECKPOINT: _CREATE + _SYNC_DIRECTORY + _RENAME,
    Site.KV_CHECKPOINT_REMOVE: _RENAME + _SYNC_DIRECTORY + _REMOVE,
    Site.KV_NUMBERS: _WRITE + _RENAME,
    Site.STAGING_DIRECTORY: _CREATE + _SYNC_DIRECTORY,
    Site.STAGING_REPLACE: _WRITE + _SYNC + _RENAME + _SYNC_DIRECTORY,
    Site.STAGING_REMOVE: _REMOVE,
    Site.LAKE_DIRECTORY: _CREATE + _SYNC_DIRECTORY,
    Site.LAKE_REPLACE: _WRITE + _SYNC + _RENAME + _SYNC_DIRECTORY,
    Site.LAKE_REMOVE: _REMOVE,
    Site.BACKUP_HOLD: _CREATE + _REMOVE,
    Site.BACKUP_COPY: _CREATE + _WRITE + _SYNC + _SYNC_DIRECTORY,
    Site.BACKUP_FINISH: _WRITE + _SYNC + _RENAME + _SYNC_DIRECTORY,
    Site.BACKUP_REMOVE: _REMOVE,
    Site.SCRUB_REPORT: _WRITE + _RENAME,
    Site.CLOCK_NOTE: _WRITE + _RENAME,
    Site.REPAIR_KEEP: _CREATE + _RENAME + _SYNC_DIRECTORY,
    Site.REPAIR_REPLACE: _WRITE + _SYNC + _RENAME + _SYNC_DIRECTORY,
}

NAMES: Final[tuple[str, ...]] = tuple(f"{site}.{step}" for site, steps in STEPS.items() for step in steps)


class FailPointError(Exception):
    """Raised by an armed fail point with the action "raise"."""


class FailPoint:
    """One armed point. Hits come from the loop and from sync threads, so counting is locked."""

    def __init__(self, spec: str) -> None:
        name, _, rest = spec.partition(":")
        count, _, action = rest.partition(":")
        if name not in NAMES:
            raise ValueError(f"{ENVIRONMENT_VARIABLE}: unknown fail point {name!r}; known: {', '.join(NAMES)}")
        if action and action not in ACTIONS:
            raise ValueError(f"{ENVIRONMENT_VARIABLE}: unknown action {action!r}; known: {', '.join(ACTIONS)}")
        self.name = name
        self.action = action or "kill"
        self._hits_left = int(count or 1)
        self._lock = threads.lock()

    def due(self, site: Site, step: Step) -> bool:
        """Count a hit; True when this is the one to fire on."""
        if f"{site}.{step}" != self.name:
            return False
        with self._lock:
            self._hits_left -= 1
            return self._hits_left == 0

    def fire(self) -> NoReturn:
        if self.action == "raise":
            raise FailPointError(self.name)
        if self.action in _ERRNOS:
            code = _ERRNOS[self.action]
            raise OSError(code, f"{os.strerror(code)} (fail point {self.name})")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL does not return")

    def hit(self, site: Site, step: Step) -> None:
        if self.due(site, step):
            self.fire()


# None costs one comparison per disk operation; that is the price of the feature in production.
armed: FailPoint | None = None


def arm(spec: str) -> None:
    """Arm one fail point; it replaces the one armed before."""
    global armed
    armed = FailPoint(spec)


def disarm() -> None:
    global armed
    armed = None


if os.environ.get(ENVIRONMENT_VARIABLE):
    arm(os.environ[ENVIRONMENT_VARIABLE])
