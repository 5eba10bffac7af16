"""Spark drivers in processes of their own, one after the other on the same checkpoints, to be killed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from fluss.testing.processes import ManagedProcess

MOVE_S_MAX: Final = 240.0
DRAIN_S_MAX: Final = 240.0
DRAINS_MAX: Final = 5


class Drivers:
    """One driver at a time. Its module gets a plan as JSON, and ends when it has caught up if that says "drain"."""

    def __init__(self, module: str, plan: dict[str, Any], folder: Path) -> None:
        self._module = module
        self._folder = folder
        self._plan = {**plan, "checkpoints": str(folder / "checkpoints")}
        self._process: ManagedProcess | None = None
        self.failures: list[str] = []
        """What drivers have said that ended by themselves"""

    def start(self, *, drain: bool = False) -> ManagedProcess:
        plan = json.dumps({**self._plan, "drain": drain})
        command = [sys.executable, "-m", self._module, plan]
        self._process = ManagedProcess("driver", command, log_file=self._folder / "driver.log")
        return self._process

    def ensure_running(self) -> ManagedProcess:
        """The driver; a new one if its queries have failed."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        self.kill()
        return self.start()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is not None:
                self.failures.append(process.output())
            process.kill()

    def drain(self) -> None:
        """Let the queries catch up and stop."""
        self.kill()
        for _ in range(DRAINS_MAX):
            process = self.start(drain=True)
            deadline = time.monotonic() + DRAIN_S_MAX
            while process.returncode is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if process.returncode == 0:
                self._process = None
                return
            if process.returncode is None:
                self.failures.append(str(process.failed("did not drain")))
            self.kill()
        raise process.failed("did not drain")

    def await_commits(self, count: int) -> None:
        """Let the queries move on by some micro-batches."""
        wanted = self._committed() + count
        deadline = time.monotonic() + MOVE_S_MAX
        while self._committed() < wanted:
            self.ensure_running()
            assert time.monotonic() < deadline, "the queries do not move on"
            time.sleep(0.05)

    def _committed(self) -> int:
        """How many micro-batches were committed, by all queries; of each Spark keeps the last hundred."""
        numbers = [
            [int(file.name) + 1 for file in path.glob("[0-9]*")]
            for path in (self._folder / "checkpoints").glob("*/commits")
        ]
        return sum(max(found, default=0) for found in numbers)
