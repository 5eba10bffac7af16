"""Reads of a store: bounded by bytes, and scans of all rows as of one moment."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeAlias

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.storage.kv.store import PAGE_ROWS_MAX, KvSnapshot, KvStoreError, Page, ReadableStore

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
