"""The scrubber: what it finds, what it does about it, at which rate, and that it finds nothing where nothing is."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.storage import failpoints
from fluss.storage.damage.scrub import Scrubber
from fluss.storage.damage.scrub_files import CHUNK_BYTES, PacedFile, ScrubPace, ScrubReport, read_report
from fluss.storage.directory import SCRUB_NAME, SCRUB_OFF
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.kv_tables import Table, row

from .scrub_support import ROWS, World, flip, opened


def found(scrubber: Scrubber) -> list[str]:
    """Names of damaged files."""
    return sorted({finding.file.rpartition("/")[2] for finding in scrubber.report.damaged})


# --- what is found


def flip_sealed(world: World) -> Path:
    flip(world.segments[3], 200)
    return world.segments[3]


def flip_active(world: World) -> Path:
    flip(world.segments[-1], 70)
    return world.segments[-1]


def flip_commit_time(world: World) -> Path:
    flip(world.segments[3], 14)
    return world.segments[3]


def flip_commit_time_of_active(world: World) -> Path:
    flip(world.segments[-1], 14)
    return world.segments[-1]


def cut_sealed(world: World) -> Path:
    """At the end of a batch: what is left is good, but not all."""
    size_bytes = world.segments[3].stat().st_size
    batches = 1_000 // (size_bytes // round(size_bytes / 130))
    os.truncate(world.segments[3], size_bytes - size_bytes // batches)
    return world.segments[3]


def cut_active(world: World) -> Path:
    os.truncate(world.segments[-1], 10)
    return world.segments[-1]


def lose_sealed(world: World) -> Path:
    """What is seen is that the one before does not reach the next one."""
    before, lost = world.segments[2:4]
    lost.unlink()
    return before


def lose_first(world: World) -> Path:
    first = world.segments[0]
    first.unlink()
    return first


def lose_active(world: World) -> Path:
    last = world.segments[-1]
    last.unlink()
    return last


def flip_staged(world: World) -> Path:
    (path,) = (world.log_path.parent / "staging").iterdir()
    flip(path, -3)
    return path


def replace_staged_by_a_pipe(world: World) -> Path:
    (path,) = (world.log_path.parent / "staging").iterdir()
    path.unlink()
    os.mkfifo(path)
    return path


def flip_offsets(world: World) -> Path:
    (path,) = (world.log_path.parent / "lake-offsets").iterdir()
    flip(path, 20)
    return path


def flip_catalog(world: World) -> Path:
    flip(world.storage.root / "catalog.db", 5_000)
    return world.storage.root / "catalog.db"


DAMAGES = [
    flip_sealed,
    flip_active,
    flip_commit_time,
    flip_commit_time_of_active,
    cut_sealed,
    cut_active,
    lose_sealed,
    lose_first,
    lose_active,
    flip_staged,
    replace_staged_by_a_pipe,
    flip_offsets,
    flip_catalog,
]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_found_in_one_pass(
    tmp_path: Path, damage: Callable[[World], Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as world:
        path = damage(world)
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert found(scrubber) == [path.name]
        assert scrubber.damaged_files == 1
        logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert [str(path) in text for text in logged] == [True], "each finding is logged once"
        assert read_report(world.storage.root) == scrubber.report
        # Another pass finds it again, and it stays one.
        await scrubber.run_once()
        assert scrubber.damaged_files == 1
    # Not through its own means: the catalog would be refused.
    assert path.name == "catalog.db" or path.name in (tmp_path / SCRUB_NAME).read_text()


async def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert scrubber.report.findings == []
        log_bytes = sum(path.stat().st_size for path in world.segments)
        assert scrubber.report.last_size_bytes > log_bytes
        assert scrubber.report.last_ended_ms >= scrubber.report.started_ms > 0
        # Stores and snapshots share files: what is read is less than all of them together.
        tables = list(world.rows_path.rglob("*.sst"))
        assert len({path.stat().st_ino for path in tables}) < len(tables)
        unique_bytes = sum({path.stat().st_ino: path.stat().st_size for path in tables}.values())
        other = [path for path in tmp_path.rglob("*") if path.is_file() and path not in tables]
        # The index of a table is read twice.
        assert scrubber.read_bytes <= 1.2 * unique_bytes + sum(path.stat().st_size for path in other)


async def test_what_was_never_acknowledged_is_not_looked_at(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        with world.segments[-1].open("ab") as file:
            file.write(b"half a batch")
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert scrubber.report.findings == []


async def test_the_advice_says_who_else_has_the_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        flip(world.segments[0], 100)
        flip(world.segments[-1], 100)
        flip(next(iter(sorted(world.rows_path.glob("*.log")))), 100)
        entry = world.storage.catalog.table(world.rows.path)
        path = await world.storage.lake.prepare(
            world.storage.catalog.table_by_id(world.log_bucket.table_id),  # type: ignore[arg-type]
            {world.log_bucket: 12},
            merge=False,
        )
        await world.storage.lake.commit(world.log_bucket.table_id, 1, path, readable=True, earliest_to_keep=None)
        scrubber = world.scrubber()
        await scrubber.run_once()
        advice = {(finding.unit[0], finding.file[-10:]): finding.advice for finding in scrubber.report.damaged}
        assert "The lake has all rows" in advice[world.log_bucket.table_id, world.segments[0].name[-10:]]
        assert "The lake" not in advice[world.log_bucket.table_id, world.segments[-1].name[-10:]]
        (of_rows,) = [text for (table_id, _), text in advice.items() if table_id == entry.table_id]
        assert "current rows are safe: snapshot 0" in of_rows


# --- stores and snapshots


async def check_rows(world: World, score: int) -> None:
    assert await world.rows.all_rows() == [row(key, f"name {key}".ljust(40), score) for key in range(ROWS)]


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_damaged_store_is_built_anew(tmp_path: Path, is_open: bool) -> None:
    async with opened(tmp_path) as world:
        await world.put(2)
        await world.storage.kv.pool.close()
        shared = {path.name for snapshot in world.snapshot_paths for path in snapshot.glob("*.sst")}
        (own,) = [path for path in world.store_tables if path.name not in shared and path.stat().st_size > 10_000]
        if is_open:
            await check_rows(world, 2)
        flip(own, 3_000)
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert [finding.file.rpartition("/")[2] for finding in scrubber.report.findings] == [own.name]
        assert scrubber.damaged_files == 0, "it was mended"
        await check_rows(world, 2)
        await scrubber.run_once()
        assert scrubber.report.findings == []


async def test_a_file_that_store_and_snapshots_share(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        newest = world.snapshot_paths[0]
        flip(max(newest.glob("*.sst"), key=lambda path: path.stat().st_size), 3_000)
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert len(scrubber.report.findings) >= 2
        assert scrubber.damaged_files == 0
        assert newest not in world.snapshot_paths
        assert world.snapshot_paths[0].name > newest.name, "a new one is made"
        await check_rows(world, 1)
        await scrubber.run_once()
        assert scrubber.report.findings == []


async def test_damage_of_one_snapshot_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        newest, older = world.snapshot_paths
        flip(next(newest.glob("MANIFEST-*")), 60)
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert [finding.is_mended for finding in scrubber.report.findings] == [True]
        assert newest not in world.snapshot_paths
        assert older in world.snapshot_paths
        assert len(world.snapshot_paths) == 2


@pytest.mark.parametrize("name", ["CURRENT", "*.sst"])
async def test_a_snapshot_that_lacks_a_file(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as world:
        newest = world.snapshot_paths[0]
        next(newest.glob(name)).unlink()
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert [(one.reason, one.is_mended) for one in scrubber.report.findings] == [("the file is missing", True)]
        assert newest not in world.snapshot_paths


async def test_a_store_whose_manifest_is_not_the_one_it_names(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.storage.kv.pool.close()
        (world.rows_path / "kv" / "CURRENT").write_text("MANIFEST-987654\n")
        scrubber = world.scrubber()
        await scrubber.run_once()
        (finding,) = scrubber.report.findings
        assert finding.file.endswith("kv/MANIFEST-987654")
        assert finding.is_mended
        await check_rows(world, 1)


async def test_without_another_copy_all_stays_as_it_is(tmp_path: Path) -> None:
    """Most of a damaged store can be read. It is not given up for nothing."""
    async with opened(tmp_path) as world:
        bucket = world.rows.bucket()
        log = await world.storage.opened(bucket)
        stay = log.on_advance(lambda: None)
        await world.put(2)
        await log.remove_before(log.log_end_offset)
        stay()
        assert log.log_start_offset > 0
        for path in [
            *world.snapshot_paths[0].glob("*.sst"),
            *world.snapshot_paths[1].glob("*.sst"),
            *world.store_tables,
        ]:
            if path.stat().st_size > 10_000 and path.read_bytes()[3_000:3_001]:
                os.truncate(path, path.stat().st_size - 1)
        before = sorted(world.rows_path.rglob("*"))
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert scrubber.damaged_files >= 3
        assert sorted(world.rows_path.rglob("*")) == before


async def test_what_a_killed_process_was_writing_into_a_store_is_no_damage(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        (world.rows_path / "kv" / "000999.sst").write_bytes(b"the beginning of a table")
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert scrubber.report.findings == []


# --- beside others


async def test_nothing_is_found_beside_writes_drops_retention_and_snapshots(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        storage = world.storage
        scrubber = world.scrubber()
        done = False

        async def write() -> None:
            for number in range(60):
                await world.append(5)
                await world.put(number)

        async def remove() -> None:
            retention = Retention(storage, size_bytes=2_000, kv_snapshots=world.snapshots)
            while not done:
                await retention.run_once()
                await world.snapshots.run_once()
                await storage.kv.pool.discard(world.rows.bucket())

        async def drop() -> None:
            number = 0
            while not done:
                number += 1
                table = await Table.create(storage, name=f"t{number}")
                for score in range(3):
                    await table.kv().put(table.batch([row(key, "x" * 50, score) for key in range(50)])).applied
                await world.snapshots.make(table.bucket())
                await asyncio.sleep(0)
                await storage.catalog.drop_table(table.path)

        async def scrub() -> int:
            passes = 0
            while not done:
                await scrubber.run_once()
                assert scrubber.report.findings == []
                passes += 1
            return passes

        others = [asyncio.create_task(work()) for work in (remove, drop, scrub)]
        try:
            await write()
        finally:
            done = True
            _, _, passes = await asyncio.gather(*others)
        assert passes > 3
        await check_rows(world, 59)


async def test_a_dropped_table_takes_its_findings_along(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        flip_sealed(world)
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert scrubber.damaged_files == 1
        await world.storage.catalog.drop_table(world.storage.catalog.table_by_id(world.log_bucket.table_id).path)  # type: ignore[union-attr]
        assert scrubber.damaged_files == 0
        await scrubber.run_once()
        assert scrubber.report.findings == []


# --- rate, restarts, switches


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return False


def test_the_pace_is_kept_whatever_is_asked_for() -> None:
    clock = Clock()
    pace = ScrubPace(1_000, clock, clock.wait)
    for size_bytes in (1, 500, 1_000, 3_000, 7):
        pace.take(size_bytes)
    assert pace.taken_bytes == 4_508
    assert clock.now_s == pytest.approx(4.501), "all but the last have had their time"
    clock.now_s += 100.0  # time in which nothing was read is not saved up
    for _ in range(10):
        pace.take(1_000)
    assert clock.now_s == pytest.approx(104.501 + 9.0)


def test_large_reads_are_cut_into_small_ones(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4_096)
    with PacedFile(path, ScrubPace(CHUNK_BYTES, clock, clock.wait), is_cold=True) as file:
        assert file.read_at(file.size_bytes, 0) == path.read_bytes()
    assert clock.now_s == pytest.approx(path.stat().st_size / CHUNK_BYTES - 1)


async def test_a_pass_takes_the_time_that_its_bytes_need(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        clock = Clock()
        scrubber = world.scrubber(bytes_per_second=1_000, make_pace=lambda rate: ScrubPace(rate, clock, clock.wait))
        await scrubber.run_once()
        assert clock.now_s >= (scrubber.read_bytes - CHUNK_BYTES) / 1_000
        assert clock.now_s <= scrubber.read_bytes / 1_000


async def test_off_means_that_nothing_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        scrubber = world.scrubber(bytes_per_second=SCRUB_OFF)
        await scrubber.run()
        assert scrubber.read_bytes == 0
        assert not (tmp_path / SCRUB_NAME).exists()


class Stopped:
    """A pace that stops a pass after so many bytes, as the end of a server does."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, bytes_per_second: int) -> ScrubPace:
        pace = ScrubPace(1, Clock(), self._wait)
        self._pace = pace
        return pace

    def _wait(self, _: float) -> bool:
        if self._pace.taken_bytes < self._left_bytes:
            return False
        self._loop.call_soon_threadsafe(self.reached.set)
        return self._pace._stopping.wait()


async def test_a_pass_goes_on_after_restarts_until_it_is_done(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        flip(world.segments[1], 200)
        whole = world.scrubber()
        await whole.run_once()
        (tmp_path / SCRUB_NAME).unlink()
    read_bytes = 0
    places: list[int] = []
    for size_bytes in ((tmp_path / "catalog.db").stat().st_size + 2_000, 2_000, 2_000):
        async with opened(tmp_path) as world:
            stopped = Stopped(size_bytes)
            scrubber = world.scrubber(make_pace=stopped)
            task = asyncio.create_task(scrubber.run_once())
            await stopped.reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            read_bytes += scrubber.read_bytes
            assert scrubber.report.partly is not None
            places.append(scrubber.report.partly[1])
    assert places == sorted(set(places)), "each run goes on where the one before ended"
    async with opened(tmp_path) as world:
        scrubber = world.scrubber()
        await scrubber.run_once()
        read_bytes += scrubber.read_bytes
    assert found(scrubber) == found(whole), "what was found before a restart is known after it"
    assert scrubber.report.done is None
    assert read_bytes < whole.read_bytes * 1.1
    assert scrubber.report.last_size_bytes == read_bytes


async def test_findings_are_looked_at_again_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        path = flip_sealed(world)
        await world.scrubber().run_once()
    flip(path, 200)
    async with opened(tmp_path) as world:
        scrubber = world.scrubber()
        await scrubber.run_again()
        assert scrubber.report.findings == []
        assert scrubber.report.last_ended_ms > 0, "the last pass is not forgotten"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"crc32": 1, "report": {}}', b"\xff"])
async def test_a_damaged_report_costs_a_pass_its_place_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    async with opened(tmp_path) as world:
        (tmp_path / SCRUB_NAME).write_bytes(content)
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert read_report(tmp_path) == scrubber.report != ScrubReport()


@pytest.mark.parametrize("name", [name for name in failpoints.NAMES if name.startswith("scrub.")])
async def test_a_report_that_can_not_be_written_stops_nothing(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as world:
        flip_sealed(world)
        failpoints.arm(f"{name}:1:enospc")
        scrubber = world.scrubber()
        await scrubber.run_once()
        assert scrubber.damaged_files == 1


@pytest.mark.parametrize(
    ("started_ms", "expected_s"),
    [(0, 0.0), (10_000_000, 7.0), (9_990_000, 0.0), (20_000_000, 10.0), (10_003_000, 10.0)],
)
async def test_a_pass_begins_at_most_once_in_an_interval_whatever_the_clock_says(
    tmp_path: Path, started_ms: int, expected_s: float
) -> None:
    async with opened(tmp_path) as world:
        scrubber = world.scrubber(interval_ms=10_000, now_ms=lambda: 10_003_000)
        scrubber.report.started_ms = started_ms
        assert scrubber._due_in_s() == expected_s


def test_a_pass_over_no_tables_loads_nothing_large(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from fluss.storage.kv.snapshots import KvSnapshots\n"
        "from fluss.storage.damage.scrub import Scrubber\n"
        "from fluss.storage.store import Storage, StorageOptions\n"
        "async def main():\n"
        f"    storage = await Storage.open(StorageOptions({str(tmp_path / 'data')!r}))\n"
        "    scrubber = Scrubber(storage, KvSnapshots(storage, lambda bucket: storage.kv.bucket(bucket)))\n"
        "    await scrubber.run_once()\n"
        "    assert scrubber.read_bytes > 0\n"
        "    await storage.close()\n"
        "asyncio.run(main())\n"
        "print({'pyarrow', 'rocksdict', 'crc32c', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


async def test_a_catalog_that_changes_while_it_is_read_is_no_finding(tmp_path: Path) -> None:
    storage = await Storage.open(StorageOptions(tmp_path))
    try:
        scrubber = Scrubber(storage, KvSnapshots(storage, storage.kv.bucket))
        mark = storage.marks.catalog
        assert mark is not None
        storage.marks.put_catalog(mark._replace(is_settled=False))
        flip(tmp_path / "catalog.db", 5_000)
        await scrubber.run_once()
        assert scrubber.report.findings == []
        flip(tmp_path / "catalog.db", 5_000)
    finally:
        await storage.close()
