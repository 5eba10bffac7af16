"""A child process that never outlives the test run."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

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
