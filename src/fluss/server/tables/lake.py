"""Which tables can be tiered, what the settings say of their lake, and the queue of those that are due.

Where the lake of a table is, is told along with the table, so clients find the lake of any cluster this way and need no
settings of their own. What a table says itself, which earlier versions let users set, is left out. Secrets of the
settings stay here.

A table is due its freshness after it was made, or tiering was switched on, or its last round was finished, or the
server was started; and at once when a round failed, was cut short, or its job was silent for too long. There are no
timers: all is worked out when a job asks. What is known here ends with the process, and the epoch of the coordinator
tells jobs that it did. Nothing is made safe by this: a job that was given up on can't register what it wrote.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluss.doors import randomness
from fluss.model.clock import elapsed_ms, wall_clock_ms
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, error_from_code
from fluss.model.schema import Column
from fluss.model.staging import Assigned
from fluss.model.tables import options
from fluss.model.tables.options import DATALAKE_FORMAT, DATALAKE_ICEBERG_PREFIX, ICEBERG, choice, is_iceberg_option
from fluss.model.types import TypeRoot
from fluss.storage.catalog.catalog import Catalog, TableEntry
from fluss.storage.catalog.view import DefinitionCache, lake_freshness_ms

WAREHOUSE_NAME: Final = "lake"
_TYPE: Final = f"{DATALAKE_ICEBERG_PREFIX}type"
_URI: Final = f"{DATALAKE_ICEBERG_PREFIX}uri"
_WAREHOUSE: Final = f"{DATALAKE_ICEBERG_PREFIX}warehouse"
_TYPE_DEFAULT: Final = "sql"
_SECRET_PARTS: Final = ("password", "secret", "key", "token", "credential")
_OF_USERS: Final = DATALAKE_ICEBERG_PREFIX.encode()

_log = logging.getLogger(__name__)


class LakeLocations:
    def __init__(self, configured: Mapping[str, str], data_dir: Path) -> None:
        self._configured = {
            f"{DATALAKE_ICEBERG_PREFIX}{key}": value for key, value in configured.items() if not _is_secret(key)
        }
        self._warehouse = str(data_dir.absolute() / WAREHOUSE_NAME)
        self._completed = DefinitionCache(self._complete)

    def shown_json(self, table_json: bytes) -> bytes:
        """A table as clients see it: one that is tiered says where."""
        if lake_freshness_ms(table_json) is None and _OF_USERS not in table_json:
            return table_json
        return self._completed(table_json)

    def _complete(self, table_json: bytes) -> bytes:
        table = json.loads(table_json)
        stored = _without_lake(table["properties"])
        is_tiered = lake_freshness_ms(table_json) is not None and choice(stored, DATALAKE_FORMAT) == ICEBERG
        table["properties"] = self._located(stored) if is_tiered else stored
        return json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()

    def _located(self, stored: Mapping[str, str]) -> dict[str, str]:
        properties = {**self._configured, **stored}
        if _URI not in properties:
            properties.setdefault(_TYPE, _TYPE_DEFAULT)
        if properties.get(_TYPE, "").lower() == _TYPE_DEFAULT:
            properties.setdefault(_WAREHOUSE, self._warehouse)
        return properties


def _is_secret(key: str) -> bool:
    return any(part in key.lower() for part in _SECRET_PARTS)


def _without_lake(stored: Mapping[str, str]) -> dict[str, str]:
    foreign = {key: value for key, value in stored.items() if is_iceberg_option(key)}
    if foreign:
        _log.warning(
            "A table has %s, which users of earlier versions could set: it is left out. If the lake is there, set "
            "datalake.iceberg.* in fluss.toml; alter_table resets the property.",
            ", ".join(key if _is_secret(key) else f"{key}={value!r}" for key, value in foreign.items()),
        )
    return {key: value for key, value in stored.items() if key not in foreign}


_TEXT: Final = (TypeRoot.STRING, TypeRoot.CHAR)
_NO_TRANSFORM: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)


def check_lake_keys(descriptor: TableDescriptor) -> None:
    """Raise for a new table that says itself where its lake is."""
    for key in (*descriptor.properties, *descriptor.custom_properties):
        if options.names_lake(key):
            raise InvalidRequestError(
                f"This table can't be made: {options.lake_key_problem(key)}.", ErrorCode.INVALID_CONFIG_EXCEPTION
            )


def check_lake_table(descriptor: TableDescriptor, server_format: str | None) -> None:
    """Raise for a table that is to be tiered and can't be."""
    properties = descriptor.properties
    if not options.is_true(properties, options.DATALAKE_ENABLED):
        return
    table_format = properties.get(options.DATALAKE_FORMAT, "")
    if server_format is not None and table_format.lower() != server_format.lower():
        raise _refused(
            f"{options.DATALAKE_FORMAT} is {table_format}, but the server's datalake.format is {server_format}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    if table_format.upper() != options.ICEBERG:
        raise _refused(
            f"{options.DATALAKE_ENABLED} needs {options.DATALAKE_FORMAT} iceberg, nothing is tiered to "
            f"{table_format or 'no format'}; leave one of the two out",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    columns = {column.name: column for column in descriptor.schema.columns}
    for key in descriptor.partition_keys:
        if columns[key].data_type.root not in _TEXT:
            raise _refused(
                f"the partition key {key!r} of a table that is tiered must be STRING, not {columns[key].data_type}; "
                f"partition by a column of text, or leave {options.DATALAKE_ENABLED} out"
            )
    if descriptor.bucket_keys:
        _check_bucket_key([columns[key] for key in descriptor.bucket_keys])


def _check_bucket_key(keys: list[Column]) -> None:
    from fluss.formats.rows.keys import IcebergKeys

    names = ", ".join(key.name for key in keys)
    if len(keys) > 1:
        raise _refused(
            f"a table that is tiered to Iceberg has one bucket key, not {names}; set bucket.key to one column"
        )
    try:
        IcebergKeys(keys)
        is_known = keys[0].data_type.root not in _NO_TRANSFORM
    except InvalidRequestError:
        is_known = False
    if not is_known:
        raise _refused(
            f"Iceberg has no buckets by {names}, which is {keys[0].data_type}; set bucket.key to a column of another "
            f"type, or leave {options.DATALAKE_ENABLED} out"
        )


def _refused(reason: str, error_code: int = ErrorCode.INVALID_TABLE_EXCEPTION) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be tiered to a lake: {reason}.", error_code)


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
        """Finish a round that took too long: the next one is due at once."""
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
