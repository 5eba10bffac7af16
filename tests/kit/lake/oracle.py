"""What a table's log leaves in the lake, worked out record by record from what the client reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from tests.peers.ourclient import OurPeer
from tests.peers.peer import Record, Row

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def expected_rows(peer: OurPeer, database: str, table: str) -> list[Row]:
    """The rows that the lake should have, system columns included, in the order of `arranged`."""
    records = peer.scan_records(database, table)
    keys = peer.table(database, table).get_table_info().primary_keys
    return arranged(_fold(records, keys) if keys else map(_lake_row, records))


def arranged(rows: Iterable[Row]) -> list[Row]:
    """Rows of a lake table in the one order that all readers can be brought to."""
    return sorted(rows, key=lambda row: (row["__bucket"], row["__offset"], row["__timestamp"], repr(row)))


def _fold(records: Sequence[Record], keys: Sequence[str]) -> Iterable[Row]:
    left: dict[tuple[Any, ...], Row] = {}
    for record in records:
        key = tuple(record.row[name] for name in keys)
        if record.change == "-D":
            del left[key]
        elif record.change != "-U":
            left[key] = _lake_row(record)
    return left.values()


def _lake_row(record: Record) -> Row:
    committed = _EPOCH + dt.timedelta(milliseconds=record.timestamp)
    return {**record.row, "__bucket": record.bucket, "__offset": record.offset, "__timestamp": committed}
