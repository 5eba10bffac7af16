"""FetchLog: batches of logs from an offset on, or waiting until there are some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluss.protocol import messages_pb2 as pb
from fluss.protocol.fetches import encode_fetch_response
from fluss.protocol.protobuf import Encoded
from fluss.server.net.answers import code_and_text
from fluss.server.net.concurrent_reply import BUCKETS_AT_ONCE, each_open, with_open_logs
from fluss.server.net.context import ConnectionContext, Handled, Replier
from fluss.server.read.fetch_plan import FetchPlan
from fluss.server.tables.rules import check_count

WAIT_MS_DEFAULT: Final = 100  # when a request says how much to wait for and not how long


def fetch_log(context: ConnectionContext, request: pb.FetchLogRequest) -> Handled:
    buckets = sum(len(table.buckets_req) for table in request.tables_req)
    check_count(buckets + len(request.tables_req), context.limits.request_items_max, "buckets")
    plan = FetchPlan.of(context, request)
    if buckets > BUCKETS_AT_ONCE:
        return _begin_wide(context, request, plan)
    return with_open_logs(
        context.storage, [fetch.bucket for fetch in plan.buckets], lambda: _begin(context, request, plan)
    )


async def _begin_wide(
    context: ConnectionContext, request: pb.FetchLogRequest, plan: FetchPlan
) -> Encoded | DeferredFetch:
    async with context.storage.keeping_open():
        async for _ in each_open(context, [fetch.bucket for fetch in plan.buckets]):
            pass
        return _begin(context, request, plan)


def _begin(context: ConnectionContext, request: pb.FetchLogRequest, plan: FetchPlan) -> Encoded | DeferredFetch:
    wait_ms = _wait_ms(context, request)
    if wait_ms == 0 or plan.is_ready(request.min_bytes, patient=True):
        return _read(context, plan)
    return DeferredFetch(context, plan, request.min_bytes, wait_ms)


def _wait_ms(context: ConnectionContext, request: pb.FetchLogRequest) -> int:
    if request.min_bytes <= 0 or context.fetches_waiting >= context.limits.fetches_waiting_per_connection_max:
        return 0
    wait_ms = request.max_wait_ms if request.HasField("max_wait_ms") else WAIT_MS_DEFAULT
    return max(0, min(wait_ms, context.limits.fetch_wait_ms_max))


def _read(context: ConnectionContext, plan: FetchPlan) -> Encoded:
    context.fetches += 1
    plan.read(context.server.response_budget.allowance_bytes(), first=context.fetches)
    return encode_fetch_response(plan.tables, code_and_text)


class DeferredFetch:
    """A fetch that waits for data, or for the client to take what it got before."""

    def __init__(self, context: ConnectionContext, plan: FetchPlan, min_bytes: int, wait_ms: int) -> None:
        self.wait_ms = wait_ms
        self._context = context
        self._plan = plan
        self._min_bytes = min_bytes
        self._replier: Replier | None = None
        self._cancels: list[Callable[[], None]] = []
        self._waiting = False

    def start(self, replier: Replier) -> None:
        self._replier = replier
        self._waiting = True
        self._context.fetches_waiting += 1
        self._cancels = self._plan.subscribe(self._wake)

    def expire(self) -> None:
        """Answer with what there is."""
        if self._waiting and self._replier is not None:
            self._end_wait()
            self._replier.when_writable(self._answer)

    def hurry(self) -> None:
        self.expire()

    def abandon(self) -> None:
        self._end_wait()
        self._replier = None

    def _wake(self) -> None:
        # Not patient: an error that was not there at the start is news, such as that the table was dropped.
        if self._waiting and self._plan.is_ready(self._min_bytes, patient=False):
            self.expire()

    def _end_wait(self) -> None:
        if self._waiting:
            self._waiting = False
            self._context.fetches_waiting -= 1
        for cancel in self._cancels:
            cancel()
        self._cancels = []

    def _answer(self) -> None:
        if self._replier is not None:
            self._replier.reply(_read(self._context, self._plan))
