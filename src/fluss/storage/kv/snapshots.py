"""Snapshots of the buckets of primary-key tables, and leases that keep them.

Snapshots are made one at a time, now and then and when the log is to be cut. A bucket's rows can be rebuilt from a
snapshot and the log behind it. Two are kept, so the log is kept from the older one on: the newer may be damaged.

Leased snapshots are kept besides, with their log, while somebody reads them. A lease has an id that its holder chose,
an end, and at most one snapshot of each bucket. It is renewed by asking for it again. It survives a restart; after its
end it counts for nothing, and is removed with the next change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from fluss.doors import clock
from fluss.model.clock import Clock
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.storage.catalog.catalog import Catalog, LeaseEntry
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.kv import snapshot_files as on_disk
from fluss.storage.kv.snapshot_files import SNAPSHOTS_KEPT, Snapshot
from fluss.storage.kv.store import KvState
from fluss.storage.store import Storage

LEASE_MS_MAX: Final = 7 * 24 * 60 * 60 * 1_000
LEASES_MAX: Final = 1_000
LEASED_SNAPSHOTS_MAX: Final = 100_000  # of all leases together
LEASE_ID_LENGTH_MAX: Final = 256


class KvLeases:
    """`lock` is held while leases change; hold it to remove snapshots that nobody has leased."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self.lock = asyncio.Lock()

    def leased(self) -> dict[TableBucket, set[int]]:
        """The snapshots that must stay."""
        now_ms = self._clock.expiry_ms()
        found: dict[TableBucket, set[int]] = {}
        for lease in self._catalog.leases().values():
            if now_ms is None or lease.expires_ms > now_ms:
                for bucket, snapshot_id in lease.snapshots.items():
                    found.setdefault(bucket, set()).add(snapshot_id)
        return found

    async def put(self, lease_id: str, duration_ms: int, snapshots: Mapping[TableBucket, int]) -> None:
        """Make a lease or renew one, and add snapshots, which exist, to it. The caller holds the lock."""
        _check(lease_id, duration_ms)
        await self._remove_expired()
        leases = self._catalog.leases()
        before = leases[lease_id].snapshots if lease_id in leases else {}
        entry = LeaseEntry(lease_id, self._clock.now_ms() + duration_ms, {**before, **snapshots})
        count = sum(len(lease.snapshots) for lease in leases.values()) + len(entry.snapshots) - len(before)
        if len(leases.keys() | {lease_id}) > LEASES_MAX or count > LEASED_SNAPSHOTS_MAX:
            raise InvalidRequestError(
                f"There may be {LEASES_MAX} leases with {LEASED_SNAPSHOTS_MAX} snapshots in all; drop some that are "
                "not needed, or wait until they end.",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        await self._catalog.put_lease(entry)

    async def release(self, lease_id: str, buckets: Iterable[TableBucket]) -> None:
        """Give up the snapshots of some buckets; a lease without any is gone."""
        async with self.lock:
            lease = self._catalog.leases().get(lease_id)
            if lease is None:
                return
            gone = set(buckets)
            left = {bucket: snapshot_id for bucket, snapshot_id in lease.snapshots.items() if bucket not in gone}
            if left:
                await self._catalog.put_lease(lease._replace(snapshots=left))
            else:
                await self._catalog.delete_leases([lease_id])

    async def drop(self, lease_id: str) -> None:
        """Give up a lease, if there is one."""
        async with self.lock:
            await self._catalog.delete_leases([lease_id])

    async def _remove_expired(self) -> None:
        now_ms = self._clock.expiry_ms()
        if now_ms is None:
            return
        leases = list(self._catalog.leases().values())
        await self._catalog.delete_leases([lease.lease_id for lease in leases if lease.expires_ms <= now_ms])
        for lease in leases:
            # Nobody may ask for longer: a clock that was ahead has stamped it.
            if lease.expires_ms > now_ms + LEASE_MS_MAX:
                await self._catalog.put_lease(lease._replace(expires_ms=now_ms + LEASE_MS_MAX))


def _check(lease_id: str, duration_ms: int) -> None:
    if not 0 < len(lease_id) <= LEASE_ID_LENGTH_MAX:
        raise InvalidRequestError(
            f"A lease id has 1 to {LEASE_ID_LENGTH_MAX} characters, not {len(lease_id)}.",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    if not 0 < duration_ms <= LEASE_MS_MAX:
        raise InvalidRequestError(
            f"A lease lasts 1 to {LEASE_MS_MAX} ms (7 days), not {duration_ms}; renew it by asking for it again.",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )


_log = logging.getLogger(__name__)

INTERVAL_MS: Final = 600_000
# Between two snapshots of one bucket that are made for the sake of its log.
ON_DEMAND_GAP_MS: Final = 60_000
# Buckets looked at in one job of a thread.
_SURVEY_BUCKETS: Final = 64


class Checkpointable(Protocol):
    """What is needed of a bucket's rows."""

    def checkpoint(self, directory: Path) -> Awaitable[KvState]:
        """Make `directory`, a durable copy of the rows as of the returned state."""


class KvSnapshots:
    def __init__(
        self,
        storage: Storage,
        rows_of: Callable[[TableBucket], Checkpointable],
        *,
        leases: KvLeases | None = None,
        on_demand_gap_ms: int = ON_DEMAND_GAP_MS,
    ) -> None:
        self._storage = storage
        self._rows_of = rows_of
        self.leases = leases or KvLeases(storage.catalog, storage.clock)
        self._on_demand_gap_s = on_demand_gap_ms / 1_000
        self._lock = asyncio.Lock()  # one snapshot at a time
        self._made_on_demand: dict[TableBucket, float] = {}

    async def run(self, interval_ms: int = INTERVAL_MS) -> None:
        """A pass every so often, until cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            try:
                await self.run_once()
            except Exception:
                _log.exception("a pass for snapshots failed, the next one comes in %d ms", interval_ms)

    async def run_once(self) -> None:
        """Make a snapshot of each bucket that changed since its last one; remove what need not stay."""
        buckets = self._buckets()
        while chunk := list(islice(buckets, _SURVEY_BUCKETS)):
            async with self._lock, self.leases.lock:
                changed = await self._storage.run_blocking(partial(_survey, chunk, self.leases.leased()))
            for bucket in changed:
                try:
                    await self.make(bucket)
                except (OSError, FlussError) as error:
                    _log.warning("%s: no snapshot could be made: %s", bucket, error)

    def _buckets(self) -> Iterator[tuple[TableBucket, Path]]:
        catalog = self._storage.catalog
        for table_id in [entry.table_id for entry in catalog.all_tables() if has_primary_key(entry.table_json)]:
            entry = catalog.table_by_id(table_id)
            if entry is not None:
                for bucket in self._storage.buckets(entry):
                    yield bucket, self._storage.bucket_path(bucket)

    async def snapshots_of(self, bucket: TableBucket) -> list[Snapshot]:
        """The snapshots of a bucket, newest first."""
        return await self._storage.run_blocking(partial(on_disk.list_snapshots, self._storage.bucket_path(bucket)))

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """While the block runs, no snapshot is made or removed."""
        async with self._lock:
            yield

    async def make(self, bucket: TableBucket, *, even_if_unchanged: bool = False) -> None:
        """Make a snapshot of a bucket, unless its newest one has all there is."""
        task = asyncio.ensure_future(self._make_alone(bucket, even_if_unchanged))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Its threads can't be stopped, and who cancels may be about to close what they use.
            await asyncio.wait([task])
            raise

    async def _make_alone(self, bucket: TableBucket, even_if_unchanged: bool) -> None:
        async with self._lock:
            opening = self._storage.opening([bucket])
            if opening is not None:
                await opening
            log = self._storage.bucket(bucket)
            # Somebody who waits: the log is not closed meanwhile.
            stop_waiting = log.on_advance(lambda: None)
            try:
                await self._make(bucket, lambda: log.log_end_offset, even_if_unchanged)
            finally:
                stop_waiting()

    async def _make(self, bucket: TableBucket, log_end: Callable[[], int], even_if_unchanged: bool) -> None:
        run, path = self._storage.run_blocking, self._storage.bucket_path(bucket)
        await self._tidy(bucket)
        # First the time, then the end: what the time covers lies before that end.
        modified_ns = await run(partial(on_disk.log_modified_ns, path))
        end_offset = log_end()
        newest = next(iter(await self.snapshots_of(bucket)), None)
        if end_offset == (0 if newest is None else newest.log_offset) and not even_if_unchanged:
            if newest is not None:
                await run(partial(on_disk.cover, newest, modified_ns))
            return
        draft = await run(partial(on_disk.begin, path))
        state = await self._rows_of(bucket).checkpoint(draft)
        covers_all = state.covered_offset >= end_offset
        made = await run(partial(on_disk.finish, draft, state.covered_offset, modified_ns if covers_all else 0))
        _log.info("%s: snapshot %d has the rows before offset %d", bucket, made.snapshot_id, made.log_offset)
        await self._tidy(bucket)

    async def _tidy(self, bucket: TableBucket) -> None:
        async with self.leases.lock:
            leased_ids = self.leases.leased().get(bucket, ())
            await self._storage.run_blocking(partial(on_disk.tidy, self._storage.bucket_path(bucket), leased_ids))

    # --- the log behind snapshots

    async def log_kept_from(self, bucket: TableBucket, wanted: int) -> int:
        """The offset from which on the log must stay; a snapshot is made if that brings it nearer to `wanted`."""
        snapshots = await self.snapshots_of(bucket)
        if _kept_from(snapshots) < wanted and self._may_make_on_demand(bucket):
            await self.make(bucket, even_if_unchanged=True)
            snapshots = await self.snapshots_of(bucket)
        leased_ids = self.leases.leased().get(bucket, set())
        leased = [snapshot.log_offset for snapshot in snapshots if snapshot.snapshot_id in leased_ids]
        return min([_kept_from(snapshots), *leased])

    def _may_make_on_demand(self, bucket: TableBucket) -> bool:
        now_s = clock.monotonic()
        recent = {
            other: made_s for other, made_s in self._made_on_demand.items() if now_s - made_s < self._on_demand_gap_s
        }
        self._made_on_demand = recent
        if bucket in recent:
            return False
        recent[bucket] = now_s
        return True

    # --- leases

    async def lease(self, lease_id: str, duration_ms: int, wanted: Mapping[TableBucket, int]) -> dict[TableBucket, int]:
        """Make or renew a lease of snapshots; returns those that are not there."""
        async with self.leases.lock:
            paths = [(bucket, self._storage.bucket_path(bucket), snapshot_id) for bucket, snapshot_id in wanted.items()]
            missing = await self._storage.run_blocking(partial(_missing, paths))
            there = {bucket: snapshot_id for bucket, snapshot_id in wanted.items() if bucket not in missing}
            await self.leases.put(lease_id, duration_ms, there)
            return missing


def _survey(buckets: Sequence[tuple[TableBucket, Path]], leased: Mapping[TableBucket, set[int]]) -> list[TableBucket]:
    changed = []
    for bucket, path in buckets:
        try:
            on_disk.tidy(path, leased.get(bucket, ()))
            if on_disk.has_changed(path):
                changed.append(bucket)
        except OSError as error:
            _log.warning("%s can't be looked at: %s", path, error)
    return changed


def _kept_from(snapshots: Sequence[Snapshot]) -> int:
    """The offset of the older of the two newest; without two, everything stays."""
    return snapshots[SNAPSHOTS_KEPT - 1].log_offset if len(snapshots) >= SNAPSHOTS_KEPT else 0


def _missing(wanted: Sequence[tuple[TableBucket, Path, int]]) -> dict[TableBucket, int]:
    return {
        bucket: snapshot_id
        for bucket, path, snapshot_id in wanted
        if all(snapshot.snapshot_id != snapshot_id for snapshot in on_disk.list_snapshots(path))
    }
