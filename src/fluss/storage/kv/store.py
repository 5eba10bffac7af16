"""The store of a bucket: a sorted map of bytes that is never ahead of the changelog; bounded reads and scans.

The log is the truth. A store holds the rows as of some changelog offset, its covered offset, and may lose its latest
writes in a crash; then it is as of an earlier offset, and the log is replayed from there. So nothing is written to a
store before the log that it comes from is durable, and a store is never taken for complete: whoever opens one compares
its covered offset with the log (`fluss.storage.kv.recovery`).

All calls block and are made in worker threads. Reads may run beside each other and beside a write; writes are the
caller's to order. No call may run while, or come after, `close`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.storage import files

MEMORY_BYTES: Final = 256 << 20  # of all stores together
MEMORY_BYTES_MIN: Final = 8 << 20
PAGE_ROWS_MAX: Final = 10_000
PAGE_SIZE_BYTES_MAX: Final = 4 << 20


class KvStoreError(FlussError):
    """A store can't do what it was asked to; the message names its bucket."""

    def __init__(self, message: str, error_code: int = ErrorCode.KV_STORAGE_EXCEPTION) -> None:
        super().__init__(message, error_code)


class KvStoreBusyError(KvStoreError):
    """Writes come faster than the disk takes them; nothing of this one was lost or acknowledged."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION)


class DamagedKvStoreError(CorruptDataError):
    """The files of a store fail their checks: it has to be rebuilt from a checkpoint and the log."""

    def __init__(self, message: str, error_code: int = ErrorCode.KV_STORAGE_EXCEPTION) -> None:
        super().__init__(message, error_code)


def as_kv_error(error: Exception) -> Exception:
    """An error that clients can be told: one of the disk gets a code, others stay as they are."""
    if isinstance(error, OSError) and not isinstance(error, FlussError):
        return KvStoreError(f"The rows can't be stored: {files.reason(error)}")
    return error


@dataclass(frozen=True, slots=True)
class KvState:
    """What is known of the rows in a store."""

    covered_offset: int  # the changelog offset to go on from: all before it is in the rows
    row_count: int


EMPTY: Final = KvState(0, 0)


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their keys."""

    keys: list[bytes]
    values: list[bytes]
    next_key: bytes | None  # where to go on; None at the end


class KvSnapshot(Protocol):
    """All rows as of one state, whatever is written meanwhile. It keeps old files and memory alive: close it."""

    @property
    def state(self) -> KvState: ...

    def read(self, rows_max: int = PAGE_ROWS_MAX, size_bytes_max: int = PAGE_SIZE_BYTES_MAX) -> Page:
        """The next rows, at least one if any is left."""

    def close(self) -> None: ...


class ReadableStore(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def state(self) -> KvState: ...

    def get_many(self, keys: list[bytes]) -> list[bytes | None]: ...

    def scan(
        self,
        prefix: bytes = b"",
        from_key: bytes | None = None,
        rows_max: int = PAGE_ROWS_MAX,
        size_bytes_max: int = PAGE_SIZE_BYTES_MAX,
    ) -> Page:
        """Rows whose keys begin with `prefix`, from `from_key` on; as of now, so two pages may differ in time."""


class KvStore(ReadableStore, Protocol):
    def recent(
        self, keys: list[bytes], newer: list[dict[bytes, bytes | None]]
    ) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        """What is at keys as far as that is in memory, and the keys of which it is not, each once; those have None.

        `newer` are rows to be written here, the latest last.
        """

    def write(self, keys: list[bytes], values: list[bytes], deletes: list[bytes], state: KvState) -> None:
        """Put and delete rows, no key twice, and with that cover the log up to the state's offset.

        After a crash the store may have some rows of the batch behind its covered offset, never fewer than it claims.
        Replay sets whole rows, so it ends at the same.
        """

    def snapshot(self) -> KvSnapshot: ...

    def flush(self) -> None:
        """Make all that was written durable, so that it need not be replayed."""

    def checkpoint(self, directory: Path) -> KvState:
        """Make `directory`, a durable copy as of the returned state, by hard links where it can."""

    def size_bytes(self) -> int:
        """Size on disk, about."""

    def close(self) -> None:
        """Flush and close; snapshots end."""


class NoRows:
    """What reads find in a bucket that was never written."""

    state = EMPTY
    path = Path()

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(
        self,
        prefix: bytes = b"",
        from_key: bytes | None = None,
        rows_max: int = PAGE_ROWS_MAX,
        size_bytes_max: int = PAGE_SIZE_BYTES_MAX,
    ) -> Page:
        return Page([], [], None)


NO_ROWS: Final = NoRows()


READ_BYTES_MAX: Final = 64 << 20
VALUE_OVERHEAD_BYTES: Final = 64  # of an object that holds a value
# Keys read in one go: few at first, and later as many as would take so many bytes if all rows were as large as the
# largest so far.
_KEYS_FIRST: Final = 4
_KEYS_MAX: Final = 4_096
_KEYS_GROWTH: Final = 8
_BYTES_AT_ONCE: Final = 4 << 20
# Rows that are read without a thread.
_FEW_ROWS: Final = 128
_FEW_BYTES: Final = 64 << 10


def values_at(store: ReadableStore, keys: list[bytes], size_bytes_max: int = READ_BYTES_MAX) -> list[bytes | None]:
    """The values at keys, each read once however often it is named; code 13 if they take more than that."""
    if len(keys) == 1:
        return store.get_many(keys)
    unique = list(dict.fromkeys(keys))
    found = read_in_parts(store, unique, size_bytes_max)
    if len(unique) == len(keys):
        return found
    return list(map(dict(zip(unique, found, strict=True)).__getitem__, keys))


def read_in_parts(store: ReadableStore, keys: list[bytes], size_bytes_max: int) -> list[bytes | None]:
    """The values at keys; code 13 if they take more than that."""
    found: list[bytes | None] = []
    count, largest, left_bytes = _KEYS_FIRST, 1, size_bytes_max
    while len(found) < len(keys):
        values = store.get_many(keys[len(found) : len(found) + count])
        found += values
        sizes = list(map(len, filter(None, values)))
        left_bytes -= sum(sizes)
        if left_bytes < 0:
            raise _too_large(
                f"The rows at these keys take more than {size_bytes_max} bytes; name fewer keys at a time."
            )
        largest = max(largest, *sizes) if sizes else largest
        count = max(1, min(_KEYS_GROWTH * count, _KEYS_MAX, _BYTES_AT_ONCE // largest))
    return found


def values_by_prefix(store: ReadableStore, prefixes: list[bytes], size_bytes_max: int) -> list[list[bytes]]:
    """The values at keys with each of the prefixes, by key; code 13 if they take more than that, counted as objects.

    Each prefix is read once however often it is named: a block with a large row is not kept, and takes milliseconds.
    """
    found: dict[bytes, list[bytes]] = {}
    sizes: dict[bytes, int] = {}
    for prefix in prefixes:
        if prefix not in found:
            values = first_values(store, prefix, sys.maxsize, size_bytes_max, VALUE_OVERHEAD_BYTES)
            found[prefix] = values
            sizes[prefix] = sum(map(len, values)) + VALUE_OVERHEAD_BYTES * len(values)
        size_bytes_max -= sizes[prefix]
        if size_bytes_max < 0:
            raise _answer_too_large()
    return list(map(found.__getitem__, prefixes))


def few_by_prefix(store: ReadableStore, prefixes: list[bytes]) -> list[list[bytes]] | None:
    """The values at keys with each of the prefixes, by key; None if they are many."""
    found = []
    left = _FEW_ROWS
    for prefix in prefixes:
        page = store.scan(prefix, None, left, _FEW_BYTES)
        if page.next_key is not None:
            return None
        found.append(page.values)
        left -= len(page.values)
    return found


def first_values(
    store: ReadableStore, prefix: bytes, rows_max: int, size_bytes_max: int, overhead_bytes: int = 0
) -> list[bytes]:
    """The values at the first keys with a prefix; code 13 if they take more than that."""
    values: list[bytes] = []
    from_key: bytes | None = prefix
    while from_key is not None and len(values) < rows_max:
        page = store.scan(prefix, from_key, min(PAGE_ROWS_MAX, rows_max - len(values)))
        values += page.values
        from_key = page.next_key
        size_bytes_max -= sum(map(len, page.values)) + overhead_bytes * len(page.values)
        if size_bytes_max < 0:
            raise _answer_too_large()
    return values


def _answer_too_large() -> InvalidRequestError:
    return _too_large("The rows asked for take more bytes than one answer may have; ask for fewer, or scan the table.")


def _too_large(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, ErrorCode.RECORD_TOO_LARGE_EXCEPTION)


ReadPage: TypeAlias = Callable[[Callable[[], Page]], Awaitable[Page]]


class BucketScan:
    """Keeps its store open, and old files alive, until it is closed."""

    def __init__(self, snapshot: KvSnapshot, read_page: ReadPage, held: AsyncExitStack) -> None:
        self.log_offset = snapshot.state.covered_offset  # the rows are as of this offset of the log
        self.at_end = False  # whether all rows were read
        self._snapshot = snapshot
        self._read_page = read_page
        self._held = held  # gives the store back
        self._lock = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def read(self, size_bytes_max: int, rows_max: int) -> list[bytes]:
        """The next values in the order of their keys, at least one if any is left; empty at the end."""
        async with self._lock:
            if self._closing is not None:
                raise KvStoreError("The scan was closed; begin it again.")
            page = await self._read_page(partial(self._snapshot.read, rows_max, size_bytes_max))
        self.at_end = page.next_key is None
        return page.values

    def close(self) -> None:
        """End it; a read under way comes to its end first."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        async with self._lock:
            self._snapshot.close()
            await self._held.aclose()
