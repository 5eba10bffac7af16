"""Which partitions a table with `table.auto-partition.*` properties should have at a time.

A partition's name, or with several partition keys one value of it, is a time written with a pattern whose fields have
a fixed width and go from large to small, so comparing texts compares times.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.partitions import SEPARATOR, check_value
from fluss.model.tables import options

PRECREATE_DEFAULT: Final = 2
RETENTION_DEFAULT: Final = 7


class TimeUnit(StrEnum):
    HOUR = "HOUR"
    DAY = "DAY"
    MONTH = "MONTH"
    QUARTER = "QUARTER"
    YEAR = "YEAR"


PATTERNS: Final = {
    TimeUnit.HOUR: "yyyyMMddHH",
    TimeUnit.DAY: "yyyyMMdd",
    TimeUnit.MONTH: "yyyyMM",
    TimeUnit.QUARTER: "yyyyQ",
    TimeUnit.YEAR: "yyyy",
}
# A text in quotes, a field of one or more equal letters, or any other character, which stands for itself.
_TOKEN: Final = re.compile(r"'([^']*)'|(([A-Za-z])\3*)|([^'A-Za-z\[\]])")
_SAME_FIELD: Final = str.maketrans("uqL", "yQM")
_OFFSET: Final = re.compile(r"(?:GMT|UTC)?([+-])(\d{1,2})(?::?(\d{2}))?")


@dataclass(frozen=True, slots=True)
class AutoPartition:
    """The rule of one table."""

    enabled: bool
    key_index: int  # which of the partition keys is the time
    unit: TimeUnit
    pattern: str
    zone: dt.tzinfo | None  # None: the system's
    precreate: int
    retention: int  # negative: keep everything

    @classmethod
    def of(cls, properties: Mapping[str, str], partition_keys: Sequence[str]) -> AutoPartition:
        """The rule that a partitioned table's properties describe; code 39 or 15 says what is wrong with them."""
        several = len(partition_keys) > 1
        key = (properties.get(options.AUTO_PARTITION_KEY, "").strip() if several else "") or partition_keys[0]
        if key not in partition_keys:
            raise _bad_table(f"{options.AUTO_PARTITION_KEY} is {key!r}, which is not one of {list(partition_keys)}")
        unit = TimeUnit(options.choice(properties, options.AUTO_PARTITION_TIME_UNIT))
        return cls(
            enabled=options.is_true(properties, options.AUTO_PARTITION_ENABLED),
            key_index=partition_keys.index(key),
            unit=unit,
            pattern=_checked(properties.get(options.AUTO_PARTITION_TIME_FORMAT, PATTERNS[unit]), unit),
            zone=_zone(properties.get(options.AUTO_PARTITION_TIME_ZONE)),
            precreate=int(properties.get(options.AUTO_PARTITION_PRECREATE, 0 if several else PRECREATE_DEFAULT)),
            retention=int(properties.get(options.AUTO_PARTITION_RETENTION, RETENTION_DEFAULT)),
        )

    def values_ahead(self, now: dt.datetime) -> list[str]:
        """The values that should exist: that of `now` and the next ones."""
        return [self.value(now, offset) for offset in range(self.precreate)]

    def oldest_value(self, now: dt.datetime) -> str | None:
        """The least value to keep, None to keep all."""
        if self.retention < 0:
            return None
        try:
            return self.value(now, -self.retention)
        except (OverflowError, ValueError):
            return None  # before the calendar begins

    def value(self, now: dt.datetime, offset: int) -> str:
        """The value of the partition that lies `offset` units after the one of `now`."""
        if self.unit is TimeUnit.HOUR:
            return self._text((now + dt.timedelta(hours=offset)).astimezone(self.zone))
        local = now.astimezone(self.zone).replace(tzinfo=None)
        if self.unit is TimeUnit.DAY:
            return self._text(local + dt.timedelta(days=offset))
        months = {TimeUnit.MONTH: 1, TimeUnit.QUARTER: 3, TimeUnit.YEAR: 12}[self.unit]
        year, month = divmod(local.year * 12 + local.month - 1 + offset * months, 12)
        return self._text(dt.datetime(year, month + 1, 1))

    def time_value(self, name: str) -> str:
        """The part of a partition's name that is the time."""
        return name.split(SEPARATOR)[self.key_index]

    def could_have_made(self, value: str) -> bool:
        """Whether a value is a time in this rule's pattern."""
        parts = [
            f"(?P<{letter}>[0-9]{{{len(text)}}})" if letter else re.escape(text)
            for letter, text in _tokens(self.pattern)
        ]
        match = re.fullmatch("".join(parts), value)
        if match is None:
            return False
        fields = {letter: int(text) for letter, text in match.groupdict().items()}
        try:
            dt.datetime(fields["y"], fields.get("M", 1), fields.get("d", 1), fields.get("H", 0))
        except ValueError:
            return False
        return 1 <= fields.get("Q", 1) <= 4

    def _text(self, time: dt.datetime) -> str:
        fields = {
            "y": time.year,
            "Q": (time.month + 2) // 3,
            "M": time.month,
            "d": time.day,
            "H": time.hour,
        }
        return "".join(f"{fields[letter]:0{len(text)}}" if letter else text for letter, text in _tokens(self.pattern))


def _tokens(pattern: str) -> list[tuple[str, str]]:
    """(field letter, its text) or ("", literal text), in order."""
    return [
        (match[3].translate(_SAME_FIELD), match[2]) if match[2] else ("", match[1] or match[4] or "'")
        for match in _TOKEN.finditer(pattern)
    ]


def _checked(pattern: str, unit: TimeUnit) -> str:
    """The pattern, or code 15: it must have exactly the unit's fields, in order and in full width."""
    whole = "".join(match[0] for match in _TOKEN.finditer(pattern)) == pattern
    fields = [(letter, len(text)) for letter, text in _tokens(pattern) if letter]
    if not whole or fields != [(letter, len(text)) for letter, text in _tokens(PATTERNS[unit])]:
        raise _bad_table(
            f"{options.AUTO_PARTITION_TIME_FORMAT} {pattern!r} must have the fields of {PATTERNS[unit]}, in this order "
            "and width, with any other characters between them"
        )
    literals = "".join(text for letter, text in _tokens(pattern) if not letter)
    try:
        check_value(options.AUTO_PARTITION_TIME_FORMAT, "0" + literals)
    except InvalidRequestError:
        raise _bad_table(
            f"{options.AUTO_PARTITION_TIME_FORMAT} {pattern!r} has characters that can't be part of a partition name"
        ) from None
    return pattern


def _zone(name: str | None) -> dt.tzinfo | None:
    """A time zone by name, or as an offset such as GMT+8; code 39 for one that is not known."""
    import zoneinfo

    if name is None or not name.strip():
        return None
    name = name.strip()
    if name.upper() in ("UTC", "GMT", "Z"):
        return dt.UTC
    match = _OFFSET.fullmatch(name)
    if match and int(match[2]) < 24 and int(match[3] or 0) < 60:
        offset = dt.timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        return dt.timezone(-offset if match[1] == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequestError(
            f"Bad value {name[:100]!r} for {options.AUTO_PARTITION_TIME_ZONE}: expected a name that the system's time "
            "zone data has, such as 'Europe/Berlin', or an offset such as 'GMT+8'.",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        ) from None


def _bad_table(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"This table can't be made: {text}.", ErrorCode.INVALID_TABLE_EXCEPTION)
