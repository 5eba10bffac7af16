"""Values of `table.*` properties."""

from __future__ import annotations

import pytest

from fluss.model.errors import FlussError
from fluss.model.tables.options import check_properties, duration_ms, statistics_columns


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("7 d", 604_800_000),
        ("7days", 604_800_000),
        (" 12 H ", 43_200_000),
        ("3 min", 180_000),
        ("3m", 180_000),
        ("30 seconds", 30_000),
        ("5 ms", 5),
        ("1500 µs", 1),
        ("2000000 nanos", 2),
        ("0 s", 0),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds
    check_properties({"table.log.ttl": text})


@pytest.mark.parametrize("text", ["", "d", "7", "-7 d", "7 weeks", "1.5 h", "7 d 3 h", "9" * 40 + " d"])
def test_texts_that_are_no_durations(text: str) -> None:
    with pytest.raises(FlussError, match="with a unit") as caught:
        check_properties({"table.log.ttl": text})
    assert caught.value.error_code == 39


def test_statistics_columns() -> None:
    assert statistics_columns("a, b ,,c") == ["a", "b", "c"]
    assert statistics_columns(" , ") == []
