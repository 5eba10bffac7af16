"""The requests of one connection: executed in order of arrival, answered when they are ready, each within its time.

The first request of a read is executed at once if it is of a kind that most clients wait for. All others wait for the
connection's turn, and are dropped if the connection is lost before.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from operator import attrgetter
from typing import Any, Final

from fluss.doors import clock
from fluss.model.errors import FlussError, TimeoutError
from fluss.protocol import frames
from fluss.protocol.protobuf import Part
from fluss.server.net.context import Answer, ConnectionContext, Deferred, GateCallback, error_frame, success_frame
from fluss.server.net.routes import ROUTES, dispatch

# Executed without waiting for a turn; what else there is may take longer, and one turn more is not noticed.
_AT_ONCE: Final = frozenset(key for key, route in ROUTES.items() if route.is_at_once)
_HEAVY_S: Final = 0.001  # a connection whose request took longer waits for its turn with the next one
_EXPIRY_S_MIN: Final = 0.001  # what is due within this time is due
_DEADLINE: Final = attrgetter("deadline_s")


class Call:
    """One request from its begin until it is answered."""

    __slots__ = ("_deferred", "_session", "answered", "api_key", "deadline_s", "request_id", "size_bytes")

    def __init__(self, session: Session, request: frames.Request, size_bytes: int) -> None:
        self._session = session
        self._deferred: Deferred | None = None
        self.deadline_s = math.inf  # when it is answered in any case
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

    def defer(self, deferred: Deferred, wait_ms_max: int) -> None:
        """Let the request wait for its answer while those behind it go on."""
        self._deferred = deferred
        self.arm(min(deferred.wait_ms, wait_ms_max))
        deferred.start(self)

    def arm(self, wait_ms: int) -> None:
        """Answer in any case after `wait_ms`; a later call replaces an earlier one."""
        self.deadline_s = self._session.expire_in(wait_ms / 1_000)

    def hurry(self) -> None:
        """Do not wait for more to happen."""
        if self._deferred is not None:
            self._deferred.hurry()

    def abandon(self) -> None:
        """Forget the request: nobody waits for it."""
        self.answered = True
        if self._deferred is not None:
            self._deferred.abandon()

    def expire(self) -> None:
        """Answer now, unless that was done already."""
        self.deadline_s = math.inf
        if self.answered:
            return
        if self._deferred is not None:
            self._deferred.expire()
        else:
            self.fail(TimeoutError("The server did not finish this request within its time limit; try again."))

    def _send(self, frame: list[Part]) -> None:
        self.answered = True
        self._session.answer(self, frame)


class Session:
    """Requests in, frames out. The connection feeds it, sends for it, and reads less when it holds too much."""

    def __init__(
        self, context: ConnectionContext, send: Callable[[list[Part]], None], has_less: Callable[[], None]
    ) -> None:
        self._context = context
        self.metrics = context.server.metrics
        self._send = send
        self._has_less = has_less  # called when it holds less than before
        self._turns = context.server.turns
        self._loop = context.server.loop
        self._wait_s_max = context.limits.request_wait_ms_max / 1_000
        self._queue: deque[tuple[frames.Frame, float]] = deque()  # with the time of arrival
        self._queue_timer: asyncio.TimerHandle | None = None
        self._waits_for_turn = False
        self._is_light = True
        self._open: dict[Call, None] = {}  # begun and not answered, in their order
        self._timer: asyncio.TimerHandle | None = None  # for the first of them that is late
        self._timer_at_s = math.inf
        self._running: asyncio.Task[Answer | Deferred] | None = None
        self._gate: deque[GateCallback] = deque()
        self._gate_busy = False
        self._write_paused = False
        self._closed = False
        self.queued_bytes = 0

    @property
    def open_requests(self) -> int:
        """How many requests are not answered yet."""
        return len(self._open) + len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, running or unanswered."""
        return not self._open and not self._queue and self._running is None

    def receive(self, received: list[frames.Frame]) -> None:
        """Execute requests that came in one read, now or when their turns come."""
        if not self._queue and not self._blocked:
            request = frames.parse_request(memoryview(received[0]))
            if self._is_light and request.api_key in _AT_ONCE:
                self._execute(request, len(received[0]))
                if len(received) == 1:
                    return
                received = received[1:]
        now_s = self._loop.time()
        for frame in received:
            if len(frame) < frames.REQUEST_HEADER_SIZE_BYTES - frames.LENGTH_SIZE_BYTES:
                frames.parse_request(memoryview(frame))  # raises
            self._queue.append((frame, now_s))
            self.queued_bytes += len(frame)
            self._context.server.request_budget.add(len(frame))
        self._watch_queue()
        self._go_on()

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
        self._go_on()

    def expire_in(self, wait_s: float) -> float:
        """The deadline of a call that begins to wait now; it is told when that has passed.

        One timer for all calls: setting and cancelling one for each takes as long as sending its answer.
        """
        deadline_s = self._loop.time() + wait_s
        if deadline_s < self._timer_at_s and not self._closed:
            self._set_timer(deadline_s)
        return deadline_s

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at_s = self._loop.call_at(at_s, self._expire_calls), at_s

    def _expire_calls(self) -> None:
        self._timer, self._timer_at_s = None, math.inf
        late_s = self._loop.time() + _EXPIRY_S_MIN
        for call in sorted(self._open, key=_DEADLINE):
            if call.deadline_s > late_s:
                break
            call.expire()
        first_s = min(map(_DEADLINE, self._open), default=math.inf)
        if first_s < self._timer_at_s:
            self._set_timer(first_s)

    def answer(self, call: Call, frame: list[Part]) -> None:
        """Send a call's frame."""
        self._open.pop(call, None)
        if not self._closed:
            self._send(frame)

    def hurry(self) -> None:
        """The server stops: answer at once what only waits for something to happen."""
        for call in list(self._open):
            call.hurry()

    def close(self) -> None:
        """The connection is gone: drop everything that has not begun or waits. A running request runs to its end."""
        self._closed = True
        for call in list(self._open):
            call.abandon()
        self._open.clear()
        self._gate.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop_queue()

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

    def _go_on(self) -> None:
        """Wait for a turn if there is something to execute."""
        if self._queue and not self._blocked and not self._waits_for_turn:
            self._waits_for_turn = True
            self._turns.wait(self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        if not self._queue or self._blocked:
            return
        if not self._context.is_connected():
            # Nobody waits for the answers; the transport learns of it once it has read what came before the end.
            self._drop_queue()
            return
        self._execute_next()
        self._go_on()
        self._has_less()

    def _next_is_at_once(self) -> bool:
        if not self._queue or self._blocked or not self._is_light:
            return False
        return frames.parse_request(memoryview(self._queue[0][0])).api_key in _AT_ONCE

    def _execute_next(self) -> None:
        frame = self._unqueue()
        self._execute(frames.parse_request(memoryview(frame)), len(frame))

    def _unqueue(self) -> frames.Frame:
        frame, _ = self._queue.popleft()
        self.queued_bytes -= len(frame)
        self._context.server.request_budget.release(len(frame))
        return frame

    def _drop_queue(self) -> None:
        while self._queue:
            self._unqueue()
        if self._queue_timer is not None:
            self._queue_timer.cancel()
            self._queue_timer = None

    def _watch_queue(self) -> None:
        """One timer for all that waits: what came first is late first."""
        if self._queue and self._queue_timer is None:
            self._queue_timer = self._loop.call_at(self._queue[0][1] + self._wait_s_max, self._expire_queue)

    def _expire_queue(self) -> None:
        self._queue_timer = None
        late_s = self._loop.time() - self._wait_s_max + _EXPIRY_S_MIN
        while self._queue and self._queue[0][1] <= late_s:
            # It is never executed after that.
            frame = self._unqueue()
            call = Call(self, frames.parse_request(memoryview(frame)), len(frame))
            call.fail(TimeoutError("The server did not begin this request within its time limit; try again."))
        self._watch_queue()

    def _execute(self, request: frames.Request, size_bytes: int) -> None:
        call = Call(self, request, size_bytes)
        self._open[call] = None
        begin_s = clock.monotonic()
        try:
            handled = dispatch(self._context, request)
            if isinstance(handled, Coroutine):
                self._run(call, handled)
            else:
                self._settle(call, handled)
        except Exception as error:
            call.fail(error)
        self._is_light = clock.monotonic() - begin_s < _HEAVY_S

    def _settle(self, call: Call, handled: Answer | Deferred) -> None:
        if isinstance(handled, Answer):
            call.reply(handled)
        elif not self._closed and not call.answered:
            call.defer(handled, self._context.limits.request_wait_ms_max)

    def _run(self, call: Call, coroutine: Coroutine[Any, Any, Answer | Deferred]) -> None:
        # It may hold its request for a while.
        self._context.server.request_budget.add(call.size_bytes)
        call.arm(self._context.limits.request_wait_ms_max)
        self._running = asyncio.get_running_loop().create_task(coroutine)
        self._running.add_done_callback(lambda task: self._ran(call, task))

    def _ran(self, call: Call, task: asyncio.Task[Answer | Deferred]) -> None:
        self._running = None
        self._context.server.request_budget.release(call.size_bytes)
        if task.cancelled():
            call.fail(FlussError("The server stopped before this request was done."))
        elif (error := task.exception()) is not None:
            call.fail(error)
        else:
            self._settle(call, task.result())
        if not self._closed:
            if self._next_is_at_once():
                self._execute_next()
            self._go_on()
            self._has_less()
