"""The memory of rows that were put last."""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import (
    I32_MAX,
    MISSING,
    add64,
    bytes_behind,
    content_of,
    copy_bytes,
    is_equal,
    load,
    mul64,
    pointer,
    save,
    signed,
    unsigned,
)

# A row of `RecentRows`: bytes of its place, store, hash, bytes of the key and of the value (-1: there is no row).
_RECENT_HEAD = cython.declare(cython.int, 24)
_RECENT_SEGMENTS = cython.declare(cython.int, 16)
_RECENT_BYTES_PER_SLOT = cython.declare(cython.int, 64)
_RECENT_ROWS_PER_SEGMENT_MIN = cython.declare(cython.int, 64)
_SLOT_SIZE = cython.declare(cython.int, 8)  # low bits of a hash, and where the row is, from 1 on
_GROUP_SLOTS = cython.declare(cython.int, 8)  # where the row of a hash may be
_LINE_SIZE = cython.declare(cython.int, 64)  # of the processor's cache, and of a group
_WARM_ROWS = cython.declare(cython.int, 64)
_STORE_STEP = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)


@cython.cclass
class RecentRows:
    """The rows that were put last into several stores, as many as a number of bytes holds. For one thread at a time.

    They lie one behind another in segments, which are filled in turn; what a segment held before is forgotten then.
    """

    _data_bytes: object
    _slots_bytes: object
    _ends_bytes: bytearray
    _data: cython.p_uchar
    _slots: cython.p_uchar
    _ends: cython.p_uchar  # of what is in each segment
    _segment_size: cython.Py_ssize_t
    _segment: cython.Py_ssize_t  # being filled
    _at: cython.Py_ssize_t
    _group_mask: cython.ulonglong
    _touched: cython.int

    def __init__(self, size_bytes: int) -> None:
        segments: cython.Py_ssize_t = _RECENT_SEGMENTS
        self._segment_size = min(size_bytes, I32_MAX) // segments
        groups = 1 << (segments * self._segment_size // (_GROUP_SLOTS * _RECENT_BYTES_PER_SLOT)).bit_length()
        self._group_mask = groups - 1
        # Zeros that take no memory before they are touched. Behind the last row, `_warm` may touch two lines more.
        self._data_bytes = mmap(-1, segments * self._segment_size + 2 * _LINE_SIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self._slots_bytes = mmap(-1, groups * _LINE_SIZE, MAP_PRIVATE | MAP_ANONYMOUS)
        self._ends_bytes = bytearray(8 * segments)
        self._data = pointer(self._data_bytes)
        self._slots = pointer(self._slots_bytes)
        self._ends = content_of(self._ends_bytes)
        for i in range(segments):
            save(self._ends, 8 * i, 8, i * self._segment_size)
        self._segment = 0
        self._at = 0

    def find(
        self, store: int, keys: list[bytes], newer: list[dict[bytes, bytes | None]]
    ) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        """What is at keys, and the keys of which nothing is known, each once; those have None.

        The rows in `newer` are not in the store yet; later ones count before those before them.
        """
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        at: cython.Py_ssize_t
        key: bytes
        number: cython.Py_ssize_t = store
        listed: list = keys
        overlay: list = newer[::-1]
        layer: dict
        value: object
        rows: dict = {}
        unknown: list = []
        for i in range(len(listed)):
            if i % _WARM_ROWS == 0:
                self._warm(number, listed, i)
            key = listed[i]
            if key in rows:
                continue
            value = MISSING
            for layer in overlay:
                value = layer.get(key, MISSING)
                if value is not MISSING:
                    break
            if value is not MISSING:
                rows[key] = value
                continue
            slot = self._slot_of(self._hash(number, key), number, key)
            if slot < 0:
                rows[key] = None
                unknown.append(key)
                continue
            at = load(self._slots, slot + 4, 4) - 1
            rows[key] = self._value_at(at)
        return rows, unknown

    def put(self, store: int, keys: list[bytes], values: list[bytes]) -> None:
        """Rows were put into a store."""
        i: cython.Py_ssize_t
        number: cython.Py_ssize_t = store
        listed: list = keys
        new: list = values
        for i in range(len(listed)):
            if i % _WARM_ROWS == 0:
                self._warm(number, listed, i)
            self._put(number, listed[i], new[i])

    def remove(self, store: int, keys: list[bytes]) -> None:
        """Rows were removed from a store."""
        i: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        number: cython.Py_ssize_t = store
        listed: list = keys
        for i in range(len(listed)):
            slot = self._slot_of(self._hash(number, listed[i]), number, listed[i])
            if slot >= 0:
                save(self._data, load(self._slots, slot + 4, 4) - 1 + 20, 4, -1)

    @cython.cfunc
    @cython.inline
    def _hash(self, store: cython.Py_ssize_t, key: bytes) -> cython.ulonglong:
        return add64(unsigned(hash(key), 64), mul64(unsigned(store, 64), _STORE_STEP))

    @cython.cfunc
    @cython.inline
    def _group_at(self, hashed: cython.ulonglong) -> cython.Py_ssize_t:
        return ((hashed >> 31) & self._group_mask) * _LINE_SIZE

    @cython.cfunc
    def _warm(self, store: cython.Py_ssize_t, keys: list, start: cython.Py_ssize_t) -> cython.int:
        """Touch what the next keys need: the processor would wait for memory key by key, and fetches many at once."""
        if cython.compiled:
            i: cython.Py_ssize_t
            k: cython.Py_ssize_t
            at: cython.Py_ssize_t
            slot: cython.Py_ssize_t
            hashed: cython.ulonglong
            touched: cython.int = 0
            stop: cython.Py_ssize_t = min(start + _WARM_ROWS, len(keys))
            for i in range(start, stop):
                touched ^= self._slots[self._group_at(self._hash(store, keys[i]))]
            for i in range(start, stop):
                hashed = self._hash(store, keys[i])
                at = 0
                for k in range(_GROUP_SLOTS):
                    slot = self._group_at(hashed) + k * _SLOT_SIZE
                    if load(self._slots, slot, 4) == cython.cast(cython.longlong, hashed & 0x7FFFFFFF):
                        at = load(self._slots, slot + 4, 4)
                touched ^= self._data[at] ^ self._data[at + _LINE_SIZE] ^ self._data[at + 2 * _LINE_SIZE - 1]
            self._touched = touched  # or the compiler would leave all that out
        return 0

    @cython.cfunc
    def _slot_of(self, hashed: cython.ulonglong, store: cython.Py_ssize_t, key: bytes) -> cython.Py_ssize_t:
        """The place of the slot of a row, -1 if it is not here."""
        k: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t = len(key)
        source: cython.p_uchar = key
        low: cython.longlong = hashed & 0x7FFFFFFF
        for k in range(_GROUP_SLOTS):
            slot = self._group_at(hashed) + k * _SLOT_SIZE
            at = load(self._slots, slot + 4, 4) - 1
            if (
                at >= 0
                and load(self._slots, slot, 4) == low
                and load(self._data, at + 4, 4) == store
                and load(self._data, at + 16, 4) == size
                and is_equal(self._data, at + _RECENT_HEAD, source, 0, size)
            ):
                return slot
        return -1

    @cython.cfunc
    def _value_at(self, at: cython.Py_ssize_t) -> object:
        size: cython.Py_ssize_t = load(self._data, at + 20, 4)
        if size < 0:
            return None
        start: cython.Py_ssize_t = at + _RECENT_HEAD + load(self._data, at + 16, 4)
        return bytes_behind(b"", self._data, start, start + size)

    @cython.cfunc
    def _put(self, store: cython.Py_ssize_t, key: bytes, value: bytes) -> cython.int:
        size: cython.Py_ssize_t = _RECENT_HEAD + len(key) + len(value)
        hashed: cython.ulonglong = self._hash(store, key)
        slot: cython.Py_ssize_t = self._slot_of(hashed, store, key)
        at: cython.Py_ssize_t
        room: cython.Py_ssize_t = size
        if slot >= 0:
            at = load(self._slots, slot + 4, 4) - 1
            room = load(self._data, at, 4)
            if size > room:
                save(self._slots, slot + 4, 4, 0)
                slot = -1
        if slot < 0:
            if size > self._segment_size // _RECENT_ROWS_PER_SEGMENT_MIN:
                return 0
            room = size
            at = self._place(size)
            slot = self._free_slot(hashed)
            save(self._slots, slot, 4, hashed & 0x7FFFFFFF)
            save(self._slots, slot + 4, 4, at + 1)
        save(self._data, at, 4, room)
        save(self._data, at + 4, 4, store)
        save(self._data, at + 8, 8, signed(hashed, 64))
        save(self._data, at + 16, 4, len(key))
        save(self._data, at + 20, 4, len(value))
        source: cython.p_uchar = key
        copy_bytes(self._data, at + _RECENT_HEAD, source, 0, len(key))
        source = value
        copy_bytes(self._data, at + _RECENT_HEAD + len(key), source, 0, len(value))
        return 0

    @cython.cfunc
    def _place(self, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The place for a new row."""
        at: cython.Py_ssize_t = self._at
        if at + size > (self._segment + 1) * self._segment_size:
            self._segment = (self._segment + 1) % _RECENT_SEGMENTS
            at = self._segment * self._segment_size
            self._forget(at, load(self._ends, 8 * self._segment, 8))
        self._at = at + size
        save(self._ends, 8 * self._segment, 8, self._at)
        return at

    @cython.cfunc
    def _forget(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        k: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        group: cython.Py_ssize_t
        while at < end:
            group = self._group_at(unsigned(load(self._data, at + 8, 8), 64))
            for k in range(_GROUP_SLOTS):
                slot = group + k * _SLOT_SIZE
                if load(self._slots, slot + 4, 4) == at + 1:
                    save(self._slots, slot + 4, 4, 0)
            at += load(self._data, at, 4)
        return 0

    @cython.cfunc
    def _free_slot(self, hashed: cython.ulonglong) -> cython.Py_ssize_t:
        """A slot for a new row; where all are taken, the row of one of them can't be found any more."""
        k: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        group: cython.Py_ssize_t = self._group_at(hashed)
        for k in range(_GROUP_SLOTS):
            slot = group + k * _SLOT_SIZE
            if load(self._slots, slot + 4, 4) == 0:
                return slot
        return group + hashed % _GROUP_SLOTS * _SLOT_SIZE
