"""Guessing bots and strangers at the door: users come in at once, and strangers are gone after their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.users import add_user
from fluss.testing import FlussServer
from tests.kit.descriptors import allow_files
from tests.kit.thread_server import Wire, WireError

BOTS = 24
LOGIN_S_MAX = 1.0
LOGIN_S_MAX_BUSY = 5.0  # on a machine that runs other tests, too; behind a lock it would be longer
LOGIN_WAIT_MS = 3_000


@contextmanager
def guarded(tmp_path: Path, login_wait_ms: int = 30_000) -> Iterator[FlussServer]:
    for name in ("ada", "bob"):
        add_user(tmp_path / "users", name, f"password of {name}")
    settings = tmp_path / "fluss.toml"
    settings.write_text(f'sasl-users = "{tmp_path / "users"}"\n[limits]\nlogin_wait_ms_max = {login_wait_ms}\n')
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server:
        yield server


def log_in(wire: Wire, user: str, password: str) -> None:
    token = f"\0{user}\0{password}".encode()
    wire.call(api_keys.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=token))


def login_s(port: int, user: str) -> float:
    """How long a new connection and its right login take."""
    begin = time.monotonic()
    with Wire("127.0.0.1", port) as wire:
        log_in(wire, user, f"password of {user}")
        assert wire.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers
    return time.monotonic() - begin


class Bots:
    """They guess on, each as soon as it was refused; every other one on a new connection, without waiting for long."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.guesses = [0] * BOTS
        self._threads = [threading.Thread(target=self._guess, args=(number,), daemon=True) for number in range(BOTS)]

    def __enter__(self) -> Bots:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guess(self, number: int) -> None:
        is_hasty = bool(number % 2)
        while not self._stop.is_set():
            with suppress(OSError, EOFError), Wire("127.0.0.1", self._port) as wire:
                wire.socket.settimeout(0.05 if is_hasty else 6)
                while not self._stop.is_set():
                    self.guesses[number] += 1
                    with suppress(WireError):
                        log_in(wire, "ada", f"guess {number} {self.guesses[number]}")
                        raise AssertionError("a guess was right")


@pytest.mark.parametrize(
    ("logins", "s_max"), [(20, LOGIN_S_MAX_BUSY), pytest.param(200, LOGIN_S_MAX, marks=pytest.mark.full)]
)
def test_users_log_in_at_once_under_guessing_bots(tmp_path: Path, logins: int, s_max: float) -> None:
    with guarded(tmp_path) as server, Bots(server.port) as bots:
        while min(bots.guesses) < 2:
            time.sleep(0.01)
        # The first of each has to be checked beside the guesses; the bots guess at ada's password.
        took_s = [login_s(server.port, user) for _ in range(logins // 2) for user in ("ada", "bob")]
        assert len(took_s) == logins
        assert max(took_s) < s_max, sorted(took_s)[-5:]


@pytest.mark.parametrize("strangers", [300, pytest.param(4_200, marks=pytest.mark.full)])
def test_strangers_are_gone_after_their_time(tmp_path: Path, strangers: int) -> None:
    allow_files(2 * strangers)
    with guarded(tmp_path, LOGIN_WAIT_MS) as server, ExitStack() as stack:
        files = psutil.Process(server.pid).num_fds()
        user = stack.enter_context(Wire("127.0.0.1", server.port))
        log_in(user, "ada", "password of ada")
        wires = [stack.enter_context(Wire("127.0.0.1", server.port)) for _ in range(strangers)]
        # Above the limit of an address, too, users come in.
        assert login_s(server.port, "bob") < LOGIN_S_MAX_BUSY
        for wire in wires:
            assert wire.is_closed_by_server()
        assert user.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers
        deadline = time.monotonic() + 10
        while psutil.Process(server.pid).num_fds() > files + 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
