"""Traces six real runs and prints which files they go through, in order: `python -m tools.ways`.

A client and a server run in one interpreter, each with threads of its own, and every call into a file of `fluss` is
noted. A way is run until everything is connected and known, then five times; files that all five have in common count.
A change of folder, or of package, the outermost folder, is one between two files that follow each other in the order in
which they were first called, on either side. The kernels run as plain Python, or their file would not be seen. What the
server does by the clock is switched off. Spark's part is driven as Spark does it, without its JVM.

`--write docs/map.md` puts the result between the marks of that page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pyarrow as pa

import fluss.sync as fluss
from fluss.server.config import ServerConfig
from fluss.server.server import Server
from tools.folders import inserted

SOURCE: Final = Path(fluss.__file__).parent
WARM_UPS, RUNS = 2, 5
ROW: Final = {"id": 1, "name": "one"}
TIMEOUT_S: Final = 30.0
QUIET_S: Final = 0.1  # what a run leaves to be done after its answer
# Names of the server's threads begin with one of these.
SERVER_THREADS: Final = ("server", *(f"fluss-{what}" for what in ("catalog", "disk", "kv", "login", "open", "sync")))
TOOL: Final = "tools/ways.py"


class Step(NamedTuple):
    """A file that was called, on the side of client or server."""

    file: str
    side: str

    @property
    def folder(self) -> str:
        """Where it lies below `fluss`."""
        return self.file.rpartition("/")[0] or "."

    @property
    def package(self) -> str:
        """The outermost of its folders."""
        return self.folder.partition("/")[0]


class Recorder:
    """Notes files as they are first called, while it is told to. Installed before any thread is started."""

    def __init__(self) -> None:
        self._steps: dict[Step, None] | None = None
        self._names: dict[str, str | None] = {}

    def install(self) -> None:
        """See the calls of this thread and of those to come."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextlib.contextmanager
    def recording(self) -> Iterator[dict[Step, None]]:
        """The steps of a block, in order."""
        steps: dict[Step, None] = {}
        self._steps = steps
        try:
            yield steps
        finally:
            self._steps = None

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        steps = self._steps
        if steps is None or event != "call" or frame.f_code.co_name == "<module>":
            return
        file = self._name_of(frame.f_code.co_filename)
        if file is not None:
            is_server = threading.current_thread().name.startswith(SERVER_THREADS)
            steps.setdefault(Step(file, "server" if is_server else "client"))

    def _name_of(self, path: str) -> str | None:
        if path not in self._names:
            is_ours = path.startswith(f"{SOURCE}{os.sep}")
            self._names[path] = Path(path).relative_to(SOURCE).as_posix() if is_ours else None
        return self._names[path]


class ServerThread:
    """A server on a directory, in a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self._config = ServerConfig(directory, port=0)
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server", daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return self._ready.result(TIMEOUT_S)[2]

    def __exit__(self, *_: object) -> None:
        loop, stop, _address = self._ready.result()
        loop.call_soon_threadsafe(stop.set)
        self._thread.join(TIMEOUT_S)

    async def _serve(self) -> None:
        server, stop = Server(self._config), asyncio.Event()
        await server.start()
        for task in server._background:
            task.cancel()
        self._ready.set_result((asyncio.get_running_loop(), stop, str(server.address)))
        await stop.wait()
        await server.stop()


Run = Callable[[], object]


class Way(NamedTuple):
    """Something that users do."""

    title: str
    run: Run
    prepare: Run = lambda: None
    """What is done before each run"""
    sides: tuple[str, ...] = ("client", "server")


def _append(connection: fluss.FlussConnection) -> Way:
    writer = _table(connection, "appended").new_append().create_writer()

    def run() -> None:
        writer.append(ROW)
        writer.flush()

    return Way("Append a row and flush", run)


def _poll(connection: fluss.FlussConnection) -> Way:
    table = _table(connection, "polled")
    _append_row(table)

    scanners = [table.new_scan().create_log_scanner()]

    def prepare() -> None:
        scanners.pop().close()
        scanners.append(table.new_scan().create_log_scanner())

    def run() -> None:
        scanners[0].subscribe(0, fluss.EARLIEST_OFFSET)
        assert len(scanners[0].poll(timeout_ms=10_000))

    return Way("Subscribe to a table and poll its first rows", run, prepare)


def _upsert(connection: fluss.FlussConnection) -> Way:
    writer = _table(connection, "upserted", keys=["id"]).new_upsert().create_writer()

    def run() -> None:
        writer.upsert(ROW)
        writer.flush()

    return Way("Upsert a row and flush, the server's side", run, sides=("server",))


def _lookup(connection: fluss.FlussConnection) -> Way:
    table = _table(connection, "looked_up", keys=["id"])
    with table.new_upsert().create_writer() as writer:
        writer.upsert(ROW)
    lookuper = table.new_lookup().create_lookuper()
    return Way("Look a row up", lambda: lookuper.lookup({"id": 1}))


def _tiering(connection: fluss.FlussConnection) -> Way:
    from fluss.lake.tiering.service import tier
    from fluss.lake.tiering.task import LocalExecutor

    table = _table(connection, "tiered", properties={"table.datalake.enabled": "true"})
    executor = LocalExecutor(connection, 1)
    return Way(
        "A round of tiering of a log table",
        lambda: tier(connection, executor, tables=[table.get_table_path()], compact=False),
        lambda: _append_row(table),
    )


def _micro_batch(connection: fluss.FlussConnection) -> Way:
    from fluss.spark.source import FlussDataSource
    from fluss.spark.source_options import options as options_of

    origin, copy = _table(connection, "origin"), _table(connection, "copy")
    options = options_of(connection)
    reading = FlussDataSource({**options, "table": str(origin.get_table_path())})
    writing = FlussDataSource({**options, "table": str(copy.get_table_path())})
    columns = reading.schema()
    reader: Any = reading.streamReader(columns)
    position = reader.initialOffset()

    def run() -> None:
        nonlocal position
        begin, position = position, reader.next_offset(position, is_limited=False)
        batches = [batch for part in reader.partitions(begin, position) for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in batches) == 1
        sink = writing.streamWriter(columns, overwrite=False)
        sink.commit([sink.write(iter(batches))], 0)

    return Way("A micro-batch of Spark from one log table to another", run, lambda: _append_row(origin))


WAYS: Final[dict[str, Callable[[fluss.FlussConnection], Way]]] = {
    "append": _append,
    "poll": _poll,
    "upsert": _upsert,
    "lookup": _lookup,
    "tiering": _tiering,
    "spark": _micro_batch,
}


def _table(
    connection: fluss.FlussConnection, name: str, keys: list[str] | None = None, **more: Any
) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", name)
    schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=keys)
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, **more)
    connection.get_admin().create_table(path, descriptor)
    return connection.get_table(path)


def _append_row(table: fluss.FlussTable) -> None:
    with table.new_append().create_writer() as writer:
        writer.append(ROW)


def trace(recorder: Recorder, way: Way) -> list[Step]:
    """The steps that all runs of a way have in common, as they follow each other in the last one."""
    runs: list[dict[Step, None]] = []
    for number in range(WARM_UPS + RUNS):
        way.prepare()
        time.sleep(QUIET_S)
        with recorder.recording() as steps:
            way.run()
        if number >= WARM_UPS:
            runs.append(steps)
    return [step for step in runs[-1] if step.side in way.sides and all(step in run for run in runs)]


def files_of(steps: list[Step]) -> list[str]:
    """The files of steps, each where it is called first."""
    return list(dict.fromkeys(step.file for step in steps))


def changes(places: Iterable[str]) -> int:
    """How often the next place is another one."""
    return sum(before != after for before, after in pairwise(places))


def report(traces: dict[str, list[Step]]) -> str:
    """The result as Markdown."""
    lines = ["| way | files | changes of folder | of package |", "|---|---|---|---|"]
    for title, steps in traces.items():
        counts = (len(files_of(steps)), changes(s.folder for s in steps), changes(s.package for s in steps))
        lines.append(f"| {title} | {' | '.join(map(str, counts))} |")
    for title, steps in traces.items():
        lines += ["", f"**{title}**", "", "| side | folder | files |", "|---|---|---|", *_stretches(steps)]
    return "\n".join(lines) + "\n"


def _stretches(steps: list[Step]) -> Iterator[str]:
    """A line for each stretch in one folder; the side is named where it changes."""
    shown = ""
    for (side, folder), stretch in groupby(steps, key=lambda step: (step.side, step.folder)):
        files = ", ".join(f"`{step.file.rpartition('/')[2]}`" for step in stretch)
        yield f"| {'' if side == shown else side} | {folder} | {files} |"
        shown = side


def run_ways(names: Iterable[str]) -> dict[str, list[Step]]:
    """The steps of ways, by their titles."""
    recorder = Recorder()
    recorder.install()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerThread(Path(folder)) as address,
        fluss.connect(address) as connection,
    ):
        found = [WAYS[name](connection) for name in names]
        return {way.title: trace(recorder, way) for way in found}


def main() -> None:
    """Trace what the arguments name, or all."""
    parser = argparse.ArgumentParser(prog="python -m tools.ways", description="Which files real runs go through.")
    parser.add_argument("way", nargs="*", choices=[[], *WAYS], help="all without one")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the result between the marks of a page")
    options = parser.parse_args()
    if os.environ.get("FLUSS_PURE") != "1":
        command = [sys.executable, "-m", "tools.ways", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "FLUSS_PURE": "1"})
    text = report(run_ways(options.way or WAYS))
    if options.write is None:
        print(text, end="")
    else:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(inserted(text, page, TOOL), encoding="utf-8")


if __name__ == "__main__":
    main()
