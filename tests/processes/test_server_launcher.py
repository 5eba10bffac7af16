from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from fluss.testing import FlussServer, ProcessFailedError
from fluss.testing.processes import parse_address, probe_cluster


def test_starts_and_answers_then_restarts_on_the_same_port_after_a_kill(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        host, port = parse_address(server.bootstrap_servers)
        cluster = probe_cluster(host, port)
        assert cluster is not None
        assert (cluster.coordinators, cluster.tablets) == (1, ((host, port),))
        first_pid = server.pid
        server.kill()
        assert server.process.returncode == -signal.SIGKILL
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))
        server.restart()
        assert server.pid != first_pid
        assert server.port == port
        assert probe_cluster(host, port) == cluster


def test_terminate_is_a_clean_exit(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        server.terminate()
        assert server.process.returncode == 0


def test_the_advertised_address_is_what_clients_are_told(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data", args=["--advertise", "127.0.0.1:1234"]) as server:
        cluster = probe_cluster(*parse_address(server.bootstrap_servers))
        assert cluster is not None
        assert cluster.tablets == (("127.0.0.1", 1234),)


def test_a_server_that_does_not_start_is_reported_with_its_output(tmp_path: Path) -> None:
    server = FlussServer(tmp_path / "data", args=["--no-such-option"])
    with pytest.raises(ProcessFailedError, match="no-such-option"):
        server.start()
