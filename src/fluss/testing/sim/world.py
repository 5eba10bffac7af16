"""Machines and processes, made of simulated parts: a server that starts, dies and starts again, and its clients.

A `World` replaces the doors for as long as its block lasts; the thread that opened it is the first simulated one. It is
meant for a process of the system that ends afterwards: threads of killed processes stay.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from fluss.client import runtime
from fluss.doors import clock, randomness, replaced, sockets, threads
from fluss.server.config import ServerConfig
from fluss.server.server import Server
from fluss.storage import failpoints, files
from fluss.storage.damage import scrub_files
from fluss.storage.failpoints import Site, Step
from fluss.storage.kv import engine
from fluss.testing.sim import waiting
from fluss.testing.sim.disk import SimDisk
from fluss.testing.sim.network import SimNetwork, Weather
from fluss.testing.sim.scheduler import STACK_BYTES, Scheduler, SimProcess, SimThread, Trace
from fluss.testing.sim.stores import MemoryStores, MemoryUsage
from fluss.testing.sim.waiting import SimCondition, SimEvent, SimLock, SimLoop, SimPool

SERVER_HOST: Final = "10.0.0.1"
SERVER_PORT: Final = 9123
ADDRESS: Final = f"{SERVER_HOST}:{SERVER_PORT}"
_EPOCH_NS: Final = 1_700_000_000 * 10**9
_BOOT_NS: Final = 10**12
_PID: Final = 4_242
START_S_MAX: Final = 300.0
_CALM: Final = Weather()


class FailPoints:
    """In the place of an armed fail point: passes each, counts it, and ends the server at one that was chosen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps_left = 0
        self._with_power = False
        self.passed: Counter[tuple[Site, Step]] = Counter()

    def arm(self, steps: int, *, power: bool) -> None:
        """End the server after so many steps; with `power`, its host."""
        self._steps_left, self._with_power = steps, power

    def disarm(self) -> None:
        self._steps_left = 0

    def due(self, site: Site, step: Step) -> bool:
        """Whether a torn write ends the server."""
        if self._steps_left == 1 and self._world.scheduler.chance.random() < 0.5:
            self.passed[site, step] += 1
            return True
        return False

    def fire(self) -> None:
        """End it."""
        self._steps_left = 0
        self._world.end_server(power=self._with_power)

    def hit(self, site: Site, step: Step) -> None:
        """Pass a step towards the disk."""
        scheduler = self._world.scheduler
        self.passed[site, step] += 1
        scheduler.trace.add(site.value, step.value)
        if self._steps_left:
            self._steps_left -= 1
            if not self._steps_left:
                self.fire()
        scheduler.pause()


class World:
    """One server's host, a network, and as many client processes as are made."""

    def __init__(
        self,
        seed: int,
        root: Path,
        trace: Trace,
        weather: Weather = _CALM,
        configure: Callable[[ServerConfig], ServerConfig] = lambda config: config,
    ) -> None:
        self.scheduler = Scheduler(seed, trace)
        self.chance = Random(f"{seed} faults")
        self.trace = trace
        self.nemesis = SimProcess("nemesis", "nowhere")
        self.scheduler.adopt(self.nemesis)
        self.scheduler.on_process = self._change_process
        self.network = SimNetwork(self.scheduler, weather)
        self.wall_offset_ns = 0
        self.disk = SimDisk(root / "data", self.scheduler, self.wall_ns)
        self.points = FailPoints(self)
        self.server: SimProcess | None = None
        self.server_down = SimEvent(self.scheduler)
        self.kills = self.power_losses = self.starts = 0
        self._lost_power = False
        self._boots = 1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: SimThread | None = None
        self._runtimes: dict[SimProcess, tuple[Any, Any]] = {}
        self._seed = seed
        self._stack = ExitStack()
        config = ServerConfig(root / "data", host=SERVER_HOST, port=SERVER_PORT, disk_free_bytes_min=0)
        # The scrubber knows RocksDB's files only.
        self.config = configure(replace(config, clock_settle_ms=0, scrub_bytes_per_second=0))

    def __enter__(self) -> Self:
        scheduler, network = self.scheduler, self.network
        # A collection would close coroutines of killed processes, whose `finally` blocks then run where nobody is.
        gc.disable()
        self._stack.callback(gc.enable)
        into = self._stack.enter_context
        into(replaced(clock, monotonic=scheduler.seconds, sleep=scheduler.sleep))
        into(replaced(clock, wall_ns=self.wall_ns, elapsed_ns=lambda: _BOOT_NS + scheduler.now_ns))
        secret = Random(f"{self._seed} secrets")
        into(replaced(randomness, chance=Random(f"{self._seed} chance"), token_bytes=secret.randbytes))
        into(replaced(threads, lock=partial(SimLock, scheduler), event=partial(SimEvent, scheduler)))
        into(replaced(threads, rlock=partial(SimLock, scheduler, is_reentrant=True)))
        into(replaced(threads, condition=partial(SimCondition, scheduler), pool=partial(SimPool, scheduler)))
        into(replaced(threads, result=partial(waiting.result, scheduler), wait=partial(waiting.wait, scheduler)))
        into(replaced(threads, to_thread=partial(waiting.to_thread, scheduler), daemon=self._daemon))
        into(replaced(threads, new_loop=partial(SimLoop, scheduler)))
        into(replaced(sockets, connect=network.connect, bind=network.bind, listen=network.listen))
        into(replaced(sockets, attach=network.attach, duplicate=network.attach))
        into(replaced(files, os=self.disk, boot_id=lambda: f"boot-{self._boots}".encode()))
        into(replaced(failpoints, armed=self.points))
        into(replaced(os, getpid=lambda: _PID))  # it is written down
        stores = MemoryStores(self.disk)
        into(replaced(engine, open_store=stores.open, Resources=MemoryUsage))
        into(replaced(scrub_files, database_damages=stores.damages))
        threading.stack_size(STACK_BYTES)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def wall_ns(self) -> int:
        """What the server's clock on the wall shows."""
        return _EPOCH_NS + self.wall_offset_ns + self.scheduler.now_ns

    # --- processes

    def process(self, name: str) -> SimProcess:
        """A process of clients, on a host of its own."""
        process = SimProcess(name, name)
        self._runtimes[process] = (None, SimLock(self.scheduler))
        return process

    def spawn(self, process: SimProcess, name: str, run: Callable[[], object]) -> SimThread:
        """Start a thread of a process."""
        thread = SimThread(self.scheduler, process, name, run)
        thread.start()
        return thread

    def spawn_loop(self, process: SimProcess, name: str, main: Callable[[], Coroutine[Any, Any, object]]) -> SimThread:
        """Start a thread of a process that runs an event loop of its own."""

        def run() -> None:
            with asyncio.Runner(loop_factory=threads.new_loop) as runner:
                runner.run(main())

        return self.spawn(process, name, run)

    def kill_process(self, process: SimProcess) -> None:
        """Kill a process of clients, from outside of it."""
        self.network.end_of(process)
        self.scheduler.kill(process)

    def _daemon(self, run: Callable[..., object], *args: object, name: str) -> threading.Thread:
        return SimThread(self.scheduler, self.scheduler.current.process, name, partial(run, *args))

    def _change_process(self, old: SimProcess, new: SimProcess) -> None:
        """Each process has a runtime of its own."""
        module = vars(runtime)
        if old in self._runtimes:
            self._runtimes[old] = (module["_current"], module["_lock"])
        if new in self._runtimes:
            module["_current"], module["_lock"] = self._runtimes[new]

    # --- the server

    def start_server(self) -> None:
        """Start the server's process, on the files that the last one has left."""
        assert self.server is None or not self.server.is_alive
        self.starts += 1
        self.trace.add("start", self.starts)
        self.server = process = SimProcess(f"server-{self.starts}", SERVER_HOST)
        self.server_down.clear()
        process.at_end.append(self.server_down.set)
        self._loop = None
        self._thread = self.spawn_loop(process, process.name, self._serve)

    async def _serve(self) -> None:
        server = Server(self.config)
        stop = asyncio.Event()
        await server.start()
        self._loop, self._stop = asyncio.get_running_loop(), stop
        self.trace.add("serving")
        await stop.wait()
        await server.stop()

    @property
    def is_serving(self) -> bool:
        """Whether the server has come up."""
        return self._loop is not None and self.server is not None and self.server.is_alive

    def await_server(self, timeout_s: float = START_S_MAX) -> bool:
        """Wait until the server serves, or does not run; whether it serves."""
        deadline_s = self.scheduler.seconds() + timeout_s
        while not self.is_serving and self.server is not None and self.server.is_alive:
            if self.server.failure is not None or self.scheduler.seconds() > deadline_s:
                return False
            self.scheduler.sleep(0.01)
        return self.is_serving

    def stop_server(self) -> None:
        """Stop it as a signal does, and wait for its end."""
        if self.is_serving and self._loop is not None and self._stop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._loop = None
        if self.server is not None and self.server.is_alive:
            self.network.end_of(self.server)
            self.scheduler.kill(self.server)
        self.disk.reopen()

    def end_server(self, *, power: bool) -> None:
        """Kill the server, or take its host's power. Does not return when a thread of it calls."""
        process = self.server
        if process is None or not process.is_alive:
            return
        self.points.disarm()
        self._lost_power = power
        self._loop = None
        if power:
            self.power_losses += 1
            self.network.power_off(SERVER_HOST)
        else:
            self.kills += 1
            self.network.end_of(process)
        self.scheduler.kill(process)

    def restart_server(self) -> None:
        """Start it again after its end, with what the disk has."""
        if self._lost_power:
            self._boots += 1
            self.disk.lose_power(self.chance)
            self.network.power_on(SERVER_HOST)
        else:
            self.disk.reopen()
        self._lost_power = False
        self.start_server()
