"""This package's server as a subprocess that tests can kill."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fluss.testing.processes import LOOPBACK, ManagedProcess, ReservedPorts

_READY_LINE = r"fluss server ready on \S+:\d+"


class FlussServer:
    """`python -m fluss.server` on loopback, in its own process.

    With `port` 0 a free one is chosen at the first start and kept until the context ends: `restart()` uses it again, so
    that clients find the server, and nobody else gets it while the server is down.
    `args` are added to the command line (`["--durability", "os"]`), `env` to the environment.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        log_file: Path | None = None,
        startup_timeout_s: float = 30.0,
    ) -> None:
        self.data_dir = data_dir
        self.port = port
        self.args = tuple(args)
        self.env = dict(env or {})
        # Beside the data directory, not inside: what is in there belongs to the server alone.
        self.log_file = log_file or data_dir.with_name(data_dir.name + ".server.log")
        self._startup_timeout_s = startup_timeout_s
        self._process: ManagedProcess | None = None
        self._reserved: ReservedPorts | None = None

    @property
    def process(self) -> ManagedProcess:
        """The current process, or the last one after it stopped."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def bootstrap_servers(self) -> str:
        """The server's own address, also when it advertises another one."""
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> FlussServer:
        """Start the server and return when it says that it is ready."""
        if self._process is not None and self._process.returncode is None:
            raise RuntimeError("the server is already running")
        if self.port == 0:
            self._reserved = ReservedPorts(1)
            [self.port] = self._reserved.numbers
        place = ["--data-dir", str(self.data_dir), "--host", LOOPBACK, "--port", str(self.port)]
        self._process = ManagedProcess(
            "fluss server",
            [sys.executable, "-m", "fluss.server", *place, *self.args],
            log_file=self.log_file,
            env={"PYTHONUNBUFFERED": "1", **self.env},
        )
        try:
            self._process.wait_for_line(_READY_LINE, self._startup_timeout_s)
        except BaseException:
            self._process.kill()
            raise
        return self

    def kill(self) -> None:
        """Stop the server without warning, as a crash would."""
        self.process.kill()

    def terminate(self, timeout_s: float = 15.0) -> None:
        """Ask the server to stop; kill it when it has not within the limit."""
        self.process.terminate(timeout_s)

    def restart(self, *, graceful: bool = False, env: Mapping[str, str] | None = None) -> None:
        """Stop the server if it runs, start it on the same port and data; `env` replaces the extra environment."""
        if graceful:
            self.terminate()
        else:
            self.kill()
        if env is not None:
            self.env = dict(env)
        self.start()

    def __enter__(self) -> FlussServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
        if self._reserved is not None:
            self._reserved.close()
