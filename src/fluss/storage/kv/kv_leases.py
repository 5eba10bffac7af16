"""Leases: KV snapshots that stay, with the log behind them, while somebody reads them.

A lease has an id that its holder chose, an end, and at most one snapshot of each bucket. It is renewed by asking for it
again. It survives a restart; after its end it counts for nothing, and is removed with the next change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from fluss.model.clock import Clock
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.storage.catalog.catalog import Catalog, LeaseEntry

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
