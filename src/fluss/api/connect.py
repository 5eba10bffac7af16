"""The short way in: `connect(address, **options)`."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from fluss.api.connection_base import AwaitedConnection
from fluss.model.config import Config

Connection = TypeVar("Connection", bound=AwaitedConnection[Any])


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
