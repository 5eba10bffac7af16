"""A bar for work that takes long: on standard error, gone when the work is done, and nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class ByteBar:
    """How many bytes are done, of how many."""

    def __init__(self, progress: Progress | None, text: str) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(text, total=None)

    def begin(self, text: str, total_bytes: int) -> None:
        """Begin anew."""
        if self._progress is not None and self._task is not None:
            self._progress.reset(self._task, description=text, total=total_bytes)

    def add(self, size_bytes: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, size_bytes)

    def set(self, done_bytes: int, total_bytes: int | None) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done_bytes, total=total_bytes)


@contextmanager
def byte_bar(text: str) -> Iterator[ByteBar]:
    """A bar that counts bytes."""
    if not sys.stderr.isatty():
        yield ByteBar(None, text)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        yield ByteBar(progress, text)


def size_text(size_bytes: float) -> str:
    """Bytes as people say them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
