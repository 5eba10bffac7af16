"""An event loop of asyncio in simulated time: when it has nothing to do, its thread gives the baton away."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Final

from fluss.testing.sim.scheduler import NS, Scheduler, SimThread

# A loop is woken a little after its timer is due, or it would look again and again before it is.
_LATE_NS: Final = 1_000


class SimLoop(asyncio.BaseEventLoop):
    """Has neither sockets nor signals. Transports of `network` call it as other threads do."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._selector = self
        self._waiting: SimThread | None = None

    def time(self) -> float:
        return self._scheduler.seconds()

    def select(self, timeout: float | None) -> tuple[()]:
        """What BaseEventLoop asks of a selector: wait for a while, or until woken."""
        scheduler = self._scheduler
        if timeout is not None and timeout <= 0:
            scheduler.switch()
        else:
            self._waiting = scheduler.current
            scheduler.block(None if timeout is None else scheduler.now_ns + int(timeout * NS) + _LATE_NS)
            self._waiting = None
        return ()

    def _process_events(self, _: object) -> None:
        pass

    def _write_to_self(self) -> None:
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        raise NotImplementedError(f"a simulated process gets no {signal.Signals(sig).name}")
