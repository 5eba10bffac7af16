from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.testing.processes import (
    LOOPBACK,
    POLL_INTERVAL_S,
    ManagedProcess,
    ProcessFailedError,
    ReservedPorts,
    free_ports,
    parse_address,
)

DEADLINE_S = 10.0


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(POLL_INTERVAL_S)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_waits_for_a_whole_line_and_returns_its_groups(tmp_path: Path) -> None:
    code = "import time; print('noise'); print('ready on host:12', end=''); print('34'); time.sleep(60)"
    process = ManagedProcess("sleeper", python(code), log_file=tmp_path / "log")
    assert process.wait_for_line(r"ready on (\S+)", DEADLINE_S)[1] == "host:1234"
    process.kill()
    assert process.returncode == -signal.SIGKILL


def test_output_of_an_earlier_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("ready\n")
    process = ManagedProcess("silent", python("pass"), log_file=tmp_path / "log")
    with pytest.raises(ProcessFailedError, match="silent stopped before it was ready"):
        process.wait_for_line("ready", DEADLINE_S)


def test_an_early_end_is_reported_with_the_output(tmp_path: Path) -> None:
    process = ManagedProcess("loser", python("raise SystemExit('no disk left')"), log_file=tmp_path / "log")
    with pytest.raises(ProcessFailedError, match=r"(?s)exit status 1.*no disk left"):
        process.wait_for_line("ready", DEADLINE_S)


def test_a_process_that_is_never_ready_is_reported(tmp_path: Path) -> None:
    code = "import time; print('busy'); time.sleep(60)"
    process = ManagedProcess("slow", python(code), log_file=tmp_path / "log")
    process.wait_for_line("busy", DEADLINE_S)
    with pytest.raises(ProcessFailedError, match=r"(?s)within 0.1 s \(still running\).*busy"):
        process.wait_for_line("ready", 0.1)
    process.kill()


def test_terminate_lets_a_process_finish_and_kills_one_that_does_not(tmp_path: Path) -> None:
    tidy = "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); print('ready'); signal.pause()"
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('ready')\nwhile True: signal.pause()"
    finishing = ManagedProcess("tidy", python(tidy), log_file=tmp_path / "tidy")
    ignoring = ManagedProcess("stubborn", python(stubborn), log_file=tmp_path / "stubborn")
    for process in (finishing, ignoring):
        process.wait_for_line("ready", DEADLINE_S)
    finishing.terminate()
    ignoring.terminate(timeout_s=0.2)
    assert finishing.returncode == 3
    assert ignoring.returncode == -signal.SIGKILL


def test_kill_takes_what_the_process_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\nprint('child', child.pid); time.sleep(60)"
    )
    process = ManagedProcess("parent", python(code), log_file=tmp_path / "log")
    child = int(process.wait_for_line(r"child (\d+)", DEADLINE_S)[1])
    process.kill()
    wait_until(lambda: not is_running(child))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death")
def test_a_killed_test_run_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from fluss.testing.processes import ManagedProcess\n"
        "child = ManagedProcess('child', ['sleep', '60'], log_file=pathlib.Path(sys.argv[1]))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    run = subprocess.Popen([*python(code), str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    child = int(run.stdout.readline())
    # The wrapper asks for the signal just before it becomes the program.
    wait_until(lambda: Path(f"/proc/{child}/comm").read_text().strip() == "sleep")
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    wait_until(lambda: not is_running(child))


def test_an_ordinary_exit_ends_the_children(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from fluss.testing.processes import ManagedProcess\n"
        "child = ManagedProcess('child', ['sleep', '60'], log_file=pathlib.Path(sys.argv[1]))\n"
        "print(child.pid)"
    )
    done = subprocess.run([*python(code), str(tmp_path / "log")], capture_output=True, text=True, check=True)
    wait_until(lambda: not is_running(int(done.stdout)))


def test_free_ports_are_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let no one listen beside a bound socket")
def test_a_reserved_port_is_for_servers_of_this_test_alone() -> None:
    ports = ReservedPorts(1)
    address = (LOOPBACK, ports.numbers[0])
    for _ in range(2):
        socket.create_server(address).close()  # sets SO_REUSEADDR
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
    ports.close()
    with socket.socket() as other:
        other.bind(address)


def test_addresses_are_parsed_or_refused() -> None:
    assert parse_address("127.0.0.1:9123") == ("127.0.0.1", 9123)
    for bad in ("127.0.0.1", ":9123", "host:", "host:port"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_address(bad)
