"""The other end of `JsonLinesProcess`: a process whose object answers commands, one at a time."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.peers.jsonlines import JsonLinesProcess

_ROOT = Path(__file__).parents[2]


def start(module: str, *, log_file: Path) -> JsonLinesProcess:
    """Run `python -m MODULE`, which has to call `serve`."""
    env = {"PYTHONPATH": f"{_ROOT}{os.pathsep}{_ROOT / 'src'}"}
    return JsonLinesProcess(module, [sys.executable, "-m", module], log_file=log_file, env=env)


def serve(worker: object) -> None:
    """Each public method of the object is a command; ends with the input."""
    # What a library prints must not get between the answers.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        output.write(json.dumps(_answer(worker, json.loads(line))) + "\n")


def _answer(worker: object, message: dict[str, Any]) -> dict[str, Any]:
    answer_id, command = message.pop("id"), getattr(worker, message.pop("command"))
    del message["timeout_s"]  # The caller kills what takes longer.
    try:
        return {"id": answer_id, "result": command(**message)}
    except Exception as error:
        traceback.print_exc()
        return {"id": answer_id, "error": {"type": type(error).__name__, "message": str(error)}}
