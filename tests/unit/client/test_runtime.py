"""The I/O thread: entering it from threads and loops, interrupts, forks, the end of the process."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from typing import Any

import pytest

import fluss.aio
import fluss.sync
from fluss.client import runtime
from fluss.client.client import ClientCore
from fluss.client.write.writer import AppendWriterCore
from fluss.model.config import Config
from fluss.model.errors import FlussError
from tests.kit.scripted import PATH, ScriptedServer


async def where() -> str:
    return threading.current_thread().name


def test_run_enters_the_io_thread_from_any_thread() -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(runtime.run(where()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["fluss-io"] * 8


def test_run_passes_exceptions_on() -> None:
    async def fail() -> None:
        raise FlussError("so it goes")

    with pytest.raises(FlussError, match="so it goes"):
        runtime.run(fail())


def test_run_on_the_io_thread_is_refused() -> None:
    async def nested() -> None:
        runtime.run(where())

    with pytest.raises(RuntimeError, match="I/O thread"):
        runtime.run(nested())


async def test_bridge_from_a_loop_and_from_the_io_loop() -> None:
    async def nested() -> str:
        return await runtime.bridge(where())

    assert await runtime.bridge(where()) == "fluss-io"
    assert await runtime.bridge(nested()) == "fluss-io"


async def test_cancelling_a_bridge_cancels_the_core_coroutine() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def core() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.ensure_future(runtime.bridge(core()))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(cancelled.wait, 5)


def test_an_interrupt_cancels_the_core_coroutine() -> None:
    script = """
        import asyncio, os, signal, threading
        from fluss.client import runtime

        # A shell makes the jobs it starts in the background ignore it, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancelled = threading.Event()

        async def core():
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        try:
            runtime.run(core())
        except KeyboardInterrupt:
            assert cancelled.wait(5)
            print("interrupted")
    """
    done = _python(script)
    assert done.stdout.strip() == "interrupted", done.stderr


def test_a_fork_gets_a_runtime_of_its_own_and_old_objects_say_so() -> None:
    with ScriptedServer() as server:
        client = runtime.run(ClientCore.connect(Config({"bootstrap.servers": server.address})))
        writer = runtime.run(client.table(PATH)).append_writer()
        writer.append([0, "a"])
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            _report(write_end, _in_child(client, writer))
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            report = pipe.read()
        os.waitpid(child, 0)
        assert report.splitlines() == ["fluss-io", "table refused", "append refused"]
        # The child's end must not have taken the parent's connection with it.
        writer.append([1, "a"]).result(5)
        assert server.ids() == [0, 1]
        assert server.connections == 1
        runtime.run(client.close())


def _in_child(client: ClientCore, writer: AppendWriterCore) -> list[str]:
    lines = [runtime.run(where())]
    try:
        runtime.run(client.table(PATH))
    except FlussError as error:
        lines.append("table refused" if "fork" in str(error) else str(error))
    try:
        writer.gate.take([1, "a"]) or writer.append([1, "a"])
    except FlussError as error:
        lines.append("append refused" if "fork" in str(error) else str(error))
    return lines


def _report(write_end: int, lines: list[str]) -> None:
    os.write(write_end, "\n".join(lines).encode())
    os._exit(0)


def test_a_forked_child_lets_go_of_inherited_connections() -> None:
    """The server sees the connection end with the parent's close although the child lives on."""
    with ScriptedServer() as server:
        client = runtime.run(ClientCore.connect(Config({"bootstrap.servers": server.address})))
        release_read, release_write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(release_write)
            os.read(release_read, 1)
            os._exit(0)
        try:
            runtime.run(client.close())
            deadline = time.monotonic() + 5
            while server._writers and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not server._writers
        finally:
            os.close(release_write)
            os.close(release_read)
            os.waitpid(child, 0)


def test_a_client_refuses_pickling() -> None:
    with ScriptedServer() as server:
        client = runtime.run(ClientCore.connect(Config({"bootstrap.servers": server.address})))
        with pytest.raises(TypeError, match=r"Config\.to_dict"):
            pickle.dumps(client)
        runtime.run(client.close())


EXIT_SCRIPT = """
    import sys
    from fluss.client.client import ClientCore
    from fluss.client.runtime import run
    from fluss.client import runtime
    from fluss.model.config import Config
    from fluss.model.paths import TablePath

    runtime.EXIT_DRAIN_S_MAX = 0.5
    client = run(ClientCore.connect(Config({"bootstrap.servers": sys.argv[1], "writer.batch-timeout-ms": 600000})))
    writer = run(client.table(TablePath("db", "t"))).append_writer()
    for i in range(3):
        writer.append([i, "a"])
"""


def test_the_end_of_the_process_sends_what_is_left() -> None:
    with ScriptedServer() as server:
        done = _python(EXIT_SCRIPT, server.address)
        assert (done.returncode, done.stderr) == (0, "")
        assert server.ids() == [0, 1, 2]


def test_the_end_of_the_process_does_not_wait_for_ever_and_says_what_is_lost() -> None:
    from tests.kit.scripted import Silence

    def silent(_: object) -> None:
        raise Silence

    with ScriptedServer() as server:
        server.handlers[1014] = silent  # type: ignore[assignment]
        done = _python(EXIT_SCRIPT, server.address)
        assert done.returncode == 0
        assert "3 rows for db.t were not acknowledged" in done.stderr


def test_no_thread_is_left_when_the_interpreter_is_taken_down() -> None:
    """One that is left crashes the process now and then; what comes later gets an error, not a hang."""
    last_words = """
    import atexit, threading

    def last() -> None:
        print([thread.name for thread in threading.enumerate() if thread is not threading.main_thread()])
        try:
            run(client.admin.list_databases())
        except Exception as error:
            print(error)

    atexit.register(last)
"""
    with ScriptedServer() as server:
        done = _python(last_words + EXIT_SCRIPT, server.address)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[]\nThe process is ending: connections can't be used any more.\n"


def _python(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("facade", [fluss.sync, fluss.aio])
def test_tracebacks_end_at_the_call(facade: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> str:
        async with facade.connect("memory:") as connection:
            try:
                await connection.get_table("nothing")
            except fluss.NotFoundError:
                return traceback.format_exc()
        raise AssertionError

    def use_blocking() -> str:
        with facade.connect("memory:") as connection:
            try:
                connection.get_table("nothing")
            except fluss.NotFoundError:
                return traceback.format_exc()
        raise AssertionError

    monkeypatch.delenv("FLUSS_INNER_FRAMES", raising=False)
    text = use_blocking() if facade is fluss.sync else asyncio.run(use())
    files = [line.split('"')[1].rpartition("/")[2] for line in text.splitlines() if line.startswith("  File")]
    assert files == ["test_runtime.py", "connection.py", "runtime.py"], text
