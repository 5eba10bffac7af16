"""Simulated time, and threads of which one runs at a time: whose turn is next is drawn from a seed.

Each simulated thread is a thread of the system that waits for its baton. Whoever holds the baton runs on until it
waits for something, or passes a place where another may go on; then the next one is drawn from all that can run. So
what belongs to a thread, such as its running loop, is as it is outside, and programs run unchanged. Time passes a
little with each turn, and leaps to the next timer when nobody can run.

A process that is killed is never given the baton again. Its threads stay where they were until this process of the
system ends, with all that they hold.
"""

from __future__ import annotations

import _thread
import sys
import threading
import traceback
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

NS: Final = 1_000_000_000
_TURN_NS_MAX: Final = 20_000
_READ_NS: Final = 100  # between two looks at a clock
STACK_BYTES: Final = 512 << 10


class StuckError(Exception):
    """Nobody can ever run again."""


class Trace:
    """Everything that happens, in order, as one number; and as lines for a `sink`, to compare two runs."""

    def __init__(self, sink: Callable[[str], object] | None = None) -> None:
        self.value = 0
        self.count = 0
        self._sink = sink

    def add(self, *what: object) -> None:
        """Note a step, made of numbers, texts and bytes."""
        self.value = hash((self.value, what))
        self.count += 1
        if self._sink is not None:
            self._sink(f"{self.count} {what}\n")


class SimProcess:
    """What threads share, and lose together."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True
        self.failure: BaseException | None = None
        """What ended a thread of it that nobody waits for"""
        self.at_end: list[Callable[[], None]] = []
        """Called when it ends, however that comes"""


class SimThread(threading.Thread):
    """A thread that begins when it gets the baton."""

    def __init__(self, scheduler: Scheduler, process: SimProcess, name: str, run: Callable[[], object] | None) -> None:
        super().__init__(name=name, daemon=True)
        self.scheduler = scheduler
        self.process = process
        self.number = scheduler.number()
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ticket = 0
        """Of its present wait; a timer of an earlier one is void"""
        self.is_waiting = False
        self.is_over = False
        self.timed_out = False
        self.joiners: list[SimThread] = []
        self._work = run

    def start(self) -> None:
        """Let it run when its turn comes."""
        super().start()
        self.scheduler.begin(self)

    def run(self) -> None:
        self.baton.acquire()
        try:
            if self._work is not None:
                self._work()
        except SystemExit:
            pass
        except BaseException as error:
            if self.process.failure is None:
                self.process.failure = error
            traceback.print_exc(file=sys.stderr)
        self.scheduler.end(self)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is over."""
        scheduler = self.scheduler
        deadline_ns = scheduler.deadline_ns(timeout)
        while not self.is_over:
            self.joiners.append(scheduler.current)
            if not scheduler.block(deadline_ns):
                return


class Scheduler:
    """Who runs, and what time it is. All is called by the thread that runs."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.chance = Random(seed)
        self.trace = trace
        self.now_ns = 0
        self.turns = 0
        self.preempt_share = 0.1
        """How often a thread loses its turn where it need not wait"""
        self.on_process: Callable[[SimProcess, SimProcess], None] | None = None
        """Called when a thread of another process goes on"""
        self._numbers = 0
        self._order = 0
        self._timers: list[tuple[int, int, Callable[[], None] | SimThread, int]] = []
        self._runnable: list[SimThread] = []
        self._frozen: SimProcess | None = None
        self._held: list[SimThread] = []
        """Of the frozen process: they could run"""
        self.current: SimThread = None  # type: ignore[assignment]  # `adopt` sets it
        self.main: SimThread = None  # type: ignore[assignment]
        self._is_stuck = False

    def adopt(self, process: SimProcess) -> None:
        """Make the calling thread the first of the simulated ones."""
        self.current = self.main = SimThread(self, process, "main", None)

    def number(self) -> int:
        """A number that nothing else has."""
        self._numbers += 1
        return self._numbers

    # --- time

    def seconds(self) -> float:
        """The time, as of a clock that nobody sets."""
        self.now_ns += _READ_NS
        return self.now_ns / NS

    def deadline_ns(self, timeout_s: float | None) -> int | None:
        """The moment in so many seconds, or none."""
        return None if timeout_s is None else self.now_ns + max(0, int(timeout_s * NS))

    def at(self, when_ns: int, call: Callable[[], None]) -> None:
        """Call a function at a time, whoever has the baton then; it must not wait."""
        self._order += 1
        heappush(self._timers, (max(when_ns, self.now_ns), self._order, call, 0))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call a function in so many seconds, as `at`."""
        self.at(self.now_ns + int(delay_s * NS), call)

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait."""
        if seconds <= 0:
            self.switch()
        else:
            self.block(self.deadline_ns(seconds))

    # --- turns

    def pause(self) -> None:
        """A place where the thread may lose its turn."""
        if self._runnable and self.chance.random() < self.preempt_share:
            self.switch()

    def switch(self) -> None:
        """Let others have their turn, if any can run."""
        me = self.current
        self._ready(me)
        self._hand_over(me, self._next())

    def block(self, until_ns: int | None = None) -> bool:
        """Wait until woken, or until a time; whether it was woken."""
        me = self.current
        me.ticket += 1
        me.is_waiting = True
        me.timed_out = False
        if until_ns is not None:
            self._order += 1
            heappush(self._timers, (max(until_ns, self.now_ns), self._order, me, me.ticket))
        self._hand_over(me, self._next())
        if self._is_stuck and me is self.main:
            raise StuckError("no thread can go on, and no timer is set")
        return not me.timed_out

    def wake(self, thread: SimThread) -> None:
        """Let a thread that is blocked run again."""
        if thread.is_waiting and thread.process.is_alive:
            thread.is_waiting = False
            self._ready(thread)

    def begin(self, thread: SimThread) -> None:
        """A thread was started."""
        if thread.process.is_alive:
            self._ready(thread)

    def freeze(self, process: SimProcess) -> None:
        """Let no thread of a process run for a while; one process at a time."""
        self.thaw()
        self._frozen = process
        self._held = [thread for thread in self._runnable if thread.process is process]
        self._runnable = [thread for thread in self._runnable if thread.process is not process]

    def thaw(self) -> None:
        """Let the frozen process go on."""
        self._frozen, held, self._held = None, self._held, []
        self._runnable += [thread for thread in held if thread.process.is_alive]

    def _ready(self, thread: SimThread) -> None:
        (self._held if thread.process is self._frozen else self._runnable).append(thread)

    def end(self, thread: SimThread) -> None:
        """The running thread is over; the system's thread stays, for its end would run beside the others."""
        thread.is_over = True
        for joiner in thread.joiners:
            self.wake(joiner)
        self._hand_over(thread, self._next())

    def kill(self, process: SimProcess) -> None:
        """Never let a thread of a process run again; does not return when the caller is one."""
        if not process.is_alive:
            return
        process.is_alive = False
        self.trace.add("kill", process.name)
        self._runnable = [thread for thread in self._runnable if thread.process is not process]
        for call in process.at_end:
            call()
        if self.current.process is process:
            self._hand_over(self.current, self._next())

    def _next(self) -> SimThread:
        self.turns += 1
        self.now_ns += int(self.chance.random() * _TURN_NS_MAX)
        self._fire()
        while not self._runnable:
            if not self._timers:
                # The main thread is told.
                self._is_stuck = True
                self.main.is_waiting = True
                self.wake(self.main)
                break
            self.now_ns = max(self.now_ns, self._timers[0][0])
            self._fire()
        count = len(self._runnable)
        thread = self._runnable.pop(int(self.chance.random() * count) if count > 1 else 0)
        self.trace.add(thread.number, self.now_ns)
        return thread

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now_ns:
            _, _, what, ticket = heappop(timers)
            if not isinstance(what, SimThread):
                what()
            elif what.is_waiting and what.ticket == ticket:
                what.timed_out = True
                self.wake(what)

    def _hand_over(self, me: SimThread, thread: SimThread) -> None:
        if thread is me:
            return
        if thread.process is not me.process and self.on_process is not None:
            self.on_process(me.process, thread.process)
        self.current = thread
        thread.baton.release()
        me.baton.acquire()
