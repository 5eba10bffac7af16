"""Reads back all that a server has, over a plain socket: the client under test is not asked."""

from __future__ import annotations

from collections.abc import Iterable

import fluss
from tests.kit.loads.oracle import Bucket, BucketContent
from tests.kit.wire import Wire


def read_stored(address: str, tables: Iterable[tuple[fluss.TablePath, int]]) -> dict[Bucket, BucketContent]:
    """Every bucket of the tables, given with their number of buckets. Nobody may be writing."""
    stored: dict[Bucket, BucketContent] = {}
    with Wire(address) as wire:
        for path, buckets in tables:
            table_id = wire.table_id(path)
            for number in range(buckets):
                content = BucketContent(wire.read(table_id, number), wire.latest(table_id, number))
                stored[Bucket(path.table_name, number)] = content
    return stored
