"""Partitions of auto-partitioned tables: made ahead of time, dropped when they are older than their table keeps.

Each run compares what there is with what there should be now, so one that was cut short, or missed while the server
was down, is made good by the next. Partitions that the table's time unit could not have named are left to those who
made them.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
from typing import Final

from fluss.model.clock import Clock
from fluss.model.errors import FlussError
from fluss.model.tables import options
from fluss.model.tables.auto_partition import AutoPartition
from fluss.storage.catalog.catalog import Catalog, TableEntry

_log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 600.0


class AutoPartitioner:
    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        *,
        check_interval_s: float = CHECK_INTERVAL_S,
    ) -> None:
        self.clock = clock
        self._catalog = catalog
        self._check_interval_s = check_interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after all tables, now and from time to time."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Changes under way run to their end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.run_all()
            except Exception:
                _log.exception("auto-partitioning failed, the next try is in %g s", self._check_interval_s)
            await asyncio.sleep(self._check_interval_s)

    def now(self) -> dt.datetime:
        """The time by which partitions are named; a clock that jumped does not move it until it is confirmed."""
        return dt.datetime.fromtimestamp(self.clock.now_ms() / 1_000, dt.UTC)

    async def run_all(self) -> None:
        for entry in self._catalog.all_tables():
            if entry.partition_keys:
                await self.run(entry.table_id)
                await asyncio.sleep(0)  # others have their turn between many tables

    async def run(self, table_id: int) -> None:
        """Bring one table up to date; what goes wrong is logged, and tried again next time."""
        entry = self._catalog.table_by_id(table_id)
        rule = None if entry is None else rule_of(entry)
        if entry is None or rule is None or not rule.enabled:
            return
        may_drop = self.clock.expiry_ms() is not None
        now = self.now()
        try:
            expired = self._expired(entry, rule, now) if may_drop else []
            if expired:
                await self._catalog.drop_partitions(table_id, expired, ignore_if_not_exists=True)
                _log.info("table %s: dropped old partitions %s", entry.path, ", ".join(expired))
            await self._catalog.create_partitions(table_id, rule.values_ahead(now), ignore_if_exists=True)
        except FlussError as error:
            _log.warning("table %s: auto-partitioning failed, the next try is later: %s", entry.path, error)

    def _expired(self, entry: TableEntry, rule: AutoPartition, now: dt.datetime) -> list[str]:
        oldest = rule.oldest_value(now)
        if oldest is None:
            return []
        names = [partition.name for partition in self._catalog.partitions(entry)]
        values = [(rule.time_value(name), name) for name in names]
        return [name for value, name in values if value < oldest and rule.could_have_made(value)]


def rule_of(entry: TableEntry) -> AutoPartition | None:
    """The rule of a partitioned table, None if it can't be read."""
    properties = json.loads(entry.table_json).get("properties", {})
    try:
        return AutoPartition.of(properties, entry.partition_keys)
    except FlussError as error:
        # Such as a time zone that this machine's time zone data does not have.
        _log.warning("table %s: %s is not kept: %s", entry.path, options.AUTO_PARTITION_ENABLED, error)
        return None
