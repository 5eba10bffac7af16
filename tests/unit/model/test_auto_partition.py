"""Names of time partitions: units, zones, calendars, patterns."""

from __future__ import annotations

import datetime as dt

import pytest

from fluss.model.errors import FlussError
from fluss.model.tables.auto_partition import AutoPartition

PREFIX = "table.auto-partition."
NOW = dt.datetime(2025, 1, 31, 22, 30, tzinfo=dt.UTC)


def rule(keys: tuple[str, ...] = ("dt",), **properties: str) -> AutoPartition:
    named = {PREFIX + key.replace("_", "-"): value for key, value in properties.items()}
    return AutoPartition.of({f"{PREFIX}enabled": "true", f"{PREFIX}time-zone": "UTC", **named}, keys)


@pytest.mark.parametrize(
    ("unit", "now", "ahead", "oldest"),
    [
        ("hour", NOW, ["2025013122", "2025013123", "2025020100"], "2025013120"),
        ("day", NOW, ["20250131", "20250201", "20250202"], "20250129"),
        ("month", NOW, ["202501", "202502", "202503"], "202411"),
        ("quarter", NOW, ["20251", "20252", "20253"], "20243"),
        ("year", NOW, ["2025", "2026", "2027"], "2023"),
        ("DAY", dt.datetime(2024, 2, 28, tzinfo=dt.UTC), ["20240228", "20240229", "20240301"], "20240226"),
        ("QUARTER", dt.datetime(2024, 12, 31, tzinfo=dt.UTC), ["20244", "20251", "20252"], "20242"),
        ("MONTH", dt.datetime(2024, 3, 31, tzinfo=dt.UTC), ["202403", "202404", "202405"], "202401"),
    ],
)
def test_units(unit: str, now: dt.datetime, ahead: list[str], oldest: str) -> None:
    of_unit = rule(time_unit=unit, num_precreate="3", num_retention="2")
    assert of_unit.values_ahead(now) == ahead
    assert of_unit.oldest_value(now) == oldest
    assert all(of_unit.could_have_made(value) for value in [*ahead, oldest])
    assert [*sorted([*ahead, oldest])] == [oldest, *ahead]


def test_defaults() -> None:
    default = AutoPartition.of({}, ["dt"])
    assert (default.enabled, default.unit, default.precreate, default.retention) == (False, "DAY", 2, 7)
    assert default.zone is None
    local = NOW.astimezone()
    assert default.value(NOW, 0) == f"{local:%Y%m%d}"
    assert AutoPartition.of({}, ["dt", "region"]).precreate == 0


@pytest.mark.parametrize(
    ("zone", "value"),
    [
        ("UTC", "20250131"),
        ("Asia/Tokyo", "20250201"),
        ("America/New_York", "20250131"),
        ("GMT+8", "20250201"),
        ("UTC+01:00", "20250131"),
        ("+0130", "20250201"),
        ("GMT-12", "20250131"),
    ],
)
def test_time_zones(zone: str, value: str) -> None:
    assert rule(time_zone=zone).value(NOW, 0) == value


def test_hours_over_the_change_of_clocks() -> None:
    berlin = rule(time_unit="HOUR", time_zone="Europe/Berlin", num_precreate="4")
    spring = dt.datetime(2025, 3, 30, 0, 0, tzinfo=dt.UTC)
    assert berlin.values_ahead(spring) == ["2025033001", "2025033003", "2025033004", "2025033005"]


def test_days_over_the_change_of_clocks() -> None:
    berlin = rule(time_zone="Europe/Berlin", num_precreate="3")
    autumn = dt.datetime(2025, 10, 25, 22, 30, tzinfo=dt.UTC)
    assert berlin.values_ahead(autumn) == ["20251026", "20251027", "20251028"]


@pytest.mark.parametrize("zone", ["Nowhere/Town", "../etc/passwd", "America", "GMT+99", "\x00"])
def test_unknown_time_zones(zone: str) -> None:
    with pytest.raises(FlussError, match="time-zone") as caught:
        rule(time_zone=zone)
    assert caught.value.error_code == 39


@pytest.mark.parametrize("retention", ["-1", "-2147483647"])
def test_negative_retention_keeps_everything(retention: str) -> None:
    assert rule(num_retention=retention).oldest_value(NOW) is None


@pytest.mark.parametrize("unit", ["HOUR", "DAY", "MONTH", "QUARTER", "YEAR"])
def test_retention_beyond_the_calendar_keeps_everything(unit: str) -> None:
    assert rule(time_unit=unit, num_retention="2147483647").oldest_value(NOW) is None


@pytest.mark.parametrize(
    ("unit", "strangers"),
    [
        ("HOUR", ["20250101", "2025010124", "2025010a01"]),
        (
            "DAY",
            [
                "2025010",
                "20250230",
                "20251301",
                "2025-01-01",
                "abcdefgh",
                "202501011",
                "00000101",
                "\uff12\uff10\uff12\uff150101",
            ],
        ),
        ("MONTH", ["20250", "202513", "202500", "20250101"]),
        ("QUARTER", ["20255", "20250", "2025", "202501"]),
        ("YEAR", ["25", "20251", "0000", "year"]),
    ],
)
def test_names_that_a_unit_could_not_have_made(unit: str, strangers: list[str]) -> None:
    of_unit = rule(time_unit=unit)
    assert not [value for value in strangers if of_unit.could_have_made(value)]


@pytest.mark.parametrize(
    ("unit", "pattern", "value"),
    [
        ("DAY", "yyyy-MM-dd", "2025-01-31"),
        ("DAY", "uuuu_LL_dd", "2025_01_31"),
        ("QUARTER", "yyyy-'Q'Q", "2025-Q1"),
        ("HOUR", "yyyyMMdd-HH", "20250131-22"),
    ],
)
def test_patterns(unit: str, pattern: str, value: str) -> None:
    patterned = rule(time_unit=unit, time_format=pattern)
    assert patterned.value(NOW, 0) == value
    assert patterned.could_have_made(value)
    assert not patterned.could_have_made(value.replace("2", "x"))


@pytest.mark.parametrize(
    "pattern",
    [
        "MM-yyyy-dd",
        "yyyy-MM",
        "yyyy-M-dd",
        "yy-yyMMdd",
        "yyyyMMddHH",
        "yyyy/MM/dd",
        "[yyyy]MMdd",
        "yyyyMMdd'",
        "",
        "'x'",
    ],
)
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(FlussError, match="time-format") as caught:
        rule(time_format=pattern)
    assert caught.value.error_code == 15


def test_the_time_is_one_of_several_values() -> None:
    second = rule(("region", "dt"), key="dt")
    assert second.time_value("eu$20250131") == "20250131"
    with pytest.raises(FlussError, match="not one of") as caught:
        rule(("region", "dt"), key="other")
    assert caught.value.error_code == 15
