"""The scrubber, which reads all that is stored now and then, so that rot is found while there is still a copy.

A pass goes through catalog, tables and buckets in order of their ids, at a bounded rate, and remembers how far it came:
after a restart it goes on there. It reads what is known to be safe and does not change any more: sealed segments, the
active one up to its mark, tables of stores and snapshots, staged requests, offsets files, the settled catalog. What
retention, drops or compaction remove meanwhile is no finding.

A finding is logged, counted and kept in the report. A damaged snapshot is set aside and replaced by a new one. A
damaged store is built anew, if a good snapshot and the log have all its rows; otherwise it stays as it is, for most of
it can still be read. Of a log there is no other copy: its damage is only reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fluss.doors import clock, threads
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.damage.scrub_files import ScrubFinding, ScrubReport, UnitKey, read_report, write_report
from fluss.storage.directory import (
    CATALOG_NAME,
    SCRUB_BYTES_PER_SECOND,
    SCRUB_INTERVAL_MS,
    SCRUB_OFF,
    STORE_NAME,
)
from fluss.storage.kv import snapshot_files as on_disk
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.log.marks import UNKNOWN_HEADS, Mark
from fluss.storage.log.segment import LOG_SUFFIX, list_base_offsets, segment_path
from fluss.storage.store import Storage

if TYPE_CHECKING:
    from fluss.storage.damage.scrub_files import DatabaseCheck, FileDamage, PacedFile, ScrubPace

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

START_DELAY_S: Final = 60.0  # a server that starts has other things to read
SAVE_INTERVAL_S: Final = 10.0
_NO_PARTITION: Final = -1
_TABLE_FILES: Final = -2  # in place of a partition: what belongs to the table as a whole
_CATALOG_UNIT: Final[UnitKey] = (-1, 0, 0)

_ADVICE_LOG: Final = (
    "Rows there can't be read. 'fluss doctor' lists all damage, 'fluss repair' what a repair would lose; or restore a "
    "backup"
)
_ADVICE_ROWS: Final = "No good snapshot and log have all its rows, so it stays as it is; restore a backup"
_ADVICE_MENDED: Final = "It is made anew, for other files have all its rows; if that fails, restore a backup"
_ADVICE_STAGED: Final = "Its batch can't be committed; write the batch again"
_ADVICE_OFFSETS: Final = "Tier the table anew"
_ADVICE_CATALOG: Final = "The next start will refuse it. Restore a backup; until then don't stop the server"


class _LogPart(NamedTuple):
    """A segment, and how much of it is known to be safe."""

    base_offset: int
    end_position: int | None  # None: all of it
    end_offset: int
    heads_checksum: int = UNKNOWN_HEADS


class _BadSnapshot(NamedTuple):
    snapshot: on_disk.Snapshot
    damages: list[FileDamage]


class Scrubber:
    """`run_once` makes a pass; `run` makes one at most every so often."""

    def __init__(
        self,
        storage: Storage,
        kv_snapshots: KvSnapshots,
        *,
        bytes_per_second: int = SCRUB_BYTES_PER_SECOND,
        interval_ms: int = SCRUB_INTERVAL_MS,
        make_pace: Callable[[int], ScrubPace] | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._storage = storage
        self._kv_snapshots = kv_snapshots
        self._bytes_per_second = bytes_per_second
        self._interval_ms = interval_ms
        self._make_pace = make_pace
        self._now_ms = now_ms or storage.clock.now_ms
        self._executor: Executor | None = None
        self._pace: ScrubPace | None = None
        self._counted_bytes = 0  # of what the pace has let through
        self._counted_s = 0.0
        self._saved_s = 0.0
        self._loaded = False
        self._outdated: list[ScrubFinding] = []  # of the unit that is looked at
        self.report = ScrubReport()
        self.read_bytes = 0  # since the server was started

    @property
    def damaged_files(self) -> int:
        """Found, not mended, and not dropped since."""
        return len({finding.file for finding in self.report.damaged if self._exists(finding.unit)})

    # --- passes

    async def run(self) -> None:
        """A pass every so often, until cancelled."""
        if self._bytes_per_second == SCRUB_OFF:
            return
        delay_s = min(START_DELAY_S, self._interval_ms / 1_000)
        await self._load()
        await asyncio.sleep(delay_s)
        next_run = self.run_again
        while True:
            try:
                await next_run()
                next_run = self.run_once
                await asyncio.sleep(self._due_in_s())
            except Exception:
                _log.exception("a scrub failed; it goes on in %.0f s", delay_s)
                await asyncio.sleep(delay_s)

    def _due_in_s(self) -> float:
        if self.report.done is not None:
            return 0.0  # a pass is under way
        # The clock may have been put forward or back while the server was off.
        wait_ms = self.report.started_ms + self._interval_ms - self._now_ms()
        return min(max(wait_ms, 0), self._interval_ms) / 1_000

    async def run_once(self) -> None:
        """Finish the pass under way, or make a whole one."""
        await self._load()
        report = self.report
        if report.done is None:
            report.begin(self._now_ms())
            _log.info("scrub %d begins", report.pass_number)
        async with self._working():
            for unit in self._units():
                if report.done is not None and unit > report.done:
                    await self._scrub(unit)
                    report.done, report.partly = unit, None
            report.findings = [finding for finding in report.findings if self._exists(finding.unit)]
            report.end(self._now_ms())
        _log.info(
            "scrub %d has ended: %d bytes were read in %.0f s, %d files are damaged",
            report.pass_number,
            report.last_size_bytes,
            report.last_seconds,
            self.damaged_files,
        )

    async def run_again(self) -> None:
        """Look again at what findings say: somebody may have repaired it, or restored a backup."""
        await self._load()
        if not self.report.findings:
            return
        async with self._working():
            for unit in sorted({finding.unit for finding in self.report.findings}):
                await self._scrub(unit, again=True)

    async def _load(self) -> None:
        if not self._loaded:
            found = await self._storage.run_blocking(partial(read_report, self._storage.root))
            self.report = found or self.report
            self._loaded = True

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        # Only now: what reads files takes memory that an idle server does without.
        from fluss.storage.damage.scrub_files import ScrubPace

        self._pace = (self._make_pace or ScrubPace)(self._bytes_per_second)
        self._counted_bytes, self._counted_s = 0, clock.monotonic()
        self._executor = threads.pool(1, "fluss-scrub")
        try:
            yield
        finally:
            self._pace.stop()
            self._executor.shutdown()
            self._count()
            # Not in a thread: the server may be stopping, and the file is small.
            write_report(self._storage.root, self.report.encode())

    async def _read(self, work: Callable[[], _T]) -> _T:
        """Do work that reads files; when this is cancelled, it ends first."""
        assert self._executor is not None
        assert self._pace is not None
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._pace.stop()
            await asyncio.wait([future])
            future.exception()
            raise
        finally:
            await self._save_at_times()

    def _count(self) -> None:
        assert self._pace is not None
        now_s, taken_bytes = clock.monotonic(), self._pace.taken_bytes
        self.report.seconds += now_s - self._counted_s
        self.report.size_bytes += taken_bytes - self._counted_bytes
        self.read_bytes += taken_bytes - self._counted_bytes
        self._counted_s, self._counted_bytes = now_s, taken_bytes

    async def _save_at_times(self) -> None:
        self._count()
        if clock.monotonic() - self._saved_s >= SAVE_INTERVAL_S:
            self._saved_s = clock.monotonic()
            await self._storage.run_blocking(partial(write_report, self._storage.root, self.report.encode()))

    # --- units

    def _units(self) -> Iterator[UnitKey]:
        yield _CATALOG_UNIT
        catalog = self._storage.catalog
        for table_id in sorted(entry.table_id for entry in catalog.all_tables()):
            entry = catalog.table_by_id(table_id)
            if entry is not None:
                yield from self._units_of(entry)

    def _units_of(self, entry: TableEntry) -> Iterator[UnitKey]:
        yield entry.table_id, _TABLE_FILES, 0
        partition_ids = [_NO_PARTITION]
        if entry.partition_keys:
            partition_ids = sorted(partition.partition_id for partition in self._storage.catalog.partitions(entry))
        for partition_id in partition_ids:
            for bucket_id in range(entry.num_buckets):
                yield entry.table_id, partition_id, bucket_id

    def _exists(self, unit: UnitKey) -> bool:
        if unit == _CATALOG_UNIT:
            return True
        if unit[1] == _TABLE_FILES:
            return self._storage.catalog.table_by_id(unit[0]) is not None
        return self._storage.exists(_bucket(unit))

    async def _scrub(self, unit: UnitKey, *, again: bool = False) -> None:
        """Look at a unit. What was found in it before goes when all of it was looked at."""
        partly, number = self.report.partly, self.report.pass_number
        done_before = partly[1] if not again and partly is not None and partly[0] == unit else None
        known = [finding for finding in self.report.findings if finding.unit == unit]
        self._outdated = [finding for finding in known if again or finding.pass_number != number]
        if unit == _CATALOG_UNIT:
            await self._scrub_catalog()
        elif unit[1] == _TABLE_FILES:
            await self._scrub_table_files(unit)
        elif self._exists(unit):
            await self._scrub_log(unit, done_before, again=again)
            entry = self._storage.catalog.table_by_id(unit[0])
            if entry is not None and has_primary_key(entry.table_json):
                await self._scrub_rows(unit)
        self.report.forget(self._outdated)

    def _found(self, unit: UnitKey, damage: FileDamage, advice: str) -> ScrubFinding | None:
        """Note a finding, unless it is of something that was dropped meanwhile."""
        if not self._exists(unit):
            return None
        file = damage.path.relative_to(self._storage.root).as_posix()
        finding = ScrubFinding(unit, file, damage.reason, advice, self._now_ms(), self.report.pass_number)
        self.report.add(finding)
        _log.error("%s: %s. %s.", damage.path, damage.reason, advice)
        return finding

    # --- files of the server and of a table

    async def _scrub_catalog(self) -> None:
        from fluss.storage.damage.scrub_files import FileDamage, PacedFile, file_crc32

        assert self._pace is not None
        path, pace, before = self._storage.root / CATALOG_NAME, self._pace, self._storage.marks.catalog
        if before is None or not before.is_settled:
            return

        def read() -> tuple[int, int]:
            with PacedFile(path, pace, is_cold=False) as file:
                return file_crc32(file)

        found, after = await self._read(read), self._storage.marks.catalog
        # The file is written only while its mark says that it is not settled, and then gets another mark.
        if after is not None and before[1:] == after[1:] and found != before[2:]:
            reason = f"it has other bytes than its mark says: {found} instead of {before[2:]} (size, CRC-32)"
            self._found(_CATALOG_UNIT, FileDamage(path, reason), _ADVICE_CATALOG)

    async def _scrub_table_files(self, unit: UnitKey) -> None:
        from fluss.storage.damage.scrub_files import check_lake_offsets, check_staged

        staging, offsets = self._storage.staging_path(unit[0]), self._storage.lake_offsets_path(unit[0])
        for path in await self._read(partial(_list, staging, "*.*.*.*.[0-9]*")):
            await self._scrub_file(unit, path, check_staged, _ADVICE_STAGED)
        for path in await self._read(partial(_list, offsets, "*.offsets")):
            await self._scrub_file(unit, path, partial(check_lake_offsets, table_id=unit[0]), _ADVICE_OFFSETS)

    async def _scrub_file(
        self, unit: UnitKey, path: Path, check: Callable[[PacedFile], str | None], advice: str
    ) -> None:
        with suppress(FileNotFoundError):
            damage = await self._damage_of(path, check)
            if damage is not None:
                self._found(unit, damage, advice)

    async def _damage_of(
        self, path: Path, check: Callable[[PacedFile], str | None], *, is_cold: bool = True
    ) -> FileDamage | None:
        """What is wrong with a file; FileNotFoundError when it is gone."""
        from fluss.storage.damage.scrub_files import PacedFile, damage_of

        assert self._pace is not None
        pace = self._pace

        def run() -> str | None:
            with PacedFile(path, pace, is_cold=is_cold) as file:
                return check(file)

        try:
            return await self._read(partial(damage_of, path, run))
        except FileNotFoundError:
            raise
        except OSError as error:
            _log.warning("%s is not scrubbed this time: %s", path, error)
            return None

    # --- logs

    async def _scrub_log(self, unit: UnitKey, done_before: int | None, *, again: bool) -> None:
        from fluss.storage.damage.scrub_files import check_segment

        bucket = _bucket(unit)
        path = self._storage.bucket_path(bucket)
        for part in await self._log_parts(unit, path):
            if done_before is not None and part.base_offset <= done_before:
                continue
            log = self._storage.open_log(bucket)
            is_cold = log is None or part.base_offset not in log.open_base_offsets
            segment = segment_path(path, part.base_offset, LOG_SUFFIX)
            try:
                damage = await self._damage_of(segment, partial(check_segment, **part._asdict()), is_cold=is_cold)
                if damage is not None:
                    self._found(unit, damage, await self._log_advice(bucket, part.end_offset))
                    self._distrust(bucket)
            except FileNotFoundError:
                self._found_missing(unit, part.base_offset)
            if not again:
                self.report.partly = (unit, part.base_offset)

    def _distrust(self, bucket: TableBucket) -> None:
        """Have readers told, too: what was verified once is not verified at each read."""
        log = self._storage.open_log(bucket)
        if log is not None:
            log.distrust()

    async def _log_parts(self, unit: UnitKey, path: Path) -> list[_LogPart]:
        """What of a log is known to be safe; segments that should be there and are not are noted."""
        from fluss.storage.damage.scrub_files import read_checkpoint

        bucket = _bucket(unit)
        bases = await self._read(partial(list_base_offsets, path))
        # After the list: the mark moves before segments are removed, and after they were made.
        mark = self._mark(bucket)
        if mark is not None and mark.position > 0 and mark.segment_base_offset not in bases:
            bases = await self._read(partial(list_base_offsets, path))
            if self._mark(bucket) == mark and mark.segment_base_offset not in bases:
                self._found_missing(unit, mark.segment_base_offset)
            mark = self._mark(bucket)
        if not bases:
            return []
        if mark is not None and mark.start_offset < bases[0]:
            self._found_missing(unit, mark.start_offset)
        parts = [_LogPart(base, None, next_base) for base, next_base in pairwise(bases)]
        if mark is not None and mark.segment_base_offset == bases[-1]:
            parts.append(_LogPart(bases[-1], mark.position, mark.end_offset, mark.heads_checksum))
        elif mark is None:
            checkpoint = await self._read(partial(read_checkpoint, path, bases[-1]))
            if checkpoint is not None:
                parts.append(_LogPart(bases[-1], checkpoint.size_bytes, checkpoint.end_offset))
        return parts

    def _mark(self, bucket: TableBucket) -> Mark | None:
        mark = self._storage.marks.get(bucket)
        return mark if mark is not None and mark.is_certain else None

    def _found_missing(self, unit: UnitKey, base_offset: int) -> None:
        """Note that a segment is gone, unless it was removed as too old."""
        from fluss.storage.damage.scrub_files import FileDamage

        bucket = _bucket(unit)
        mark = self._mark(bucket)
        if mark is not None and base_offset >= mark.start_offset:
            path = segment_path(self._storage.bucket_path(bucket), base_offset, LOG_SUFFIX)
            self._found(unit, FileDamage(path, "the file is missing"), _ADVICE_LOG)

    async def _log_advice(self, bucket: TableBucket, end_offset: int) -> str:
        if 0 < end_offset <= self._storage.lake.log_kept_from(bucket):
            return f"{_ADVICE_LOG}. The lake has all rows of this file"
        snapshots = await self._read(partial(on_disk.list_snapshots, self._storage.bucket_path(bucket)))
        covering = [snapshot.snapshot_id for snapshot in snapshots if snapshot.log_offset >= end_offset > 0]
        if covering:
            return f"{_ADVICE_LOG}. The table's current rows are safe: snapshot {covering[-1]} has those of this file"
        return _ADVICE_LOG

    # --- rows of primary-key tables

    async def _scrub_rows(self, unit: UnitKey) -> None:
        from fluss.storage.damage.scrub_files import DatabaseCheck

        assert self._pace is not None
        bucket, check = _bucket(unit), DatabaseCheck(self._pace)
        path = self._storage.bucket_path(bucket)
        store = await self._check_store(bucket, check)
        bad: list[_BadSnapshot] = []
        good: list[on_disk.Snapshot] = []
        for snapshot in await self._read(partial(on_disk.list_snapshots, path)):
            is_open = self._storage.is_store_open(bucket)
            damages = await self._read(partial(_check_snapshot, check, snapshot, is_open=is_open))
            if damages:
                bad.append(_BadSnapshot(snapshot, damages))
            elif damages is not None:
                good.append(snapshot)
        damages = [*(store or ()), *(damage for one in bad for damage in one.damages)]
        if not damages or not self._exists(unit):
            return
        needs_rebuild = store is None or bool(store)
        may_mend = not needs_rebuild or await self._may_rebuild(unit, good)
        found = [self._found(unit, damage, _ADVICE_MENDED if may_mend else _ADVICE_ROWS) for damage in damages]
        if may_mend and None not in found:
            await self._mend(unit, found, needs_rebuild=needs_rebuild, bad=[one.snapshot for one in bad])

    async def _check_store(self, bucket: TableBucket, check: DatabaseCheck) -> list[FileDamage] | None:
        """What is wrong with a store; None when it is not there. One that is being opened or closed is left alone."""
        if self._storage.is_store_changing(bucket):
            return []
        path = self._storage.bucket_path(bucket) / STORE_NAME
        is_open = self._storage.is_store_open(bucket)
        try:
            damages = await self._read(partial(check.run, path, is_snapshot=False, is_open=is_open))
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("%s is not scrubbed this time: %s", path, error)
            return []
        return [] if self._storage.is_store_changing(bucket) else damages

    async def _mend(
        self,
        unit: UnitKey,
        findings: list[ScrubFinding | None],
        *,
        needs_rebuild: bool,
        bad: list[on_disk.Snapshot],
    ) -> None:
        """Make anew what is damaged."""
        bucket = _bucket(unit)
        try:
            async with self._kv_snapshots.unchanged():
                for snapshot in bad:
                    if snapshot.path.exists():
                        await self._storage.run_blocking(partial(on_disk.set_aside, snapshot))
            if needs_rebuild:
                await self._storage.kv.rebuild(bucket)
            await self._kv_snapshots.make(bucket, even_if_unchanged=True)
        except (OSError, FlussError) as error:
            _log.error("%s: what is damaged could not be made anew: %s", bucket, error)
            return
        self.report.mend(findings)
        _log.warning("%s: %d damaged files are replaced: store and snapshots are good again", bucket, len(findings))

    async def _may_rebuild(self, unit: UnitKey, good: list[on_disk.Snapshot]) -> bool:
        """Whether a good snapshot and the log have all rows of a store."""
        try:
            log = await self._storage.opened(_bucket(unit))
        except FlussError:
            return False
        found = [finding for finding in self.report.damaged if finding.unit == unit and finding not in self._outdated]
        if log.is_read_only or any(finding.file.endswith(LOG_SUFFIX) for finding in found):
            return False
        start_offset, end_offset = log.log_start_offset, log.high_watermark
        return start_offset == 0 or any(start_offset <= snapshot.log_offset <= end_offset for snapshot in good)


def _bucket(unit: UnitKey) -> TableBucket:
    table_id, partition_id, bucket_id = unit
    return TableBucket(table_id, bucket_id, None if partition_id == _NO_PARTITION else partition_id)


def _check_snapshot(check: DatabaseCheck, snapshot: on_disk.Snapshot, *, is_open: bool) -> list[FileDamage] | None:
    """What is wrong with a snapshot; None when it was removed or set aside meanwhile, or can't be looked at now."""
    from fluss.storage.damage.scrub_files import FileDamage

    try:
        damages = check.run(snapshot.path, is_snapshot=True, is_open=is_open)
    except FileNotFoundError as error:
        damages = [FileDamage(Path(error.filename), "the file is missing")]
    except OSError as error:
        _log.warning("%s is not scrubbed this time: %s", snapshot.path, error)
        return None
    return damages if snapshot.path.exists() else None


def _list(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern))
