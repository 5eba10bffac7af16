"""The server as a process: start, refusals with one clear line, signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.testing.processes import FlussServer
from tests.kit.kv_requests import create_kv_table
from tests.kit.thread_server import Wire, batch, create_table, fetch, fetch_request, produce

LOADED_LATER_MAX = 10_000  # objects; all that is loaded has more than 50,000

COMMANDS = {
    "fluss server": [sys.executable, "-m", "fluss", "server"],
    "python -m fluss.server": [sys.executable, "-m", "fluss.server"],
}


def run_server(*args: str, command: str = "python -m fluss.server") -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to refuse to start."""
    return subprocess.run([*COMMANDS[command], *args], capture_output=True, text=True, timeout=60, check=False)


def assert_refused(done: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for text in texts:
        assert text in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_serve_and_clean_stop(tmp_path: Path, command: str, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMANDS[command], "--data-dir", str(tmp_path / "new" / "data"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("fluss server ready on 127.0.0.1:")
    with Wire("127.0.0.1", int(line.rpartition(":")[2])) as wire:
        table_id = create_table(wire)
        produce(wire, table_id, batch())
        wire.send(api_keys.FETCH_LOG, fetch_request(table_id, (0, 3), max_wait_ms=30_000, min_bytes=1))
        begin = time.monotonic()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)
        assert time.monotonic() - begin < 15
    assert (process.returncode, stdout) == (0, "")
    assert "Traceback" not in stderr


def test_what_a_server_loads_is_exempt_from_garbage_collection(tmp_path: Path) -> None:
    """A collection that looks at all of it takes 60 ms in which nobody is served."""
    program = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('still looked at:', len(gc.get_objects()), file=sys.stderr))\n"
        "from fluss.server.process import serve_if_plain\n"
        "assert serve_if_plain(sys.argv[1:])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--data-dir", str(tmp_path / "data"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with Wire("127.0.0.1", int(process.stdout.readline().rpartition(":")[2])) as wire:
        create_kv_table(wire)  # which loads what log tables do without
        process.terminate()
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert int(stderr.rpartition("still looked at:")[2]) < LOADED_LATER_MAX


def test_data_is_there_after_a_restart(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        with Wire("127.0.0.1", server.port) as wire:
            table_id = create_table(wire)
            produce(wire, table_id, batch())
        server.restart(graceful=True)
        with Wire("127.0.0.1", server.port) as wire:
            assert fetch(wire, table_id).high_watermark == 3
        server.restart(graceful=False)
        with Wire("127.0.0.1", server.port) as wire:
            assert fetch(wire, table_id).high_watermark == 3


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        done = run_server("--data-dir", str(tmp_path / "data"), "--port", "0")
        assert_refused(done, str(tmp_path / "data"), "in use by another server", "name another directory")
        with Wire("127.0.0.1", server.port) as wire:
            assert wire.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_server("--data-dir", str(tmp_path / "data"), "--port", str(port))
    assert_refused(done, f"127.0.0.1:{port}", "--port")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "not a host", "a" * 300])
def test_an_address_of_another_machine_is_refused(tmp_path: Path, host: str) -> None:
    assert_refused(run_server("--data-dir", str(tmp_path / "data"), "--host", host, "--port", "0"), "--host")


def test_a_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert_refused(run_server("--data-dir", str(tmp_path), "--port", "0"), "thesis.txt", "empty directory")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(run_server("--data-dir", str(tmp_path / "file"), "--port", "0"), str(tmp_path / "file"))


def test_a_directory_that_can_not_be_made_is_refused() -> None:
    assert_refused(run_server("--data-dir", "/proc/fluss", "--port", "0"), "/proc/fluss")


def test_settings_from_a_file_and_flags_that_win(tmp_path: Path) -> None:
    config = tmp_path / "fluss.toml"
    config.write_text('port = 1\nadvertise = "example.org:1"\ndurability = "os"\n[limits]\nconnections_max = 1\n')
    args = ["--config", str(config), "--advertise", "example.org:2"]
    with FlussServer(tmp_path / "data", args=args) as server, Wire("127.0.0.1", server.port) as wire:
        node = wire.call(api_keys.METADATA, pb.MetadataRequest()).coordinator_server
        assert (node.host, node.port) == ("example.org", 2)
        with Wire("127.0.0.1", server.port) as second:
            assert second.receive_error(second.send(api_keys.METADATA, pb.MetadataRequest())).code == 1


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "fluss.toml"
    config.write_text("prot = 1\n")
    assert_refused(run_server("--config", str(config)), "fluss.toml", "'prot'", "port")
    assert_refused(run_server("--advertise", "nonsense"), "HOST:PORT")
