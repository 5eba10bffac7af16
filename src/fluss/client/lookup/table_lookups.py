"""Lookups of one client on one loop: queues of tables for leaders, requests and answers, ways found anew.

A lookup is in one of three places: queued for its leader, in a request, or rerouted, because its partition or leader is
not known, or because its last try failed in a way that may pass.

Lookups of an event loop are sent and answered on that loop, over connections of its own: to hand them to the I/O thread
and back would take longer than everything else. Those of threads go through the I/O loop. Either way whatever is queued
when the loop comes to send is sorted by bucket and from then on handled as one: a caller costs a key and a future. It
goes out in the few requests that may be under way to a leader, and so does what gathers meanwhile. There is no timed
window.
"""

from __future__ import annotations

import asyncio
import builtins
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fluss.client import runtime
from fluss.client.cluster.metadata import Metadata, address_of
from fluss.client.cluster.retry import pause_s
from fluss.client.lookup.pending import Caller, Lookup, LookupQueue, Place, ValueReader
from fluss.client.net.connection import ConnectionPool, server_error
from fluss.doors import clock
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, TimeoutError
from fluss.model.infos import ServerType, TableInfo
from fluss.model.partitions import spec_of_name
from fluss.protocol.lookups import LookupKind, lookup_request, parse_lookup_response

if TYPE_CHECKING:
    from fluss.client.cluster.cluster import BucketKey
    from fluss.client.net.connection import Connection


class LookupOwner(Protocol):
    """Takes rerouted lookups back, or tells their callers what became of them."""

    def found(self, lookups: list[Lookup]) -> None: ...
    def missing(self, lookups: list[Lookup]) -> None: ...
    def not_found(self, lookups: list[Lookup], error: FlussError) -> None: ...
    def fail(self, lookups: list[Lookup], error: FlussError) -> None: ...


class Rerouting:
    """Finds the leaders of a table's lookups anew, with growing pauses."""

    def __init__(self, metadata: Metadata, info: TableInfo, timeout_s: float, owner: LookupOwner) -> None:
        self._metadata = metadata
        self._info = info
        self._timeout_s = timeout_s
        self._owner = owner
        self._waiting: list[Lookup] = []
        self._finding: asyncio.Task[None] | None = None

    def add(self, lookups: list[Lookup]) -> None:
        """Look for these, too."""
        self._waiting += lookups
        if self._finding is None:
            self._finding = asyncio.ensure_future(self._find_all())

    def close(self) -> list[Lookup]:
        """Stop; those that nobody looks for yet are returned, the others fail."""
        waiting, self._waiting = self._waiting, []
        if self._finding is not None:
            self._finding.cancel()
        return waiting

    async def _find_all(self) -> None:
        try:
            while self._waiting:
                attempts = min(lookup.attempts for lookup in self._waiting)
                if attempts:
                    await asyncio.sleep(min(pause_s(attempts), remaining_s(self._waiting)))
                lookups, self._waiting = self._waiting, []
                try:
                    await self._find(lookups)
                except asyncio.CancelledError:
                    self._owner.fail(lookups, closed_error())
                    raise
                except FlussError as error:
                    self._owner.not_found(lookups, error)
                except Exception as error:
                    self._owner.fail(lookups, unexpected(error))
        finally:
            self._finding = None

    async def _find(self, lookups: list[Lookup]) -> None:
        """Ask where lookups belong, and give those back that have a leader now; those of a missing partition end."""
        path = self._info.table_path
        await self._ask(lookups)
        view = self._metadata.table(path)
        if view is not None and view.info.table_id != self._info.table_id:
            message = f"Table {path} was dropped and made anew; get it again."
            self._owner.fail(lookups, NotFoundError(message, ErrorCode.TABLE_NOT_EXIST))
            return
        found: list[Lookup] = []
        missing: list[Lookup] = []
        for lookup in lookups:
            partition_id = None if lookup.partition is None else self._metadata.partition_id(path, lookup.partition)
            if lookup.partition is not None and partition_id is None:
                missing.append(lookup)
            elif self._metadata.leader(path, partition_id, lookup.bucket) is None:
                message = f"Bucket {lookup.bucket} of table {path} has no leader."
                self._owner.not_found([lookup], TimeoutError(message, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
            else:
                found.append(lookup)
        self._owner.missing(missing)
        self._owner.found(found)

    async def _ask(self, lookups: list[Lookup]) -> None:
        path = self._info.table_path
        names = {lookup.partition for lookup in lookups if lookup.partition is not None}
        names = {name for name in names if self._may_exist(name)}
        try:
            async with asyncio.timeout(remaining_s(lookups)):
                if names:
                    await runtime.bridge(self._metadata.find_partitions(path, names))
                elif any(lookup.partition is None for lookup in lookups):
                    await runtime.bridge(self._metadata.refresh(path))
        except builtins.TimeoutError:
            raise TimeoutError(f"The leaders of table {path} were not found within {self._timeout_s:g} s.") from None

    def _may_exist(self, partition: str) -> bool:
        try:
            spec_of_name(partition, self._info.partition_keys).check_values()
        except InvalidRequestError:
            return False
        return True


def remaining_s(lookups: list[Lookup]) -> float:
    """Until the first deadline of these."""
    return max(min([lookup.deadline for lookup in lookups]) - clock.monotonic(), 0.001)


def closed_error() -> FlussError:
    """What lookups of a closed client end with."""
    return FlussError("The connection is closed; open a new one.")


def unexpected(error: Exception) -> FlussError:
    """A mistake of ours must end as an error of the lookups, not as silence."""
    failure = FlussError(f"Unexpected failure: {error!r}")
    failure.__cause__ = error
    return failure


REQUESTS_IN_FLIGHT_MAX = 4
"""Per leader. Few, so that batches form by themselves; more than one, so that the server always has work."""
KEYS_PER_REQUEST_MAX = 4_096
KEYS_PER_REQUEST_MIN = 128
"""Of requests that share what is queued: while the server works on one, callers work on the answer of another."""
KEY_BYTES_PER_REQUEST_MAX = 1 << 20
# Answers above this are decoded beside the loop.
INLINE_ANSWER_BYTES_MAX = 256 << 10


class _Leader:
    """Lookups for one server."""

    __slots__ = ("id", "in_flight", "queue")

    def __init__(self, server_id: int) -> None:
        self.id = server_id
        self.queue: deque[Lookup] = deque()
        self.in_flight = 0


class _Request(NamedTuple):
    """A request under way."""

    leader: _Leader
    lookups: list[Lookup]
    by_bucket: dict[BucketKey, list[Lookup]]


class _Found(NamedTuple):
    """Answered lookups, and what there is for their keys, in order."""

    lookups: list[Lookup]
    entries: list[Any]
    size_bytes: int  # of the answer


class TableLookups:
    """Lookups of one table and kind, which may share requests."""

    def __init__(
        self,
        metadata: Metadata,
        pool: ConnectionPool,
        info: TableInfo,
        kind: LookupKind,
        values: ValueReader,
        timeout_s: float,
        hand_back: Callable[[Iterable[Lookup]], None],
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self.info = info
        self._kind = kind
        self._values = values
        self._hand_back = hand_back
        self.timeout_s = timeout_s
        self._leaders: dict[int, _Leader] = {}
        self._rerouting = Rerouting(metadata, info, timeout_s, self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def close(self) -> None:
        """Lookups end with an error, now and from now on; those in requests when their connections are closed."""
        self._closed = True
        waiting = self._rerouting.close()
        for leader in self._leaders.values():
            waiting += leader.queue
            leader.queue.clear()
        self.fail(waiting, closed_error())

    def add(self, lookups: Iterable[Lookup]) -> None:
        """Send lookups, or queue them for their leaders."""
        if self._closed:
            self.fail(lookups, closed_error())
            return
        places: dict[tuple[str | None, int], tuple[int | None, _Leader | None]] = {}
        rerouted: list[Lookup] = []
        for lookup in lookups:
            place = (lookup.partition, lookup.bucket)
            route = places.get(place)
            if route is None:
                route = places[place] = self._route(*place)
            lookup.partition_id, leader = route
            if leader is None:
                rerouted.append(lookup)
            else:
                leader.queue.append(lookup)
        if rerouted:
            self._rerouting.add(rerouted)
        self._pump()

    def _route(self, partition: str | None, bucket: int) -> tuple[int | None, _Leader | None]:
        """The partition's id and the bucket's leader, as far as they are known."""
        path = self.info.table_path
        partition_id = None if partition is None else self._metadata.partition_id(path, partition)
        if partition is not None and partition_id is None:
            return None, None
        node = self._metadata.leader(path, partition_id, bucket)
        if node is None:
            return partition_id, None
        leader = self._leaders.get(node.id)
        if leader is None:
            leader = self._leaders[node.id] = _Leader(node.id)
        return partition_id, leader

    def _pump(self) -> None:
        for leader in self._leaders.values():
            while leader.queue and leader.in_flight < REQUESTS_IN_FLIGHT_MAX:
                key_count = sum([len(lookup.keys) for lookup in leader.queue])
                share = -(-key_count // (REQUESTS_IN_FLIGHT_MAX - leader.in_flight))
                lookups = self._take(leader.queue, min(KEYS_PER_REQUEST_MAX, max(KEYS_PER_REQUEST_MIN, share)))
                if lookups:
                    self._ask(leader, lookups)

    def _take(self, queue: deque[Lookup], keys_max: int) -> list[Lookup]:
        """The lookups of the next request."""
        taken: list[Lookup] = []
        room, room_bytes = keys_max, KEY_BYTES_PER_REQUEST_MAX
        now = clock.monotonic()
        while queue and room > 0:
            lookup = queue.popleft()
            if lookup.is_abandoned:
                self._hand_back([lookup])
                continue
            if now >= lookup.deadline:
                self.fail([lookup], TimeoutError(f"A lookup in table {self.info.table_path} was not sent in time."))
                continue
            if len(lookup.keys) > room and lookup.is_divisible:
                lookup, rest = lookup.split(room)
                queue.appendleft(rest)
            size_bytes = sum(map(len, lookup.keys))
            if size_bytes > room_bytes and lookup.is_divisible:
                queue.extendleft(reversed(lookup.split(len(lookup.keys) // 2)))
                continue
            if taken and (len(lookup.keys) > room or size_bytes > room_bytes):
                queue.appendleft(lookup)
                break
            taken.append(lookup)
            room -= len(lookup.keys)
            room_bytes -= size_bytes
        return taken

    # ---- requests ----

    def _ask(self, leader: _Leader, lookups: list[Lookup]) -> None:
        leader.in_flight += 1
        node = self._metadata.cluster.tablets.get(leader.id)
        connection = None if node is None else self._pool.ready(address_of(node))
        if connection is None:
            self._start(self._connect_and_send(leader, lookups))
        else:
            self._send(leader, lookups, connection)

    async def _connect_and_send(self, leader: _Leader, lookups: list[Lookup]) -> None:
        try:
            node = self._metadata.cluster.tablets.get(leader.id)
            if node is None:
                raise FlussError(f"The server {leader.id} is gone.", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)
            connection = await self._pool.get(address_of(node), ServerType.TABLET_SERVER, remaining_s(lookups))
        except Exception as error:
            self._not_answered(lookups, error)
            self._request_ended(leader)
        else:
            self._send(leader, lookups, connection)

    def _send(self, leader: _Leader, lookups: list[Lookup], connection: Connection) -> None:
        by_bucket: dict[BucketKey, list[Lookup]] = {}
        for lookup in lookups:
            by_bucket.setdefault((lookup.partition_id, lookup.bucket), []).append(lookup)
        keys = {bucket: [key for lookup in asked for key in lookup.keys] for bucket, asked in by_bucket.items()}
        answered = partial(self._answered, _Request(leader, lookups, by_bucket), connection)
        try:
            timeout_s = remaining_s(lookups)
            api, body = lookup_request(self._kind, self.info.table_id, keys, timeout_s)
            connection.submit(api, (body,), timeout_s, answered)
        except Exception as error:
            self._not_answered(lookups, error)
            self._request_ended(leader)

    def _answered(self, request: _Request, connection: Connection, answer: memoryview | FlussError) -> None:
        """Most answers are done with here; one that is large, or needs schemas, gets a task."""
        later: _Found | None = None
        try:
            if isinstance(answer, FlussError):
                raise answer
            later = self._settle(request, answer, connection)
        except Exception as error:
            self._not_answered(request.lookups, error)
        if later is None:
            self._request_ended(request.leader)
        else:
            self._start(self._end_later(request.leader, later))

    def _settle(self, request: _Request, body: memoryview, connection: Connection) -> _Found | None:
        """Hand back the lookups of an answer; what can't be done here and now is returned."""
        server, unanswered = connection.address, request.by_bucket
        found = _Found([], [], len(body))
        for bucket, entries, refusal in parse_lookup_response(self._kind, body, server):
            asked = unanswered.pop(bucket, [])
            expected = sum([len(lookup.keys) for lookup in asked])
            if refusal is not None:
                error = server_error(*refusal)
                callers = sum([len(lookup.callers) for lookup in request.lookups])
                if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION and callers > 1:
                    self._ask_in_halves(request.leader, asked)
                else:
                    self._try_again(asked, error)
            elif len(entries) != expected:
                self.fail(asked, FlussError(f"{server} gave {len(entries)} answers for {expected} keys."))
            else:
                found.lookups.extend(asked)
                found.entries.extend(entries)
        for (_, left_out), asked in unanswered.items():
            self.fail(asked, FlussError(f"The answer of {server} leaves bucket {left_out} out."))
        if len(body) > INLINE_ANSWER_BYTES_MAX or self._unknown_schemas(found):
            return found
        self._read(found)
        self._hand_back(found.lookups)
        return None

    def _ask_in_halves(self, leader: _Leader, lookups: list[Lookup]) -> None:
        """Lookups whose rows are too large for one answer."""
        if len(lookups) == 1 and lookups[0].is_divisible:
            lookups = [*lookups[0].split(len(lookups[0].callers) // 2)]
        half = len(lookups) // 2
        for part in filter(None, (lookups[:half], lookups[half:])):
            self._ask(leader, part)

    def _request_ended(self, leader: _Leader) -> None:
        leader.in_flight -= 1
        if not self._closed:
            self._pump()

    def _not_answered(self, lookups: list[Lookup], error: Exception) -> None:
        if isinstance(error, FlussError):
            self._try_again(lookups, error)
        else:
            self.fail(lookups, unexpected(error))

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- answers ----

    async def _end_later(self, leader: _Leader, found: _Found) -> None:
        """Learn schemas, decode beside the loop if that takes long, and hand back."""
        try:
            unknown = self._unknown_schemas(found)
            if unknown:
                async with asyncio.timeout(remaining_s(found.lookups)):
                    await runtime.bridge(self._values.learn(unknown))
            if found.size_bytes > INLINE_ANSWER_BYTES_MAX:
                await runtime.in_worker(self._read, found)
            else:
                self._read(found)
            self._hand_back(found.lookups)
        except FlussError as error:
            self.fail(found.lookups, error)
        except builtins.TimeoutError:
            self.fail(found.lookups, TimeoutError("Schemas were not told in time."))
        except Exception as error:
            self.fail(found.lookups, unexpected(error))
        finally:
            self._request_ended(leader)

    def _unknown_schemas(self, found: _Found) -> list[int]:
        is_flat = self._kind is not LookupKind.PREFIX
        return self._values.unknown(found.entries if is_flat else [*chain.from_iterable(found.entries)])

    def _read(self, found: _Found) -> None:
        start = 0
        for lookup in found.lookups:
            end = start + len(lookup.keys)
            lookup.results = lookup.read(self._values, found.entries[start:end])
            start = end

    def fail(self, lookups: Iterable[Lookup], error: FlussError) -> None:
        """End lookups with an error."""
        failed = [lookup for lookup in lookups if not lookup.is_ended]
        for lookup in failed:
            lookup.error = error
        self._hand_back(failed)

    def _try_again(self, lookups: Iterable[Lookup], error: FlussError) -> None:
        """Reroute lookups that failed, or fail them for good."""
        now = clock.monotonic()
        rerouted: list[Lookup] = []
        for lookup in lookups:
            may_pass = error.is_retriable or (
                lookup.partition is not None and error.error_code == ErrorCode.PARTITION_NOT_EXISTS
            )
            if self._closed:
                self.fail([lookup], closed_error())
            elif not may_pass or now >= lookup.deadline:
                self.fail([lookup], error)
            elif lookup.is_abandoned:
                self._hand_back([lookup])
            else:
                lookup.attempts += 1
                rerouted.append(lookup)
        if rerouted:
            self._rerouting.add(rerouted)

    # ---- what becomes of rerouted lookups ----

    def found(self, lookups: list[Lookup]) -> None:
        """Their leaders are known again."""
        self.add(lookups)

    def not_found(self, lookups: list[Lookup], error: FlussError) -> None:
        """The search failed."""
        self._try_again(lookups, error)

    def missing(self, lookups: list[Lookup]) -> None:
        """A partition that does not exist has no rows, and none can be made in it."""
        for lookup in lookups:
            if self._kind is LookupKind.ROW_OR_INSERT:
                lookup.error = NotFoundError(
                    f"The partition {lookup.partition!r} of table {self.info.table_path} does not exist: create it "
                    "first, then lookups can insert into it.",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
                continue
            empty: Any = [] if self._kind is LookupKind.PREFIX else None
            lookup.results = lookup.read(self._values, [empty] * len(lookup.keys))
        self._hand_back(lookups)


# Each has a caller that waits for it; whoever starts more at a time should look up many keys in one call.
WAITING_LOOKUPS_MAX = 1_000_000


class Lookups:
    """The lookups of one client on one event loop.

    `call_soon` is the loop's. On the I/O loop it may be called from any thread, and so may `start` and `of_table`.
    """

    def __init__(
        self, metadata: Metadata, pool: ConnectionPool, timeout_s: float, call_soon: Callable[..., object]
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._timeout_s = timeout_s
        self._call_soon = call_soon
        self._queue: deque[tuple[Place, bytes, Caller]] = deque()
        self._under_way = 0
        self._is_woken = False
        self._tables: weakref.WeakValueDictionary[Any, TableLookups] = weakref.WeakValueDictionary()
        self._closed = False

    def of_table(self, info: TableInfo, kind: LookupKind, values: Callable[[], ValueReader]) -> TableLookups:
        """Where lookups of a table queue; lookupers of the same kind share it, and with it their requests."""
        key = (info.table_id, info.schema_id, kind)
        table = self._tables.get(key)
        if table is None:
            timeout_s, end = self._timeout_s, self._end
            table = self._tables[key] = TableLookups(self._metadata, self._pool, info, kind, values(), timeout_s, end)
        return table

    def start(self, place: Place, key: bytes, caller: Caller) -> None:
        """Send a lookup of one key soon."""
        if len(self._queue) + self._under_way >= WAITING_LOOKUPS_MAX:
            raise FlussError(f"{WAITING_LOOKUPS_MAX} lookups are waiting already; use lookup_many for many keys.")
        self._queue.append((place, key, caller))
        # The loop clears the mark before it empties the queue, so what was queued before the mark is seen.
        if not self._is_woken:
            self._is_woken = True
            try:
                self._call_soon(self._send_queued)
            except BaseException:  # an interrupt: the next one has to wake the loop
                self._is_woken = False
                raise

    def _send_queued(self) -> None:
        self._is_woken = False
        take = self._queue.popleft
        together: dict[Place, tuple[list[bytes], list[Caller]]] = {}
        for _ in range(len(self._queue)):
            place, key, caller = take()
            if caller.cancelled():
                continue
            found = together.get(place)
            if found is None:
                found = together[place] = ([], [])
            found[0].append(key)
            found[1].append(caller)
        self.send([Lookup(place, keys, callers) for place, (keys, callers) in together.items()])

    def send(self, lookups: list[Lookup]) -> None:
        """Send lookups at once. On the loop."""
        by_queue: dict[LookupQueue, list[Lookup]] = {}
        for lookup in lookups:
            self._under_way += len(lookup.callers)
            by_queue.setdefault(lookup.queue, []).append(lookup)
        for queue, queued in by_queue.items():
            if self._closed:
                queue.close()
            queue.add(queued)

    def _end(self, lookups: Iterable[Lookup]) -> None:
        """Tell the callers of lookups that have ended. On the loop."""
        for lookup in lookups:
            if not lookup.is_ended:
                lookup.is_ended = True
                self._under_way -= len(lookup.callers)
                lookup.resolve()

    def close(self) -> None:
        """End all lookups with an error, now and from now on. On the loop."""
        self._closed = True
        for table in list(self._tables.values()):
            table.close()
        self._send_queued()
