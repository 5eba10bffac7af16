"""Lookups without a known partition or leader, or whose last try failed; one task at a time finds where they go."""

from __future__ import annotations

import asyncio
import builtins
from typing import Protocol

from fluss.client import runtime
from fluss.client.cluster.metadata import Metadata
from fluss.client.cluster.retry import pause_s
from fluss.client.lookup.pending import Lookup
from fluss.doors import clock
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.partitions import spec_of_name


class LookupOwner(Protocol):
    """Takes rerouted lookups back, or tells their callers what became of them."""

    def found(self, lookups: list[Lookup]) -> None: ...
    def missing(self, lookups: list[Lookup]) -> None: ...
    def not_found(self, lookups: list[Lookup], error: FlussError) -> None: ...
    def fail(self, lookups: list[Lookup], error: FlussError) -> None: ...


class Rerouting:
    """Finds the leaders of a table's lookups anew, with growing pauses."""

    def __init__(self, metadata: Metadata, info: TableInfo, timeout_s: float, owner: LookupOwner) -> None:
        self._metadata = metadata
        self._info = info
        self._timeout_s = timeout_s
        self._owner = owner
        self._waiting: list[Lookup] = []
        self._finding: asyncio.Task[None] | None = None

    def add(self, lookups: list[Lookup]) -> None:
        """Look for these, too."""
        self._waiting += lookups
        if self._finding is None:
            self._finding = asyncio.ensure_future(self._find_all())

    def close(self) -> list[Lookup]:
        """Stop; those that nobody looks for yet are returned, the others fail."""
        waiting, self._waiting = self._waiting, []
        if self._finding is not None:
            self._finding.cancel()
        return waiting

    async def _find_all(self) -> None:
        try:
            while self._waiting:
                attempts = min(lookup.attempts for lookup in self._waiting)
                if attempts:
                    await asyncio.sleep(min(pause_s(attempts), remaining_s(self._waiting)))
                lookups, self._waiting = self._waiting, []
                try:
                    await self._find(lookups)
                except asyncio.CancelledError:
                    self._owner.fail(lookups, closed_error())
                    raise
                except FlussError as error:
                    self._owner.not_found(lookups, error)
                except Exception as error:
                    self._owner.fail(lookups, unexpected(error))
        finally:
            self._finding = None

    async def _find(self, lookups: list[Lookup]) -> None:
        """Ask where lookups belong, and give those back that have a leader now; those of a missing partition end."""
        path = self._info.table_path
        await self._ask(lookups)
        view = self._metadata.table(path)
        if view is not None and view.info.table_id != self._info.table_id:
            message = f"Table {path} was dropped and made anew; get it again."
            self._owner.fail(lookups, NotFoundError(message, ErrorCode.TABLE_NOT_EXIST))
            return
        found: list[Lookup] = []
        missing: list[Lookup] = []
        for lookup in lookups:
            partition_id = None if lookup.partition is None else self._metadata.partition_id(path, lookup.partition)
            if lookup.partition is not None and partition_id is None:
                missing.append(lookup)
            elif self._metadata.leader(path, partition_id, lookup.bucket) is None:
                message = f"Bucket {lookup.bucket} of table {path} has no leader."
                self._owner.not_found([lookup], TimeoutError(message, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
            else:
                found.append(lookup)
        self._owner.missing(missing)
        self._owner.found(found)

    async def _ask(self, lookups: list[Lookup]) -> None:
        path = self._info.table_path
        names = {lookup.partition for lookup in lookups if lookup.partition is not None}
        names = {name for name in names if self._may_exist(name)}
        try:
            async with asyncio.timeout(remaining_s(lookups)):
                if names:
                    await runtime.bridge(self._metadata.find_partitions(path, names))
                elif any(lookup.partition is None for lookup in lookups):
                    await runtime.bridge(self._metadata.refresh(path))
        except builtins.TimeoutError:
            raise TimeoutError(f"The leaders of table {path} were not found within {self._timeout_s:g} s.") from None

    def _may_exist(self, partition: str) -> bool:
        try:
            spec_of_name(partition, self._info.partition_keys).check_values()
        except InvalidRequestError:
            return False
        return True


def remaining_s(lookups: list[Lookup]) -> float:
    """Until the first deadline of these."""
    return max(min([lookup.deadline for lookup in lookups]) - clock.monotonic(), 0.001)


def closed_error() -> FlussError:
    """What lookups of a closed client end with."""
    return FlussError("The connection is closed; open a new one.")


def unexpected(error: Exception) -> FlussError:
    """A mistake of ours must end as an error of the lookups, not as silence."""
    failure = FlussError(f"Unexpected failure: {error!r}")
    failure.__cause__ = error
    return failure
