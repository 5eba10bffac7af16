"""Waiting for a server that is away, and errors as Spark may show them: one line.

Spark's processes wait as long as writers do, so that a query goes on when its server has restarted;
`server.wait-timeout-ms` says otherwise. But who mistypes an address is to be told within seconds, so the driver waits
less for one that has not answered this application before. Spark runs a source's driver side in several processes; what
they share is the application's scratch directory, which Spark names to them and removes at the end.

An error is one line that says what failed, without the way through this package. Spark sends the text of an exception
on, with its traceback and those of its causes, into the log, into what users see, and through regular expressions that
a long text makes overflow the stack.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fluss.model.config import Config
from fluss.model.errors import FlussError

TEXT_LENGTH_MAX: Final = 1_000
# What reading and writing needs, wherever a task runs.
_PACKAGES: Final = ("crc32c", "google.protobuf", "numpy", "pyarrow")

_log = logging.getLogger(__name__)


@contextmanager
def told_shortly() -> Iterator[None]:
    """Raise errors to Spark as one line without causes; around whatever Spark calls."""
    try:
        yield
    except FlussError as error:
        _log.debug("Spark is told of this error:", exc_info=True)
        raise type(error)(_one_line(error.message), error.error_code) from None
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise _missing(error.name) from None


def check_packages() -> None:
    """Raise if a package is missing here: some are only loaded when the first rows come."""
    for name in _PACKAGES:
        if not _is_there(name):
            raise _missing(name)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _missing(name: str) -> FlussError:
    return FlussError(
        f"The package {name!r} is not installed for {sys.executable} on {platform.node()}: install flussbett there, "
        "with what it needs, or let PYSPARK_PYTHON name an interpreter that has it."
    )


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LENGTH_MAX else f"{line[: TEXT_LENGTH_MAX - 4]} ..."


SERVER_WAIT_MS: Final = 120_000
OPENING_MS: Final = 10_000
_SCRATCH: Final = "SPARK_LOCAL_DIRS"
_ONE_TRY_MS: Final = 1  # a deadline that the first failure finds behind it


def waiting_config(config: Config, *, waits: bool = True) -> Config:
    """The settings, with those that say how long to wait where they are left out.

    Without `waits`, an address that has answered before is not waited for, nor is anything tried again.
    """
    result, given = config.copy(), config.to_dict()
    if not waits and _has_answered(config):
        result.server_wait_timeout_ms = 0
        result.writer_delivery_timeout_ms = _ONE_TRY_MS
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
