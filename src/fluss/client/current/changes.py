"""A table's changes from a position on: current rows first where they are wanted, then live changes.

Current rows come bucket by bucket, in the order of their keys and in steps that each leave a position to go on from. A
position in the middle is an offset and a key: rows up to the key were given as of the offset. Whoever goes on from
there gets what has changed in those rows since, and the others as they are now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client import runtime
from fluss.client.cluster.cluster import BucketKey, Cluster, list_offsets
from fluss.client.current.current_rows import CurrentRows
from fluss.client.scan.batches import Cursor, as_inserts
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.scan.table_read import existing_partitions, watched_partitions
from fluss.doors import clock
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.offsets import EARLIEST_OFFSET, OffsetSpec
from fluss.model.paths import TableBucket
from fluss.model.positions import BucketPosition, ChangesPosition


class ChangesStep(NamedTuple):
    """Some changes, and how far they bring the bucket: one without a key is the end of its current rows."""

    changes: pa.RecordBatch | None
    position: BucketPosition


class CurrentChanges:
    """Reads buckets of one table. Runs on the I/O loop; `scanner` is one of changes."""

    def __init__(self, rows: CurrentRows, scanner: LogScannerCore) -> None:
        self._rows = rows
        self._scanner = scanner

    async def read(self, position: BucketPosition, partition_name: str | None) -> AsyncGenerator[ChangesStep]:
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

    async def _read_once(self, position: BucketPosition, partition_name: str | None) -> AsyncGenerator[ChangesStep]:
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
                yield ChangesStep(changes, BucketPosition(bucket, rows.log_offset, rows.last_key))
            yield ChangesStep(None, BucketPosition(bucket, rows.log_offset))
        finally:
            rows.close()

    async def _caught_up(
        self, bucket: TableBucket, start: int, stop: int, after_key: bytes
    ) -> AsyncGenerator[ChangesStep]:
        """What has changed between two offsets in the rows up to a key."""
        session = self._scanner.between([Cursor(bucket, start, stop)])
        try:
            while batches := await session.next():
                for fetched in batches:
                    given = pc.less_equal(self._rows.keys.encode(fetched.batch), pa.scalar(after_key))
                    position = BucketPosition(bucket, fetched.last_offset + 1, after_key)
                    yield ChangesStep(fetched.batch.filter(given), position)
        finally:
            session.close()


PARTITION_LOOK_INTERVAL_S = 2.0

Start: TypeAlias = str | OffsetSpec | ChangesPosition


class ChangesCore:
    """Coroutines are for the I/O loop; `position` and `close` for any thread.

    A bucket whose current rows are being given is read on its own, in steps; those that are through are read together
    by a scanner. What a poll returned is given again until it is `taken`, and only then does `position` move: a reader
    that is cancelled while it waits misses nothing.
    """

    def __init__(self, cluster: Cluster, info: TableInfo) -> None:
        self._cluster = cluster
        self._info = info
        self._pid = runtime.process_id
        self._scanner = LogScannerCore(cluster, info, changelog=True)
        self._current = CurrentChanges(CurrentRows(cluster, info), self._scanner) if info.has_primary_key() else None
        self._snapshot = False
        self._partitions: dict[int | None, str | None] = {}
        self._look: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._unread: dict[BucketKey, BucketPosition] = {}
        """Buckets whose current rows were not all given; the first one is being read."""
        self._steps: AsyncGenerator[ChangesStep] | None = None
        self._step: asyncio.Task[ChangesStep] | None = None
        self._untaken: tuple[ChangesPosition, pa.Table] | None = None
        """What was returned last, and the position before it."""
        self._closed = False

    @property
    def arrow_schema(self) -> pa.Schema:
        return self._scanner.arrow_schema

    @property
    def info(self) -> TableInfo:
        return self._info

    @property
    def position(self) -> ChangesPosition:
        untaken = self._untaken
        return self._reached() if untaken is None else untaken[0]

    def _reached(self) -> ChangesPosition:
        live = [BucketPosition(bucket, offset) for bucket, offset in self._scanner.positions().items()]
        items = [*live, *list(self._unread.values())]
        items.sort(key=lambda item: (item.bucket.partition_id or 0, item.bucket.bucket))
        return ChangesPosition(self._info.table_id, tuple(items), self._snapshot)

    # ---- where to begin ----

    async def start(self, start: Start) -> None:
        """Fix where each bucket begins; partitions that come later begin with their first row."""
        self._check_usable()
        known = await watched_partitions(self._cluster, self._info)
        keys = [(partition, bucket) for partition in known for bucket in range(self._info.num_buckets)]
        positions: dict[BucketKey, BucketPosition] = {}
        if isinstance(start, ChangesPosition):
            positions = self._resumed(start)
            self._snapshot = start.snapshot
        elif start == "snapshot":
            self._snapshot = self._info.has_primary_key()
        else:
            spec = _spec(start)
            offsets = dict.fromkeys(keys, EARLIEST_OFFSET)
            if spec.kind != OffsetSpec.EARLIEST:
                offsets = await list_offsets(self._cluster, self._info, keys, spec)
            positions = {key: BucketPosition(self._bucket(key), offset) for key, offset in offsets.items()}
        await self._add(known, positions)
        self._looked_at = clock.monotonic()

    def _resumed(self, position: ChangesPosition) -> dict[BucketKey, BucketPosition]:
        if position.table_id != self._info.table_id:
            raise InvalidRequestError(
                f"The position is of the table with id {position.table_id}, but {self._info.table_path} has id "
                f"{self._info.table_id}: it is another table, or was dropped and created again."
            )
        return {(item.bucket.partition_id, item.bucket.bucket): item for item in position.buckets}

    async def _add(
        self, partitions: dict[int | None, str | None], positions: Mapping[BucketKey, BucketPosition]
    ) -> None:
        """Begin to read partitions; buckets without a position are new. A failure leaves everything as it was."""
        live: dict[BucketKey, int] = {}
        unread: dict[BucketKey, BucketPosition] = {}
        for key in [(partition, bucket) for partition in partitions for bucket in range(self._info.num_buckets)]:
            new = BucketPosition(self._bucket(key), None if self._snapshot else EARLIEST_OFFSET)
            position = positions.get(key, new)
            if position.offset is None or position.after_key is not None:
                unread[key] = position
            else:
                live[key] = position.offset
        if live:
            await self._scanner.subscribe(live)
        self._unread |= unread
        self._partitions |= partitions

    def _bucket(self, key: BucketKey) -> TableBucket:
        return TableBucket(self._info.table_id, key[1], key[0])

    # ---- reading ----

    async def poll(self, timeout_ms: int) -> pa.Table:
        """The next changes; waits for the first one up to the limit, then returns none."""
        self._check_usable()
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms must be 0 or more, not {timeout_ms}.")
        if self._untaken is None:
            before = self._reached()
            try:
                changes = await self._next_before(clock.monotonic() + timeout_ms / 1000)
            except InvalidRequestError as error:
                if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
                    raise
                raise InvalidRequestError(
                    f"The changes behind the position are not kept any more; begin again with changes('snapshot'). "
                    f"({error.message})",
                    error.error_code,
                ) from error
            self._untaken = before, pa.Table.from_batches(changes, self.arrow_schema)
        return self._untaken[1]

    def taken(self) -> None:
        """The reader has what the last poll returned."""
        self._untaken = None

    async def _next_before(self, deadline: float) -> list[pa.RecordBatch]:
        while True:
            wait_s = max(0.0, deadline - clock.monotonic())
            if self._info.is_partitioned():
                self._look_for_partitions()
                wait_s = min(wait_s, PARTITION_LOOK_INTERVAL_S)
            changes = await self._next(wait_s)
            if changes or clock.monotonic() >= deadline or self._closed:
                return changes

    async def _next(self, wait_s: float) -> list[pa.RecordBatch]:
        if self._unread:
            return await self._next_current(wait_s)
        if not self._partitions:
            await asyncio.sleep(wait_s)
            return []
        try:
            return [fetched.batch for fetched in await self._scanner.poll_batches(round(wait_s * 1000), None)]
        except NotFoundError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            self._looked_at = -PARTITION_LOOK_INTERVAL_S
            self._look_for_partitions()
            if self._look is not None:
                await asyncio.wait([self._look], timeout=wait_s)
            return []

    def _look_for_partitions(self) -> None:
        """Look now and then, beside the reading; what went wrong for good is raised here."""
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            problem = None if look.cancelled() else look.exception()
            if problem is not None and not (isinstance(problem, FlussError) and problem.is_retriable):
                raise problem
        if self._look is None and clock.monotonic() - self._looked_at > PARTITION_LOOK_INTERVAL_S:
            self._looked_at = clock.monotonic()
            self._look = asyncio.ensure_future(self._update_partitions())

    async def _update_partitions(self) -> None:
        """Leave out partitions that are gone, and read those that are new."""
        existing = await existing_partitions(self._cluster, self._info)
        for gone in self._partitions.keys() - existing.keys():
            del self._partitions[gone]
            for bucket in range(self._info.num_buckets):
                self._scanner.unsubscribe(gone, bucket)
                if (gone, bucket) in self._unread:
                    self._drop_steps()
                    del self._unread[gone, bucket]
        new = {partition: name for partition, name in existing.items() if partition not in self._partitions}
        if new:
            try:
                await watched_partitions(self._cluster, self._info)
                await self._add(new, {})
            except NotFoundError as error:
                if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                    raise  # one that is gone again is none; the others have their turn at the next look

    # ---- current rows ----

    async def _next_current(self, wait_s: float) -> list[pa.RecordBatch]:
        """The next step of the first bucket that is not through; goes on beside the caller when it takes longer."""
        key, position = next(iter(self._unread.items()))
        if self._steps is None:
            assert self._current is not None  # a log table has no current rows
            self._steps = self._current.read(position, self._partitions[key[0]])
        if self._step is None:
            self._step = asyncio.ensure_future(anext(self._steps))
        step = self._step
        await asyncio.wait([step], timeout=wait_s)
        if not step.done() or self._step is not step:
            return []
        self._step = None
        if step.exception() is not None:
            self._drop_steps()
        changes, after = step.result()
        if after.after_key is None:
            self._drop_steps()
            await self._scanner.subscribe({key: after.offset or 0})
            self._unread.pop(key, None)
        else:
            self._unread[key] = after
        return [changes] if changes is not None and changes.num_rows else []

    def _drop_steps(self) -> None:
        if self._step is not None:
            self._step.cancel()
        if self._steps is not None:
            runtime.spawn(_closed(self._steps, self._step))
        self._steps = self._step = None

    def close(self) -> None:
        """Stop reading; callable from any thread."""
        if not self._closed and self._pid == runtime.process_id:
            self._closed = True
            runtime.call_soon(self._end)
            self._scanner.close()

    def _end(self) -> None:
        self._drop_steps()
        if self._look is not None:
            self._look.cancel()

    def _check_usable(self) -> None:
        runtime.check_process(self._pid, "reader of changes")
        self._cluster.check_usable()
        if self._closed:
            raise FlussError(f"The reader of changes of table {self._info.table_path} is closed.")


async def _closed(steps: AsyncGenerator[ChangesStep], step: asyncio.Task[ChangesStep] | None) -> None:
    """Let a generator end, and with it the scan on the server."""
    if step is not None:
        await asyncio.wait([step])
    await steps.aclose()


def _spec(start: object) -> OffsetSpec:
    if isinstance(start, OffsetSpec):
        return start
    if start in ("earliest", "latest"):
        return OffsetSpec.earliest() if start == "earliest" else OffsetSpec.latest()
    raise InvalidRequestError(
        "Changes start at 'snapshot', 'earliest', 'latest', OffsetSpec.timestamp(ms) or a ChangesPosition, "
        f"not {start!r}."
    )
