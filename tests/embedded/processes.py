"""Scripts in interpreters of their own, and which servers run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import time
from asyncio import Task
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from fluss.client.net import embedded
from fluss.model.trust import ENDPOINT_NAME, Endpoint

SCRIPT_S_MAX = 60.0
PRELUDE = """
import os, sys, signal, threading, time
import fluss.sync as fluss
signal.signal(signal.SIGINT, signal.default_int_handler)
PATH = fluss.TablePath("fluss", "t")

def table(connection):
    schema = fluss.Schema.builder().column("id", fluss.DataTypes.bigint()).build()
    admin = connection.get_admin()
    admin.create_table(PATH, fluss.TableDescriptor(schema), ignore_if_exists=True)
    return connection.get_table(PATH)

def append(connection, *ids):
    writer = table(connection).new_append().create_writer()
    for number in ids:
        writer.append([number])
    writer.flush()

def read(connection):
    scanner = connection.get_table(PATH).new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
    return sorted(scanner.to_arrow()["id"].to_pylist())

def keyed_table(connection):
    schema = fluss.Schema.builder().column("id", fluss.DataTypes.bigint()).column("name", fluss.DataTypes.string())
    path = fluss.TablePath("fluss", "keyed")
    descriptor = fluss.TableDescriptor(schema.primary_key(["id"]).build())
    connection.get_admin().create_table(path, descriptor, ignore_if_exists=True)
    return connection.get_table(path)

def upsert(connection, *rows):
    writer = keyed_table(connection).new_upsert().create_writer()
    for row in rows:
        writer.upsert(row)
    writer.flush()

def rows_of(connection):
    return sorted(tuple(row.values()) for row in keyed_table(connection).new_scan().to_arrow().to_pylist())

def say(*words):
    print(*words, flush=True)

"""


def embedded_servers(below: Path) -> list[int]:
    """Pids of the embedded servers on directories below this one."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "fluss.server.embedded" in words and any(word.startswith(str(below)) for word in words):
            found.append(process.pid)
    return found


def zombies() -> list[psutil.Process]:
    """Children of this process that ended and that nobody has asked about."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def endpoint(directory: Path) -> Endpoint:
    found = Endpoint.from_bytes((directory / ENDPOINT_NAME).read_bytes())
    assert found is not None
    return found


def start(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A script after the prelude; its arguments are in sys.argv."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed; it must have ended well and with nothing to complain of."""
    output, errors = process.communicate(timeout=SCRIPT_S_MAX)
    assert (process.returncode, errors) == (0, ""), errors
    return output


def python(script: str, *arguments: object) -> str:
    return finish(start(script, *arguments))


def line(process: subprocess.Popen[str]) -> str:
    """Its next line."""
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise AssertionError(f"no line; it said: {process.communicate(timeout=SCRIPT_S_MAX)[1]}")
    return text.strip()


def go_on(process: subprocess.Popen[str]) -> None:
    """Let a script go on that waits in `input()`."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def await_true(condition: Callable[[], bool], seconds_max: float) -> float:
    """Wait; returns how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds_max, f"not within {seconds_max} s"
        time.sleep(0.02)
    return time.monotonic() - began


def memory_tasks() -> dict[tuple[int, str], Task[Any]]:
    """The memory servers of this process; without its entry nothing holds a lifeline open."""
    return embedded._memory
