"""Tiering jobs in processes of their own: each line of standard input is one, as the arguments of `fluss tier`.

They are forked off before anything is started here, so that what they import is loaded once. A line begins with the
step at which the job is to be killed, or `-`. The answer is its exit code.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from typing import Final

from fluss.cli.main import main
from fluss.lake.tiering.round import CRASH_VARIABLE

LOADED: Final = (
    "fluss.lake.iceberg.catalog",
    "fluss.lake.tiering.task",
    "fluss.lake.tiering.service",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "rich.progress",
)


def run_jobs() -> None:
    for name in LOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        step, *arguments = shlex.split(line)
        child = os.fork()
        if not child:
            if step != "-":
                os.environ[CRASH_VARIABLE] = step
            try:
                os.dup2(2, 1)  # answers alone go to standard output
                main(["tier", "--local", *arguments])
            except SystemExit as error:
                os._exit(int(error.code or 0))
            finally:
                os._exit(70)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    run_jobs()
