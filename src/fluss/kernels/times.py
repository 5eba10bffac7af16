"""Dates and times of Python as numbers since 1970-01-01, and back."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from fluss.kernels._cyshim import cython
from fluss.kernels.primitives import floor_div

if cython.compiled:
    from cython.cimports.cpython.datetime import (
        date_day,
        date_month,
        date_year,
        datetime_hour,
        datetime_microsecond,
        datetime_minute,
        datetime_new,
        datetime_second,
        datetime_tzinfo,
        import_datetime,
    )

    import_datetime()


# Seconds beyond these do not fit 64-bit nanoseconds.
NANOSECOND_RANGE_SECONDS = cython.declare(cython.longlong, 9_223_372_035)
EPOCH = datetime(1970, 1, 1)
EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = cython.declare(cython.longlong, date(1970, 1, 1).toordinal())
_MARCH_0_US = cython.declare(cython.longlong, 719_468 * 86_400_000_000)  # from 0000-03-01 to 1970-01-01
_DATETIME_US_MIN = cython.declare(cython.longlong, (datetime.min - EPOCH) // timedelta(microseconds=1))
_DATETIME_US_MAX = cython.declare(cython.longlong, (datetime.max - EPOCH) // timedelta(microseconds=1))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def epoch_days(value: object) -> cython.longlong:
    """Days from 1970-01-01 to a date or datetime."""
    if cython.compiled:
        # Years begin in March, so that the leap day is the last one of its year; all operands are positive.
        month: cython.longlong = (date_month(value) + 9) % 12
        year: cython.longlong = date_year(value) - (1 if month >= 10 else 0)
        days: cython.longlong = 365 * year + year // 4 - year // 100 + year // 400
        return days + (153 * month + 2) // 5 + date_day(value) - 719_469
    else:
        return value.toordinal() - _EPOCH_ORDINAL


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def second_of_day(value: object) -> cython.longlong:
    if cython.compiled:
        return datetime_hour(value) * 3600 + datetime_minute(value) * 60 + datetime_second(value)
    else:
        return value.hour * 3600 + value.minute * 60 + value.second


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def microsecond_of(value: object) -> cython.longlong:
    if cython.compiled:
        return datetime_microsecond(value)
    else:
        return value.microsecond


@cython.cfunc
@cython.inline
def zone_of(value: object) -> object:
    if cython.compiled:
        return datetime_tzinfo(value)
    else:
        return value.tzinfo


@cython.cfunc
def whole_seconds(delta: object) -> cython.longlong:
    days: cython.longlong = delta.days
    seconds: cython.longlong = delta.seconds
    return days * 86_400 + seconds


@cython.cfunc
@cython.inline
def in_units(seconds: cython.longlong, microsecond: cython.longlong, units: cython.longlong) -> cython.longlong:
    """Digits that the unit can't hold are cut off, towards the past."""
    if units <= 1_000_000:
        return seconds * units + microsecond // (1_000_000 // units)
    return seconds * units + microsecond * 1_000


@cython.cfunc
@cython.inline
def is_nat(value: object) -> cython.bint:
    """pandas.NaT is a datetime; numpy has its own."""
    if type(value) is datetime or type(value) is date:
        return False
    return (isinstance(value, datetime) or is_datetime64(value)) and value != value


@cython.cfunc
@cython.inline
def is_datetime64(value: object) -> cython.bint:
    return type(value).__name__ == "datetime64" and type(value).__module__ == "numpy"


@cython.cfunc
@cython.inline
@cython.cdivision(True)
def _datetime(microseconds: cython.longlong, zone: object) -> object:
    """The time so many microseconds after 1970-01-01."""
    if cython.compiled:
        # Counted from 0000-03-01, as in `epoch_days`: all operands are positive.
        since: cython.longlong = microseconds + _MARCH_0_US
        seconds: cython.longlong = since // 1_000_000
        days: cython.int = seconds // 86_400
        second: cython.int = seconds % 86_400
        day_of_era: cython.int = days % 146_097
        year: cython.int = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
        day_of_year: cython.int = day_of_era - (365 * year + year // 4 - year // 100)
        month: cython.int = (5 * day_of_year + 2) // 153
        year += 400 * (days // 146_097) + (1 if month >= 10 else 0)
        return datetime_new(
            year,
            month - 9 if month >= 10 else month + 3,
            day_of_year - (153 * month + 2) // 5 + 1,
            second // 3600,
            second // 60 % 60,
            second % 60,
            since % 1_000_000,
            zone,
        )
    else:
        return (EPOCH if zone is None else EPOCH_UTC) + timedelta(0, 0, microseconds)


def datetimes_of(values: list[Any], units: int, zone: Any) -> list[Any]:
    """Times of a zone, UTC or None, from numbers since 1970-01-01 with `units` in a second; nanoseconds are cut off."""
    number: cython.longlong
    divisor: cython.longlong = units // 1_000_000 if units > 1_000_000 else 1
    factor: cython.longlong = 1_000_000 // units if units < 1_000_000 else 1
    low: cython.longlong = _DATETIME_US_MIN // factor
    high: cython.longlong = _DATETIME_US_MAX // factor
    result: list = []
    for value in values:
        if value is None:
            result.append(None)
            continue
        number = floor_div(value, divisor)
        if number < low or number > high:
            raise OverflowError("date value out of range")
        result.append(_datetime(number * factor, zone))
    return result
