"""`python -m fluss.testing.sim --seconds 600 [--seed S]`: seeds one after another, each in a forked child."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import fcntl
import gc
import os
import pickle
import resource
import selectors
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

_NO_RANDOM_ADDRESSES: Final = 0x0040000
_ENVIRONMENT: Final = {
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
}
_SEED_S_MAX: Final = 300
_FEWER_CALLS: Final = (3, 8, 20)
# Of a run's failing seeds the first few are made smaller.
_SHRUNK_MAX: Final = 3


def main() -> None:
    """Run seeds until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m fluss.testing.sim", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="the first seed, or with --count 1 the only one")
    parser.add_argument("--count", type=int, help="how many seeds; without, as many as the time allows")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trace", type=Path, help="write each step of a seed to DIRECTORY/SEED")
    parser.add_argument("--calls", type=int, default=40, help="how many calls each client makes")
    parser.add_argument("--mutant", help="run with a planted bug, until a seed fails; 'all': each of them")
    parser.add_argument("--hashes", action="store_true", help="print each seed's trace hash")
    arguments = parser.parse_args()
    _same_addresses()
    _warm_up()
    if arguments.mutant is None:
        sys.exit(_Runs(arguments).go())
    sys.exit(_hunt(arguments))


def _hunt(arguments: argparse.Namespace) -> int:
    """Run with planted bugs; how many were not found."""
    from fluss.testing.sim.mutants import MUTANTS

    missed = []
    for name in MUTANTS if arguments.mutant == "all" else [arguments.mutant]:
        began_s = time.monotonic()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            MUTANTS[name]()
            os._exit(_Runs(arguments, is_hunt=True).go())
        _, status = os.waitpid(pid, 0)
        found = os.waitstatus_to_exitcode(status) == 1
        print(f"{name}: {'found' if found else 'NOT FOUND'} after {time.monotonic() - began_s:.1f} s", flush=True)
        missed += [] if found else [name]
    return len(missed)


def _same_addresses() -> None:
    """Begin anew with the same hashes, and the same addresses of objects, for each run."""
    if os.environ.get("FLUSS_SIM") == "1":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "personality"):
        libc.personality(_NO_RANDOM_ADDRESSES)
    command = [sys.executable, "-m", "fluss.testing.sim", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **_ENVIRONMENT, "FLUSS_SIM": "1"})


def _warm_up() -> None:
    import pyarrow as pa

    import fluss.testing.sim.runs  # noqa: F401  # and all that it uses

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    gc.collect()
    gc.freeze()
    gc.disable()


class _Runs:
    """Children, each with a seed, as many at a time as there are workers."""

    def __init__(self, arguments: argparse.Namespace, *, is_hunt: bool = False) -> None:
        self._arguments = arguments
        self._is_hunt = is_hunt
        self._selector = selectors.DefaultSelector()
        self._next = arguments.seed if arguments.seed is not None else int(time.time()) * 1000
        self._left = arguments.count
        self._end_s = time.monotonic() + arguments.seconds
        self._failed: list[int] = []
        self._faults: Counter[str] = Counter()
        self._points: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()

    def go(self) -> int:
        """Run until the end; how the process ends."""
        began_s = time.monotonic()
        running = 0
        while True:
            while running < self._arguments.workers and self._may_begin():
                self._begin()
                running += 1
            if not running:
                break
            for key, _ in self._selector.select():
                running -= self._read(key)
        if not self._is_hunt:
            self._say(time.monotonic() - began_s)
        return 1 if self._failed else 0

    def _may_begin(self) -> bool:
        is_found = self._is_hunt and bool(self._failed)
        return time.monotonic() < self._end_s and self._left != 0 and not is_found

    def _begin(self) -> None:
        seed, self._next = self._next, self._next + 1
        if self._left is not None:
            self._left -= 1
        read, write = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.close(read)
            _child(seed, write, self._arguments.calls, self._arguments.trace)
        os.close(write)
        self._selector.register(read, selectors.EVENT_READ, (seed, pid, bytearray()))

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Take what a child says; whether it has ended."""
        said: bytearray
        seed, pid, said = key.data
        data = os.read(key.fd, 1 << 16)
        if data:
            said += data
            return False
        self._selector.unregister(key.fd)
        os.close(key.fd)
        _, status = os.waitpid(pid, 0)
        if not said:
            self._fail(seed, f"it ended with status {status}, or took longer than {_SEED_S_MAX} s")
            return True
        outcome = pickle.loads(said)
        if self._arguments.hashes:
            print(f"seed {seed} trace {outcome.trace & (1 << 64) - 1:016x} of {outcome.steps} steps", flush=True)
        if outcome.problem:
            self._fail(seed, outcome.problem)
        self._faults += outcome.faults
        self._points += outcome.points
        for name in ("calls", "operations", "kills", "power_losses", "simulated_s", "turns", "steps"):
            self._sums[name] += getattr(outcome, name)
        self._sums["seeds"] += 1
        return True

    def _fail(self, seed: int, problem: str) -> None:
        self._failed.append(seed)
        if self._is_hunt:
            print(f"seed {seed}: {problem[:300]}", flush=True)
            return
        print(f"seed {seed} failed: {problem}", flush=True)
        print(f"replay with: python -m fluss.testing.sim --seed {seed} --count 1{self._shrunk(seed)}", flush=True)

    def _shrunk(self, seed: int) -> str:
        """With how few calls of each client a seed still fails."""
        for calls in _FEWER_CALLS:
            if calls < self._arguments.calls and len(self._failed) <= _SHRUNK_MAX:
                read, write = os.pipe()
                pid = os.fork()
                if not pid:
                    os.close(read)
                    _child(seed, write, calls, None)
                os.close(write)
                with open(read, "rb") as said:
                    data = said.read()
                os.waitpid(pid, 0)
                if not data or pickle.loads(data).problem:
                    return f" --calls {calls}"
        return ""

    def _say(self, seconds: float) -> None:
        from fluss.storage.failpoints import NAMES

        sums = self._sums
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime
        print(
            f"{sums['seeds']} seeds in {seconds:.0f} s: {sums['operations']} operations in {sums['calls']} calls "
            f"({sums['operations'] / seconds:.0f} a second, {sums['operations'] / cpu_s:.0f} a second of a core), "
            f"{sums['kills']} kills and {sums['power_losses']} power losses with recovery, "
            f"{sums['simulated_s'] / 3600:.1f} simulated hours, {sums['turns']} turns, {len(self._failed)} failed"
        )
        print("faults: " + ", ".join(f"{name} {number}" for name, number in sorted(self._faults.items())))
        passed = [name for name in NAMES if self._points[name]]
        print(f"fail points passed: {len(passed)} of {len(NAMES)}")
        if len(passed) > len(NAMES) // 2:
            print("not passed: " + ", ".join(name for name in NAMES if name not in passed))
        if self._failed:
            print("failed seeds: " + " ".join(map(str, self._failed)))


def _child(seed: int, write: int, calls: int, trace_to: Path | None) -> None:
    import traceback

    from fluss.testing.sim.runs import run
    from fluss.testing.sim.scheduler import Trace

    faulthandler.dump_traceback_later(_SEED_S_MAX, exit=True)
    status = 0
    try:
        sink = None
        if trace_to is not None:
            trace_to.mkdir(parents=True, exist_ok=True)
            sink = (trace_to / str(seed)).open("w").write
        base = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path("/tmp")
        # Messages have paths in them, so the same seed has the same directory; who else runs it waits.
        root = base / "fluss-sim" / str(seed)
        root.parent.mkdir(exist_ok=True)
        running = os.open(root.parent / "running", os.O_RDWR | os.O_CREAT)
        fcntl.lockf(running, fcntl.LOCK_EX, 1, seed)
        outcome = run(seed, root, Trace(sink), calls)
        data = pickle.dumps(outcome)
        while data:
            data = data[os.write(write, data) :]
        if sink is not None:
            sink.__self__.close()  # type: ignore[attr-defined]
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
