"""Durations as Apache Fluss spells them in options: a number and a unit, `7 d`, `12h`, `500 ms`."""

from __future__ import annotations

import re
from typing import Final

_SPELLING: Final = re.compile(r"(-?\d{1,18})\s*([a-zµ]*)\Z")
_NS_PER_MS: Final = 1_000_000
_UNITS_NS: Final = (
    (("d", "day", "days"), 86_400_000 * _NS_PER_MS),
    (("h", "hour", "hours"), 3_600_000 * _NS_PER_MS),
    (("m", "min", "minute", "minutes"), 60_000 * _NS_PER_MS),
    (("s", "sec", "secs", "second", "seconds"), 1_000 * _NS_PER_MS),
    # A bare number is taken as milliseconds; Apache Fluss refuses it.
    (("ms", "milli", "millis", "millisecond", "milliseconds", ""), _NS_PER_MS),
    (("µs", "micro", "micros", "microsecond", "microseconds"), 1_000),
    (("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
)
_NS_BY_LABEL: Final = {label: unit_ns for labels, unit_ns in _UNITS_NS for label in labels}


def duration_ms(text: str) -> int | None:
    """The duration in milliseconds, or None when it can't be read."""
    match = _SPELLING.match(text.strip().lower())
    if match is None or match[2] not in _NS_BY_LABEL:
        return None
    return int(match[1]) * _NS_BY_LABEL[match[2]] // _NS_PER_MS
