"""`file:` addresses: a server that many processes share, that outlives the first of them and leaves after the last."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

import fluss.sync as fluss
from fluss.model.trust import ENDPOINT_NAME, LOG_NAME, Endpoint
from fluss.server.embedded import IDLE_S
from fluss.testing import FlussServer
from tests.embedded.processes import await_true, embedded_servers, endpoint, finish, go_on, line, python, start

# Generous: tests share the machine. The figure itself is measured, not tested.
READY_S_MAX = 10.0


def test_ready_soon_and_joined_at_once(directory: Path) -> None:
    began = time.monotonic()
    with fluss.connect(directory.as_uri()) as first:
        ready_s = time.monotonic() - began
        began = time.monotonic()
        with fluss.connect(directory.as_uri()) as second:
            joined_s = time.monotonic() - began
            assert first.get_admin().list_databases() == second.get_admin().list_databases() == ["fluss"]
    print(f"ready after {ready_s:.2f} s, joined after {joined_s:.3f} s")
    assert ready_s < READY_S_MAX
    assert len(embedded_servers(directory)) == 1


def test_the_endpoint_file_is_private_and_complete(directory: Path) -> None:
    with fluss.connect(directory.as_uri()):
        status = (directory / ENDPOINT_NAME).stat()
        assert status.st_mode & 0o777 == 0o600
        found = endpoint(directory)
        assert [found.pid] == embedded_servers(directory)
        assert len(found.secret) == 64
        assert "serving" in (directory / LOG_NAME).read_text()


def test_nobody_gets_in_without_the_secret(directory: Path) -> None:
    with fluss.connect(directory.as_uri()):
        port = endpoint(directory).port
        with pytest.raises(fluss.FlussError, match="login"):
            fluss.connect(f"127.0.0.1:{port}", request_timeout_ms=3_000)
        wrong = {"security_protocol": "sasl", "security_sasl_username": "embedded", "security_sasl_password": "x"}
        with pytest.raises(fluss.FlussError, match="refused the login"):
            fluss.connect(f"127.0.0.1:{port}", **wrong)


def test_the_server_is_a_session_of_its_own_without_foreign_descriptors(directory: Path) -> None:
    secret = directory.with_name("secret")
    inherited = os.open(secret, os.O_RDONLY | os.O_CREAT)
    os.set_inheritable(inherited, True)
    try:
        with fluss.connect(directory.as_uri()):
            pid = endpoint(directory).pid
            assert os.getsid(pid) == pid
            assert os.path.realpath(f"/proc/{pid}/cwd") == "/"
            targets = {name: os.path.realpath(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    finally:
        os.close(inherited)
    assert targets.pop("0") == os.devnull
    assert targets.pop("1") == targets.pop("2") == str(directory / LOG_NAME)
    assert str(secret) not in targets.values()


def test_the_server_survives_the_process_that_started_it(directory: Path) -> None:
    starter = start(
        "connection = fluss.connect(sys.argv[1]); append(connection, 1); say('up'); input()", directory.as_uri()
    )
    assert line(starter) == "up"
    first = endpoint(directory)
    other = fluss.connect(directory.as_uri())
    starter.kill()
    starter.communicate()
    assert other.get_admin().list_databases() == ["fluss"]
    assert endpoint(directory) == first
    assert python("say(read(fluss.connect(sys.argv[1])))", directory.as_uri()).strip() == "[1]"
    other.close()


def test_two_processes_share_a_directory(directory: Path) -> None:
    script = """
        connection = fluss.connect(sys.argv[1])
        append(connection, int(sys.argv[2]))
        say('wrote')
        input()
        say(read(connection))
    """
    processes = [start(script, directory.as_uri(), number) for number in range(2)]
    assert [line(process) for process in processes] == ["wrote", "wrote"]
    for process in processes:
        go_on(process)
        assert finish(process).strip() == "[0, 1]"
    # Both may have started one; the loser leaves as soon as it sees that the directory is taken.
    await_true(lambda: len(embedded_servers(directory)) == 1, READY_S_MAX)


def test_losers_of_the_race_to_start_join_the_winner(directory: Path) -> None:
    script = """
        say('loaded')
        input()
        connection = fluss.connect(sys.argv[1])
        append(connection, int(sys.argv[2]))
    """
    processes = [start(script, directory.as_uri(), number) for number in range(6)]
    for process in processes:
        line(process)
    for process in processes:
        go_on(process)
    for process in processes:
        finish(process)
    await_true(lambda: len(embedded_servers(directory)) == 1, READY_S_MAX)
    with fluss.connect(directory.as_uri()) as connection:
        scanner = connection.get_table(fluss.TablePath("fluss", "t")).new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        assert sorted(scanner.to_arrow()["id"].to_pylist()) == list(range(6))


def test_the_server_leaves_after_its_last_connection_and_starts_again(directory: Path) -> None:
    with fluss.connect(directory.as_uri()):
        first = endpoint(directory)
    took_s = await_true(lambda: not psutil.pid_exists(first.pid), IDLE_S + 10)
    assert took_s > IDLE_S - 1
    assert not (directory / ENDPOINT_NAME).exists()
    with fluss.connect(directory.as_uri()):
        assert endpoint(directory).secret != first.secret


@pytest.mark.parametrize("kind", ["dead pid", "reused pid", "reused port", "garbage", "empty"])
def test_a_stale_endpoint_file_is_noticed(directory: Path, kind: str) -> None:
    with fluss.connect(directory.as_uri()):
        first = endpoint(directory)
    os.kill(first.pid, signal.SIGKILL)
    await_true(lambda: not embedded_servers(directory), READY_S_MAX)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_port = silent.getsockname()[1]
        silent.close()
        content = {
            "dead pid": first.to_bytes(),
            "reused pid": first._replace(pid=os.getpid(), port=silent_port).to_bytes(),
            "garbage": b"\xff{",
            "empty": b"",
        }
        if kind == "reused port":
            with fluss.connect(directory.with_name("other").as_uri()):
                used = endpoint(directory.with_name("other"))
                (directory / ENDPOINT_NAME).write_bytes(Endpoint(used.pid, used.port, first.secret).to_bytes())
                fluss.connect(directory.as_uri()).close()
        else:
            (directory / ENDPOINT_NAME).write_bytes(content[kind])
            fluss.connect(directory.as_uri()).close()
    assert endpoint(directory).secret != first.secret


def test_a_killed_server_is_started_again_by_its_clients(directory: Path) -> None:
    with fluss.connect(directory.as_uri()) as connection:
        schema = fluss.Schema.builder().column("id", fluss.DataTypes.bigint()).build()
        path = fluss.TablePath("fluss", "t")
        connection.get_admin().create_table(path, fluss.TableDescriptor(schema))
        writer = connection.get_table(path).new_append().create_writer()
        writer.append([1]).wait()
        os.kill(endpoint(directory).pid, signal.SIGKILL)
        began = time.monotonic()
        writer.append([2]).wait()
        print(f"healed after {time.monotonic() - began:.2f} s")
        scanner = connection.get_table(path).new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        assert scanner.to_arrow()["id"].to_pylist() == [1, 2]


def test_a_foreign_directory_is_refused_and_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.doc").write_text("precious")
    with pytest.raises(fluss.FlussError, match=r"thesis\.doc") as caught:
        fluss.connect(directory.as_uri())
    assert "\n" not in str(caught.value)
    assert os.listdir(directory) == ["thesis.doc"]


def test_a_file_is_no_directory(directory: Path) -> None:
    directory.touch()
    with pytest.raises(fluss.FlussError, match="is a file"):
        fluss.connect(directory.as_uri())


def test_a_damaged_directory_is_an_error_with_the_reason(directory: Path) -> None:
    with fluss.connect(directory.as_uri()):
        first = endpoint(directory)
    os.kill(first.pid, signal.SIGTERM)
    await_true(lambda: not embedded_servers(directory), READY_S_MAX)
    (directory / "format_version").write_text("99\n")
    with pytest.raises(fluss.FlussError, match=r"format version 99.*Upgrade flussbett"):
        fluss.connect(directory.as_uri())
    (directory / "format_version").write_text("1\n")
    for name in ("catalog.db", "catalog.db-wal"):
        if (directory / name).exists():
            (directory / name).write_bytes(b"x" * 4096)
    with pytest.raises(fluss.FlussError, match=r"catalog\.db"):
        fluss.connect(directory.as_uri())


def test_a_directory_of_fluss_server_is_refused_with_its_pid(directory: Path) -> None:
    with FlussServer(directory) as server:
        with pytest.raises(
            fluss.FlussError,
            match=f"in use by another server .process {server.pid}.: connect to {server.bootstrap_servers}.",
        ):
            fluss.connect(directory.as_uri())
        with fluss.connect(server.bootstrap_servers) as connection:
            assert connection.get_admin().list_databases() == ["fluss"]


def test_fluss_server_refuses_a_directory_that_an_embedded_server_has(directory: Path) -> None:
    from fluss.testing import ProcessFailedError

    with fluss.connect(directory.as_uri()), pytest.raises(ProcessFailedError, match="in use by another server"):
        FlussServer(directory).start()


def test_relative_addresses(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory.parent)
    with fluss.connect("file:data") as connection, fluss.connect(f"file://localhost{directory}") as same:
        assert connection.get_admin().list_databases() == same.get_admin().list_databases()
    assert len(embedded_servers(directory)) == 1


def test_a_path_with_spaces_and_signs(tmp_path: Path) -> None:
    directory = tmp_path / "a b%20c#ä"
    with fluss.connect(directory.as_uri()):
        assert endpoint(directory)


@pytest.mark.parametrize("address", ["file://data", "file:", "file://", "file://host/x", "file:%00"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(fluss.FlussError, match=r"Bad address .*file:///data/fluss"):
        fluss.connect(address)


def test_a_server_that_dies_while_it_starts_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_FAIL_POINT", "catalog.commit.before_commit")
    with pytest.raises(fluss.FlussError, match=r"No embedded server could be .*status -9 \(log: .*server\.log"):
        fluss.connect(directory.as_uri())
    monkeypatch.delenv("FLUSS_FAIL_POINT")
    fluss.connect(directory.as_uri()).close()


def test_a_cwd_full_of_traps_does_not_matter(directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "crc32c.py").write_text("raise SystemExit('trapped')")
    monkeypatch.chdir(tmp_path)
    fluss.connect(directory.as_uri()).close()


def test_a_cancelled_wait_leaves_a_server_that_leaves_by_itself(directory: Path) -> None:
    script = """
        import asyncio, fluss.aio as aio
        async def main():
            try:
                await asyncio.wait_for(aio.connect(sys.argv[1]), 0.05)
            except TimeoutError:
                say('gave up')
        asyncio.run(main())
        connection = fluss.connect(sys.argv[1])
        say(connection.get_admin().list_databases())
    """
    assert python(script, directory.as_uri()).split("\n")[:2] == ["gave up", "['fluss']"]


def test_a_directory_that_was_deleted_under_its_server(directory: Path) -> None:
    """The old server has no hold on the new directory, and its end does not harm the new one's endpoint."""
    fluss.connect(directory.as_uri()).close()
    first = endpoint(directory)
    shutil.rmtree(directory)
    with fluss.connect(directory.as_uri()) as connection:
        second = endpoint(directory)
        assert second.pid != first.pid
        os.kill(first.pid, signal.SIGTERM)
        await_true(lambda: not psutil.pid_exists(first.pid), READY_S_MAX)
        assert endpoint(directory) == second
        assert connection.get_admin().list_databases() == ["fluss"]
