"""Reads of a store that end when they take too many bytes: how large rows are is known only once they are read."""

from __future__ import annotations

import sys
from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.storage.kv.store import PAGE_ROWS_MAX, ReadableStore

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
