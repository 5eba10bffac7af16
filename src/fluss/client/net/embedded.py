"""Embedded servers: `file:///directory` starts or joins the server process of a directory, `memory:` a private one.

A client does not ask whether a server is alive, it tries: the endpoint file names a port and a secret, and whoever
answers there with that secret is the one. When that fails a server is started; if there is one after all, the new one
finds its lock taken and leaves, and the file is tried again.

The writer of the endpoint file chooses the server that gets a client's rows, so it is read only if nobody else can
have written it: it has to be a regular file of this user or of root that no other user can read or write, in a
directory of such an owner. Everything is asked of open descriptors, so nothing can be exchanged between two looks.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Final, NamedTuple, Protocol, Self

from fluss.client import runtime
from fluss.client.cluster.retry import Backoff
from fluss.doors import threads
from fluss.model.errors import ConnectError, FlussError, TimeoutError
from fluss.model.trust import (
    ENDPOINT_NAME,
    EXIT_TAKEN,
    FILE_SCHEME,
    LOG_NAME,
    MEMORY_SCHEME,
    Endpoint,
    directory_of,
)

SIZE_BYTES_MAX: Final = 4_096
_ROOT: Final = 0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
# A FIFO would keep whoever opens it, a link leads to somebody else's choice of a file.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def read_endpoint(directory: Path) -> Endpoint | None:
    """The endpoint that a directory's server has left; None if there is none, an error if it can't be trusted."""
    path = directory / ENDPOINT_NAME
    try:
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            data = _read(path, directory_fd)
        finally:
            os.close(directory_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _distrusted(path, "it is a symbolic link") from error
        raise ConnectError(
            f"{path} can't be read ({error.strerror}); does another user's server use this directory?"
        ) from error
    return Endpoint.from_bytes(data)


def _read(path: Path, directory_fd: int) -> bytes:
    fd = os.open(path.name, _FLAGS, dir_fd=directory_fd)
    try:
        _check(path, os.fstat(fd), os.fstat(directory_fd))
        return os.read(fd, SIZE_BYTES_MAX)
    finally:
        os.close(fd)


def _check(path: Path, found: os.stat_result, directory: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _distrusted(path, "it is not a regular file")
    user = os.geteuid()
    if found.st_uid not in (user, _ROOT):
        raise _distrusted(path, f"it belongs to user {found.st_uid}, and this process runs as user {user}")
    # Root uses directories of others, such as volumes of a container; what it finds there is its own nevertheless.
    if user != _ROOT and directory.st_uid not in (user, _ROOT):
        raise _distrusted(path, f"its directory belongs to user {directory.st_uid}, and this process runs as {user}")
    if found.st_mode & _OTHERS:
        raise _distrusted(path, f"other users can read or write it (mode {stat.S_IMODE(found.st_mode):03o}, not 600)")
    if found.st_size > SIZE_BYTES_MAX:
        raise _distrusted(path, f"it has {found.st_size} bytes, and {SIZE_BYTES_MAX} at most are expected")


def _distrusted(path: Path, reason: str) -> ConnectError:
    return ConnectError(
        f"{path} says where the server of this directory is, but can't be trusted: {reason}. Use a directory of your "
        "own, on a file system that keeps owners and modes; or, if no server uses this one, remove the file."
    )


START_S_MAX: Final = 60.0
EMBEDDED_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.005
_REASON_CHARACTERS_MAX: Final = 2_000


class EmbeddedServer(Protocol):
    """A server that this client may have to start."""

    async def find(self, failed: Endpoint | None) -> Endpoint:
        """The server's endpoint; `failed` is one that did not answer or did not take its secret."""


def embedded_server(address: str) -> EmbeddedServer | None:
    """The server that a bootstrap address starting with `file:` or `memory:` means; None for other addresses."""
    text = address.strip()
    if text.startswith(FILE_SCHEME):
        return _DirectoryServer(directory_of(text))
    if text.startswith(MEMORY_SCHEME):
        return _MemoryServer(text.removeprefix(MEMORY_SCHEME))
    return None


class _DirectoryServer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def find(self, failed: Endpoint | None) -> Endpoint:
        endpoint = self._endpoint(failed)
        if endpoint is not None:
            return endpoint
        backoff = Backoff(START_S_MAX * 1000)
        while True:
            with await runtime.in_worker(_Start, self._directory) as start:
                while start.running and not backoff.expired:
                    # Also another one's: then the server just started will find the lock taken.
                    endpoint = self._endpoint(failed)
                    if endpoint is not None:
                        return endpoint
                    await asyncio.sleep(_POLL_S)
                if not start.taken:
                    raise start.failure()
            # There is a server: it starts, leaves, or did not answer in time. So `failed` may be right after all.
            failed = None
            endpoint = self._endpoint(failed)
            if endpoint is not None:
                return endpoint
            if not await backoff.pause():
                raise _late(self._directory)

    def _endpoint(self, failed: Endpoint | None) -> Endpoint | None:
        """What the endpoint file says, unless that is known to be wrong."""
        endpoint = read_endpoint(self._directory)
        return None if endpoint is None or endpoint == failed or not _alive(endpoint.pid) else endpoint


class _Memory(NamedTuple):
    """A running memory server, and the pipe that keeps it: it ends with this process."""

    endpoint: Endpoint
    directory: Path
    lifeline: IO[bytes]


# By process, because a forked child has none of its parent's, and by name.
_memory: dict[tuple[int, str], asyncio.Task[_Memory]] = {}


class _MemoryServer:
    def __init__(self, name: str) -> None:
        self._name = name

    async def find(self, failed: Endpoint | None) -> Endpoint:
        key = (runtime.process_id, self._name)
        starting = _memory.get(key)
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception() is not None)):
            if failed is not None:
                raise self._ended()
            starting = _memory[key] = asyncio.ensure_future(_start_memory())
        # A caller that gives up leaves the start to the others.
        memory = await asyncio.shield(starting)
        if failed is None or (failed == memory.endpoint and _alive(failed.pid)):
            return memory.endpoint
        if failed == memory.endpoint:
            _memory.pop(key, None)
            _let_go(memory.lifeline)
            await runtime.in_worker(shutil.rmtree, memory.directory, True)
        raise self._ended()

    def _ended(self) -> FlussError:
        """The error when a memory server has ended. It is not started again unasked: it would be empty."""
        return FlussError(f"The server of {MEMORY_SCHEME}{self._name} has ended, and its tables with it.")


async def _start_memory() -> _Memory:
    directory = Path(await runtime.in_worker(tempfile.mkdtemp, None, "fluss-memory-"))
    with await runtime.in_worker(_Start, directory, True) as start:
        assert start.lifeline is not None
        # A forked child lets go of it as of a socket.
        runtime.register_socket(start.lifeline.fileno())
        backoff = Backoff(START_S_MAX * 1000)
        while start.running and not backoff.expired:
            endpoint = read_endpoint(directory)
            if endpoint is not None:
                return _Memory(endpoint, directory, start.lifeline)
            await asyncio.sleep(_POLL_S)
        _let_go(start.lifeline)
        raise start.failure()


def _let_go(lifeline: IO[bytes]) -> None:
    """Close a lifeline; its server ends, if it has not yet."""
    if not lifeline.closed:
        runtime.forget_socket(lifeline.fileno())
        lifeline.close()


class _Start:
    """A server process that was started; in a session of its own, with no descriptor but its output."""

    def __init__(self, directory: Path, memory: bool = False) -> None:
        if not sys.executable:
            raise ConnectError("An embedded server needs a Python interpreter, and sys.executable names none.")
        self._directory = directory
        # What it says before it has a log file of its own.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-P", "-m", "fluss.server.embedded", str(directory), *(["--memory"] * memory)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if memory else subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            cwd="/",
            env={**os.environ, "PYTHONPATH": _python_path()},
            start_new_session=True,
        )
        self.lifeline = self._process.stdin
        # Reaps it whenever it ends, which may be long after this object.
        threads.daemon(self._process.wait, name="fluss-embedded").start()

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def taken(self) -> bool:
        """Whether it ended because another embedded server has the directory."""
        return self._process.returncode == EXIT_TAKEN

    def failure(self) -> FlussError:
        """Why it ended, or that it takes too long."""
        if self.running:
            return _late(self._directory)
        self._output.seek(0)
        reason = _last_line(self._output) or f"it ended with status {self._process.returncode}"
        return ConnectError(
            f"No embedded server could be started on {self._directory}: {reason} (log: {self._directory / LOG_NAME})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.close()


def _late(directory: Path) -> TimeoutError:
    return TimeoutError(
        f"The embedded server of {directory} was not ready within {START_S_MAX:g} s; see {directory / LOG_NAME}."
    )


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1][-_REASON_CHARACTERS_MAX:] if lines else ""


def _python_path() -> str:
    """The search path of a child that must find this very package."""
    root = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH")
    return root if not given else given if root in given.split(os.pathsep) else f"{given}{os.pathsep}{root}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False  # it has ended; another user's process may have its number by now
    return True
