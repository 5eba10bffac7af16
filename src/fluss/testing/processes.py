"""Child processes that never outlive the test run, and loopback ports for them."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

LOOPBACK = "127.0.0.1"

# Below the range systems hand out to outgoing connections: a port that is free now cannot be taken by a client socket
# between the check and the moment a server process binds it, nor while that server is down for a restart.
_PORT_MIN = 20_000
_PORT_MAX = 32_000
_ATTEMPTS_MAX = 500


def free_ports(count: int) -> list[int]:
    """`count` different ports that nothing listens on."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_ATTEMPTS_MAX):
            if len(found) == count:
                return found
            port = random.SystemRandom().randint(_PORT_MIN, _PORT_MAX)
            candidate = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # Held until all are found, so that no port is chosen twice.
            with contextlib.suppress(OSError):
                candidate.bind((LOOPBACK, port))
                found.append(port)
    raise OSError(f"found only {len(found)} of {count} free ports between {_PORT_MIN} and {_PORT_MAX}")


class ReservedPorts:
    """Free ports that no other program is given until `close`; a server of the test may listen on them.

    So a server finds its port again after a restart, whatever else runs on the machine. It takes a bound socket that
    does not listen, beside which Linux lets others listen that set SO_REUSEADDR, as servers do. Elsewhere the ports
    are free when this is made, and no more.
    """

    def __init__(self, count: int) -> None:
        sockets = [_bound_socket() for _ in range(count)] if sys.platform == "linux" else []
        self.numbers: list[int] = [held.getsockname()[1] for held in sockets] or free_ports(count)
        self.close = weakref.finalize(self, _close_all, sockets)


def _bound_socket() -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((LOOPBACK, 0))
    return held


def _close_all(sockets: list[socket.socket]) -> None:
    for held in sockets:
        held.close()


def parse_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise ValueError(f"not a HOST:PORT address: {address!r}")
    return host, int(port)


POLL_INTERVAL_S = 0.01
_TAIL_BYTES = 4_000

# Runs in a fresh interpreter that then becomes the wanted program under the same process id. A `preexec_fn` would do
# the same without the extra start, but it can deadlock in a process that has threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

_alive: weakref.WeakSet[ManagedProcess] = weakref.WeakSet()


class ProcessFailedError(RuntimeError):
    """A process did not start, stopped too early, or did not become ready; carries the tail of its output."""


class ManagedProcess:
    """One subprocess in its own session, its output in a file.

    It is killed when this process exits, and on Linux also when this process is killed. Linux counts the thread that
    started the child as its parent: start processes from a thread that lives as long as they should.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pipe: bool = False,
    ) -> None:
        """Start `command`. With `pipe`, stdin and stdout are pipes and only stderr goes to the file."""
        self.name = name
        self.log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log_file.stat().st_size if log_file.exists() else 0
        with log_file.open("ab") as log:
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(
                _bound_to_this_process(command),
                stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else log,
                stderr=log,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        _alive.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._popen.stdin is not None, "started without pipes"
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._popen.stdout is not None, "started without pipes"
        return self._popen.stdout

    @property
    def returncode(self) -> int | None:
        """The exit status, None while the process runs."""
        return self._popen.poll()

    def terminate(self, timeout_s: float = 15.0) -> None:
        """Ask the process to stop; kill it when it has not within the limit."""
        if self.returncode is None:
            self._popen.terminate()
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """Stop the process, and what it started in its session, at once."""
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                _close_quietly(stream)
        _alive.discard(self)

    def output(self) -> str:
        """What the process has written to its file since it started."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def failed(self, what: str) -> ProcessFailedError:
        """An error that names the process, the problem and the end of the output."""
        tail = self.output()[-_TAIL_BYTES:].rstrip() or "(no output)"
        status = "still running" if self.returncode is None else f"exit status {self.returncode}"
        return ProcessFailedError(f"{self.name} {what} ({status}); end of {self.log_file}:\n{tail}")

    def check_running(self) -> None:
        if self.returncode is not None:
            raise self.failed("stopped")

    def wait_for_line(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Wait until a whole line of output matches `pattern`."""
        deadline = time.monotonic() + timeout_s
        compiled = re.compile(pattern)
        while True:
            # Asked before the output is read: what a process wrote before it stopped still counts.
            stopped = self.returncode is not None
            for line in self.output().splitlines(keepends=True):
                if line.endswith("\n") and (match := compiled.fullmatch(line.rstrip("\r\n"))):
                    return match
            if stopped:
                raise self.failed("stopped before it was ready")
            if time.monotonic() > deadline:
                raise self.failed(f"was not ready within {timeout_s:g} s")
            time.sleep(POLL_INTERVAL_S)


def _bound_to_this_process(command: Sequence[str]) -> list[str]:
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def _close_quietly(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except OSError:
        pass  # Unsent input for a process that is gone.


@atexit.register
def _kill_all() -> None:
    for process in list(_alive):
        process.kill()
