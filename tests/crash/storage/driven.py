"""Runs drivers, programs that are killed at a fail point and tell before that what they were promised."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable

from tests.crash.storage import (
    backup_crash_driver,
    crash_driver,
    kv_crash_driver,
    lake_crash_driver,
    staging_crash_driver,
)

KILLED = -signal.SIGKILL

# Processes are forked from one that has imported everything: a tenth of a second less for each of many.
_PROCESSES = multiprocessing.get_context("forkserver")
_DRIVERS = (backup_crash_driver, crash_driver, kv_crash_driver, lake_crash_driver, staging_crash_driver)
_PROCESSES.set_forkserver_preload([driver.__name__ for driver in _DRIVERS])


def run_driver(run: Callable[..., None], *args: str | None) -> tuple[int, list[list[str]]]:
    """Call a driver's `run`, to its end or its death: the exit code, and what it told."""
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=run, args=(*args, theirs))
    process.start()
    theirs.close()
    with open(ours.fileno(), "rb", closefd=False) as pipe:
        output = pipe.read().decode()
    ours.close()
    process.join()
    assert process.exitcode in (0, KILLED), "the driver failed by itself, see its standard error"
    return process.exitcode, [line.split() for line in output.splitlines()]
