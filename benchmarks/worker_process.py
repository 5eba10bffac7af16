"""Client processes: a worker's script under the interpreter that has its client."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.environments import kafka_python, pyfluss_python
from tests.peers.jsonlines import JsonLinesProcess, PeerTimeoutError

import fluss
from fluss.testing import ProcessFailedError

_FOLDER = Path(__file__).parent
_CALL_TIMEOUT_S = 300.0
_EVENT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Interpreter:
    python: Path
    script: str
    client: str
    # An inherited one could put this project's `fluss` in front of the peer's.
    python_path: str = ""


def interpreter(client: str) -> Interpreter:
    if client == "flussbett":
        # The package that is imported here, not one that is installed elsewhere.
        return Interpreter(Path(sys.executable), "worker.py", "fluss.aio", str(Path(fluss.__file__).parents[1]))
    if client == "pyfluss":
        return Interpreter(pyfluss_python(), "worker.py", "fluss")
    return Interpreter(kafka_python(), "kafka_worker.py", client)


class WorkerProcess:
    """A worker, which a failure may end."""

    def __init__(self, of: Interpreter, *, log_file: Path) -> None:
        self._of = of
        self._log_file = log_file
        self._process: JsonLinesProcess | None = None
        self.revive()

    def revive(self) -> None:
        """Start it if it does not run. By the main thread: a process ends with the thread that started it."""
        if self._process is None:
            self._process = JsonLinesProcess(
                f"worker of {self._of.client}",
                [str(self._of.python), str(_FOLDER / self._of.script), self._of.client],
                log_file=self._log_file,
                env={"PYTHONPATH": self._of.python_path},
            )

    def call(self, command: str, **arguments: Any) -> Any:
        return self.call_within(_CALL_TIMEOUT_S, command, **arguments)

    def call_within(self, timeout_s: float, command: str, **arguments: Any) -> Any:
        assert self._process is not None, "the worker has ended"
        try:
            return self._process.call(command, timeout_s, **arguments)
        except (PeerTimeoutError, ProcessFailedError):
            self.kill()
            raise

    def wait_for(self, event: str) -> None:
        assert self._process is not None, "the worker has ended"
        self._process.take_events(event, 1, _EVENT_TIMEOUT_S)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
