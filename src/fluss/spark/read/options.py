"""Options of reads, and the columns that a read gives.

| option | meaning |
|---|---|
| `columns` | columns to read, comma-separated; all if left out. `.schema(...)` does the same |
| `filter` | rows to read, as SQL: `amount > 10 AND region IN ('EU', 'US')` |
| `partitions` | partitions to read: `day=2026-01-01/region=EU, day=2026-01-02`; all if left out |
| `changelog` | `true`: changes with `_change_type`, `_log_offset`, `_commit_timestamp` before the table's columns |
| `scan.startup.mode` | where a stream begins: `full` (default), `earliest`, `latest`, `timestamp`, `offsets` |
| `scan.startup.timestamp` | for `timestamp`: milliseconds since 1970, or `2026-01-01T00:00:00Z` |
| `scan.start.offsets` | JSON, `{"0": 10}` or `{"partition": {"0": 10}}`: where a read begins |
| `scan.end.offsets` | the same: where a batch read ends |
| `scan.incremental.start.timestamp`, `scan.incremental.end.timestamp` | a batch read of what came in [start, end) |
| `scan.maxRecordsPerPartition` | rows per Spark partition, about; by default what uses all cores, or whole buckets |
| `maxRowsPerTrigger`, `maxBytesPerTrigger` | how much a micro-batch of a stream takes, about |
| `lake.mode` | `auto` (default): history in the lake and the fresh rows; `none`: no lake; `only`: no fresh rows |
| `lake.warehouse`, `lake.catalog.<key>` | where the lake is, if it is not where the table's server says |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias

from pyspark.sql import types as st

from fluss.lake.modes import AUTO, MODES
from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.infos import TableInfo
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET
from fluss.model.schema import Column
from fluss.model.types import DataTypes, parse_json
from fluss.spark.columns import check_read_schema, spark_schema, spark_type
from fluss.spark.source_options import (
    LAKE_CATALOG,
    LAKE_MODE,
    LAKE_WAREHOUSE,
    STREAM_OPTIONS,
    WRITE_OPTIONS,
    SourceOptions,
    bad_option,
)

CHANGELOG_COLUMNS = {
    CHANGE_TYPE: Column(CHANGE_TYPE, DataTypes.string().not_null()),
    LOG_OFFSET: Column(LOG_OFFSET, DataTypes.bigint().not_null()),
    COMMIT_TIMESTAMP: Column(COMMIT_TIMESTAMP, DataTypes.timestamp_ltz(3)),
}


def read_schema(info: TableInfo, names: Sequence[str] | None, changelog: bool) -> Any:
    """The Spark schema of a read of these columns; all if there are no names.

    With `changelog` the three columns of changes come first, unless some of them are among the names.
    """
    first = list(CHANGELOG_COLUMNS) if changelog else []
    own = [name for name in names or () if name not in first]
    found = {field.name: field for field in spark_schema(info.schema, own if names is not None else None).fields}
    found |= {name: _field(CHANGELOG_COLUMNS[name]) for name in first}
    if names is None or len(own) == len(names):
        names = [*first, *(name for name in found if name not in first)]
    return st.StructType([found[name] for name in names])


def read_columns(info: TableInfo, requested: Any, changelog: bool) -> list[Column]:
    """The columns for a schema given with `.schema(...)`, which must state their own types."""
    own = [field for field in requested.fields if field.name not in CHANGELOG_COLUMNS]
    found: dict[str, Column] = {}
    if own or not requested.fields:
        found = {column.name: column for column in check_read_schema(info.table_path, info.schema, st.StructType(own))}
    for field in requested.fields:
        if field.name in CHANGELOG_COLUMNS:
            found[field.name] = _changelog_column(field, changelog)
    return [found[name] for name in requested.fieldNames()]


def check_chosen_once(names: Sequence[str] | None, requested: Any) -> None:
    """Raise when the option `columns` says other columns than the schema of a read."""
    if names is not None and _own(names) != _own(requested.fieldNames()):
        raise InvalidRequestError("Choose columns by .option('columns', ...) or by .schema(...), not by both.")


def _own(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in CHANGELOG_COLUMNS]


def _changelog_column(field: Any, changelog: bool) -> Column:
    if not changelog:
        raise InvalidRequestError(f"The column {field.name!r} is of changes: add .option('changelog', 'true').")
    expected = _field(CHANGELOG_COLUMNS[field.name])
    if expected.dataType != field.dataType:
        raise SchemaMismatchError(
            f"The column {field.name!r} is {expected.dataType.simpleString()} in Spark; the schema says "
            f"{field.dataType.simpleString()}."
        )
    return CHANGELOG_COLUMNS[field.name]


def _field(column: Column) -> Any:
    return st.StructField(column.name, spark_type(column.data_type), column.data_type.nullable)


BucketOffsets: TypeAlias = Mapping[tuple[str | None, int], int]
"""Offsets by partition name (None in a table without partitions) and bucket"""


class StartupMode(StrEnum):
    """Where a stream begins."""

    FULL = "full"
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    OFFSETS = "offsets"


@dataclass(frozen=True)
class ReadOptions:
    """What is read. Plain values only."""

    columns: tuple[str, ...] | None
    filter: str | None
    partitions: str | None
    changelog: bool
    startup_mode: StartupMode
    startup_timestamp_ms: int | None
    start_offsets: BucketOffsets | None
    end_offsets: BucketOffsets | None
    start_timestamp_ms: int | None
    end_timestamp_ms: int | None
    rows_per_partition_max: int | None
    rows_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    lake_mode: str
    lake_warehouse: str | None
    lake_catalog: Mapping[str, str] | None

    @property
    def has_start(self) -> bool:
        """Whether a batch read begins somewhere."""
        return self.start_offsets is not None or self.start_timestamp_ms is not None

    @property
    def has_end(self) -> bool:
        """Whether a batch read ends somewhere."""
        return self.end_offsets is not None or self.end_timestamp_ms is not None

    @classmethod
    def of(cls, options: SourceOptions) -> ReadOptions:
        """Check the options of a read."""
        options.refuse(WRITE_OPTIONS, "writing")
        options.refuse(STREAM_OPTIONS, "streams that are written (df.writeStream)")
        return cls(
            columns=options.names("columns"),
            filter=options.own.get("filter"),
            partitions=options.own.get("partitions"),
            changelog=options.flag("changelog"),
            startup_mode=_startup_mode(options),
            startup_timestamp_ms=_timestamp_ms(options, "scan.startup.timestamp"),
            start_offsets=_offsets(options, "scan.start.offsets"),
            end_offsets=_offsets(options, "scan.end.offsets"),
            start_timestamp_ms=_timestamp_ms(options, "scan.incremental.start.timestamp"),
            end_timestamp_ms=_timestamp_ms(options, "scan.incremental.end.timestamp"),
            rows_per_partition_max=options.count("scan.maxRecordsPerPartition"),
            rows_per_trigger_max=options.count("maxRowsPerTrigger"),
            bytes_per_trigger_max=options.count("maxBytesPerTrigger"),
            lake_mode=_lake_mode(options),
            lake_warehouse=options.own.get(LAKE_WAREHOUSE),
            lake_catalog=_lake_catalog(options),
        )


def _startup_mode(options: SourceOptions) -> StartupMode:
    text = options.own.get("scan.startup.mode", StartupMode.FULL)
    try:
        return StartupMode(text.strip().lower())
    except ValueError:
        modes = ", ".join(StartupMode)
        raise bad_option(f"The option 'scan.startup.mode' is one of {modes}, not {text!r}.") from None


def _lake_mode(options: SourceOptions) -> str:
    text = options.own.get(LAKE_MODE, AUTO)
    mode = text.strip().lower()
    if mode not in MODES:
        raise bad_option(f"The option {LAKE_MODE!r} is one of {', '.join(MODES)}, not {text!r}.")
    return mode


def _lake_catalog(options: SourceOptions) -> dict[str, str] | None:
    found = {name.removeprefix(LAKE_CATALOG): text for name, text in options.own.items() if LAKE_CATALOG in name}
    return found or None


def _timestamp_ms(options: SourceOptions, name: str) -> int | None:
    text = options.own.get(name)
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise bad_option(
            f"The option {name!r} is a time, as milliseconds since 1970 or like 2026-01-01T00:00:00Z, not {text!r}."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _offsets(options: SourceOptions, name: str) -> BucketOffsets | None:
    text = options.own.get(name)
    if text is None:
        return None
    try:
        found: dict[tuple[str | None, int], int] = {}
        for key, value in _mapping(parse_json(text)).items():
            if isinstance(value, dict):
                found.update({(key, _number(bucket)): _number(offset) for bucket, offset in value.items()})
            else:
                found[None, _number(key)] = _number(value)
    except ValueError:
        raise bad_option(
            f'The option {name!r} is JSON like {{"0": 10, "1": 20}}, or {{"partition": {{"0": 10}}}} for a partitioned '
            f"table, not {text!r}."
        ) from None
    return found


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or int(value) < 0:
        raise ValueError(f"not a bucket or an offset: {value!r}")
    return int(value)
