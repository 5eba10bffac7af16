"""The `table.*` properties a table may have, with their defaults and checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from fluss.model.errors import ErrorCode, InvalidRequestError

LOG_FORMAT = "table.log.format"
KV_FORMAT = "table.kv.format"
REPLICATION_FACTOR = "table.replication.factor"
ARROW_COMPRESSION = "table.log.arrow.compression.type"
ARROW_ZSTD_LEVEL = "table.log.arrow.compression.zstd.level"

PROPERTY_COUNT_MAX = 256
PROPERTY_LENGTH_MAX = 4096

_DURATION = re.compile(r"-?\d+\s*(d|days?|h|hours?|min|minutes?|m|s|sec|seconds?|ms|milliseconds?)?\Z", re.IGNORECASE)


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


def _duration(value: str) -> str | None:
    return None if _DURATION.match(value.strip()) else "expected a duration such as '7 d', '12 h' or '30 s'"


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
    "table.kv.format-version": _int_between(1, 2),
    "table.auto-partition.enabled": _BOOL,
    "table.auto-partition.key": _any,
    "table.auto-partition.time-unit": _one_of("HOUR", "DAY", "MONTH", "QUARTER", "YEAR"),
    "table.auto-partition.time-zone": _any,
    "table.auto-partition.num-precreate": _int_between(0, _INT_MAX),
    "table.auto-partition.num-retention": _int_between(-_INT_MAX, _INT_MAX),
    "table.log.ttl": _duration,
    "table.log.tiered.local-segments": _int_between(1, _INT_MAX),
    "table.datalake.enabled": _BOOL,
    "table.datalake.format": _one_of("PAIMON", "LANCE", "ICEBERG"),
    "table.datalake.freshness": _duration,
    "table.datalake.auto-compaction": _BOOL,
    "table.datalake.auto-expire-snapshot": _BOOL,
    "table.merge-engine": _one_of("FIRST_ROW", "VERSIONED", "AGGREGATION"),
    "table.merge-engine.versioned.ver-column": _any,
    "table.delete.behavior": _one_of("ALLOW", "IGNORE", "DISABLE"),
    "table.auto-increment.cache-size": _int_between(1, _INT_MAX),
    "table.changelog.image": _one_of("FULL", "WAL"),
}


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidRequestError (code 39) for an unknown property or a bad value."""
    if len(properties) > PROPERTY_COUNT_MAX:
        raise _bad(f"A table has at most {PROPERTY_COUNT_MAX} properties, not {len(properties)}.")
    for key, value in properties.items():
        check = CHECKS.get(key)
        if check is None:
            raise _bad(
                f"Unknown table property {key[:100]!r}. Properties begin with 'table.'; "
                "put your own into custom_properties."
            )
        problem = check(value)
        if problem:
            raise _bad(f"Bad value {value[:100]!r} for {key}: {problem}.")


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, ErrorCode.INVALID_CONFIG_EXCEPTION)
