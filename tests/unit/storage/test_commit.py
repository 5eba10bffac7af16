"""Group commit: who shares a sync, who waits for which, and what a failed one means."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from fluss.doors import clock
from fluss.model.errors import ErrorCode, FlussError
from fluss.storage import failpoints, files
from fluss.storage.failpoints import Site
from fluss.storage.log.group_commit import THREADS, UNPROVEN_SYNC_S, WORK_THREADS, GroupCommit
from fluss.storage.log.log import OVERLAP_BYTES_MIN, SMALL_SYNC_BYTES_MAX, Appended, BucketLog
from tests.kit.storage.logs import append, crash_image, log_files, opened, texts


async def test_appends_of_one_turn_share_a_sync(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        first, second = append(log, "a"), append(log, "b")
        assert first.durable is second.durable
        await asyncio.sleep(0)
        third = append(log, "c")
        assert third.durable is not first.durable
        await third.durable
        assert first.durable.done()
        assert texts(log) == ["a", "b", "c"]


class HeldSyncs:
    """Syncs of one site begin and return when they are told to; other syncs are as they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, site: Site = Site.SEGMENT_COMMIT) -> None:
        self._site = site
        self.fds: list[int] = []
        self._outcomes: list[OSError | None] = []
        self._told: list[threading.Event] = []
        self._sync_now = files.sync
        monkeypatch.setattr(files, "sync", self._sync)

    def _sync(self, fd: int, site: Site) -> None:
        if site is not self._site:
            self._sync_now(fd, site)
            return
        told, index = threading.Event(), len(self._told)
        self._outcomes.append(None)
        self._told.append(told)
        self.fds.append(fd)
        assert told.wait(10)
        if (error := self._outcomes[index]) is not None:
            raise error

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.fds) < count:
                await asyncio.sleep(0.001)

    def end(self, index: int, error: OSError | None = None) -> None:
        self._outcomes[index] = error
        self._told[index].set()


async def _two_large_syncs(log: BucketLog, held: HeldSyncs) -> tuple[Appended, Appended]:
    first = append(log, "a" * OVERLAP_BYTES_MIN)
    await held.begun(1)
    second = append(log, "b" * OVERLAP_BYTES_MIN)
    await held.begun(2)
    return first, second


async def test_a_large_append_is_synced_beside_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as log:
        await append(log, "new segment").durable
        held = HeldSyncs(monkeypatch)
        first, second = await _two_large_syncs(log, held)
        assert held.fds[0] != held.fds[1]  # each is told of a failed write
        third = append(log, "c" * OVERLAP_BYTES_MIN)
        await asyncio.sleep(0.02)
        assert len(held.fds) == 2
        order: list[str] = []
        first.durable.add_done_callback(lambda _: order.append("first"))
        second.durable.add_done_callback(lambda _: order.append("second"))
        held.end(1)
        await second.durable
        assert order == ["first", "second"]
        assert log.high_watermark == 9
        await held.begun(3)
        assert held.fds[2] == held.fds[1]
        held.end(2)
        held.end(0)
        await third.durable
        assert log.high_watermark == 12
        monkeypatch.undo()


async def test_small_appends_gather_for_the_next_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as log:
        await append(log, "new segment").durable
        held = HeldSyncs(monkeypatch)
        append(log, "a" * OVERLAP_BYTES_MIN)
        await held.begun(1)
        second = append(log, "b")
        await asyncio.sleep(0.02)
        third = append(log, "c")
        assert second.durable is third.durable
        assert len(held.fds) == 1
        held.end(0)
        await held.begun(2)
        held.end(1)
        await third.durable
        monkeypatch.undo()


@pytest.mark.parametrize("failed", [0, 1])
async def test_when_one_of_two_syncs_fails_nothing_more_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: int
) -> None:
    async with opened(tmp_path / "data") as log:
        await append(log, "new segment").durable
        held = HeldSyncs(monkeypatch)
        first, second = await _two_large_syncs(log, held)
        held.end(failed, OSError(5, "Input/output error"))
        for appended in (first, second):
            with pytest.raises(FlussError, match="read-only"):
                await appended.durable
        held.end(1 - failed)
        await asyncio.sleep(0.02)
        assert log.is_read_only
        assert texts(log) == ["new segment"]


async def test_a_segment_is_sealed_while_the_loop_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldSyncs(monkeypatch, Site.SEGMENT_SEAL)
    async with opened(tmp_path / "data", segment_size_bytes=200) as log, opened(tmp_path / "other") as other:
        first, second = append(log, "a" * 100), append(log, "b" * 100)
        await held.begun(1)
        await append(other, "a bystander").durable
        third = append(log, "c" * 100)
        await asyncio.sleep(0.02)
        assert not any(appended.durable.done() for appended in (first, second, third))
        assert texts(log) == []
        held.end(0)
        await first.durable
        assert texts(log) == ["a" * 100]
        await held.begun(2)
        held.end(1)
        await third.durable
        assert second.durable.done()
        assert texts(log) == ["a" * 100, "b" * 100, "c" * 100]


async def test_what_follows_a_segment_has_no_name_until_that_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldSyncs(monkeypatch, Site.SEGMENT_SEAL)
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        await append(log, "a" * 50).durable
        append(log, "b" * 50)
        last = append(log, "c" * 100, writer_id=7, sequence=0)
        await held.begun(1)
        assert len(log_files(tmp_path / "data")) == 1
        cut = log.cut()
        assert cut is not None
        assert (cut.base_offsets, cut.writers) == ((0,), None)
        image = crash_image(tmp_path / "data", "image")
        held.end(0)
        await last.durable
        assert len(log_files(tmp_path / "data")) == 2
    log_files(image)[0].write_bytes(log_files(image)[0].read_bytes()[:-10])  # the disk had not all of it yet
    async with opened(image, segment_size_bytes=200) as log:
        assert texts(log) == ["a" * 50]
        assert not log.is_read_only
        assert not log_files(image, ".tmp")
        assert not append(log, "c" * 100, writer_id=7, sequence=0).duplicate


class TimedSyncs:
    """Syncs of segments that take a given time by a clock of their own, and the threads they ran in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = self.now_s = 0.0
        self.on_loop: list[bool] = []
        loop_thread = threading.current_thread()

        def sync(fd: int, site: Site) -> None:
            self.on_loop.append(threading.current_thread() is loop_thread)
            self.now_s += self.seconds

        monkeypatch.setattr(files, "sync", sync)
        monkeypatch.setattr(clock, "monotonic", lambda: self.now_s)

    async def run(self, log: BucketLog, count: int, text: str = "row") -> list[bool]:
        """Where each of so many appends in a row was synced."""
        self.on_loop.clear()
        for _ in range(count):
            await append(log, text).durable
        return self.on_loop


async def test_small_syncs_of_a_quick_disk_run_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as log:
        syncs = TimedSyncs(monkeypatch)
        assert (await syncs.run(log, 1)) == [False]  # a new segment: directories are synced, too
        assert not any(await syncs.run(log, 2))
        assert all((await syncs.run(log, 60))[-10:])
        assert not any(await syncs.run(log, 3, "x" * SMALL_SYNC_BYTES_MAX))
        assert all(await syncs.run(log, 3))
        assert log.high_watermark == 3 * 69


async def test_syncs_of_a_slow_disk_stay_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as log:
        syncs = TimedSyncs(monkeypatch)
        syncs.seconds = 0.002
        assert not any(await syncs.run(log, 30))


async def test_a_disk_that_becomes_slow_is_left_to_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as log:
        syncs = TimedSyncs(monkeypatch)
        await syncs.run(log, 60)
        syncs.seconds = 0.005
        assert await syncs.run(log, 4) == [True, False, False, False]


class SmallLog:
    """Always has a small sync to do, which takes no time; `ended` has the threads."""

    is_small = True

    def __init__(self, table: str = "table") -> None:
        self.syncs_with = table
        self.small_sync_s = UNPROVEN_SYNC_S
        self.thread: threading.Thread | None = None
        self.ended: list[threading.Thread | None] = []

    def may_overlap(self) -> bool:
        return False

    def begin_sync(self) -> SmallLog:
        return self

    def run(self) -> None:
        self.thread = threading.current_thread()

    def finish_sync(self, job: SmallLog, error: Exception | None) -> None:
        self.ended.append(self.thread)


class HeldLog(SmallLog):
    """Its syncs return when it is told."""

    is_small = False

    def __init__(self, table: str, told: threading.Event) -> None:
        super().__init__(table)
        self._told = told

    def run(self) -> None:
        assert self._told.wait(10)


async def _settled(commit: GroupCommit, *logs: SmallLog) -> None:
    async with asyncio.timeout(10):
        while any(map(commit.is_busy, logs)):
            await asyncio.sleep(0.001)


async def test_a_table_with_slow_syncs_leaves_threads_to_others() -> None:
    commit, told = GroupCommit(asyncio.get_running_loop()), threading.Event()
    slow = [HeldLog("slow", told) for _ in range(4 * THREADS)]
    quick = SmallLog("quick")
    for log in (*slow, quick):
        commit.request(log)
    await _settled(commit, quick)
    work = [asyncio.create_task(commit.run(lambda: told.wait(10), "slow")) for _ in range(4 * WORK_THREADS)]
    await asyncio.sleep(0)
    await commit.run(lambda: None)
    await commit.run(lambda: None, "quick")
    assert not any(log.ended for log in slow)
    told.set()
    await _settled(commit, *slow)
    assert all(len(log.ended) == 1 for log in slow)
    await asyncio.gather(*work)
    commit.close()


async def test_a_log_that_was_slow_is_not_synced_on_the_loop_because_others_are_quick() -> None:
    commit = GroupCommit(asyncio.get_running_loop())
    quick, slow = SmallLog(), SmallLog()
    slow.small_sync_s = 1.0  # the last one took this and more
    for _ in range(60):
        commit.request(quick)
        await _settled(commit, quick)
    assert quick.ended[-1] is threading.current_thread()
    commit.request(slow)
    await _settled(commit, slow)
    assert slow.ended[-1] is not threading.current_thread()
    commit.close()


async def test_small_syncs_of_two_logs_at_once_run_in_threads() -> None:
    commit = GroupCommit(asyncio.get_running_loop())
    one, other = SmallLog(), SmallLog()

    async def sync(*logs: SmallLog) -> None:
        for log in logs:
            commit.request(log)
        async with asyncio.timeout(10):
            while any(map(commit.is_busy, logs)):
                await asyncio.sleep(0)

    for _ in range(60):
        await sync(one)
    assert one.ended[-1] is threading.current_thread()
    await sync(one, other)
    assert threading.current_thread() not in (one.ended[-1], other.ended[-1])
    commit.close()


async def test_a_sync_on_the_loop_that_fails_is_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as log:
        with monkeypatch.context() as patch:
            syncs = TimedSyncs(patch)
            assert (await syncs.run(log, 60))[-1]
        failpoints.arm("segment.commit.before_sync:1:eio")
        lost = append(log, "lost")
        with pytest.raises(FlussError, match="read-only"):
            await lost.durable
        assert log.is_read_only
        assert texts(log) == ["row"] * 60


async def test_a_cancelled_waiter_does_not_take_the_others_along(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        appended = append(log, "a")

        async def wait() -> None:
            await appended.durable

        one, other = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        one.cancel()
        await other
        with pytest.raises(asyncio.CancelledError):
            await one
        assert log.high_watermark == 3


async def test_a_duplicate_of_a_batch_that_is_not_durable_shares_its_future(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        first = append(log, "a", writer_id=7, sequence=0)
        await asyncio.sleep(0)
        in_flight = append(log, "a", writer_id=7, sequence=0)
        assert in_flight.durable is first.durable
        assert (in_flight.base_offset, in_flight.last_offset, in_flight.duplicate) == (0, 2, True)
        second = append(log, "b", writer_id=7, sequence=1)
        assert append(log, "b", writer_id=7, sequence=1).durable is second.durable
        await second.durable
        settled = append(log, "a", writer_id=7, sequence=0)
        assert settled.durable.done()
        assert settled.base_offset == 0
        assert log.log_end_offset == 6


@pytest.mark.parametrize("action", ["eio", "enospc", "raise"])
async def test_a_failed_sync_is_never_turned_into_success(tmp_path: Path, action: str) -> None:
    async with opened(tmp_path / "data") as log:
        await append(log, "kept", writer_id=1, sequence=0).durable
        failpoints.arm(f"segment.commit.before_sync:1:{action}")
        first = append(log, "lost", writer_id=1, sequence=1)
        await asyncio.sleep(0)
        second = append(log, "lost too", writer_id=1, sequence=2)
        for appended in (first, second):
            with pytest.raises(FlussError) as caught:
                await appended.durable
            assert caught.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
        assert log.is_read_only
        assert not log.is_idle
        assert (log.high_watermark, log.log_end_offset) == (3, 3)
        assert texts(log) == ["kept"]
        for text, sequence in (("lost", 1), ("lost too", 2), ("next", 3)):
            with pytest.raises(FlussError, match="read-only"):
                append(log, text, writer_id=1, sequence=sequence)
        with pytest.raises(FlussError, match="read-only"):
            append(log, "another writer")
        # What was acknowledged is still acknowledged.
        assert append(log, "kept", writer_id=1, sequence=0).base_offset == 0
    async with opened(tmp_path / "data") as log:
        # The unacknowledged tail did not come back, and its offsets are free again.
        assert texts(log) == ["kept"]
        await append(log, "lost", writer_id=1, sequence=1).durable
        assert texts(log) == ["kept", "lost"]


async def test_a_sync_without_a_descriptor_is_tried_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        failpoints.arm("segment.create.before_sync_directory:1:emfile")
        first = append(log, "a", writer_id=1, sequence=0)
        await log._commit.run(lambda: None)
        again = append(log, "a", writer_id=1, sequence=0)
        second = append(log, "b", writer_id=1, sequence=1)
        await asyncio.gather(first.durable, again.durable, second.durable)
        assert again.duplicate
        assert not log.is_read_only
        assert texts(log) == ["a", "b"]
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as log:
        assert texts(log) == ["a", "b"]


async def test_a_put_off_sync_waits_for_no_further_append(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as log:
        failpoints.arm("bucket.directory.before_sync_directory:1:emfile")
        await append(log, "a").durable
        assert texts(log) == ["a"]
        assert log.is_idle
        assert log._commit._stats.sync_failures == 0  # of which operators are told that a bucket is read-only


async def test_a_log_that_never_gets_a_descriptor_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, site: Site) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        async with opened(tmp_path / "data") as log:
            patch.setattr(files, "sync_directory", refuse)
            appended = append(log, "a")
        with pytest.raises(FlussError, match="Too many open files"):
            await appended.durable
    async with opened(tmp_path / "data") as log:
        assert texts(log) == []


@pytest.mark.parametrize("point", ["create.before_sync_directory", "name.before_sync_directory"])
async def test_a_seal_without_a_descriptor_is_tried_again(tmp_path: Path, point: str) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        failpoints.arm(f"segment.{point}:1:emfile")
        texts_appended = [letter * 150 for letter in "abc"]
        appended = [append(log, text) for text in texts_appended]
        await asyncio.gather(*(item.durable for item in appended))
        assert not log.is_read_only
        assert texts(log) == texts_appended
        image = crash_image(tmp_path / "data", "image")
    async with opened(image, segment_size_bytes=200) as log:
        assert texts(log) == texts_appended


async def test_a_segment_that_gets_no_descriptor_refuses_the_append_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        await append(log, "a" * 150).durable
        failpoints.arm("segment.create.before_create:1:emfile")
        with pytest.raises(FlussError, match="Too many open files") as caught:
            append(log, "b" * 150)
        assert caught.value.is_retriable
        assert not log.is_read_only
        await append(log, "b" * 150).durable
        assert texts(log) == ["a" * 150, "b" * 150]


async def test_a_failed_seal_is_a_failed_sync(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=500) as log:
        await append(log, "kept").durable
        failpoints.arm("segment.seal.before_sync:1:eio")
        waiting: list[Appended] = []
        while len(waiting) < 50:
            waiting.append(append(log, "row".ljust(60)))
        for appended in waiting:
            with pytest.raises(FlussError, match="read-only"):
                await appended.durable
        assert texts(log) == ["kept"]
        with pytest.raises(FlussError, match="read-only"):
            append(log, "row")
        assert len(log_files(tmp_path / "data")) == 1
        assert not log_files(tmp_path / "data", ".tmp")
    async with opened(tmp_path / "data", segment_size_bytes=500) as log:
        assert texts(log) == ["kept"]
        await append(log, "next").durable


@pytest.mark.parametrize("point", ["name.before_rename", "name.after_rename", "commit.before_sync"])
async def test_a_failed_sync_behind_a_sealed_segment_keeps_that(tmp_path: Path, point: str) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        first, second = append(log, "a" * 100), append(log, "b" * 100)
        third = append(log, "c" * 100)
        failpoints.arm(f"segment.{point}:1:eio")
        await first.durable
        failed = (third,) if point.startswith("commit") else (second, third)
        for appended in failed:
            with pytest.raises(FlussError, match="read-only"):
                await appended.durable
        kept = ["a" * 100] if second in failed else ["a" * 100, "b" * 100]
        assert texts(log) == kept
        cut = log.cut()
        assert cut is not None
        assert all((log_files(tmp_path / "data")[0].parent / f"{base:020d}.log").exists() for base in cut.base_offsets)
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        assert texts(log) == kept
        await append(log, "next").durable
        assert texts(log) == [*kept, "next"]


@pytest.mark.parametrize("point", ["before_write", "torn_write", "after_write"])
async def test_a_refused_write_leaves_no_trace_and_the_log_goes_on(tmp_path: Path, point: str) -> None:
    async with opened(tmp_path / "data") as log:
        await append(log, "a", writer_id=1, sequence=0).durable
        size = log_files(tmp_path / "data")[0].stat().st_size
        failpoints.arm(f"segment.append.{point}:1:enospc")
        with pytest.raises(FlussError, match="No space left") as caught:
            append(log, "b", writer_id=1, sequence=1)
        assert caught.value.is_retriable
        assert log_files(tmp_path / "data")[0].stat().st_size == size
        assert log.log_end_offset == 3
        retried = append(log, "b", writer_id=1, sequence=1)
        assert not retried.duplicate
        await retried.durable
        assert texts(log) == ["a", "b"]
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as log:
        assert texts(log) == ["a", "b"]


async def test_a_full_disk_at_a_roll_is_retriable(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        await append(log, "a" * 100).durable
        for point in ("before_create", "after_create"):
            failpoints.arm(f"segment.create.{point}:1:enospc")
            with pytest.raises(FlussError, match="new segment") as caught:
                append(log, "b" * 100)
            assert caught.value.is_retriable
        await append(log, "b" * 100).durable
        assert texts(log) == ["a" * 100, "b" * 100]


@pytest.mark.parametrize("point", ["index.replace.before_write", "writers.replace.before_rename"])
async def test_disposable_files_that_cannot_be_written_stop_nothing(tmp_path: Path, point: str) -> None:
    rows = [f"row {number}".ljust(80) for number in range(10)]
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        failpoints.arm(f"{point}:1:enospc")
        for number, row in enumerate(rows):
            await append(log, row, writer_id=1, sequence=number).durable
        assert not log.is_read_only
    async with opened(tmp_path / "data", segment_size_bytes=200) as log:
        assert texts(log) == rows
        assert append(log, rows[-1], writer_id=1, sequence=9).duplicate
