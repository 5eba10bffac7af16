"""Lookups of one table on the I/O loop: finding partitions and leaders, requests, answers, tries.

A lookup is in one of three places: queued for its leader, in a request, or lost: its partition or leader is not known,
or its last try failed in a way that may pass. One task at a time looks for the lost ones, with growing pauses.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from fluss.client import lookup_wire, runtime
from fluss.client.lookup_values import ValueReader
from fluss.client.lookup_wire import LookupKind
from fluss.client.metadata import Metadata
from fluss.client.retry import pause_s
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.partitions import spec_of_name

if TYPE_CHECKING:
    from fluss.client.address import Address
    from fluss.client.connection import Connection
    from fluss.client.leaders import BucketKey
    from fluss.client.lookup import Lookup

REQUESTS_IN_FLIGHT_MAX = 4
"""Per leader. Few, so that batches form by themselves; more than one, so that the server always has work."""
KEYS_PER_REQUEST_MAX = 4_096
KEY_BYTES_PER_REQUEST_MAX = 1 << 20
# Answers above this are decoded beside the loop.
INLINE_ANSWER_BYTES_MAX = 256 << 10


class _Sent(NamedTuple):
    """A request under way."""

    server: Address
    answer: asyncio.Future[memoryview]
    by_bucket: dict[BucketKey, list[Lookup]]


class Lane:
    """Lookups of one table and kind, which may share requests."""

    def __init__(
        self,
        metadata: Metadata,
        info: TableInfo,
        kind: LookupKind,
        values: ValueReader,
        timeout_s: float,
        hand_back: Callable[[Iterable[Lookup]], None],
    ) -> None:
        self._metadata = metadata
        self._info = info
        self._kind = kind
        self._values = values
        self._hand_back = hand_back
        self.timeout_s = timeout_s
        self._queues: dict[int, deque[Lookup]] = {}
        self._in_flight: dict[int, int] = {}
        self._lost: list[Lookup] = []
        self._finding: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def close(self) -> None:
        """Lookups end with an error, now and from now on; those in requests when their connections are closed."""
        self._closed = True
        waiting, self._lost = self._lost, []
        for queue in self._queues.values():
            waiting += queue
            queue.clear()
        self._fail(waiting, _closed_error())
        if self._finding is not None:
            self._finding.cancel()

    def add(self, lookups: Iterable[Lookup]) -> None:
        """Send lookups, or queue them for their leaders."""
        if self._closed:
            self._fail(lookups, _closed_error())
            return
        places: dict[tuple[str | None, int], tuple[int | None, deque[Lookup] | None]] = {}
        for lookup in lookups:
            place = (lookup.partition, lookup.bucket)
            route = places.get(place)
            if route is None:
                route = places[place] = self._route(*place)
            lookup.partition_id, queue = route
            if queue is None:
                self._lost.append(lookup)
            else:
                queue.append(lookup)
        self._pump()

    def _route(self, partition: str | None, bucket: int) -> tuple[int | None, deque[Lookup] | None]:
        """The partition's id and the queue of the bucket's leader, as far as they are known."""
        path = self._info.table_path
        partition_id = None if partition is None else self._metadata.partition_id(path, partition)
        if partition is not None and partition_id is None:
            return None, None
        leader = self._metadata.leader(path, partition_id, bucket)
        return partition_id, None if leader is None else self._queues.setdefault(leader.id, deque())

    def _pump(self) -> None:
        for leader_id, queue in self._queues.items():
            while queue and self._in_flight.get(leader_id, 0) < REQUESTS_IN_FLIGHT_MAX:
                lookups = self._take(queue)
                if not lookups:
                    continue
                self._in_flight[leader_id] = self._in_flight.get(leader_id, 0) + 1
                sent = self._send_at_once(leader_id, lookups)
                if sent is None:
                    self._start(self._ask(leader_id, lookups, None))
                else:
                    sent.answer.add_done_callback(partial(self._answered, leader_id, lookups, sent))
        if self._lost and self._finding is None:
            self._finding = self._start(self._find_lost())

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _take(self, queue: deque[Lookup]) -> list[Lookup]:
        """The lookups of the next request."""
        taken: list[Lookup] = []
        key_count = size_bytes = 0
        now = time.monotonic()
        while queue:
            lookup = queue[0]
            key_count += len(lookup.keys)
            size_bytes += lookup.size_bytes
            if taken and (key_count > KEYS_PER_REQUEST_MAX or size_bytes > KEY_BYTES_PER_REQUEST_MAX):
                break
            queue.popleft()
            if lookup.is_abandoned:
                self._hand_back([lookup])
            elif now >= lookup.deadline:
                self._fail([lookup], TimeoutError(f"A lookup in table {self._info.table_path} was not sent in time."))
            else:
                taken.append(lookup)
        return taken

    # ---- requests ----

    def _answered(self, leader_id: int, lookups: list[Lookup], sent: _Sent, _: asyncio.Future[memoryview]) -> None:
        """Most answers are done with here, without the cost of a task; one that is not so simple gets it."""
        try:
            is_simple = self._end_at_once(sent)
        except Exception:
            is_simple = False  # the task meets it again, and deals with it
        if is_simple:
            self._request_ended(leader_id)
        else:
            self._start(self._ask(leader_id, lookups, sent))

    def _end_at_once(self, sent: _Sent) -> bool:
        """Hand back all lookups of a small answer in which nothing is missing or new; False if it is not such a one."""
        body = sent.answer.result()
        if self._kind is LookupKind.PREFIX or len(body) > INLINE_ANSWER_BYTES_MAX:
            return False
        answered: list[Lookup] = []
        found: list[Any] = []
        buckets = list(lookup_wire.read(self._kind, body, sent.server))
        for bucket, entries, error in buckets:
            asked = sent.by_bucket.get(bucket, [])
            if error is not None or len(entries) != sum(len(lookup.keys) for lookup in asked):
                return False
            answered += asked
            found += entries
        if len(buckets) != len(sent.by_bucket) or self._values.unknown([value for value in found if value]):
            return False
        self._read(answered, found)
        self._hand_back(answered)
        return True

    def _request_ended(self, leader_id: int) -> None:
        self._in_flight[leader_id] -= 1
        if not self._closed:
            self._pump()

    async def _ask(self, leader_id: int, lookups: list[Lookup], sent: _Sent | None) -> None:
        try:
            await self._ask_leader(leader_id, lookups, sent)
        except FlussError as error:
            self._try_again(lookups, error)
        except Exception as error:
            self._fail(lookups, _unexpected(error))
        finally:
            self._request_ended(leader_id)

    def _send_at_once(self, leader_id: int, lookups: list[Lookup]) -> _Sent | None:
        """Send without waiting for a task to begin, where there is a connection."""
        leader = self._metadata.cluster.tablets.get(leader_id)
        connection = None if leader is None else self._metadata.ready(leader)
        try:
            return None if connection is None else self._send(connection, lookups)
        except FlussError:
            return None  # the task will meet it again, and deal with it

    async def _connect_and_send(self, leader_id: int, lookups: list[Lookup]) -> _Sent:
        leader = self._metadata.cluster.tablets.get(leader_id)
        if leader is None:
            raise FlussError(f"The server {leader_id} is gone.", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)
        return self._send(await self._metadata.tablet(leader, _remaining_s(lookups)), lookups)

    def _send(self, connection: Connection, lookups: list[Lookup]) -> _Sent:
        by_bucket: dict[BucketKey, list[Lookup]] = {}
        for lookup in lookups:
            by_bucket.setdefault((lookup.partition_id, lookup.bucket), []).append(lookup)
        keys = {bucket: [key for lookup in asked for key in lookup.keys] for bucket, asked in by_bucket.items()}
        answer = lookup_wire.send(connection, self._kind, self._info.table_id, keys, _remaining_s(lookups))
        return _Sent(connection.address, answer, by_bucket)

    async def _ask_leader(self, leader_id: int, lookups: list[Lookup], sent: _Sent | None = None) -> None:
        server, pending, by_bucket = sent or await self._connect_and_send(leader_id, lookups)
        body = await pending
        answered: list[Lookup] = []
        found: list[Any] = []
        too_many: list[list[Lookup]] = []
        for bucket, entries, error in lookup_wire.read(self._kind, body, server):
            asked = by_bucket.pop(bucket, [])
            expected = sum(len(lookup.keys) for lookup in asked)
            if error is not None:
                if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION and len(lookups) > 1:
                    too_many.append(asked)
                else:
                    self._try_again(asked, error)
            elif len(entries) != expected:
                self._fail(asked, FlussError(f"{server} gave {len(entries)} answers for {expected} keys."))
            else:
                answered += asked
                found += entries
        for (_, left_out), asked in by_bucket.items():
            self._fail(asked, FlussError(f"The answer of {server} leaves bucket {left_out} out."))
        await self._end(answered, found, len(body))
        for asked in too_many:
            await self._ask_in_halves(leader_id, asked)

    async def _ask_in_halves(self, leader_id: int, lookups: list[Lookup]) -> None:
        """Lookups whose rows are too large for one answer."""
        half = len(lookups) // 2
        for part in filter(None, (lookups[:half], lookups[half:])):
            try:
                await self._ask_leader(leader_id, part)
            except FlussError as error:
                self._try_again(part, error)

    async def _end(self, answered: list[Lookup], found: list[Any], size_bytes: int) -> None:
        """Decode the answers and hand them back, all at once."""
        if not answered:
            return
        try:
            if self._kind is LookupKind.PREFIX:
                unknown = self._values.unknown(list(chain.from_iterable(found)))
            else:
                unknown = self._values.unknown([value for value in found if value is not None])
            if unknown:
                async with asyncio.timeout(_remaining_s(answered)):
                    await self._values.learn(unknown)
        except builtins.TimeoutError as error:
            self._fail(
                answered, error if isinstance(error, FlussError) else TimeoutError("Schemas were not told in time.")
            )
        except FlussError as error:
            self._fail(answered, error)
        else:
            if size_bytes > INLINE_ANSWER_BYTES_MAX:
                await runtime.in_worker(self._read, answered, found)
            else:
                self._read(answered, found)
            self._hand_back(answered)

    def _read(self, answered: list[Lookup], found: list[Any]) -> None:
        start = 0
        for lookup in answered:
            end = start + len(lookup.keys)
            try:
                lookup.result = lookup.read(self._values, found, start, end)
            except FlussError as error:
                lookup.error = type(error)(
                    f"Can't read a row of bucket {lookup.bucket} of table {self._info.table_path}: {error.message}",
                    error.error_code,
                )
            start = end

    def _fail(self, lookups: Iterable[Lookup], error: FlussError) -> None:
        failed = [lookup for lookup in lookups if not lookup.is_ended]
        for lookup in failed:
            lookup.error = error
        self._hand_back(failed)

    def _try_again(self, lookups: Iterable[Lookup], error: FlussError) -> None:
        """Lookups that failed are lost, or have failed for good."""
        now = time.monotonic()
        for lookup in lookups:
            may_pass = error.is_retriable or (
                lookup.partition is not None and error.error_code == ErrorCode.PARTITION_NOT_EXISTS
            )
            if self._closed:
                self._fail([lookup], _closed_error())
            elif not may_pass or now >= lookup.deadline:
                self._fail([lookup], error)
            elif lookup.is_abandoned:
                self._hand_back([lookup])
            else:
                lookup.attempts += 1
                self._lost.append(lookup)

    # ---- lost lookups ----

    async def _find_lost(self) -> None:
        try:
            while self._lost:
                attempts = min(lookup.attempts for lookup in self._lost)
                if attempts:
                    await asyncio.sleep(min(pause_s(attempts), _remaining_s(self._lost)))
                lost, self._lost = self._lost, []
                try:
                    await self._find(lost)
                except asyncio.CancelledError:
                    self._fail(lost, _closed_error())
                    raise
                except FlussError as error:
                    self._try_again(lost, error)
                except Exception as error:
                    self._fail(lost, _unexpected(error))
        finally:
            self._finding = None

    async def _find(self, lost: list[Lookup]) -> None:
        """Ask where lookups belong, and queue those that have a leader now; those of a missing partition end."""
        path = self._info.table_path
        names = {lookup.partition for lookup in lost if lookup.partition is not None}
        names = {name for name in names if self._may_exist(name)}
        try:
            async with asyncio.timeout(_remaining_s(lost)):
                if names:
                    await self._metadata.find_partitions(path, names)
                elif any(lookup.partition is None for lookup in lost):
                    await self._metadata.refresh(path)
        except builtins.TimeoutError:
            raise TimeoutError(f"The leaders of table {path} were not found within {self.timeout_s:g} s.") from None
        view = self._metadata.table(path)
        if view is not None and view.info.table_id != self._info.table_id:
            message = f"Table {path} was dropped and made anew; get it again."
            self._fail(lost, NotFoundError(message, ErrorCode.TABLE_NOT_EXIST))
            return
        ready: list[Lookup] = []
        missing: list[Lookup] = []
        for lookup in lost:
            partition_id = None if lookup.partition is None else self._metadata.partition_id(path, lookup.partition)
            if lookup.partition is not None and partition_id is None:
                missing.append(lookup)
            elif self._metadata.leader(path, partition_id, lookup.bucket) is None:
                message = f"Bucket {lookup.bucket} of table {path} has no leader."
                self._try_again([lookup], TimeoutError(message, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
            else:
                ready.append(lookup)
        self._end_missing(missing)
        self.add(ready)

    def _may_exist(self, partition: str) -> bool:
        try:
            spec_of_name(partition, self._info.partition_keys).check_values()
        except InvalidRequestError:
            return False
        return True

    def _end_missing(self, lookups: list[Lookup]) -> None:
        """A partition that does not exist has no rows, and none can be made in it."""
        for lookup in lookups:
            if self._kind is LookupKind.ROW_OR_INSERT:
                lookup.error = NotFoundError(
                    f"The partition {lookup.partition!r} of table {self._info.table_path} does not exist: create it "
                    "first, then lookups can insert into it.",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
                continue
            empty: Any = [] if self._kind is LookupKind.PREFIX else None
            lookup.result = lookup.read(self._values, [empty] * len(lookup.keys), 0, len(lookup.keys))
        self._hand_back(lookups)


def _remaining_s(lookups: list[Lookup]) -> float:
    """Until the first deadline of these."""
    return max(min(lookup.deadline for lookup in lookups) - time.monotonic(), 0.001)


def _unexpected(error: Exception) -> FlussError:
    """A mistake of ours must end as an error of the lookups, not as silence."""
    failure = FlussError(f"Unexpected failure: {error!r}")
    failure.__cause__ = error
    return failure


def _closed_error() -> FlussError:
    return FlussError("The connection is closed; open a new one.")
