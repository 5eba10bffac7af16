"""Nobody stalls the others: lookups of an unrelated table go on beside large loads."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.storage.kv import unlocked_syncs
from fluss.testing import FlussServer
from tests.kit.bystander import Bench, Measured, Waits, beside, measure
from tests.kit.bystander_loads import LOADS, BulkLog
from tests.kit.slow_sync import Gate, compiled_slow_sync

# Of a machine that runs other tests at the same time; `make bench-bystander` has bounds for a quiet one.
LONGEST_MS_MAX = 2_000.0
STALL_S = 0.4
SYNC_S = 0.3


@pytest.mark.parametrize("name", ["bulk-keys", "snapshots", "hostile-frames"])
def test_lookups_go_on_beside(tmp_path: Path, name: str) -> None:
    run = beside(name, tmp_path / name, seconds=1.0, share=0.1)
    assert not run.did.startswith("FAILED"), run.did
    assert run.waits.count > 20
    assert not run.waits.errors
    assert run.waits.longest_ms < LONGEST_MS_MAX, run


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LOADS)
def test_the_bystander_holds_beside(tmp_path: Path, name: str) -> None:
    """With the bounds of the benchmark, so it needs a machine that does nothing else."""
    measured = measure(name, tmp_path / name, seconds=5.0)
    print(measured)
    assert not measured.problems(), measured


@pytest.mark.skipif(not unlocked_syncs.IN_USE, reason="needs the library that gives up the GIL in syncs")
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_no_sync_of_a_table_holds_up_another(tmp_path: Path) -> None:
    """Neither of an opening nor of a write, nor of a store that is made."""
    columns = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with FlussServer(tmp_path / "data") as server:
        with fluss.connect(server.bootstrap_servers) as connection:
            ids = [_made(connection, name, columns) for name in ("held", "free")]
        gate = Gate(tmp_path, server.data_dir / "tables" / str(ids[0]))
        server.restart(graceful=True, env=gate.env)
        with fluss.connect(server.bootstrap_servers) as connection, ThreadPoolExecutor(1) as others:
            gate.close()
            try:
                waiting = others.submit(_read_and_write, connection, "held")
                gate.wait_for_sync()
                for _ in range(20):
                    _read_and_write(connection, "free")
                _made(connection, "new", columns)
                assert not waiting.done()
            finally:
                gate.open()
            waiting.result()


def _made(connection: fluss.FlussConnection, name: str, columns: pa.Schema) -> int:
    path = fluss.TablePath("fluss", name)
    descriptor = fluss.TableDescriptor(fluss.Schema(columns, primary_keys=["id"]), bucket_count=1)
    connection.get_admin().create_table(path, descriptor)
    table = connection.get_table(path)
    with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "name": "first"})
    return int(table.get_table_info().table_id)


def _read_and_write(connection: fluss.FlussConnection, name: str) -> None:
    table = connection.get_table(fluss.TablePath("fluss", name))
    assert table.new_lookup().create_lookuper().lookup([1]) == {"id": 1, "name": "first"}
    with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "name": "first"})


def test_a_stall_is_seen(tmp_path: Path) -> None:
    """The instrument: a server that stands still makes one long answer, and the others stay short."""
    with Bench(BulkLog, tmp_path / "bench") as bench:
        bench.begin_to_watch()
        began_s = time.monotonic()
        os.kill(bench.server.pid, signal.SIGSTOP)
        time.sleep(STALL_S)
        os.kill(bench.server.pid, signal.SIGCONT)
        waits = bench.waits(began_s, time.monotonic() + STALL_S)
    assert waits.longest_ms >= STALL_S * 1e3 * 0.9
    assert waits.errors == 0


def test_shares_of_waits() -> None:
    waits = Waits.of([0.001 * number for number in range(1, 201)])
    assert (waits.count, round(waits.p50_ms), round(waits.p99_ms), round(waits.longest_ms)) == (200, 100, 198, 200)
    assert Waits.of([]).longest_ms == 0


def test_bounds() -> None:
    def problems(name: str, longest_ms: float, control_ms: float, seconds: float = 5.0) -> list[str]:
        waits, control = (Waits.of([0.001] * 999 + [ms / 1e3]) for ms in (longest_ms, control_ms))
        return Measured(name, "", "done", seconds, 1.0, waits, control).problems()

    assert problems("backups", 300, 60) == []
    assert problems("backups", 311, 60) == ["longest more than 250 ms above the control"]
    assert problems("partitions", 10, 10, 21) == ["the load took more than 20 s"]
    assert problems("drop-table", 10, 10, 21) == []
    assert problems("slow-disk", 999, 10) == []
    assert problems("slow-disk", 1_001, 10) == ["longest above 1000 ms"]


@pytest.mark.full
def test_syncs_are_slow_below_one_folder_alone(tmp_path: Path) -> None:
    """The other instrument; it needs a C compiler."""
    library = compiled_slow_sync(tmp_path)
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    program = (
        "import os, sys, time\n"
        "for folder in sys.argv[1:]:\n"
        "    os.mkdir(folder)\n"
        "    fd = os.open(folder + '/file', os.O_WRONLY | os.O_CREAT)\n"
        "    for sync in (os.fsync, os.fdatasync):\n"
        "        began = time.monotonic()\n"
        "        sync(fd)\n"
        "        print(time.monotonic() - began)\n"
    )
    env = {"LD_PRELOAD": str(library), "SLOW_SYNC_FOLDER": f"{slow}/", "SLOW_SYNC_MS": str(int(SYNC_S * 1e3))}
    command = [sys.executable, "-c", program, str(slow), str(quick)]
    output = subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, text=True).stdout
    times = list(map(float, output.split()))
    assert min(times[:2]) >= SYNC_S
    assert len(times) == 4
    assert max(times[2:]) < min(times[:2])
