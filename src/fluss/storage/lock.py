"""Locks on files. They are flocks: the kernel frees them when their holder dies."""

from __future__ import annotations

import fcntl
from io import FileIO
from pathlib import Path


def try_lock(path: Path) -> FileIO | None:
    """Lock a file, made if it is not there, until the answer is closed; None when another has it locked."""
    file = FileIO(path, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return file
