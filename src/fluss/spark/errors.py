"""What Spark is told when something fails: one line that says what, without the way through this package.

Spark sends the text of an exception on, with its traceback and those of its causes, into the log, into what users see,
and through regular expressions that a long text makes overflow the stack.
"""

# Small on purpose: every entry that Spark calls needs it.

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from fluss.model.errors import FlussError

TEXT_LENGTH_MAX: Final = 1_000
# What reading and writing needs, wherever a task runs.
_PACKAGES: Final = ("crc32c", "google.protobuf", "numpy", "pyarrow")

_log = logging.getLogger(__name__)


@contextmanager
def told_shortly() -> Iterator[None]:
    """For whatever Spark calls: raises what is raised in here as one line without causes."""
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
