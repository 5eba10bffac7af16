"""Positions: how far a reader has come, for keeping outside of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.types import parse_json


class Positions(dict[TableBucket, int]):
    """The offset that each bucket is read from next."""

    def to_json(self) -> str:
        """Text to store: `[[table id, partition id or null, bucket, offset], ...]`."""
        return json.dumps([[b.table_id, b.partition_id, b.bucket, offset] for b, offset in self.items()])

    @classmethod
    def from_json(cls, text: str | bytes) -> Positions:
        """Positions from stored text."""
        try:
            items = [_item(*item) for item in parse_json(text)]
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"These are not positions of a scanner: {error}.") from None
        return cls(items)


@dataclass(frozen=True, slots=True)
class BucketPosition:
    """How far a bucket's changes were given.

    Without an offset nothing was, and its current rows are to come first. With an offset and a key, the current rows
    with keys up to that one were given as of the offset. With an offset alone, its changes go on from there.
    """

    bucket: TableBucket
    offset: int | None = None
    after_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class ChangesPosition:
    """How far `table.changes()` has come; `table.changes(start=position)` goes on from there."""

    table_id: int
    buckets: tuple[BucketPosition, ...]
    snapshot: bool
    """Whether partitions that come later begin with their current rows, not with their first change."""

    def to_json(self) -> str:
        """Text to store."""
        buckets = [
            [
                item.bucket.partition_id,
                item.bucket.bucket,
                item.offset,
                None if item.after_key is None else item.after_key.hex(),
            ]
            for item in self.buckets
        ]
        return json.dumps({"version": 1, "table_id": self.table_id, "snapshot": self.snapshot, "buckets": buckets})

    @classmethod
    def from_json(cls, text: str | bytes) -> ChangesPosition:
        """A position from stored text."""
        try:
            content = parse_json(text)
            if content["version"] != 1:
                raise ValueError(f"version {content['version']!r} is not known")
            table_id = _number(content["table_id"])
            buckets = tuple(_bucket_position(table_id, *item) for item in content["buckets"])
            return cls(table_id, buckets, bool(content["snapshot"]))
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidRequestError(f"This is not a position of table.changes(): {error}.") from None


def _bucket_position(table_id: int, partition_id: Any, bucket: Any, offset: Any, key: Any) -> BucketPosition:
    after_key = None if key is None else bytes.fromhex(key)
    if after_key is not None and offset is None:
        raise ValueError("there is a key without an offset")
    return BucketPosition(
        _bucket(table_id, partition_id, bucket), None if offset is None else _number(offset), after_key
    )


def _item(table_id: Any, partition_id: Any, bucket: Any, offset: Any) -> tuple[TableBucket, int]:
    return _bucket(table_id, partition_id, bucket), _number(offset)


def _bucket(table_id: Any, partition_id: Any, bucket: Any) -> TableBucket:
    return TableBucket(_number(table_id), _number(bucket), None if partition_id is None else _number(partition_id))


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value
