"""What the catalog keeps for the cluster as a whole: settings that were changed at run time, and producers' offsets.

A producer registers where the buckets that it writes to end before it begins; whoever comes second finds them there.
They stay for a limited time, and are no place for a reader's position.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.storage.catalog.db import CatalogContent, CatalogWork, ProducerEntry

T = TypeVar("T")

PRODUCERS_MAX: Final = 10_000
PRODUCER_OFFSETS_MAX: Final = 200_000  # of all producers together, which are kept in memory


class ClusterRecords:
    """The part of the catalog that belongs to no table. Changes are on disk before they are seen."""

    def __init__(self) -> None:
        self._settings: dict[str, str] = {}
        self._producers: dict[str, ProducerEntry] = {}

    @abstractmethod
    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        """Run one change after the other."""

    @abstractmethod
    async def _commit(self, work: CatalogWork) -> None:
        """Return when the work is on disk."""

    def _fill_records(self, content: CatalogContent) -> None:
        self._settings = dict(content.settings)
        self._producers = {entry.producer_id: entry for entry in content.producers}

    # --- settings

    def settings(self) -> Mapping[str, str]:
        """What was changed at run time, by key."""
        return MappingProxyType(self._settings)

    async def change_settings(self, changes: Mapping[str, str | None]) -> None:
        """Set these, and forget those whose new value is None; all or nothing."""
        await self._change(self._change_settings(changes))

    async def _change_settings(self, changes: Mapping[str, str | None]) -> None:
        await self._commit(lambda database: database.change_settings(changes))
        for key, value in changes.items():
            if value is None:
                self._settings.pop(key, None)
            else:
                self._settings[key] = value

    # --- producers' offsets

    def producer(self, producer_id: str) -> ProducerEntry | None:
        """What a producer has registered, expired or not."""
        return self._producers.get(producer_id)

    async def register_producer(self, entry: ProducerEntry, now_ms: int | None) -> bool:
        """Keep the offsets of a producer; False: there are some that have not expired by `now_ms` (None: none has)."""
        return await self._change(self._register_producer(entry, now_ms))

    async def _register_producer(self, entry: ProducerEntry, now_ms: int | None) -> bool:
        expired = [known.producer_id for known in self._producers.values() if known.is_expired(now_ms)]
        known = self._producers.get(entry.producer_id)
        if known is not None and not known.is_expired(now_ms):
            return False
        left = [item for item in self._producers.values() if not item.is_expired(now_ms)]
        count = sum(len(item.offsets) for item in left) + len(entry.offsets)
        if len(left) >= PRODUCERS_MAX or count > PRODUCER_OFFSETS_MAX:
            raise InvalidRequestError(
                f"There may be {PRODUCERS_MAX} producers with {PRODUCER_OFFSETS_MAX} offsets in all; delete those that "
                "are done, or wait until they expire.",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
        await self._commit(lambda database: database.put_producer(entry, expired))
        self._drop_producers(expired)
        self._producers[entry.producer_id] = entry
        return True

    async def delete_producer(self, producer_id: str) -> None:
        """Forget what a producer has registered, if it has."""
        await self._change(self._delete_producer(producer_id))

    async def _delete_producer(self, producer_id: str) -> None:
        if producer_id in self._producers:
            await self._commit(lambda database: database.delete_producer(producer_id))
            self._drop_producers([producer_id])

    def _drop_producers(self, producer_ids: Collection[str]) -> None:
        for producer_id in producer_ids:
            self._producers.pop(producer_id, None)
