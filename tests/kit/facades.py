"""The three facades behind one set of calls, for tests of what is the same in all of them."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final

FACADES: Final = ("fluss", "fluss.aio", "fluss.sync")


class Facade:
    """Calls of a facade, awaited where it awaits; those of facades with coroutines are made inside a running loop."""

    def __init__(self, name: str) -> None:
        self.module = importlib.import_module(name)
        self.blocks = name == "fluss.sync"
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.close()

    def do(self, call: Callable[[], Any]) -> Any:
        """Make a call, and wait for it if it is to be awaited."""

        async def made() -> Any:
            result = call()
            return await result if inspect.isawaitable(result) else result

        return call() if self.blocks else self._loop.run_until_complete(made())

    def within(self, context: Any, body: Callable[[], Any]) -> Any:
        """Make a call in a `with` or `async with` block."""

        async def made() -> Any:
            async with context:
                return await self._awaited(body())

        if not self.blocks:
            return self._loop.run_until_complete(made())
        with context:
            return body()

    @staticmethod
    async def _awaited(result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    def connect(self, address: str, **settings: Any) -> Any:
        config = self.module.Config({"bootstrap.servers": address, **settings})
        return self.do(lambda: self.module.FlussConnection.create(config))

    def table(self, connection: Any, path: Any) -> Any:
        return self.do(lambda: connection.get_table(path))

    def close_connection(self, connection: Any) -> None:
        self.do(connection.close)
