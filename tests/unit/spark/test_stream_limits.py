"""Shares of buckets in a limited micro-batch."""

from __future__ import annotations

import pytest

from fluss.spark.stream.offsets import CURRENT_ROWS, limited


def _limited(starts: list[int], ends: list[int], rows_max: int) -> list[int]:
    keys = [(None, bucket) for bucket in range(len(starts))]
    found = limited(dict(zip(keys, starts, strict=True)), dict(zip(keys, ends, strict=True)), rows_max)
    return [found[key] for key in keys]


@pytest.mark.parametrize(
    ("starts", "ends", "rows_max", "expected"),
    [
        ([0, 0], [300, 100], 400, [300, 100]),
        ([0, 0], [300, 100], 40, [30, 10]),
        ([5, 7], [5, 7], 40, [5, 7]),
        ([0, 0, 10], [1_000_000, 1, 20], 10, [9, 1, 11]),  # nobody starves
        ([CURRENT_ROWS, CURRENT_ROWS, 0], [30, 5, 9], 40, [30, 5, 5]),
        ([CURRENT_ROWS, CURRENT_ROWS, 0], [50, 5, 9], 40, [50, CURRENT_ROWS, 0]),  # in one piece, then the others
        ([CURRENT_ROWS, CURRENT_ROWS], [0, 0], 40, [0, 0]),
    ],
)
def test_limited(starts: list[int], ends: list[int], rows_max: int, expected: list[int]) -> None:
    assert _limited(starts, ends, rows_max) == expected


def test_a_limited_stream_reaches_every_end() -> None:
    position, ends = [0, CURRENT_ROWS, 3, 0], [1_000, 70, 3, 41]
    for _ in range(40):
        position = _limited(position, ends, 50)
    assert position == ends
