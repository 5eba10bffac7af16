"""Child processes that never outlive the test run, this package's server among them; loopback ports, a small client."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

_DATABASE_EXISTS = 1004
_GET_METADATA = 1012
_REQUEST = struct.Struct(">ihhi")  # length, api key, api version, request id
_RESPONSE = struct.Struct(">iBi")  # length, type, request id
_SUCCESS = 0
_TIMEOUT_S = 5.0

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Fields = list[tuple[int, int | bytes]]


@dataclass(frozen=True)
class ProbedServers:
    """Servers as one of them lists them."""

    coordinators: int
    tablets: tuple[tuple[str, int], ...]


def probe_cluster(host: str, port: int) -> ProbedServers | None:
    """What the server at this address knows of its cluster; None when it does not answer, or not with success."""
    fields = _ask(host, port, _GET_METADATA, b"")
    if fields is None:
        return None
    tablets = tuple(_node_address(node) for node in _messages(fields, 2))
    return ProbedServers(coordinators=len(_messages(fields, 1)), tablets=tablets)


def has_leaders(host: str, port: int, database: str, table: str, partition: str | None = None) -> bool:
    """Whether the server at this address knows a leader for every bucket of a table, or of one partition of it."""
    path = _text(1, database) + _text(2, table)
    if partition is None:
        body, answers, buckets = _tagged(1, path), 3, 5
    else:
        body, answers, buckets = _tagged(2, path + _text(3, partition)), 4, 4
    response = _ask(host, port, _GET_METADATA, body)
    found = [bucket for answer in _messages(response or [], answers) for bucket in _messages(_parse(answer), buckets)]
    return bool(found) and all(any(number == 2 for number, _ in _parse(bucket)) for bucket in found)


def has_database(host: str, port: int, name: str) -> bool:
    """Whether the server at this address knows a database."""
    return (1, 1) in (_ask(host, port, _DATABASE_EXISTS, _text(1, name)) or [])


def _ask(host: str, port: int, api_key: int, body: bytes) -> Fields | None:
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            connection.sendall(_REQUEST.pack(8 + len(body), api_key, 0, 1) + body)
            length, kind, _ = _RESPONSE.unpack(_read(connection, _RESPONSE.size))
            payload = _read(connection, length - 5)
    except (OSError, EOFError):
        return None
    return list(_parse(payload)) if kind == _SUCCESS else None


def _read(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _parse(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers as int, everything else as bytes."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
        yield number, message[position : position + size]
        position += size


def _messages(fields: Iterable[tuple[int, int | bytes]], wanted: int) -> list[bytes]:
    return [value for number, value in fields if number == wanted and isinstance(value, bytes)]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _text(number: int, value: str) -> bytes:
    return _tagged(number, value.encode())


def _tagged(number: int, value: bytes) -> bytes:
    """A length-delimited field shorter than 16 KiB: names and paths."""
    size = len(value)
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | _BYTES]) + length + value


def _node_address(node: bytes) -> tuple[str, int]:
    fields = dict(_parse(node))
    host, port = fields[2], fields[3]
    assert isinstance(host, bytes)
    assert isinstance(port, int)
    return host.decode(), port


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
