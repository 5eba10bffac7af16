"""The server under test, with segments small enough that a short load rolls them many times."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fluss.testing import FlussServer
from fluss.testing.ports import LOOPBACK, parse_address
from fluss.testing.processes import ManagedProcess
from tests.crash.small_server import SEGMENT_BYTES_VARIABLE

SEGMENT_SIZE_BYTES = 16 << 10
_LAUNCHER = Path(__file__).with_name("small_server.py")
_READY_LINE = r"fluss server ready on (\S+:\d+)"


class SmallSegmentServer(FlussServer):
    """Started through a launcher of its own, because the server's settings have no segment size."""

    def __init__(
        self,
        data_dir: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
    ) -> None:
        super().__init__(data_dir, args=args, env=env)
        self._segment_size_bytes = segment_size_bytes

    def start(self) -> SmallSegmentServer:
        if self._process is not None and self._process.returncode is None:
            raise RuntimeError("the server is already running")
        place = ["--data-dir", str(self.data_dir), "--host", LOOPBACK, "--port", str(self.port)]
        self._process = ManagedProcess(
            "fluss server",
            [sys.executable, "-P", str(_LAUNCHER), *place, *self.args],
            log_file=self.log_file,
            env={"PYTHONUNBUFFERED": "1", SEGMENT_BYTES_VARIABLE: str(self._segment_size_bytes), **self.env},
        )
        try:
            ready = self._process.wait_for_line(_READY_LINE, self._startup_timeout_s)
        except BaseException:
            self._process.kill()
            raise
        self.port = parse_address(ready[1])[1]
        return self


def new_server(
    directory: Path, *, args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> SmallSegmentServer:
    """A server that is not started yet, its data below `directory`."""
    return SmallSegmentServer(directory / "data", args=args, env=env)
