"""Reads of a store that end when they take too many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.storage.kv.rocks import RocksStore
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.store import (
    MEMORY_BYTES_MIN,
    VALUE_OVERHEAD_BYTES,
    KvState,
    few_by_prefix,
    first_values,
    values_at,
    values_by_prefix,
)

MIB = 1 << 20
COUNT = 5_000
LARGE = 20  # keys with a large value, in the middle of the small ones


class Counting(RocksStore):
    """Knows the most that one read brought into memory."""

    most_bytes = 0

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        values = super().get_many(keys)
        self.most_bytes = max(self.most_bytes, sum(map(len, filter(None, values))))
        return values


def key(number: int) -> bytes:
    return b"%05d" % number


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    path: Path = tmp_path_factory.mktemp("store") / "kv"
    opened = Counting(path, Resources(MEMORY_BYTES_MIN))
    rows = {key(number): b"v%d" % number for number in range(COUNT)}
    rows |= {key(number): bytes([number % 256]) * MIB for number in range(COUNT // 2, COUNT // 2 + LARGE)}
    opened.write(list(rows), list(rows.values()), [], KvState(COUNT, COUNT))
    yield opened
    opened.close()


def too_large(error: pytest.ExceptionInfo[InvalidRequestError]) -> bool:
    return error.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


def test_values_are_in_the_order_of_keys_and_none_where_there_is_none(store: Counting) -> None:
    numbers = [7, 3, 7, COUNT + 1, 0, 3, *range(1_000, 2_000), 7]
    expected = [None if number > COUNT else b"v%d" % number for number in numbers]
    assert values_at(store, [key(number) for number in numbers]) == expected
    assert values_at(store, [key(5)]) == [b"v5"]
    assert values_at(store, [key(COUNT + 1)]) == [None]
    assert values_at(store, []) == []


def test_a_key_that_is_named_often_is_read_once(store: Counting) -> None:
    store.most_bytes = 0
    values = values_at(store, [key(COUNT // 2)] * 1_000, 2 * MIB)
    assert len({id(value) for value in values}) == 1
    assert store.most_bytes == MIB


def test_large_values_are_read_a_few_at_a_time(store: Counting) -> None:
    large = [key(number) for number in range(COUNT // 2, COUNT // 2 + LARGE)]
    store.most_bytes = 0
    assert sum(map(len, filter(None, values_at(store, large)))) == LARGE * MIB
    assert store.most_bytes <= 4 * MIB
    with pytest.raises(InvalidRequestError, match=f"take more than {3 * MIB} bytes") as caught:
        values_at(store, large, 3 * MIB)
    assert too_large(caught)


def test_scans_end_at_their_limits(store: Counting) -> None:
    assert first_values(store, b"", 3, 100) == [b"v0", b"v1", b"v2"]
    assert len(first_values(store, b"000", 1_000, 1_000)) == 100
    with pytest.raises(InvalidRequestError) as caught:
        first_values(store, b"000", 1_000, 200)
    assert too_large(caught)


def test_a_prefix_that_is_named_often_is_read_once(store: Counting) -> None:
    lists = values_by_prefix(store, [b"0001", b"0002"] * 500, MIB)
    assert len({id(value) for values in lists for value in values}) == 20


def test_rows_found_by_many_prefixes_are_counted_as_objects(store: Counting) -> None:
    taken = sum(VALUE_OVERHEAD_BYTES + len(b"v%d" % number) for number in range(10))
    assert values_by_prefix(store, [b"0000"] * 3, 3 * taken) == [[b"v%d" % number for number in range(10)]] * 3
    with pytest.raises(InvalidRequestError) as caught:
        values_by_prefix(store, [b"0000"] * 3, 3 * taken - 1)
    assert too_large(caught)
    assert values_by_prefix(store, [b"x", b"0000"], taken) == [[], [b"v%d" % number for number in range(10)]]


def test_few_rows_by_prefix_or_none(store: Counting) -> None:
    assert few_by_prefix(store, []) == []
    assert few_by_prefix(store, [b"0001", b"x", key(7)]) == [[b"v%d" % n for n in range(10, 20)], [], [b"v7"]]
    assert few_by_prefix(store, [b"00"]) is None  # 1,000 rows
    assert few_by_prefix(store, [key(COUNT // 2 + 1)]) == [[bytes([(COUNT // 2 + 1) % 256]) * MIB]]
    assert few_by_prefix(store, [key(COUNT // 2)[:-1]]) is None  # the first one is large
