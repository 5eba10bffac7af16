"""One seed from its begin to its end: a world, its faults, its clients, and the judgement."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from fluss.server.config import ServerConfig
from fluss.testing.sim.history import Fate
from fluss.testing.sim.network import Hop, Weather
from fluss.testing.sim.scheduler import NS, SimThread, StuckError, Trace
from fluss.testing.sim.tables import drawn_tables
from fluss.testing.sim.workload import SimWorkload, Sizes
from fluss.testing.sim.world import SERVER_HOST, World

_END_S_MAX: Final = 120.0
_RUN_S_MAX: Final = 600.0
CALLS: Final = 40


def _drawn_config(chance: Random, config: ServerConfig) -> ServerConfig:
    return replace(
        config,
        durability=chance.choice(("fsync", "fsync", "fsync", "os")),
        segment_size_bytes=chance.choice((2_000, 20_000, 1 << 30)),
        retention_interval_ms=1_000,
        kv_snapshot_interval_ms=chance.choice((500, 5_000, 600_000)),
        kv_open_stores_max=chance.choice((1, 64)),
        datalake_format="ICEBERG",
        datalake_iceberg={"type": "sql", "warehouse": "/lake"},
    )


@dataclass
class SeedOutcome:
    """What a seed has shown."""

    seed: int
    problem: str = ""
    trace: int = 0
    steps: int = 0
    calls: int = 0
    operations: int = 0
    kills: int = 0
    power_losses: int = 0
    simulated_s: float = 0.0
    turns: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)


class Nemesis:
    """Breaks things at random, and mends them."""

    def __init__(self, world: World, workload: SimWorkload, chance: Random) -> None:
        self._world = world
        self._workload = workload
        self._chance = chance
        self.counts: Counter[str] = Counter()
        ends = [self._kill, self._kill_at_step]
        if world.config.durability == "fsync":
            ends += [self._power, self._power_at_step]
        others = [
            self._restart,
            self._kill_client,
            self._cut_both,
            self._cut_one,
            self._reset,
            self._slow_disk,
            self._full_disk,
            self._disk_errors,
            self._read_errors,
            self._no_descriptors,
            self._freeze,
            self._slow_network,
            self._clock,
        ]
        # Ends of the server are what the most is to be learned from.
        self._kinds = [*chance.sample(others, chance.randint(1, len(others))), *chance.choices(ends, k=len(ends))]
        self.clients: list[SimThread] = []

    @property
    def moves_clock(self) -> bool:
        return self._clock in self._kinds

    @property
    def are_over(self) -> bool:
        """Whether no client goes on."""
        return all(thread.is_over or not thread.process.is_alive for thread in self.clients)

    def strike(self) -> None:
        """Break something, wait, and mend it."""
        self._chance.choice(self._kinds)()

    def heal(self) -> None:
        """Do what an operator does after the last fault: a log whose disk has failed takes no rows until a restart."""
        if self.counts["full disk"]:
            self._restart()

    def _note(self, name: str) -> None:
        self.counts[name] += 1
        self._world.trace.add(name)
        self._workload.history.fault(name)

    def _again(self) -> None:
        """Bring the server back after a while."""
        self._world.scheduler.sleep(self._chance.random() ** 3 * 5)
        self._world.restart_server()
        if not self._world.await_server():
            raise RuntimeError("the server does not come back")
        self._workload.history.fault("the server is back")

    def _kill(self) -> None:
        self._note("kill")
        self._world.end_server(power=False)
        self._again()

    def _power(self) -> None:
        self._note("power loss")
        self._world.end_server(power=True)
        self._again()

    def _kill_at_step(self) -> None:
        self._at_step("kill at a step", power=False)

    def _power_at_step(self) -> None:
        self._at_step("power loss at a step", power=True)

    def _at_step(self, name: str, *, power: bool) -> None:
        world = self._world
        world.points.arm(self._chance.randint(1, 200), power=power)
        if not world.server_down.wait(5):
            world.points.disarm()
        if world.server_down.is_set():
            self._note(name)
            if self._chance.random() < 0.5:
                # And once more while it recovers.
                world.scheduler.sleep(0.1)
                world.points.arm(self._chance.randint(1, 60), power=power)
                world.restart_server()
                if not world.server_down.wait(2):
                    world.points.disarm()
                    if world.await_server():
                        self._workload.history.fault("the server is back")
                        return
                self._note(f"{name} of recovery")
            self._again()

    def _kill_client(self) -> None:
        living = [thread for thread in self.clients if not thread.is_over and thread.process.is_alive]
        if not living:
            return
        self._note("kill of a client")
        thread = self._chance.choice(living)
        self._world.kill_process(thread.process)
        for call in self._workload.history.calls:
            if call.client == thread.name and call.ended is None:
                self._workload.end(call, fate=Fate.UNKNOWN, error="its process was killed")

    def _disk_errors(self) -> None:
        self._note("disk errors")
        faults = self._world.disk.faults
        share = self._chance.random() ** 2
        if self._chance.random() < 0.5:
            faults.sync_error_share = share
        else:
            faults.write_error_share = share
        self._world.scheduler.sleep(self._chance.random())
        faults.sync_error_share = faults.write_error_share = 0.0
        self._restart()

    def _restart(self) -> None:
        self._note("restart")
        self._world.stop_server()
        self._world.restart_server()
        if not self._world.await_server():
            raise RuntimeError("the server does not come back")
        self._workload.history.fault("the server is back")

    def _links(self) -> tuple[Hop, Hop]:
        host = f"host-{self._chance.choice('ab')}{self._chance.randrange(2)}"
        return Hop(host, SERVER_HOST), Hop(SERVER_HOST, host)

    def _cut_both(self) -> None:
        self._cut("partition", self._links())

    def _cut_one(self) -> None:
        self._cut("half-open", (self._chance.choice(self._links()),))

    def _cut(self, name: str, links: tuple[Hop, ...]) -> None:
        self._note(name)
        for link in links:
            self._world.network.cut(link)
        self._world.scheduler.sleep(self._chance.random() ** 2 * 20)
        for link in links:
            self._world.network.mend(link)
        self._workload.history.fault(f"{name} is over")

    def _reset(self) -> None:
        if self._world.network.reset_one():
            self._note("reset")

    def _slow_disk(self) -> None:
        self._note("slow disk")
        faults = self._world.disk.faults
        faults.slow_sync_share = self._chance.random()
        self._world.scheduler.sleep(self._chance.random() * 5)
        faults.slow_sync_share = 0.0
        self._workload.history.fault("the disk is quick again")

    def _full_disk(self) -> None:
        self._note("full disk")
        scheduler = self._world.scheduler
        wait_s = self._chance.random()
        self._world.disk.faults.full_until_s = scheduler.seconds() + wait_s
        scheduler.sleep(wait_s)
        self._workload.history.fault("the disk has room again")

    def _read_errors(self) -> None:
        self._note("read errors")
        faults = self._world.disk.faults
        faults.read_error_share = self._chance.random() ** 2
        self._world.scheduler.sleep(self._chance.random())
        faults.read_error_share = 0.0
        self._workload.history.fault("the disk can be read again")

    def _no_descriptors(self) -> None:
        self._note("no descriptors")
        scheduler = self._world.scheduler
        wait_s = self._chance.random()
        self._world.disk.faults.no_descriptors_until_s = scheduler.seconds() + wait_s
        scheduler.sleep(wait_s)
        self._workload.history.fault("there are descriptors again")

    def _freeze(self) -> None:
        living = [thread.process for thread in self.clients if not thread.is_over and thread.process.is_alive]
        process = self._chance.choice([*living, self._world.server or self._world.nemesis])
        self._note("freeze of a client" if process in living else "freeze of the server")
        scheduler = self._world.scheduler
        scheduler.freeze(process)
        scheduler.sleep(self._chance.random() ** 3 * 30)
        scheduler.thaw()
        self._workload.history.fault("nobody is frozen")

    def _slow_network(self) -> None:
        self._note("slow network")
        network = self._world.network
        usual, network.weather = network.weather, network.weather._replace(delay_s_max=1.0, bytes_per_s=1e5)
        self._world.scheduler.sleep(self._chance.random() * 5)
        network.weather = usual
        self._workload.history.fault("the network is quick again")

    def _clock(self) -> None:
        self._note("clock jump")
        self._world.wall_offset_ns += int(self._chance.choice((-1, 1)) * self._chance.random() * 3600e9)


def run(seed: int, root: Path, trace: Trace, calls: int = CALLS) -> SeedOutcome:
    """Do everything that a seed says, in a directory that is made and removed; `calls` of each client."""
    chance = Random(f"{seed} run")
    outcome = SeedOutcome(seed)
    weather = Weather(delay_s_max=chance.choice((0.0005, 0.005, 0.05)), pieces_share=chance.choice((0.0, 0.1, 0.5)))
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    errors = _LogErrors()
    logging.getLogger().addHandler(errors)
    with World(seed, root, trace, weather, partial(_drawn_config, chance)) as world:
        world.scheduler.preempt_share = chance.choice((0.0, 0.05, 0.3))
        options = {
            "request_timeout_ms": chance.choice((1_000, 5_000, 30_000)),
            "close_timeout_ms": chance.choice((50, 1_000, 30_000)),
            "writer_buffer_memory_size": chance.choice((2_000, 64 << 20)),
            "writer_batch_timeout_ms": chance.choice((0, 100)),
        }
        sizes = Sizes(
            calls=calls,
            keys=chance.choice((3, 12, 40)),
            rows_max=chance.choice((1, 20, 200)),
            pause_s_max=chance.choice((0.0, 0.01, 0.1)),
        )
        workload = SimWorkload(world, seed, drawn_tables(chance), sizes, options)
        nemesis = Nemesis(world, workload, chance)
        workload.keeps_brief = not nemesis.moves_clock
        try:
            outcome.problem = _play(world, workload, nemesis, chance)
        except StuckError as error:
            outcome.problem = f"{error}"
        except Exception as error:
            logging.getLogger(__name__).exception("the run itself failed")
            outcome.problem = f"{type(error).__name__}: {error}"
            if world.server is not None and world.server.failure is not None:
                outcome.problem += f": {world.server.failure!r}"
        outcome.problem = outcome.problem or "\n".join(errors.found)
        outcome.trace, outcome.steps = trace.value, trace.count
        outcome.calls, outcome.operations = len(workload.history.calls), workload.operations
        outcome.kills, outcome.power_losses = world.kills, world.power_losses
        outcome.simulated_s = world.scheduler.now_ns / 1e9
        outcome.turns = world.scheduler.turns
        outcome.faults = nemesis.counts + Counter(world.disk.faults.counts)
        outcome.points = Counter({f"{site}.{step}": number for (site, step), number in world.points.passed.items()})
    shutil.rmtree(root, ignore_errors=True)
    return outcome


def _play(world: World, workload: SimWorkload, nemesis: Nemesis, chance: Random) -> str:
    world.start_server()
    if not world.await_server():
        return "the server did not start"
    made = _in_client(world, "setup", workload.set_up)
    if made.process.failure is not None:
        return f"the tables could not be made: {made.process.failure}"
    nemesis.clients = workload.spawn(chance.randint(1, 4), chance.randint(0, 2))
    while not nemesis.are_over and world.scheduler.now_ns < _RUN_S_MAX * NS:
        world.scheduler.sleep(chance.random() * chance.choice((0.1, 1.0, 3.0)))
        if not nemesis.are_over:
            nemesis.strike()
    nemesis.heal()
    workload.history.fault("the last one")
    for thread in nemesis.clients:
        if thread.process.is_alive:
            thread.join(_END_S_MAX)
            if not thread.is_over:
                return f"{thread.name} does not end:\n{workload.history.text(workload.history.calls[-20:])}"
        if thread.process.failure is not None:
            return f"{thread.name}: {thread.process.failure!r}"
    look = _in_client(world, "last look", workload.last_look)
    if look.process.failure is not None or not look.is_over:
        return f"the last look failed: {look.process.failure!r}"
    world.stop_server()
    return workload.judge()


def _in_client(world: World, name: str, work: Any) -> SimThread:
    process = world.process(f"host-{name}")
    thread = world.spawn(process, name, work)
    thread.join(_END_S_MAX)
    return thread


class _LogErrors(logging.Handler):
    """Errors that nobody was told of: what asyncio says of tasks and callbacks."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "asyncio":
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            self.found.append(text)
