"""What writers share in the facade that awaits nothing: flush, drain and acknowledgements block."""

from __future__ import annotations

from typing import Self

from fluss.api.contexts import FLUSHING, leaving
from fluss.api.writer_base import Core, WriterBase, WriteResultHandleBase
from fluss.client.runtime import run


class WriteResultHandle(WriteResultHandleBase):
    """A write under way: ignore it, or `wait()` until the server has stored the rows."""

    __slots__ = ()

    def wait(self) -> None:
        """Wait until the server has stored the rows."""
        self._handle.result()


class BlockingWriter(WriterBase[Core, WriteResultHandle]):
    """A writer whose waiting blocks."""

    _handle_class = WriteResultHandle

    def flush(self) -> None:
        """Send everything buffered and wait until it is stored; raises the first failure."""
        self._core.flush_blocking()

    def drain(self) -> None:
        """Wait until the buffer has room."""
        run(self._core.drain())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, FLUSHING):
            self.flush()
