"""The process of an embedded server: `python -m fluss.server.embedded DIRECTORY [--memory]`, started by clients.

It takes a lock of its own before anything else, so that of many started at once all but one leave at once. Then it
serves the directory on loopback, tells where and with which secret in the endpoint file, and leaves when it has had no
connection for a while. With `--memory` it stays as long as its standard input is open, and removes the directory at the
end. The endpoint file is no part of the data: a crash at any moment leaves a stale one, and clients find out by trying.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss.doors import randomness, threads
from fluss.model.errors import FlussError
from fluss.model.trust import EMBEDDED_LOCK_NAME, EMBEDDED_USER, ENDPOINT_NAME, EXIT_TAKEN, LOG_NAME, Endpoint
from fluss.storage.directory import prepare, try_lock

if TYPE_CHECKING:
    from fluss.server.server import Server

_log = logging.getLogger(__name__)

IDLE_S: Final = 10.0
LOG_BYTES_MAX: Final = 1 << 20
_SECRET_BYTES: Final = 32
_WATCH_S: Final = 0.2
_NEVER_MS: Final = 2**53
_LOOPBACK: Final = "127.0.0.1"


def main() -> None:
    directory, memory = Path(sys.argv[1]), "--memory" in sys.argv[2:]
    # The client that started this reads its first words from here; later ones go to the log file.
    told = os.dup(2)
    try:
        prepare(directory)
        lock = try_lock(directory / EMBEDDED_LOCK_NAME)
        if lock is None:
            sys.exit(EXIT_TAKEN)
        _write_to_log(directory / LOG_NAME)
        _run(directory, memory, told)
    except Exception as error:
        if not isinstance(error, (FlussError, OSError)):
            traceback.print_exc()
            error = RuntimeError(f"unexpected {error!r}")
        for output in (told,) if os.path.sameopenfile(told, 2) else (told, 2):
            os.write(output, f"{error}\n".encode())
        sys.exit(1)
    finally:
        if memory:
            shutil.rmtree(directory, ignore_errors=True)


def _write_to_log(path: Path) -> None:
    """Send output to the log file; one that has grown large is put aside first."""
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        os.replace(path, path.with_name(path.name + ".old"))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    for output in (1, 2):
        os.dup2(fd, output)
    os.close(fd)


def _run(directory: Path, memory: bool, told: int) -> None:
    # Imported here: a process that does not get the lock is gone before these are loaded.
    from fluss.server.process import LOG_FORMAT, prepare_process

    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO, stream=sys.stderr)
    prepare_process()
    with asyncio.Runner(loop_factory=threads.new_loop) as runner:
        runner.run(_serve(directory, memory, told))


async def _serve(directory: Path, memory: bool, told: int) -> None:
    from fluss.server.config import ServerConfig
    from fluss.server.net.limits import Limits
    from fluss.server.net.logins import SharedSecret
    from fluss.server.process import confirm_clock_on_signal
    from fluss.server.server import Server
    from fluss.storage.allocator import exempt_from_collection

    secret = randomness.token_bytes(_SECRET_BYTES).hex()
    # Its clients' connections are what keeps it, however seldom they are used.
    limits = Limits(connection_idle_ms_max=_NEVER_MS)
    config = ServerConfig(directory, host=_LOOPBACK, port=0, durability="os" if memory else "fsync", limits=limits)
    server = Server(config, SharedSecret(EMBEDDED_USER, secret))
    await server.start()
    exempt_from_collection()
    confirm_clock_on_signal(server)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    path, endpoint = directory / ENDPOINT_NAME, Endpoint(os.getpid(), server.address.port, secret)
    try:
        _publish(path, endpoint)
        os.dup2(2, told, inheritable=False)
        if memory:
            loop.add_reader(0, _read_lifeline, stop)
            await stop.wait()
        else:
            await _idle(server, stop)
    finally:
        # First: a client that still finds the file is refused and looks again.
        _withdraw(path, endpoint)
        await server.stop()


def _publish(path: Path, endpoint: Endpoint) -> None:
    """Put the file in place in one step, readable for this user alone."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(endpoint.to_bytes())
    os.replace(temporary, path)


def _withdraw(path: Path, endpoint: Endpoint) -> None:
    """Remove the file, unless it is another server's: the directory may have been deleted and made again."""
    try:
        if Endpoint.from_bytes(path.read_bytes()) == endpoint:
            path.unlink()
    except FileNotFoundError:
        pass


def _read_lifeline(stop: asyncio.Event) -> None:
    """The client's process never writes: a readable lifeline means that it has ended."""
    if not os.read(0, 1):
        asyncio.get_running_loop().remove_reader(0)
        stop.set()


async def _idle(server: Server, stop: asyncio.Event) -> None:
    """Return when nobody was connected for a while, or when asked to stop."""
    loop = asyncio.get_running_loop()
    last_used_s = loop.time()
    while not stop.is_set() and loop.time() - last_used_s < IDLE_S:
        if server.connection_count:
            last_used_s = loop.time()
        try:
            await asyncio.wait_for(stop.wait(), _WATCH_S)
        except TimeoutError:
            pass
    _log.info("leaving: %s", "asked to stop" if stop.is_set() else f"no connection for {IDLE_S:g} s")


if __name__ == "__main__":
    main()
