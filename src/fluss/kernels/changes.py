"""Changes of a table with a primary key: what puts do to the rows that are there."""

from __future__ import annotations

from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import MISSING, as_int32, pointer

_INSERT = cython.declare(cython.int, 1)
_UPDATE_BEFORE = cython.declare(cython.int, 2)
_UPDATE_AFTER = cython.declare(cython.int, 3)
_DELETE = cython.declare(cython.int, 4)


def fold_changes(
    keys: list[bytes],
    values: list[bytes | None],
    old: dict[bytes, bytes | None],
    with_before: bool,
    with_inserts: bool,
    keep_present: bool,
    versions: list[int] | None = None,
    old_versions: dict[bytes, int] | None = None,
) -> tuple[bytearray, list[bytes], list[bytes], dict[bytes, bytes | None]]:
    """Change types, keys and values they are about, and what is left at each key that changed; None is a delete.

    `keep_present`: a value does not replace another. `versions`: it does not replace one with a higher version; those
    of old values are in `old_versions`, which is changed.
    """
    i: cython.Py_ssize_t
    listed_keys: list = keys
    listed: list = values
    before: cython.bint = with_before
    inserts: cython.bint = with_inserts
    keep: cython.bint = keep_present
    versioned: cython.bint = versions is not None
    news: list = [] if versions is None else versions
    olds: dict = {} if old_versions is None else old_versions
    table: dict = old
    if len(listed) != len(listed_keys) or (versioned and len(news) != len(listed)):
        raise ValueError(
            f"{len(listed_keys)} keys, {len(listed)} values and {len(news)} versions do not belong together"
        )
    changes = bytearray()
    changed_keys: list = []
    changed: list = []
    state: dict = {}
    for i in range(len(listed_keys)):
        key = listed_keys[i]
        new = listed[i]
        current = state.get(key, MISSING)
        if current is MISSING:
            current = table.get(key)
        if new is None:
            if current is None:
                continue
        elif current is not None and (keep or (versioned and news[i] < olds[key])):
            continue
        if versioned:
            olds[key] = news[i]
        state[key] = new
        changed_keys.append(key)
        if new is None:
            changes.append(_DELETE)
            changed.append(current)
            continue
        if current is None and inserts:
            changes.append(_INSERT)
        else:
            if before:
                changes.append(_UPDATE_BEFORE)
                changed.append(current)
                changed_keys.append(key)
            changes.append(_UPDATE_AFTER)
        changed.append(new)
    return changes, changed_keys, changed, state


def chain_changes(
    keys: list[bytes],
    values: list[bytes | None],
    stored: dict[bytes, int],
    kept: Any,
    kept_new: bool,
    with_before: bool,
    keep_present: bool,
) -> tuple[bytearray, bytearray, bytearray, list[bytes], bytearray, dict[bytes, int]]:
    """What the records do, by the numbers of rows: stored rows come first, then one for every record.

    `stored` has the keys of stored rows. A delete (None) removes a row, unless `kept` has a byte for its stored row
    that is not 0, or `kept_new` for one that came with the batch: then the delete leaves a row. Returned are, int32
    each, what every record's row is merged with (-1: nothing) and which row it began with; change types, keys and rows
    they are about, and what is left at each key that changed; -1 is a delete.
    """
    i: cython.Py_ssize_t
    current: cython.int
    origin: cython.int
    row: cython.int
    listed_keys: list = keys
    listed: list = values
    places: dict = stored
    count: cython.int = len(places)
    keeps_rows: cython.bint = kept is not None
    flags_bytes = b"" if kept is None else kept
    flags: cython.p_uchar = pointer(flags_bytes)
    new_stays: cython.bint = kept_new
    before: cython.bint = with_before
    keep: cython.bint = keep_present
    if len(listed) != len(listed_keys) or (keeps_rows and len(flags_bytes) != count):
        raise ValueError(f"{len(listed_keys)} keys, {len(listed)} values and {count} rows do not belong together")
    merged_bytes = bytearray(4 * len(listed))
    merged: cython.p_int = as_int32(pointer(merged_bytes))
    origins_bytes = bytearray(4 * len(listed))
    origins: cython.p_int = as_int32(pointer(origins_bytes))
    changes = bytearray()
    changed_keys: list = []
    rows_bytes = bytearray(8 * len(listed))
    rows: cython.p_int = as_int32(pointer(rows_bytes))
    changed: cython.Py_ssize_t = 0
    state: dict = {}
    for i in range(len(listed_keys)):
        key = listed_keys[i]
        found = state.get(key)
        if found is None:
            found = places.get(key)
        current = -1 if found is None else found
        if current >= count + i:
            raise ValueError(f"there is no row {current} before record {i}")
        row = count + i
        merged[i] = -1
        origins[i] = row
        origin = row
        if current >= 0:
            origin = current if current < count else origins[current - count]
        if listed[i] is None:
            if current < 0:
                continue
            if not keeps_rows or not (new_stays if origin >= count else flags[origin]):
                changes.append(_DELETE)
                changed_keys.append(key)
                rows[changed] = current
                changed += 1
                state[key] = -1
                continue
        elif current >= 0:
            if keep:
                continue
            merged[i] = current
        origins[i] = origin
        state[key] = row
        if current < 0:
            changes.append(_INSERT)
        else:
            if before:
                changes.append(_UPDATE_BEFORE)
                changed_keys.append(key)
                rows[changed] = current
                changed += 1
            changes.append(_UPDATE_AFTER)
        changed_keys.append(key)
        rows[changed] = row
        changed += 1
    return merged_bytes, origins_bytes, changes, changed_keys, rows_bytes[: 4 * changed], state
