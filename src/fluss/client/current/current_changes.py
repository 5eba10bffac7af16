"""The current rows of one bucket as changes, in steps that each leave a position to go on from.

Rows come in the order of their keys, so a position in the middle is an offset and a key: rows up to the key were given
as of the offset. Whoever goes on from there gets what has changed in those rows since, and the others as they are now.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.current.changelog import as_inserts
from fluss.client.current.current_rows import CurrentRows
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.scanner import LogScannerCore
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.model.positions import BucketPosition


class Step(NamedTuple):
    """Some changes, and how far they bring the bucket: one without a key is the end of its current rows."""

    changes: pa.RecordBatch | None
    position: BucketPosition


class CurrentChanges:
    """Reads buckets of one table. Runs on the I/O loop; `scanner` is one of changes."""

    def __init__(self, rows: CurrentRows, scanner: LogScannerCore) -> None:
        self._rows = rows
        self._scanner = scanner

    async def read(self, position: BucketPosition, partition_name: str | None) -> AsyncGenerator[Step]:
        """The steps of a bucket from a position on; rows that are lost on the way are opened again."""
        tries = self._rows.tries()
        while True:
            try:
                async with aclosing(self._read_once(position, partition_name)) as steps:
                    async for step in steps:
                        position = step.position
                        yield step
                        tries = self._rows.tries()
                return
            except FlussError as error:
                await tries.again(error)

    async def _read_once(self, position: BucketPosition, partition_name: str | None) -> AsyncGenerator[Step]:
        bucket = position.bucket
        rows = await self._rows.open(bucket, partition_name, position.after_key)
        try:
            if position.offset is not None and position.after_key is not None:
                caught_up = self._caught_up(bucket, position.offset, rows.log_offset, position.after_key)
                async with aclosing(caught_up) as steps:
                    async for step in steps:
                        yield step
            while (batch := await rows.next()) is not None:
                changes = as_inserts(batch, rows.log_offset)
                yield Step(changes, BucketPosition(bucket, rows.log_offset, rows.last_key))
            yield Step(None, BucketPosition(bucket, rows.log_offset))
        finally:
            rows.close()

    async def _caught_up(self, bucket: TableBucket, start: int, stop: int, after_key: bytes) -> AsyncGenerator[Step]:
        """What has changed between two offsets in the rows up to a key."""
        session = self._scanner.between([Cursor(bucket, start, stop)])
        try:
            while batches := await session.next():
                for fetched in batches:
                    given = pc.less_equal(self._rows.keys.encode(fetched.batch), pa.scalar(after_key))
                    position = BucketPosition(bucket, fetched.last_offset + 1, after_key)
                    yield Step(fetched.batch.filter(given), position)
        finally:
            session.close()
