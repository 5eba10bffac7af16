"""The requests of one connection: executed in order of arrival, answered when they are ready, each within its time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from fluss.model.errors import FlussError, TimeoutError
from fluss.protocol import frames
from fluss.server.answers import Answer, Part, error_frame, success_frame
from fluss.server.context import Aside, ConnectionContext, GateCallback
from fluss.server.dispatch import dispatch


class Call:
    """One request until it is answered."""

    __slots__ = ("_aside", "_session", "_timer", "answered", "api_key", "request", "request_id", "size_bytes")

    def __init__(self, session: Session, request: frames.Request, size_bytes: int) -> None:
        self._session = session
        self._aside: Aside | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.request: frames.Request | None = request
        self.request_id = request.request_id
        self.api_key = request.api_key
        self.size_bytes = size_bytes
        self.answered = False

    def reply(self, answer: Answer) -> None:
        """Send the answer, unless one was sent already."""
        if self.answered:
            return
        try:
            frame = success_frame(self.request_id, answer)
        except Exception as error:
            self.fail(error)
            return
        self._send(frame)

    def fail(self, error: BaseException) -> None:
        """Send an error, unless an answer was sent already."""
        if not self.answered:
            self._session.metrics.failed(self.api_key, error)
            self._send(error_frame(self.request_id, error))

    def when_writable(self, make_response: GateCallback) -> None:
        """Call back when the client takes what it is sent."""
        self._session.when_writable(make_response)

    def put_aside(self, aside: Aside, wait_ms_max: int) -> None:
        """Let the request wait for its answer while those behind it go on."""
        self._aside = aside
        self.arm(min(aside.wait_ms, wait_ms_max))
        aside.start(self)

    def arm(self, wait_ms: int) -> None:
        """Answer in any case after `wait_ms`; a later call replaces an earlier one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, self._expire)

    def hurry(self) -> None:
        """Do not wait for more to happen."""
        if self._aside is not None:
            self._aside.hurry()

    def abandon(self) -> None:
        """Forget the request: nobody waits for it."""
        self._settle()
        if self._aside is not None:
            self._aside.abandon()

    def _expire(self) -> None:
        if self.answered:
            return
        if self._aside is not None:
            self._aside.expire()
        else:
            self.fail(TimeoutError("The server did not finish this request within its time limit; try again."))

    def _send(self, frame: list[Part]) -> None:
        self._settle()
        self._session.answer(self, frame)

    def _settle(self) -> None:
        self.answered = True
        self.request = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Session:
    """Requests in, frames out. The connection feeds it, sends for it, and reads less when it holds too much."""

    def __init__(
        self, context: ConnectionContext, send: Callable[[list[Part]], None], has_less: Callable[[], None]
    ) -> None:
        self._context = context
        self.metrics = context.server.metrics
        self._send = send
        self._has_less = has_less  # called when it holds less than before
        self._queue: deque[Call] = deque()
        self._open: set[Call] = set()  # received and not answered
        self._running: asyncio.Task[Answer | Aside] | None = None
        self._gate: deque[GateCallback] = deque()
        self._gate_busy = False
        self._write_paused = False
        self._closed = False
        self.queued_bytes = 0

    @property
    def open_requests(self) -> int:
        """How many requests are not answered yet."""
        return len(self._open)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, running or unanswered."""
        return not self._open and self._running is None

    def receive(self, frame: frames.Frame) -> None:
        """Execute a request now, or when its turn comes."""
        request = frames.parse_request(memoryview(frame))
        call = Call(self, request, len(frame))
        self._open.add(call)
        if self._queue or self._blocked:
            self._queue.append(call)
            self.queued_bytes += call.size_bytes
            self._context.server.request_budget.add(call.size_bytes)
            call.arm(self._context.limits.request_wait_ms_max)
        else:
            self._execute(call, request)

    def when_writable(self, make_response: GateCallback) -> None:
        """Let large responses be made one after the other, and only while the client takes them."""
        self._gate.append(make_response)
        self._open_gate()

    def pause_writing(self) -> None:
        """The client does not take its responses: begin nothing that makes more of them."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The client takes responses again."""
        self._write_paused = False
        self._open_gate()
        self._drain()

    def answer(self, call: Call, frame: list[Part]) -> None:
        """Send a call's frame."""
        self._open.discard(call)
        if not self._closed:
            self._send(frame)

    def hurry(self) -> None:
        """The server stops: answer at once what only waits for something to happen."""
        for call in list(self._open):
            call.hurry()

    def close(self) -> None:
        """The connection is gone: drop everything that waits. A running request runs to its end."""
        self._closed = True
        for call in list(self._open):
            call.abandon()
        self._open.clear()
        self._gate.clear()
        while self._queue:
            self._unqueue()

    def _open_gate(self) -> None:
        while self._gate and not self._gate_busy and not self._write_paused:
            under_way = self._gate.popleft()()
            if under_way is not None:
                self._gate_busy = True
                under_way.add_done_callback(self._gate_free)

    def _gate_free(self, _: asyncio.Future[None]) -> None:
        self._gate_busy = False
        self._open_gate()

    @property
    def _blocked(self) -> bool:
        return self._running is not None or self._write_paused

    def _unqueue(self) -> Call:
        call = self._queue.popleft()
        self.queued_bytes -= call.size_bytes
        self._context.server.request_budget.release(call.size_bytes)
        return call

    def _drain(self) -> None:
        while self._queue and not self._blocked:
            call = self._unqueue()
            # A request that ran out of time in the queue was answered so, and must not be executed after that.
            if call.request is not None:
                self._execute(call, call.request)

    def _execute(self, call: Call, request: frames.Request) -> None:
        call.request = None
        try:
            handled = dispatch(self._context, request)
            if isinstance(handled, Coroutine):
                self._run(call, handled)
            else:
                self._settle(call, handled)
        except Exception as error:
            call.fail(error)

    def _settle(self, call: Call, handled: Answer | Aside) -> None:
        if isinstance(handled, Answer):
            call.reply(handled)
        elif not self._closed and not call.answered:
            call.put_aside(handled, self._context.limits.request_wait_ms_max)

    def _run(self, call: Call, coroutine: Coroutine[Any, Any, Answer | Aside]) -> None:
        # It may hold its request for a while.
        self._context.server.request_budget.add(call.size_bytes)
        call.arm(self._context.limits.request_wait_ms_max)
        self._running = asyncio.get_running_loop().create_task(coroutine)
        self._running.add_done_callback(lambda task: self._ran(call, task))

    def _ran(self, call: Call, task: asyncio.Task[Answer | Aside]) -> None:
        self._running = None
        self._context.server.request_budget.release(call.size_bytes)
        if task.cancelled():
            call.fail(FlussError("The server stopped before this request was done."))
        elif (error := task.exception()) is not None:
            call.fail(error)
        else:
            self._settle(call, task.result())
        if not self._closed:
            self._drain()
            self._has_less()
