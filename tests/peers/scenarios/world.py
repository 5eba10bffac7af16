"""What a scenario gets, and the register of all scenarios."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.peers.columns import arrow_schema


@dataclass
class World:
    """A connected client, a database of its own, and what is known to differ between servers and clients."""

    api: Any
    conn: Any
    admin: Any
    database: str
    expected: Mapping[str, Any]
    """Values by the names of differences.toml, as they are for this client and this server."""
    await_leaders: Callable[[str, str, str | None], Awaitable[None]]

    def path(self, table: str) -> Any:
        return self.api.TablePath(self.database, table)

    async def create(
        self,
        table: str,
        columns: Mapping[str, str] | pa.Schema,
        *,
        primary_keys: Sequence[str] | None = None,
        auto_increment: str | None = None,
        **options: Any,
    ) -> Any:
        """A new table that has its leaders, opened."""
        arrow = columns if isinstance(columns, pa.Schema) else arrow_schema(columns)
        schema = self.api.Schema(arrow, primary_keys and list(primary_keys), auto_increment)
        descriptor = self.api.TableDescriptor(schema, **options)
        await self.admin.create_table(self.path(table), descriptor, False)
        if not options.get("partition_keys"):
            await self.await_leaders(self.database, table, None)
        return await self.conn.get_table(self.path(table))

    async def create_partition(self, table: str, spec: dict[str, str]) -> None:
        await self.admin.create_partition(self.path(table), spec)
        await self.await_leaders(self.database, table, "$".join(spec.values()))

    async def error_code(self, call: Awaitable[Any]) -> int:
        """The code of the FlussError that the call must raise."""
        try:
            result = await call
        except self.api.FlussError as error:
            check(bool(error.message), True)
            return int(error.error_code)
        raise AssertionError(f"no error, but {result!r}")

    def refused(self, call: Callable[[], Any]) -> None:
        """The call must raise a FlussError at once."""
        try:
            result = call()
        except self.api.FlussError as error:
            check(bool(error.message), True)
            return
        raise AssertionError(f"no error, but {result!r}")


Scenario = Callable[[World], Awaitable[None]]

SCENARIOS: dict[str, Scenario] = {}
FEATURES: dict[str, str] = {}


def scenario(feature: str) -> Callable[[Scenario], Scenario]:
    """Register a scenario under the feature that it proves."""

    def register(function: Scenario) -> Scenario:
        name = function.__name__
        if name in SCENARIOS:
            raise ValueError(f"two scenarios are named {name}")
        SCENARIOS[name], FEATURES[name] = function, feature
        return function

    return register


def check(found: Any, expected: Any) -> None:
    """An assertion that says what it saw, also where pytest does not rewrite them."""
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")
