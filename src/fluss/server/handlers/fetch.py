"""FetchLog: read what there is, or wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.answers import Encoded
from fluss.server.context import ConnectionContext, Handled, Handler, Replier
from fluss.server.fetch_plan import FetchPlan
from fluss.server.fetch_response import encode_fetch_response
from fluss.server.names import check_count

WAIT_MS_DEFAULT: Final = 100  # when a request says how much to wait for and not how long


def _fetch_log(context: ConnectionContext, request: pb.FetchLogRequest) -> Handled:
    buckets = sum(len(table.buckets_req) for table in request.tables_req)
    check_count(buckets + len(request.tables_req), context.limits.request_items_max, "buckets")
    plan = FetchPlan.of(context, request)
    wait_ms = _wait_ms(context, request)
    if wait_ms == 0 or plan.is_ready(request.min_bytes, patient=True):
        wait_ms = 0
        if not plan.needs_projection:
            return _read(context, plan)
    return FetchWait(context, plan, request.min_bytes, wait_ms)


def _wait_ms(context: ConnectionContext, request: pb.FetchLogRequest) -> int:
    if request.min_bytes <= 0 or context.fetches_waiting >= context.limits.fetches_waiting_per_connection_max:
        return 0
    wait_ms = request.max_wait_ms if request.HasField("max_wait_ms") else WAIT_MS_DEFAULT
    return max(0, min(wait_ms, context.limits.fetch_wait_ms_max))


def _read(context: ConnectionContext, plan: FetchPlan) -> Encoded:
    _read_plan(context, plan)
    return encode_fetch_response(plan)


def _read_plan(context: ConnectionContext, plan: FetchPlan) -> None:
    context.fetches += 1
    plan.read(context.server.response_budget.allowance_bytes(), first=context.fetches)


class FetchWait:
    """A fetch that waits for data, for its columns to be picked, or for the client to take what it got before."""

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
        if self.wait_ms == 0:
            self.expire()
        else:
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

    def _answer(self) -> asyncio.Future[None] | None:
        if self._plan.needs_projection:
            return asyncio.ensure_future(self._answer_projected())
        if self._replier is not None:
            self._replier.reply(_read(self._context, self._plan))
        return None

    async def _answer_projected(self) -> None:
        server = self._context.server
        try:
            async with server.projection_slots:
                if self._replier is None:
                    return
                _read_plan(self._context, self._plan)
                await server.loop.run_in_executor(None, self._plan.project)
                answer = encode_fetch_response(self._plan)
        except Exception as error:
            if self._replier is not None:
                self._replier.fail(error)
            return
        if self._replier is not None:
            self._replier.reply(answer)


HANDLERS: Final[dict[int, Handler]] = {api_keys.FETCH_LOG.key: _fetch_log}
