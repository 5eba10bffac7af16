"""What drivers say before they are killed: lines of words, in a pipe or on standard output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from multiprocessing.connection import Connection

from fluss.storage import failpoints

_output_fd = 1


def tell(*words: object) -> None:
    os.write(_output_fd, (" ".join(map(str, words)) + "\n").encode())


def drive(main: Coroutine[object, object, None], fail_point: str | None, output: Connection) -> None:
    """Run a driver in this process, up to a fail point if one is named, with a pipe for its output."""
    global _output_fd
    _output_fd = output.fileno()
    if fail_point is not None:
        failpoints.arm(fail_point)
    asyncio.run(main)
