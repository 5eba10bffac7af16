"""A process that takes commands and gives answers as JSON, one object per line."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fluss.testing.processes import ManagedProcess
from tests.peers.values import decode, encode

# A little longer than the driver waits: its own report says more than ours.
GRACE_S = 5.0


class PeerError(Exception):
    """A command failed inside the peer."""

    def __init__(self, kind: str, message: str, code: int | None) -> None:
        super().__init__(f"{kind}: {message}" + ("" if code is None else f" (code {code})"))
        self.kind = kind
        self.message = message
        self.code = code


class PeerTimeoutError(Exception):
    """The peer did not answer in time; it was killed, because what it would do next is unknown."""


class JsonLinesProcess:
    """Sends one command at a time and keeps the events that arrive meanwhile, by stream name."""

    def __init__(
        self, name: str, command: Sequence[str], *, log_file: Path, env: Mapping[str, str] | None = None
    ) -> None:
        # A killed process leaves its temporary files (pyfluss has a directory per scanner): in the test's own folder.
        env = {"TMPDIR": str(log_file.parent), **(env or {})}
        self._process = ManagedProcess(name, command, log_file=log_file, env=env, cwd=log_file.parent, pipe=True)
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: defaultdict[str, list[Any]] = defaultdict(list)
        self._ended = False
        self._last_id = 0
        self._reader = threading.Thread(target=self._read, name=f"{name}-reader", daemon=True)
        self._reader.start()

    def call(self, command: str, timeout_s: float, **arguments: Any) -> Any:
        """Run one command. The driver gets the limit too, so that it can name what hung."""
        self._last_id += 1
        message = {"id": self._last_id, "command": command, "timeout_s": timeout_s, **encode(arguments)}
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._process.failed(f"could not be sent {command!r}") from None
        answer = self._wait_for_answer(self._last_id, command, timeout_s + GRACE_S)
        if "error" in answer:
            error = answer["error"]
            raise PeerError(error["type"], error["message"], error.get("code"))
        return decode(answer["result"])

    def take_events(self, stream: str, count: int, timeout_s: float) -> list[Any]:
        """Wait for `count` events of a stream; returns all there are, in order, or raises."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while len(self._events[stream]) < count:
                remaining = deadline - time.monotonic()
                if self._ended:
                    raise self._process.failed(f"ended while {stream!r} was read")
                if remaining <= 0:
                    seen = len(self._events[stream])
                    raise PeerTimeoutError(f"{self._process.name}: {seen} of {count} events of {stream!r} arrived")
                self._changed.wait(remaining)
            return [decode(event) for event in self._events.pop(stream)]

    def kill(self) -> None:
        self._process.kill()
        self._reader.join()

    def _wait_for_answer(self, answer_id: int, command: str, timeout_s: float) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or answer_id in self._answers, timeout_s)
            if answer_id in self._answers:
                return self._answers.pop(answer_id)
            ended = self._ended
        if ended:
            raise self._process.failed(f"ended during {command!r}")
        failure = self._process.failed(f"did not answer {command!r} within {timeout_s:g} s")
        self.kill()
        raise PeerTimeoutError(str(failure))

    def _read(self) -> None:
        try:
            for line in self._process.stdout:
                message = json.loads(line)
                with self._changed:
                    if "event" in message:
                        self._events[message["event"]].extend(message["items"])
                    else:
                        self._answers[message["id"]] = message
                    self._changed.notify_all()
        except ValueError:
            pass  # Not JSON, or the pipe was closed under us: in both cases there is no more to understand.
        with self._changed:
            self._ended = True
            self._changed.notify_all()
