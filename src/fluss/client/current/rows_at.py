"""The rows of a primary-key table's bucket as they were at an offset of its changelog.

Current rows are as of some offset near it. The changes in between are folded onto them: forwards when the rows are
older, backwards when they are newer, by the rows that the changelog kept from before each change.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client import runtime
from fluss.client.cluster.cluster import Cluster
from fluss.client.current.current_rows import BucketRows, CurrentRows
from fluss.client.scan.batches import ChangelogFold, Cursor, Folded
from fluss.client.scan.filter import ScanFilter
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.scan.table_read import watched_partitions
from fluss.formats.rows.keys import PrimaryKeyEncoder
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.model.records import ChangeType
from fluss.model.tables.merge_rules import has_old_images
from fluss.model.tables.options import CHANGELOG_IMAGE

CHUNK_ROWS_MAX = 50_000


class _Chunk(NamedTuple):
    rows: pa.RecordBatch
    last_key: bytes | None


class RowsAt:
    """Reads one bucket; without an offset as it is when opened. `batches` blocks, the rest is for the I/O loop."""

    def __init__(
        self,
        cluster: Cluster,
        info: TableInfo,
        bucket: TableBucket,
        offset: int | None,
        projection: Sequence[int] | None = None,
        scan_filter: ScanFilter | None = None,
    ) -> None:
        self._cluster = cluster
        self._info = info
        self._bucket = bucket
        self._offset = offset
        self._filter = scan_filter
        self._rows = CurrentRows(cluster, info)
        self._schema = arrow_schema(info.schema)
        self._wanted = list(range(len(self._schema))) if projection is None else list(projection)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in bounded memory but for the keys that have changed around the offset."""
        chunks = self._read()
        try:
            while (batch := runtime.run(_next(chunks))) is not None:
                yield batch
        finally:
            runtime.spawn(chunks.aclose())

    async def _read(self) -> AsyncGenerator[pa.RecordBatch]:
        """Rows that are lost on the way are opened again, and go on behind those that were given."""
        partitions = await watched_partitions(self._cluster, self._info)
        partition_id = self._bucket.partition_id
        if partition_id not in partitions:
            raise NotFoundError(
                f"Table {self._info.table_path} has no partition with id {partition_id}.",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        after_key: bytes | None = None
        tries = self._rows.tries()
        while True:
            try:
                async with aclosing(self._read_once(partitions[partition_id], after_key)) as chunks:
                    async for chunk in chunks:
                        after_key = chunk.last_key
                        narrowed = await runtime.in_worker(self._narrowed, chunk.rows)
                        if narrowed.num_rows:
                            yield narrowed
                        tries = self._rows.tries()
                return
            except FlussError as error:
                await tries.again(error)

    async def _read_once(self, partition_name: str | None, after_key: bytes | None) -> AsyncGenerator[_Chunk]:
        rows = await self._rows.open(self._bucket, partition_name, after_key)
        try:
            if self._offset is None:
                self._offset = rows.log_offset
            changed = await self._changed_since(rows.log_offset, self._offset)
            patched = _Patched(rows, changed, self._rows.keys, after_key)
            while (chunk := await patched.next()) is not None:
                yield chunk
        finally:
            rows.close()

    async def _changed_since(self, opened_at: int, offset: int) -> Folded | None:
        """What the keys that changed between the offset and the rows as they were opened had at the offset."""
        if opened_at == offset:
            return None
        backwards = opened_at > offset
        if backwards and not has_old_images(self._info.properties):
            raise self._not_kept(f"{CHANGELOG_IMAGE} is WAL, and rows have changed since. Read them again as of now")
        fold = ChangelogFold(self._rows.keys, self._schema, backwards=backwards)
        scanner = LogScannerCore(self._cluster, self._info)
        session = scanner.between([Cursor(self._bucket, *sorted((opened_at, offset)))])
        is_first = backwards
        try:
            while batches := await session.next():
                if is_first and (batches[0].change_types or b"\0")[0] == ChangeType.UpdateAfter:
                    raise self._not_kept("it lies in the middle of an update. Take the next one")
                is_first = False
                await runtime.in_worker(fold.add, batches)
        finally:
            session.close()
            scanner.close()
        return await runtime.in_worker(fold.result)

    def _not_kept(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"The rows of bucket {self._bucket.bucket} of {self._info.table_path} as of offset {self._offset} are not "
            f"known: {why}."
        )

    def _narrowed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows and columns that are wanted."""
        if self._filter is not None:
            batch = batch.filter(self._filter.mask(batch.column))
        return batch.select(self._wanted)


class _Patched:
    """Rows in the order of their keys, those of keys that changed replaced by what is known of them."""

    def __init__(
        self, rows: BucketRows, changed: Folded | None, keys: PrimaryKeyEncoder, after_key: bytes | None
    ) -> None:
        self._rows = rows
        self._changed = changed
        self._keys = keys
        self._place = 0 if changed is None or after_key is None else changed.place_after(after_key)

    async def next(self) -> _Chunk | None:
        """Further rows; None at the end."""
        rows, changed = await self._rows.next(), self._changed
        if changed is None:
            return None if rows is None else _Chunk(rows, self._rows.last_key)
        if rows is not None:
            key = self._rows.last_key
            assert key is not None  # it is that of the last row
            end = changed.place_after(key)
            if end > self._place:
                rows = await runtime.in_worker(self._merged, changed, rows, end)
            return _Chunk(rows, key)
        while self._place < len(changed):
            start, self._place = self._place, min(self._place + CHUNK_ROWS_MAX, len(changed))
            batches = changed.rows(start, self._place)
            if batches:
                return _Chunk(_joined(batches), changed.keys[self._place - 1].as_py())
        return None

    def _merged(self, changed: Folded, rows: pa.RecordBatch, end: int) -> pa.RecordBatch:
        start, self._place = self._place, end
        touched = pc.is_in(self._keys.encode(rows), value_set=changed.keys.slice(start, end - start))
        return _joined([rows.filter(pc.invert(touched)), *changed.rows(start, end)])


async def _next(chunks: AsyncGenerator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(chunks, None)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
