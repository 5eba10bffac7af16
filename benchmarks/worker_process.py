"""A client process that runs `worker.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.peers.jsonlines import JsonLinesProcess

_WORKER = Path(__file__).with_name("worker.py")
_CALL_TIMEOUT_S = 180.0


class WorkerProcess:
    """`worker.py` under an interpreter, with the module it uses as its client."""

    def __init__(self, python: Path, client_module: str, *, log_file: Path) -> None:
        # An inherited PYTHONPATH could put this project's `fluss` in front of the peer's.
        self._process = JsonLinesProcess(
            f"worker of {client_module}",
            [str(python), str(_WORKER), client_module],
            log_file=log_file,
            env={"PYTHONPATH": ""},
        )

    def call(self, command: str, **arguments: Any) -> Any:
        return self._process.call(command, _CALL_TIMEOUT_S, **arguments)

    def wait_for(self, event: str) -> None:
        self._process.take_events(event, 1, _CALL_TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
