"""An endpoint file that others may have written is not believed, and nothing is sent to whom it names."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fluss
import fluss.sync
from fluss.client.net import embedded
from fluss.client.net.embedded import SIZE_BYTES_MAX, read_endpoint
from fluss.model.trust import ENDPOINT_NAME, Endpoint

NOBODY = 65_534
ENDPOINT = Endpoint(os.getpid(), 1_234, "s3cret")
Plant = Callable[[Path], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / ENDPOINT_NAME
    found.write_bytes(ENDPOINT.to_bytes())
    found.chmod(0o600)
    return found


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let a file belong to another user: really, as root does; otherwise as if the system said so."""
    given: set[tuple[int, int]] = set()
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        fields = list(found)
        if (found.st_dev, found.st_ino) in given:
            fields[4] = NOBODY  # st_uid
        return os.stat_result(fields)

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, NOBODY, -1)
        else:
            found = path.stat()
            given.add((found.st_dev, found.st_ino))
            monkeypatch.setattr(embedded.os, "fstat", fstat)

    return give


def test_ones_own_is_believed(path: Path) -> None:
    assert read_endpoint(path.parent) == ENDPOINT
    path.chmod(0o400)
    assert read_endpoint(path.parent) == ENDPOINT


def test_none_is_none(tmp_path: Path) -> None:
    assert read_endpoint(tmp_path) is None
    assert read_endpoint(tmp_path / "not there") is None
    (tmp_path / "file").write_bytes(b"")
    assert read_endpoint(tmp_path / "file") is None


def test_another_users_is_not_believed(path: Path, give_away: Callable[[Path], None]) -> None:
    give_away(path)
    with pytest.raises(fluss.ConnectError, match=f"belongs to user {NOBODY}, and this process runs as user"):
        read_endpoint(path.parent)


def test_one_in_another_users_directory_is_not_believed(
    path: Path, give_away: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        # Root uses such directories; of an ordinary user neither the file nor the directory may be another's.
        give_away(path.parent)
        assert read_endpoint(path.parent) == ENDPOINT
        os.chown(path, 1_000, -1)
        monkeypatch.setattr(embedded.os, "geteuid", lambda: 1_000)
    else:
        give_away(path.parent)
    with pytest.raises(fluss.ConnectError, match=f"its directory belongs to user {NOBODY}"):
        read_endpoint(path.parent)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602, 0o666, 0o601])
def test_one_that_others_may_use_is_not_believed(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(fluss.ConnectError, match=rf"other users can read or write it \(mode {mode:o}, not 600\)"):
        read_endpoint(path.parent)


def _link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def _large(path: Path) -> None:
    path.write_bytes(ENDPOINT.to_bytes().ljust(SIZE_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (_link, "symbolic link"),
        (_fifo, "not a regular file"),
        (_directory, "not a regular file"),
        (_large, "4097 bytes, and 4096 at most"),
    ],
)
def test_what_is_no_plain_file_is_not_believed(path: Path, plant: Plant, reason: str) -> None:
    plant(path)
    with pytest.raises(fluss.ConnectError, match=reason) as raised:
        read_endpoint(path.parent)
    assert "Use a directory of your own" in str(raised.value)


@pytest.fixture
def stranger() -> Iterator[tuple[int, list[bytes]]]:
    """Somebody who listens for clients; what they send, from the moment they connect."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                heard.append(b"connected")
                with connection:
                    heard.append(connection.recv(1_000))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield listening.getsockname()[1], heard
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_client_sends_nothing_to_a_server_that_another_user_names(
    path: Path, give_away: Callable[[Path], None], stranger: tuple[int, list[bytes]]
) -> None:
    port, heard = stranger
    path.write_bytes(Endpoint(os.getpid(), port, "known to the stranger").to_bytes())
    give_away(path)
    with pytest.raises(fluss.ConnectError, match="can't be trusted"):
        fluss.sync.connect(f"file://{path.parent}", request_timeout_ms=5_000)
    assert not heard
