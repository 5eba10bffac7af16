"""The context of request handlers: what they may use, counters, and the shapes of what they return."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from fluss.model.errors import ConnectError, ErrorCode, FlussError, InvalidRequestError, TimeoutError
from fluss.model.paths import TableBucket
from fluss.model.trust import Address
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, Part
from fluss.server.config import ServerConfig
from fluss.server.net.budgets import Pace, RequestBudget, ResponseBudget, Turns
from fluss.server.net.logins import Logins
from fluss.server.read.kv_scanners import ConnectionScanners, ServerScanners
from fluss.server.tables.jobs import AutoPartitioner, Backups
from fluss.server.tables.lake import LakeLocations, Tiering
from fluss.server.tables.settings import Settings
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.store import Storage

if TYPE_CHECKING:
    from fluss.storage.damage.scrub import Scrubber


UNKNOWN_API_KEY = -1


class Metrics:
    """What the server has done since its start."""

    __slots__ = (
        "errors",
        "logins_refused",
        "lookup_keys",
        "put_batches",
        "put_bytes",
        "received_bytes",
        "refused_connections",
        "requests",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # by api key; only keys that are served
        self.errors: Counter[tuple[int, int]] = Counter()  # by api key and error code
        self.received_bytes = 0
        self.sent_bytes = 0
        self.refused_connections = 0
        self.logins_refused = 0
        self.put_batches = 0
        self.put_bytes = 0
        self.lookup_keys = 0

    def failed(self, api_key: int, error: BaseException) -> None:
        """Count a request that is answered with an error."""
        known = api_key if api_key in api_keys.BY_KEY else UNKNOWN_API_KEY
        code = error.error_code if isinstance(error, FlussError) else ErrorCode.UNKNOWN_SERVER_ERROR
        self.errors[known, code] += 1


_log = logging.getLogger(__name__)

ERROR_TEXT_LENGTH_MAX: Final = 1_000
# Answers up to this are copied together: a write of several pieces takes longer than that.
_JOINED_BYTES_MAX: Final = 4 << 10

Answer: TypeAlias = Message | Encoded


def success_frame(request_id: int, answer: Answer) -> list[Part]:
    """The response frame for an answer."""
    if isinstance(answer, Encoded):
        parts = [frames.response_header(frames.SUCCESS, request_id, answer.size_bytes), *answer.parts]
        return [b"".join(parts)] if answer.size_bytes <= _JOINED_BYTES_MAX else parts
    body = answer.SerializeToString()
    return [frames.response_header(frames.SUCCESS, request_id, len(body)) + body]


def error_frame(request_id: int, error: BaseException) -> list[Part]:
    """The response frame for an error."""
    code, text = code_and_text(error)
    body = pb.ErrorResponse(error_code=code, error_message=text).SerializeToString()
    return [frames.response_header(frames.ERROR, request_id, len(body)) + body]


def code_and_text(error: BaseException) -> tuple[int, str]:
    """The code and message to send for an error; one that is not ours is logged and its text kept back."""
    if isinstance(error, FlussError):
        code = error.error_code if error.error_code > 0 else ErrorCode.UNKNOWN_SERVER_ERROR
        return code, error.message[:ERROR_TEXT_LENGTH_MAX]
    _log.error("a request failed", exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR, "The server failed on this request; its log has the details."


class AnswerSize:
    """The bytes of one answer in the making; use it as a context manager that ends when the answer is made."""

    def __init__(self, budget: ResponseBudget, bytes_max: int, advice: str) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._advice = advice
        self._bytes = 0

    def __enter__(self) -> AnswerSize:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._budget.release(self._bytes)

    @property
    def left_bytes(self) -> int:
        return self._bytes_max - self._bytes

    def add(self, size_bytes: int) -> None:
        """Count more of the answer; raises when it gets too large, or when the server has too much unsent."""
        self._budget.release(self._bytes)
        allowed = self._bytes + size_bytes <= self._budget.allowance_bytes()
        self._bytes += size_bytes
        self._budget.add(self._bytes)
        if self._bytes > self._bytes_max:
            raise InvalidRequestError(
                f"The answer has more than {self._bytes_max} bytes; {self._advice}.",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        if not allowed:
            raise TimeoutError("The server waits for its clients to take their answers; try again later.")


SCRUB_WAIT_S: Final = 60.0  # for the first table


class ServerContext:
    """What all connections of a server share."""

    def __init__(self, config: ServerConfig, storage: Storage, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = Settings(config, storage.catalog)
        self.limits = config.limits
        self.storage = storage
        self.rebalance_id: str | None = None  # of the last one that was asked for
        self.auto_partitioner = AutoPartitioner(storage.catalog, storage.clock)
        self.loop = loop
        self.turns = Turns(loop)
        self.request_budget = RequestBudget(config.limits.request_bytes_total_max, loop.call_soon)
        self.response_budget = ResponseBudget(config.limits.response_bytes_total_max)
        self.scanners = ServerScanners()
        self.kv_snapshots = KvSnapshots(storage, lambda bucket: storage.kv.bucket(bucket))
        self.backups = Backups(storage, self.kv_snapshots)
        self.lake_options = LakeLocations(config.datalake_iceberg, storage.root)
        self.tiering = Tiering(storage.catalog, wall_ms=storage.clock.now_ms)
        self.metrics = Metrics()
        self.logins: Logins | None = None  # None: nobody needs to log in

    @property
    def config(self) -> ServerConfig:
        """The settings as they are now."""
        return self.settings.config

    @cached_property
    def scrubber(self) -> Scrubber:
        """What looks for damage. Loaded when it is needed: a server without tables does without."""
        from fluss.storage.damage.scrub import Scrubber

        return Scrubber(
            self.storage,
            self.kv_snapshots,
            bytes_per_second=self.config.scrub_bytes_per_second,
            interval_ms=self.config.scrub_interval_ms,
        )

    async def scrub(self) -> None:
        """Look for damage once there are tables, until cancelled."""
        while not self.storage.catalog.all_tables():
            await asyncio.sleep(min(SCRUB_WAIT_S, self.config.scrub_interval_ms / 1_000))
        await self.scrubber.run()


class ConnectionContext:
    """What the requests of one connection share."""

    def __init__(
        self, server: ServerContext, address: Address, peer_host: str, is_connected: Callable[[], bool]
    ) -> None:
        self.server = server
        self.is_connected = is_connected  # whether the client has neither closed nor reset the connection
        self.limits = server.limits
        self.storage = server.storage
        self.address = address  # where clients find this server
        self.peer_host = peer_host
        self.user: str | None = None  # once logged in
        self.failed_logins = 0
        self.fetches = 0  # answered so far
        self.fetches_waiting = 0
        self.reads_running = 0  # lookups that others overtake
        self.scanners = ConnectionScanners(server.scanners, server.limits)

    @property
    def is_stranger(self) -> bool:
        """Whether the client has to log in and has not."""
        return self.user is None and self.server.logins is not None

    def check_connected(self) -> None:
        """Raise when the client has closed the connection: it may have written anew by now what it sent here before.

        So no batch is taken from a connection after its client was told that it is closed, however late it is read.
        """
        if not self.is_connected():
            raise ConnectError("The client closed the connection before its batch was taken; it is not stored.")

    def pace(self) -> Pace:
        """The pace of an answer that may take long to make: it gives up the loop now and then."""
        return Pace(self.server.turns, self.is_connected)

    def close(self) -> None:
        """The connection is gone."""
        self.scanners.close()


# Makes a response; returns None when that is done, or a future when it takes longer.
GateCallback: TypeAlias = Callable[[], "asyncio.Future[None] | None"]


class Replier(Protocol):
    """The receiver of a deferred reply."""

    def reply(self, answer: Answer) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def when_writable(self, make_response: GateCallback) -> None:
        """Call back now, or once the client has taken enough of what was sent before; not after it has gone."""


class Deferred(Protocol):
    """A reply that is given later, while the connection's next requests begin."""

    wait_ms: int  # then `expire` is called; the server's own limit may be shorter

    def start(self, replier: Replier) -> None: ...

    def expire(self) -> None:
        """The time is over: reply or fail now."""

    def hurry(self) -> None:
        """The server stops: do not wait for more to happen."""

    def abandon(self) -> None:
        """The client has gone, or the server stops: hold nothing any more."""


# A coroutine is awaited before the connection's next request begins.
InTurn: TypeAlias = Answer | Coroutine[Any, Any, Answer]
Handled: TypeAlias = Answer | Deferred | Coroutine[Any, Any, Answer | Deferred]


Work: TypeAlias = Callable[[], Coroutine[Any, Any, Answer]]


def reply_concurrently(context: ConnectionContext, work: Work, wait_ms: int | None = None) -> Concurrent:
    """Let the next requests begin, unless the connection has enough of this kind under way."""
    if context.reads_running >= context.limits.reads_running_per_connection_max:
        return work()
    return ConcurrentReply(context, work, context.limits.request_wait_ms_max if wait_ms is None else wait_ms)


class ConcurrentReply:
    """A deferred reply: that of work under way, once it is done."""

    def __init__(self, context: ConnectionContext, work: Work, wait_ms: int) -> None:
        self.wait_ms = wait_ms
        self._context = context
        self._work = work
        self._replier: Replier | None = None

    def start(self, replier: Replier) -> None:
        self._replier = replier
        self._context.reads_running += 1
        task = asyncio.get_running_loop().create_task(self._work())
        task.add_done_callback(self._done)

    def expire(self) -> None:
        if self._replier is not None:
            self._replier.fail(TimeoutError("The server did not finish this request within its time; try again."))
            self._replier = None

    def hurry(self) -> None:
        """It is under way already."""

    def abandon(self) -> None:
        """The work goes on to its end; what it writes may be half done otherwise."""
        self._replier = None

    def _done(self, task: asyncio.Task[Answer]) -> None:
        self._context.reads_running -= 1
        error = None if task.cancelled() else task.exception()
        if self._replier is None or task.cancelled():
            return
        if error is not None:
            self._replier.fail(error)
        else:
            self._replier.reply(task.result())


Concurrent: TypeAlias = Answer | ConcurrentReply | Coroutine[Any, Any, Answer]


BUCKETS_AT_ONCE: Final = 64  # that a request may name and still be answered in one go
_OPENED_AT_ONCE: Final = 128

_Outcome = TypeVar("_Outcome")


def with_open_logs(
    storage: Storage, buckets: Collection[TableBucket], handle: Callable[[], _Outcome]
) -> _Outcome | Coroutine[Any, Any, _Outcome]:
    """What `handle` returns, now or once the buckets are open."""
    opening = storage.opening(buckets)
    return handle() if opening is None else _after(opening, handle)


async def _after(opening: Coroutine[None, None, None], handle: Callable[[], _Outcome]) -> _Outcome:
    await opening
    return handle()


async def each_open(context: ConnectionContext, buckets: Sequence[TableBucket]) -> AsyncIterator[int]:
    """The numbers of many buckets, each when it is open; others have their turns in between."""
    pace = context.pace()
    for begin in range(0, len(buckets), _OPENED_AT_ONCE):
        part = buckets[begin : begin + _OPENED_AT_ONCE]
        if (opening := context.storage.opening(part)) is not None:
            await opening
        for number in range(begin, begin + len(part)):
            yield number
            await pace.rest()
