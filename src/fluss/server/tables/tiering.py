"""The queue of tables to tier: which are due, and which job has which.

A table is due its freshness after it was made, or tiering was switched on, or its last round was finished, or the
server was started; and at once when a round failed, was cut short, or its job was silent for too long. There are no
timers: all is worked out when a job asks. What is known here ends with the process, and the epoch of the coordinator
tells jobs that it did. Nothing is made safe by this: a job that was given up on can't register what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fluss.doors import randomness
from fluss.model.clock import elapsed_ms, wall_clock_ms
from fluss.model.errors import ErrorCode, FlussError, error_from_code
from fluss.model.staging import Assigned
from fluss.storage.catalog.catalog import Catalog, TableEntry
from fluss.storage.catalog.view import lake_freshness_ms

SILENCE_MS_MAX: Final = 2 * 60 * 1_000
_INT32_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class _Table:
    since_ms: int  # the freshness counts from here
    epoch: int = 0
    is_urgent: bool = False
    heard_ms: int | None = None  # None: nobody has it


class Tiering:
    """Used on the loop."""

    def __init__(
        self, catalog: Catalog, now_ms: Callable[[], int] = elapsed_ms, wall_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self._catalog = catalog
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._started_ms = now_ms()
        self._tables: dict[int, _Table] = {}
        # One of an earlier start must not look valid; real coordinators count their elections.
        self.coordinator_epoch = int.from_bytes(randomness.token_bytes(4), "big") & _INT32_MAX

    def request(self) -> Assigned | None:
        """Hand out the table that is due for the longest time, if any is."""
        now_ms = self._now_ms()
        entries = {
            entry.table_id: entry
            for entry in self._catalog.all_tables()
            if lake_freshness_ms(entry.table_json) is not None
        }
        self._tables = {table_id: self._table(entry) for table_id, entry in entries.items()}
        due = [
            (due_ms, table_id)
            for table_id, table in self._tables.items()
            if (due_ms := self._due_ms(entries[table_id], table)) is not None and due_ms <= now_ms
        ]
        if not due:
            return None
        _, table_id = min(due)
        table = self._tables[table_id]
        table.epoch += 1
        table.is_urgent = False
        table.heard_ms = now_ms
        return Assigned(table_id, entries[table_id].path, table.epoch, self.coordinator_epoch)

    def renew(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> None:
        """A job still works on a table; code 50 if it was given to another, 7 without the table, 23 after a restart."""
        table = self._held(table_id, coordinator_epoch, tiering_epoch)
        if table.heard_ms is None:
            raise _fenced(table_id, "nobody is tiering it")
        table.heard_ms = self._now_ms()

    def finish(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> None:
        """A round is over; codes as of `renew`. To say it twice changes nothing."""
        self._finish(self._held(table_id, coordinator_epoch, tiering_epoch), is_urgent=False)

    def finish_early(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> None:
        """As `finish`, of a round that took too long: the next one is due at once."""
        self._finish(self._held(table_id, coordinator_epoch, tiering_epoch), is_urgent=True)

    def fail(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> None:
        """A round failed; codes as of `renew`."""
        table = self._held(table_id, coordinator_epoch, tiering_epoch)
        if table.heard_ms is not None:
            self._give_up(table)

    def _held(self, table_id: int, coordinator_epoch: int, tiering_epoch: int) -> _Table:
        if coordinator_epoch != self.coordinator_epoch:
            raise FlussError(
                f"The server was started anew since table {table_id} was handed out; ask for a table again.",
                ErrorCode.INVALID_COORDINATOR_EXCEPTION,
            )
        entry = self._catalog.table_by_id(table_id)
        if entry is None or lake_freshness_ms(entry.table_json) is None:
            self._tables.pop(table_id, None)
            raise error_from_code(
                ErrorCode.TABLE_NOT_EXIST, f"Table {table_id} was dropped, or is not tiered any more; leave it."
            )
        table = self._table(entry)
        if table.epoch != tiering_epoch:
            raise _fenced(table_id, f"it is in round {table.epoch}, not {tiering_epoch}")
        return table

    def _table(self, entry: TableEntry) -> _Table:
        now_ms = self._now_ms()
        table = self._tables.get(entry.table_id)
        if table is None:
            # Seen for the first time, made or altered some time ago.
            age_ms = max(0, self._wall_ms() - entry.modified_time_ms)
            table = self._tables[entry.table_id] = _Table(max(self._started_ms, now_ms - age_ms))
        elif table.heard_ms is not None and now_ms - table.heard_ms >= SILENCE_MS_MAX:
            self._give_up(table)
        return table

    def _finish(self, table: _Table, *, is_urgent: bool) -> None:
        if table.heard_ms is not None:
            table.heard_ms, table.since_ms, table.is_urgent = None, self._now_ms(), is_urgent

    def _give_up(self, table: _Table) -> None:
        self._finish(table, is_urgent=True)
        table.epoch += 1

    def _due_ms(self, entry: TableEntry, table: _Table) -> int | None:
        if table.heard_ms is not None:
            return None
        freshness_ms = 0 if table.is_urgent else lake_freshness_ms(entry.table_json) or 0
        return table.since_ms + freshness_ms


def _fenced(table_id: int, reason: str) -> FlussError:
    return FlussError(
        f"Table {table_id} was given up by this job: {reason}; ask for a table again.",
        ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION,
    )
