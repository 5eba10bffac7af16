"""Arrays made of buffers are those that pyarrow would make of the values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fluss.formats.arrow.payload import numbers_array, numbers_of, places_array, texts_array


@pytest.mark.parametrize("count", [0, 1, 9, 1_000])
def test_numbers(count: int) -> None:
    numbers = np.arange(count, dtype=np.int64) - 3
    made = numbers_array(numbers)
    made.validate(full=True)
    assert made.equals(pa.array(numbers))
    assert numbers_of(made).tolist() == numbers.tolist()
    assert numbers_of(made.slice(1, 5)).tolist() == numbers[1:6].tolist()
    times = numbers_array(numbers, pa.timestamp("ms", tz="UTC"))
    assert times.equals(pa.array(numbers, pa.timestamp("ms", tz="UTC")))


@pytest.mark.parametrize("count", [0, 1, 9, 1_000])
def test_places(count: int) -> None:
    places = np.where(np.arange(count) % 3 == 1, -1, np.arange(count)).astype(np.int64)
    made = places_array(places)
    made.validate(full=True)
    assert made.to_pylist() == [None if place < 0 else place for place in places.tolist()]


def test_texts() -> None:
    texts = ["", "+I", "größer", ""]
    made = texts_array(texts)
    made.validate(full=True)
    assert made.equals(pa.array(texts))
    assert texts_array([]).equals(pa.array([], pa.string()))
