"""Opening and closing, in all facades: what `connect` takes and returns, and how a block ends."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from fluss.client.client import ClientCore
from fluss.model.config import Config
from fluss.model.errors import FlussError

CLOSING: Final = "Closing the connection"
FLUSHING: Final = "Flushing the writer"


class AsyncClosing(Protocol):
    """A connection whose block ends in `__aexit__`."""

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any, /) -> None: ...


Connection = TypeVar("Connection", bound=AsyncClosing)


def connect_config(address: str | None, options: dict[str, Any]) -> Config:
    """Settings from an address and options named like Config's attributes (`request_timeout_ms=500`)."""
    keys = {option.name: key for key, option in Config.OPTIONS.items()}
    config = Config({keys.get(name, name): value for name, value in options.items()})
    if address is not None:
        config.bootstrap_servers = address
    return config


class Connecting(Generic[Connection]):
    """What `connect` returns: `await` it for the connection, or use it in `async with`, which closes it at the end."""

    def __init__(self, opening: Coroutine[Any, Any, Connection]) -> None:
        self._opening = opening
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._opening.__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self._opening
        return self._connection

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._connection is not None:
            await self._connection.__aexit__(kind, error, traceback)


class Done:
    """What `close()` returns: the work is done, and `await` on it is allowed."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # makes this a generator, as __await__ must be


DONE = Done()


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


class FlussConnectionBase:
    """What the connections of all facades share."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    @property
    def config(self) -> Config:
        """The connection's settings.

        Examples:
            >>> conn.config.request_timeout_ms
            30000
        """
        return self._core.config

    def reachable_config(self) -> Config:
        """Make settings with which other processes reach the same server.

        Returns:
            A copy of the settings; that of an embedded server has its address and its secret.

        Examples:
            >>> conn.reachable_config().bootstrap_servers
            '127.0.0.1:...'
        """
        return self._core.reachable_config()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, CLOSING):
            self._core.close_blocking()

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else "open"
        return f"FlussConnection({self._core.config.bootstrap_servers!r}, {state})"
