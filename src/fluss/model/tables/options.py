"""The `table.*` properties a table may have, with their defaults and checks, and durations as Apache Fluss spells
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError

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


LOG_FORMAT = "table.log.format"
KV_FORMAT = "table.kv.format"
REPLICATION_FACTOR = "table.replication.factor"
ARROW_COMPRESSION = "table.log.arrow.compression.type"
ARROW_ZSTD_LEVEL = "table.log.arrow.compression.zstd.level"
LOG_TTL = "table.log.ttl"
LOCAL_TTL = "table.log.local-ttl"
TTL_DEFAULT = "7 d"  # of tables that name none
LOCAL_SEGMENTS = "table.log.tiered.local-segments"
STATISTICS_COLUMNS = "table.statistics.columns"
AUTO_PARTITION_ENABLED = "table.auto-partition.enabled"
AUTO_PARTITION_KEY = "table.auto-partition.key"
AUTO_PARTITION_TIME_UNIT = "table.auto-partition.time-unit"
AUTO_PARTITION_TIME_FORMAT = "table.auto-partition.time-format"
AUTO_PARTITION_TIME_ZONE = "table.auto-partition.time-zone"
AUTO_PARTITION_PRECREATE = "table.auto-partition.num-precreate"
AUTO_PARTITION_RETENTION = "table.auto-partition.num-retention"
DATALAKE_PREFIX = "table.datalake."
DATALAKE_ENABLED = "table.datalake.enabled"
DATALAKE_FORMAT = "table.datalake.format"
DATALAKE_FRESHNESS = "table.datalake.freshness"
DATALAKE_AUTO_COMPACTION = "table.datalake.auto-compaction"
DATALAKE_ICEBERG_PREFIX = "table.datalake.iceberg."  # and any key of an Iceberg catalog
MERGE_ENGINE = "table.merge-engine"
MERGE_ENGINE_VERSION_COLUMN = "table.merge-engine.versioned.ver-column"
DELETE_BEHAVIOR = "table.delete.behavior"
CHANGELOG_IMAGE = "table.changelog.image"
KV_FORMAT_VERSION = "table.kv.format-version"
AUTO_INCREMENT_CACHE_SIZE = "table.auto-increment.cache-size"

PROPERTY_COUNT_MAX = 256
PROPERTY_LENGTH_MAX = 4096
PRECREATE_MAX = 1_000
ALL_COLUMNS = "*"
ICEBERG = "ICEBERG"
DATALAKE_FORMATS = ("PAIMON", "LANCE", ICEBERG)
_FORMAT_PREFIXES = ("datalake.", *(f"{name.lower()}." for name in DATALAKE_FORMATS))


def _one_of(*choices: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        return None if value.upper() in choices else f"expected one of {', '.join(choices)}"

    return check


def _int_between(low: int, high: int) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        try:
            number = int(value)
        except ValueError:
            return f"expected an integer from {low} to {high}"
        return None if low <= number <= high else f"expected an integer from {low} to {high}"

    return check


# Of options that name one of a few things.
_DEFAULT_CHOICES = {
    LOG_FORMAT: "ARROW",
    KV_FORMAT: "COMPACTED",
    ARROW_COMPRESSION: "ZSTD",
    CHANGELOG_IMAGE: "FULL",
    AUTO_PARTITION_TIME_UNIT: "DAY",
}


def choice(properties: Mapping[str, str], key: str) -> str:
    """What an option names that has one of a few values, in capitals; its default, or nothing, where it is not set."""
    return properties.get(key, _DEFAULT_CHOICES.get(key, "")).upper()


def is_true(properties: Mapping[str, str], key: str) -> bool:
    """Whether a property that is false by default is true."""
    return properties.get(key, "false").lower() == "true"


def is_iceberg_option(key: str) -> bool:
    """Whether a property says something of the Iceberg catalog to which a table is tiered."""
    return len(key) > len(DATALAKE_ICEBERG_PREFIX) and key.startswith(DATALAKE_ICEBERG_PREFIX)


def names_lake(key: str) -> bool:
    """Whether a property, custom or not, says where a lake is or how it is reached, which its server's operator does.

    Apache Fluss's clients write custom properties that begin with the name of a format into the lake's table.
    """
    plain = key.strip().lower()
    if plain.startswith(DATALAKE_PREFIX):
        return plain not in CHECKS
    if not plain.startswith(_FORMAT_PREFIXES):
        return False
    from fluss.model.trust import names_more_than_data  # A server hardly ever needs it.

    return names_more_than_data(plain)


def lake_key_problem(key: str) -> str:
    """Why a table can't have a property for which `names_lake` is true."""
    setting = key.strip().lower().removeprefix("table.").removeprefix("datalake.")[:100]
    return (
        f"{key[:100]!r} chooses code, a host, a path or a credential for everybody who reads the table's lake; leave "
        f"it out, the operator of the server sets datalake.{setting} in fluss.toml"
    )


def statistics_columns(value: str) -> list[str]:
    """The columns named by `table.statistics.columns`, unless it is `ALL_COLUMNS`."""
    return [name for name in map(str.strip, value.split(",")) if name]


def _duration(value: str) -> str | None:
    text = value.strip()
    if duration_ms(text) is None or text.startswith("-") or not text[-1].isalpha():
        return "expected a duration with a unit, such as '7 d', '12 h' or '30 s'"
    return None


def _any(_: str) -> str | None:
    return None


_BOOL = _one_of("TRUE", "FALSE")
_INT_MAX = 2**31 - 1

CHECKS: dict[str, Callable[[str], str | None]] = {
    REPLICATION_FACTOR: _int_between(1, _INT_MAX),
    LOG_FORMAT: _one_of("ARROW", "INDEXED", "COMPACTED"),
    ARROW_COMPRESSION: _one_of("NONE", "LZ4_FRAME", "ZSTD"),
    ARROW_ZSTD_LEVEL: _int_between(1, 22),
    KV_FORMAT: _one_of("COMPACTED", "INDEXED"),
    KV_FORMAT_VERSION: _int_between(1, 2),
    AUTO_PARTITION_ENABLED: _BOOL,
    AUTO_PARTITION_KEY: _any,
    AUTO_PARTITION_TIME_UNIT: _one_of("HOUR", "DAY", "MONTH", "QUARTER", "YEAR"),
    AUTO_PARTITION_TIME_FORMAT: _any,
    AUTO_PARTITION_TIME_ZONE: _any,
    AUTO_PARTITION_PRECREATE: _int_between(0, PRECREATE_MAX),
    AUTO_PARTITION_RETENTION: _int_between(-_INT_MAX, _INT_MAX),
    LOG_TTL: _duration,
    LOCAL_TTL: _duration,
    LOCAL_SEGMENTS: _int_between(1, _INT_MAX),
    DATALAKE_ENABLED: _BOOL,
    DATALAKE_FORMAT: _one_of(*DATALAKE_FORMATS),
    DATALAKE_FRESHNESS: _duration,
    DATALAKE_AUTO_COMPACTION: _BOOL,
    "table.datalake.auto-expire-snapshot": _BOOL,
    MERGE_ENGINE: _one_of("FIRST_ROW", "VERSIONED", "AGGREGATION"),
    MERGE_ENGINE_VERSION_COLUMN: _any,
    DELETE_BEHAVIOR: _one_of("ALLOW", "IGNORE", "DISABLE"),
    AUTO_INCREMENT_CACHE_SIZE: _int_between(1, _INT_MAX),
    CHANGELOG_IMAGE: _one_of("FULL", "WAL"),
    STATISTICS_COLUMNS: _any,
}


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidRequestError (code 39) for an unknown property or a bad value."""
    if len(properties) > PROPERTY_COUNT_MAX:
        raise _bad(f"A table has at most {PROPERTY_COUNT_MAX} properties, not {len(properties)}.")
    for key, value in properties.items():
        check = _any if is_iceberg_option(key) else CHECKS.get(key)
        if check is None:
            raise _bad(
                f"Unknown table property {key[:100]!r}. Properties begin with 'table.'; "
                "put your own into custom_properties."
            )
        problem = check(value)
        if problem:
            raise _bad(f"Bad value {value[:100]!r} for {key}: {problem}.")


def local_ttl_problem(properties: Mapping[str, str], ttl_ms_default: int) -> str | None:
    """What is wrong with how long segments stay on their server beside how long the log is kept; 0: for ever."""
    local_ms = duration_ms(properties.get(LOCAL_TTL, "0 s")) or 0
    ttl_ms = ttl_ms_default if LOG_TTL not in properties else duration_ms(properties[LOG_TTL]) or 0
    if 0 < ttl_ms < local_ms:
        return f"{LOCAL_TTL} is longer than {LOG_TTL} ({ttl_ms // 1_000} s), after which nothing is left"
    return None


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, ErrorCode.INVALID_CONFIG_EXCEPTION)
