"""The memory of rows that were written last, and rows in the order of their keys, compiled and plain."""

from __future__ import annotations

import random
import time
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats import _kernel as plain
from tests.kit.formats.modes import COMPILED, in_both_modes, needs_both

KERNELS = [plain] if COMPILED is None else [plain, COMPILED]
SIZE_BYTES = 64 << 10
KEYS = st.binary(max_size=12) | st.binary(max_size=12).map(b"customer-".__add__)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_found_is_what_was_written_last(kernel: ModuleType) -> None:
    chance = random.Random(5)
    rows = kernel.RecentRows(SIZE_BYTES)
    written: dict[tuple[int, bytes], bytes | None] = {}
    found_count = 0
    for _ in range(20_000):
        store, key = chance.randrange(3), b"key-%d" % chance.randrange(600)
        choice = chance.random()
        if choice < 0.5:
            value = chance.randbytes(chance.choice((0, 10, 60, 100)))
            rows.put(store, [key], [value])
            written[store, key] = value
        elif choice < 0.6:
            rows.remove(store, [key])
            written[store, key] = None
        else:
            found, unknown = rows.find(store, [key, key], [])
            assert unknown in ([], [key])
            assert found == {key: None if unknown else written[store, key]}
            found_count += not unknown
    assert 500 < found_count < 8_000  # Of some 8,000; the rows take several times the memory.


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_that_are_newer_come_first(kernel: ModuleType) -> None:
    rows = kernel.RecentRows(SIZE_BYTES)
    rows.put(1, [b"a", b"b", b"c"], [b"1", b"2", b"3"])
    newer = [{b"a": b"4", b"b": b"5"}, {b"b": None, b"d": b"6"}]
    found, unknown = rows.find(1, [b"d", b"c", b"b", b"a", b"e"], newer)
    assert found == {b"a": b"4", b"b": None, b"c": b"3", b"d": b"6", b"e": None}
    assert unknown == [b"e"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_that_is_too_large_is_forgotten(kernel: ModuleType) -> None:
    rows = kernel.RecentRows(SIZE_BYTES)
    rows.put(1, [b"a"], [b"small"])
    rows.put(1, [b"a"], [bytes(SIZE_BYTES)])
    assert rows.find(1, [b"a"], []) == ({b"a": None}, [b"a"])


@needs_both
@given(st.dictionaries(KEYS, st.none() | st.binary(max_size=3)))
def test_order_of_keys(rows: dict[bytes, bytes | None]) -> None:
    one, two = in_both_modes(lambda k: k.rows_in_order(rows))
    assert one == two
    keys, values, deletes = one[1]
    assert dict(zip(keys, values, strict=True)) | dict.fromkeys(deletes) == rows
    ordered, again = in_both_modes(lambda k: k.keys_in_order(list(rows)))
    assert ordered == again
    if all(len(key) <= 8 for key in rows):
        assert [key.ljust(8, b"\0") for key in ordered[1]] == sorted(key.ljust(8, b"\0") for key in rows)


@pytest.mark.parametrize("kernel", KERNELS)
def test_order_of_large_keys(kernel: ModuleType) -> None:
    """Byte by byte, or two of a few MiB would keep all threads for minutes."""
    size_bytes = 2 << 20
    first, second = (bytes(size_bytes // 2) + byte + bytes(size_bytes // 2) for byte in (b"\1", b"\2"))
    begin_s = time.perf_counter()
    assert kernel.keys_in_order([second, first]) == [first, second]
    assert time.perf_counter() - begin_s < 3
