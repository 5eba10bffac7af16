"""The end of a `with` block: a failure there does not take the place of an exception of the block.

A module of its own because connections, writers and builders of all facades need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fluss.model.errors import FlussError

CLOSING: Final = "Closing the connection"
FLUSHING: Final = "Flushing the writer"


@contextmanager
def leaving(error: BaseException | None, what: str) -> Iterator[None]:
    """Raise what fails at the end of a block, or add it as a note to the exception that the block raised."""
    try:
        yield
    except FlussError as failure:
        if error is None:
            raise
        for text in (f"{what} failed, too: {failure}", *getattr(failure, "__notes__", ())):
            error.add_note(text)
