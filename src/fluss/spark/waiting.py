"""How long Spark's processes wait for a server that is away.

As long as writers do, so that a query goes on when its server has restarted; `server.wait-timeout-ms` says otherwise.
But who mistypes an address is to be told within seconds, so the driver waits less for one that has not answered this
application before. Spark runs a source's driver side in several processes; what they share is the application's scratch
directory, which Spark names to them and removes at the end.
"""

# Small on purpose: read by the driver, the tasks and the source.

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from fluss.model.config import Config

SERVER_WAIT_MS: Final = 120_000
OPENING_MS: Final = 10_000
_SCRATCH: Final = "SPARK_LOCAL_DIRS"


def waiting_config(config: Config, *, waits: bool = True) -> Config:
    """The settings, with those that say how long to wait where they are left out.

    Without `waits`, an address that has answered before is not waited for.
    """
    result, given = config.copy(), config.to_dict()
    if not waits and _has_answered(config):
        result.server_wait_timeout_ms = 0
        return result
    if Config.server_wait_timeout_ms.key not in given:
        result.server_wait_timeout_ms = SERVER_WAIT_MS
    if Config.writer_delivery_timeout_ms.key not in given:
        default: int = Config.writer_delivery_timeout_ms.default
        result.writer_delivery_timeout_ms = max(default, result.server_wait_timeout_ms)
    if Config.connect_timeout_ms.key not in given and not _is_task() and not _has_answered(config):
        result.connect_timeout_ms = OPENING_MS
    return result


def note_answer(config: Config) -> None:
    """Let the other processes of this application know that the address is right."""
    mark = _mark(config)
    if mark is not None and not _is_task():
        with suppress(OSError):  # then it counts as new once more
            mark.touch()


def _has_answered(config: Config) -> bool:
    mark = _mark(config)
    return mark is not None and mark.exists()


def _mark(config: Config) -> Path | None:
    """The file that stands for an address that has answered."""
    scratch = os.environ.get(_SCRATCH, "").split(",")[0]
    name = hashlib.sha256(config.bootstrap_servers.encode()).hexdigest()
    return Path(scratch, f"fluss-{name[:32]}") if scratch else None


def _is_task() -> bool:
    """Whether this process runs a task: then the driver has reached the server already."""
    from pyspark import TaskContext

    return TaskContext.get() is not None
