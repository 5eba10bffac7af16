"""What every worker has: commands as JSON lines, and clocks. Runs in several interpreters: standard library only."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Between two rows of the latency measurement, so that they meet a waiting reader at any point of its wait.
PAUSE_S = (0.005, 0.015)
_CPU_CLOCK_OF_PROCESS = 2


class Commands:
    """Each public coroutine method of a subclass is a command."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send

    async def memory_mb(self) -> float:
        """What this process has in memory now."""
        return resident_mb(os.getpid())


class Clock:
    """Wall and processor time of a block, the server's too. What the set-up left to the collector does not count."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid

    def __enter__(self) -> Clock:
        gc.collect()
        gc.freeze()
        self._start = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        self._end = self._now()
        gc.unfreeze()

    def figures(self) -> dict[str, float]:
        wall, client, server = (end - start for start, end in zip(self._start, self._end, strict=True))
        times = {"began": self._start[0], "ended": self._end[0], "seconds": wall}
        return {**times, "client_cpu_seconds": client, "server_cpu_seconds": server}

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), process_cpu_s(self._server_pid)


def process_cpu_s(pid: int) -> float:
    """Processor time of another process: what /proc/PID/stat has in ticks of 10 ms, from a finer clock of the same."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1e3


def serve(worker_class: Callable[[Callable[[dict[str, Any]], None]], Commands]) -> None:
    """Answer commands until the input ends."""
    asyncio.run(_serve(worker_class))


async def _serve(worker_class: Callable[[Callable[[dict[str, Any]], None]], Commands]) -> None:
    # What a library prints must not get between the answers.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")

    worker = worker_class(send)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        send(await _answer(worker, json.loads(line)))


async def _answer(worker: Commands, message: dict[str, Any]) -> dict[str, Any]:
    answer_id, timeout_s = message.pop("id"), message.pop("timeout_s")
    command = getattr(worker, message.pop("command"))
    try:
        return {"id": answer_id, "result": await asyncio.wait_for(command(**message), timeout_s)}
    except Exception as error:
        return {"id": answer_id, "error": {"type": type(error).__name__, "message": str(error)}}
