"""Forks, spawned children, interrupts and ends of processes that use an embedded server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.embedded.processes import (
    PRELUDE,
    SCRIPT_S_MAX,
    await_true,
    embedded_servers,
    endpoint,
    finish,
    go_on,
    line,
    python,
    start,
)


@pytest.fixture(params=["file", "memory"])
def address(request: pytest.FixtureRequest, directory: Path) -> str:
    return directory.as_uri() if request.param == "file" else "memory:"


def test_a_forked_child_opens_a_connection_of_its_own(directory: Path) -> None:
    script = """
        connection = fluss.connect(sys.argv[1])
        append(connection, 1)
        child = os.fork()
        if child == 0:
            try:
                connection.get_admin().list_databases()
            except fluss.FlussError as error:
                say('can\\'t be used' in str(error))
            own = fluss.connect(sys.argv[1])
            append(own, 2)
            say(read(own))
            os._exit(0)
        os.waitpid(child, 0)
        say(read(connection))
    """
    assert python(script, directory.as_uri()).split("\n")[:3] == ["True", "[1, 2]", "[1, 2]"]
    assert len(embedded_servers(directory)) == 1


def test_a_forked_child_uses_a_primary_key_table_of_its_own_connection(directory: Path) -> None:
    """With upserts of the parent that are not flushed: they are the parent's to send, once."""
    script = """
        connection = fluss.connect(sys.argv[1], writer_batch_timeout_ms=600_000)
        upsert(connection, [1, 'a'])
        lookuper = keyed_table(connection).new_lookup().create_lookuper()
        writer = keyed_table(connection).new_upsert().create_writer()
        writer.upsert([1, 'b'])
        writer.upsert([2, 'b'])
        child = os.fork()
        if child == 0:
            for call in (lambda: lookuper.lookup([1]), lambda: writer.upsert([3, 'x']), writer.flush):
                try:
                    call()
                except fluss.FlussError as error:
                    say('can\\'t be used' in str(error))
            own = fluss.connect(sys.argv[1])
            say(rows_of(own))
            upsert(own, [4, 'c'])
            sys.exit(0)
        os.waitpid(child, 0)
        say(rows_of(connection))
        writer.flush()
        say(rows_of(connection), lookuper.lookup([1]))
    """
    assert python(script, directory.as_uri()).split("\n")[:6] == [
        "True",
        "True",
        "True",
        "[(1, 'a')]",
        "[(1, 'a'), (4, 'c')]",
        "[(1, 'b'), (2, 'b'), (4, 'c')] {'id': 1, 'name': 'b'}",
    ]
    assert len(embedded_servers(directory)) == 1


def test_a_spawned_child_joins(directory: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, sys
import fluss.sync as fluss

def work(address):
    with fluss.connect(address) as connection:
        return connection.get_admin().list_databases()

if __name__ == "__main__":
    with fluss.connect(sys.argv[1]):
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print(pool.map(work, [sys.argv[1]] * 4))
"""
    )
    done = subprocess.run(
        [sys.executable, str(program), directory.as_uri()],
        capture_output=True,
        text=True,
        timeout=SCRIPT_S_MAX,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (str([["fluss"]] * 4), "")
    assert len(embedded_servers(directory)) == 1


def test_an_interrupt_of_the_process_group_leaves_everything_usable(address: str, tmp_path: Path) -> None:
    """What a notebook's interrupt, or Ctrl-C in a terminal, does."""
    script = """
        connection = fluss.connect(sys.argv[1])
        append(connection, 1)
        scanner = table(connection).new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets({0: fluss.LATEST_OFFSET})
        try:
            # Another thread says it: the interrupt comes to this one, in its try from here on.
            threading.Timer(0.2, say, ['waiting']).start()
            while True:
                scanner.poll_arrow(10_000)
        except KeyboardInterrupt:
            say('interrupted')
        append(connection, 2)
        say(read(connection))
    """
    process = start(script, address, start_new_session=True)
    assert line(process) == "waiting"
    servers = embedded_servers(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    assert line(process) == "interrupted"
    assert line(process) == "[1, 2]"
    assert embedded_servers(tmp_path) == servers
    finish(process)


def test_the_end_of_a_process_sends_what_is_left(directory: Path) -> None:
    script = """
        connection = fluss.connect(sys.argv[1], writer_batch_timeout_ms=600_000)
        writer = table(connection).new_append().create_writer()
        for number in range(1_000):
            writer.append([number])
    """
    assert python(script, directory.as_uri()) == ""
    assert python("say(len(read(fluss.connect(sys.argv[1]))))", directory.as_uri()).strip() == "1000"


def test_the_end_of_a_process_sends_upserts_and_deletes_that_are_left(directory: Path) -> None:
    script = """
        connection = fluss.connect(sys.argv[1], writer_batch_timeout_ms=600_000)
        upsert(connection, [0, 'old'], [1, 'old'])
        table = keyed_table(connection)
        writer = table.new_upsert().create_writer()
        for number in range(1, 1_000):
            writer.upsert([number, 'new'])
        writer.delete([0])
        table.new_upsert(columns=['id', 'name']).upsert([1_000, 'by the builder'])
    """
    assert python(script, directory.as_uri()) == ""
    expected = [*((number, "new") for number in range(1, 1_000)), (1_000, "by the builder")]
    assert python("say(rows_of(fluss.connect(sys.argv[1])))", directory.as_uri()).strip() == str(expected)


def test_the_end_of_a_process_does_not_wait_for_a_stopped_server(directory: Path) -> None:
    script = """
        connection = fluss.connect(sys.argv[1], writer_batch_timeout_ms=600_000)
        writer = table(connection).new_append().create_writer()
        append(connection, 0)
        say('up')
        input()
        for number in range(10):
            writer.append([number])
    """
    process = start(script, directory.as_uri())
    assert line(process) == "up"
    server = endpoint(directory).pid
    os.kill(server, signal.SIGSTOP)
    began = time.monotonic()
    go_on(process)
    try:
        _, errors = process.communicate(timeout=SCRIPT_S_MAX)
        took_s = time.monotonic() - began
    finally:
        os.kill(server, signal.SIGCONT)
    assert "10 rows for fluss.t were not acknowledged" in errors
    assert process.returncode == 0
    assert took_s < 10


def test_memory_is_shared_within_a_process_by_name(tmp_path: Path) -> None:
    script = """
        connection = fluss.connect('memory:')
        append(connection, 1)
        connection.close()
        say(read(fluss.connect('memory:')))
        other = fluss.connect('memory:other')
        say(other.get_admin().list_tables('fluss'))
        input()
    """
    process = start(script)
    assert [line(process), line(process)] == ["[1]", "[]"]
    assert len(embedded_servers(tmp_path)) == 2
    go_on(process)
    finish(process)
    await_true(lambda: not embedded_servers(tmp_path), 10)


def test_memory_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    script = """
        append(fluss.connect('memory:'), 1)
        if os.fork() == 0:
            time.sleep(60)
        say('up')
        input()
    """
    process = start(script, start_new_session=True)
    assert line(process) == "up"
    (server,) = embedded_servers(tmp_path)
    (directory,) = (tmp_path / "temporary").glob("fluss-memory-*")
    try:
        process.kill()
        # The forked child lives on, and must not keep the server.
        await_true(lambda: server not in embedded_servers(tmp_path), 10)
        await_true(lambda: not directory.exists(), 10)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_forked_child_has_a_memory_of_its_own(tmp_path: Path) -> None:
    script = """
        append(fluss.connect('memory:'), 1)
        child = os.fork()
        if child == 0:
            say(fluss.connect('memory:').get_admin().list_tables('fluss'))
            os._exit(0)
        os.waitpid(child, 0)
        say(read(fluss.connect('memory:')))
    """
    assert python(script).split("\n")[:2] == ["[]", "[1]"]
    await_true(lambda: not embedded_servers(tmp_path), 10)


def test_a_dead_memory_server_is_an_error_then_a_new_one(tmp_path: Path) -> None:
    script = """
        connection = fluss.connect('memory:', request_timeout_ms=2_000)
        append(connection, 1)
        say('up')
        input()
        try:
            connection.get_admin().list_databases()
        except fluss.FlussError as error:
            say(error)
        say(fluss.connect('memory:').get_admin().list_tables('fluss'))
        try:
            connection.get_admin().list_databases()
        except fluss.FlussError as error:
            say(error)
    """
    process = start(script)
    assert line(process) == "up"
    (server,) = embedded_servers(tmp_path)
    os.kill(server, signal.SIGKILL)
    await_true(lambda: not embedded_servers(tmp_path), 10)
    go_on(process)
    assert "has ended, and its tables with it" in line(process)
    assert line(process) == "[]"
    assert "has ended, and its tables with it" in line(process), "it must not go over to the new server"
    finish(process)


def test_other_processes_use_the_resolved_address(address: str) -> None:
    script = """
        import json, subprocess
        from fluss.client.client import resolve
        from fluss.client.runtime import run
        connection = fluss.connect(sys.argv[1])
        append(connection, 7)
        settings = run(resolve(connection.config)).to_dict()
        assert settings['bootstrap.servers'].startswith('127.0.0.1:')
        code = sys.argv[2] + 'say(read(fluss.FlussConnection.create(fluss.Config(eval(sys.argv[1])))))'
        subprocess.run([sys.executable, '-c', code, repr(settings)], check=True)
    """
    assert python(script, address, PRELUDE).strip() == "[7]"


def test_threads_and_loops_share_one_start(directory: Path) -> None:
    script = """
        import asyncio, fluss.aio as aio
        async def main():
            connections = await asyncio.gather(*(aio.connect(a) for a in ['memory:'] * 5 + [sys.argv[1]] * 5))
            say(len(connections))
            async with aio.connect('memory:') as connection:
                say(await (await connection.get_admin()).list_databases())
        asyncio.run(main())
    """
    assert python(script, directory.as_uri()).split("\n")[:2] == ["10", "['fluss']"]
