"""How long an unrelated client waits for answers while the server does something large for others.

`measure` runs one load beside the bystander, and then the control: the same bystander on an idle server while as much
processor time is burnt as the load's client and the server took. What the bystander waits longer than there is what
the server made it wait.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fluss.server.net.users import add_user
from fluss.testing import FlussServer
from tests.kit.bystander_loads import LOADS, PASSWORD, USER, Load, login_options
from tests.kit.child import start
from tests.kit.slow_sync import compiled_slow_sync
from tests.peers.jsonlines import JsonLinesProcess

EXCESS_P99_MS_MAX = 20.0
EXCESS_LONGEST_MS_MAX = 250.0
SLOW_DISK_LONGEST_MS_MAX = 1_000.0
LOGIN_LONGEST_MS_MAX = 1_000.0
SYNC_MS = 1_000
CONTROL_S_MIN = 3.0
CONTROL_S_MAX = 15.0
_QUIET_S = 2.0
_AFTERMATH_S = 1.0  # what a load leaves behind counts, too
_PREPARE_S_MAX = 600.0
_RUN_S_MAX = 300.0
_ANSWER_S_MAX = 180.0
_CPU_CLOCK_OF_PROCESS = 2


@dataclass(frozen=True)
class Waits:
    """Of all answers to the bystander, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    errors: int = 0

    @classmethod
    def of(cls, seconds: Sequence[float], errors: int = 0) -> Waits:
        ordered = sorted(seconds) or [0.0]
        last = len(ordered) - 1
        p50, p99 = (ordered[min(last, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.99))
        return cls(len(seconds), p50 * 1e3, p99 * 1e3, ordered[-1] * 1e3, errors)


@dataclass(frozen=True)
class Measured:
    """A load, what it did, and how long the bystander waited beside it and beside its control."""

    name: str
    title: str
    did: str
    seconds: float
    cores: float  # of client and server of the load
    waits: Waits
    control: Waits

    @property
    def excess_p99_ms(self) -> float:
        return max(0.0, self.waits.p99_ms - self.control.p99_ms)

    @property
    def excess_longest_ms(self) -> float:
        return max(0.0, self.waits.longest_ms - self.control.longest_ms)

    def problems(self) -> list[str]:
        """Which bounds are missed."""
        load, found = LOADS[self.name], []
        if self.did.startswith("FAILED"):
            found.append("the load failed")
        if load.seconds_max is not None and self.seconds > load.seconds_max:
            found.append(f"the load took more than {load.seconds_max:g} s")
        if self.waits.errors:
            found.append(f"{self.waits.errors} requests failed")
        if load.has_slow_syncs or load.question == "logins":
            bound = SLOW_DISK_LONGEST_MS_MAX if load.has_slow_syncs else LOGIN_LONGEST_MS_MAX
            return found + ([f"longest above {bound:g} ms"] if self.waits.longest_ms > bound else [])
        if self.excess_p99_ms > EXCESS_P99_MS_MAX:
            found.append(f"p99 more than {EXCESS_P99_MS_MAX:g} ms above the control")
        if self.excess_longest_ms > EXCESS_LONGEST_MS_MAX:
            found.append(f"longest more than {EXCESS_LONGEST_MS_MAX:g} ms above the control")
        return found


def measure(name: str, folder: Path, seconds: float) -> Measured:
    """Run a load and its control; the folder is made, and removed when all went well."""
    run = beside(name, folder, seconds, quiet_s=_QUIET_S)
    control_s = min(max(run.seconds, CONTROL_S_MIN), CONTROL_S_MAX)
    with Bench(LOADS[name], folder) as bench:
        control = bench.burn(run.cpu_shares, control_s)
    shutil.rmtree(folder)
    return Measured(name, LOADS[name].title, run.did, run.seconds, sum(run.cpu_shares), run.waits, control)


def beside(name: str, folder: Path, seconds: float, share: float = 1.0, quiet_s: float = 0.2) -> Run:
    """Run a load without its control; the folder is made, and removed when all went well."""
    with Bench(LOADS[name], folder) as bench:
        run = bench.run(name, seconds, share, quiet_s)
    shutil.rmtree(folder)
    return run


@dataclass(frozen=True)
class Run:
    """A load beside the bystander."""

    did: str
    seconds: float
    cpu_shares: tuple[float, ...]  # of cores: of the load's client, and of the server
    waits: Waits


class Bench:
    """A server, and the bystander's process."""

    def __init__(self, load: type[Load], folder: Path) -> None:
        self._load = load
        self._folder = folder
        folder.mkdir(parents=True)
        self.server = FlussServer(folder / "data", args=self._arguments())
        self._options = login_options() if load.has_logins else {}
        self._stack = ExitStack()

    def _arguments(self) -> list[str]:
        settings = self._folder / "fluss.toml"
        settings.write_text("".join(f'"{key}" = {value}\n' for key, value in self._load.settings.items()))
        arguments = ["--config", str(settings)]
        if self._load.has_logins:
            add_user(self._folder / "users", USER, PASSWORD)
            arguments += ["--sasl-users", str(self._folder / "users")]
        return arguments

    def __enter__(self) -> Bench:
        self._stack.enter_context(self.server)
        self._watch = self._stack.enter_context(_child("bystander_watch", self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin_to_watch(self) -> None:
        """Returns when the bystander has begun to ask."""
        arguments = {"address": self.server.bootstrap_servers, "options": self._options}
        self._watch.call("begin", _ANSWER_S_MAX, question=self._load.question, **arguments)

    def waits(self, began_s: float, ended_s: float) -> Waits:
        """Of the answers that were awaited at any moment between two times."""
        file = self._folder / "waits.json"
        errors = self._watch.call("stop", _ANSWER_S_MAX, file=str(file))
        taken = [wait for asked, wait in json.loads(file.read_text()) if asked + wait >= began_s and asked <= ended_s]
        return Waits.of(taken, len(errors))

    def run(self, name: str, seconds: float, share: float, quiet_s: float) -> Run:
        """Prepare a load, watch for a while what the bystander costs when it is alone, and then beside the load."""
        worker = self._stack.enter_context(_child("bystander_loads", self._folder))
        place = {"address": self.server.bootstrap_servers, "folder": str(self._folder)}
        table_id = worker.call("prepare", _PREPARE_S_MAX, name=name, share=share, **place)
        self._restart(table_id)
        self.begin_to_watch()
        cpu_s_each = self._cpu_s_of_an_answer(quiet_s)
        cpu_s, began_s = self._cpu_s(), time.monotonic()
        done = worker.call("run", _RUN_S_MAX, seconds=seconds)
        elapsed_s = time.monotonic() - began_s
        time.sleep(_AFTERMATH_S)
        waits = self.waits(began_s, time.monotonic())
        own_s = self._cpu_s() - cpu_s - cpu_s_each * waits.count
        window_s = elapsed_s + _AFTERMATH_S
        shares = (done["cpu_s"] / window_s, max(0.0, own_s / window_s))
        return Run(done["did"], elapsed_s, shares, waits)

    def _restart(self, table_id: int | None) -> None:
        if self._load.has_slow_syncs:
            slow = self.server.data_dir / "tables" / str(table_id)
            env = {"LD_PRELOAD": str(compiled_slow_sync(self._folder)), "SLOW_SYNC_FOLDER": f"{slow}/"}
            self.server.restart(graceful=True, env={**env, "SLOW_SYNC_MS": str(SYNC_MS)})
        elif self._load.is_restarted:
            self.server.restart()

    def burn(self, shares: Sequence[float], seconds: float) -> Waits:
        """The control: shares of cores are taken by processes that do nothing with them."""
        pieces = [share / parts for share in shares for parts in [max(1, math.ceil(share))] for _ in range(parts)]
        burners = [self._stack.enter_context(_child("bystander_loads", self._folder)) for _ in pieces]
        self.begin_to_watch()
        began_s = time.monotonic()
        with ThreadPoolExecutor(len(burners)) as executor:
            jobs = [
                executor.submit(burner.call, "burn", _RUN_S_MAX, share=piece, seconds=seconds)
                for burner, piece in zip(burners, pieces, strict=True)
            ]
            for job in jobs:
                job.result()
        return self.waits(began_s, time.monotonic())

    def _cpu_s_of_an_answer(self, quiet_s: float) -> float:
        """Of the server, while the bystander is alone."""
        answers, cpu_s = self._watch.call("count", _ANSWER_S_MAX), self._cpu_s()
        time.sleep(quiet_s)
        asked: int = self._watch.call("count", _ANSWER_S_MAX) - answers
        return (self._cpu_s() - cpu_s) / max(1, asked)

    def _cpu_s(self) -> float:
        return time.clock_gettime((~self.server.pid << 3) | _CPU_CLOCK_OF_PROCESS)


@contextmanager
def _child(module: str, folder: Path) -> Iterator[JsonLinesProcess]:
    process = start(f"tests.kit.{module}", log_file=folder / f"{module}-{os.urandom(3).hex()}.log")
    try:
        yield process
    finally:
        process.kill()
