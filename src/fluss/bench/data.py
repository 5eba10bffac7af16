"""Rows of workloads, and the check that what was read is what was written."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

LOG_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("sensor", pa.string()),
        ("reading", pa.float64()),
        ("at", pa.timestamp("us")),
        ("quality", pa.int32()),
    ]
)
PROJECTED: Final = ["id", "reading"]
KV_SCHEMA: Final = pa.schema([("id", pa.int64()), ("payload", pa.string())])
PREFIX_SCHEMA: Final = pa.schema([("owner", pa.int64()), ("id", pa.int64()), ("payload", pa.string())])
ROWS_PER_PREFIX: Final = 10

_SENSOR_COUNT: Final = 5_000
_START_US: Final = 1_767_225_600_000_000  # 2026-01-01
_STEP_US: Final = 1_000
# A payload has 100 characters.
_PAYLOAD_DIGITS, _PAYLOAD_REPEATS = 25, 4
_MULTIPLIER: Final = 2_654_435_761


def log_batches(rows: int, batch_rows: int) -> list[pa.RecordBatch]:
    """Rows with the ids 0, 1, 2 ..."""
    sensors = pa.array([f"sensor-{number:05d}" for number in range(_SENSOR_COUNT)])
    return [_log_batch(sensors, first, min(batch_rows, rows - first)) for first in range(0, rows, batch_rows)]


def kv_batches(rows: int, batch_rows: int, version: int) -> list[pa.RecordBatch]:
    """A version of the rows with the ids 0, 1, 2 ..., in an order of its own."""
    ids = np.random.default_rng(version).permutation(rows).astype(np.int64)
    return [_kv_batch(ids[first : first + batch_rows], version) for first in range(0, rows, batch_rows)]


def prefix_batches(rows: int, batch_rows: int) -> list[pa.RecordBatch]:
    """The same rows with an owner in front, who has ten of them."""
    found = []
    for batch in kv_batches(rows, batch_rows, version=1):
        owners = pa.array(batch["id"].to_numpy() // ROWS_PER_PREFIX)
        found.append(pa.record_batch([owners, *batch.columns], schema=PREFIX_SCHEMA))
    return found


def joined(batches: list[pa.RecordBatch]) -> pa.Table:
    """All rows, by id."""
    return pa.Table.from_batches(batches).sort_by("id").combine_chunks()


def _log_batch(sensors: pa.Array, first: int, rows: int) -> pa.RecordBatch:
    random = np.random.default_rng(first)
    ids = np.arange(first, first + rows, dtype=np.int64)
    columns = [
        pa.array(ids),
        sensors.take(pa.array(random.integers(0, _SENSOR_COUNT, rows))),
        pa.array(random.normal(20.0, 5.0, rows).round(2)),
        pa.array(_START_US + ids * _STEP_US).cast(pa.timestamp("us")),
        pa.array(random.integers(0, 100, rows, dtype=np.int32)),
    ]
    return pa.record_batch(columns, schema=LOG_SCHEMA)


def _kv_batch(ids: np.ndarray[tuple[int], np.dtype[np.int64]], version: int) -> pa.RecordBatch:
    numbers = pa.array(ids * _MULTIPLIER + version).cast(pa.string())
    payloads = pc.binary_repeat(pc.utf8_lpad(numbers, _PAYLOAD_DIGITS, "0"), _PAYLOAD_REPEATS)
    return pa.record_batch([pa.array(ids), payloads], schema=KV_SCHEMA)


class WrongResultError(Exception):
    """Rows that are missing, too many or different."""


def check_rows(found: pa.Table, expected: pa.Table) -> None:
    """Compare with the expected rows, which are in the order of their ids and have the columns that matter."""
    if found.num_rows != expected.num_rows:
        raise WrongResultError(f"{found.num_rows:,} rows came, {expected.num_rows:,} were expected.")
    ordered = found.sort_by("id")
    for name in expected.column_names:
        came, wanted = ordered[name], expected[name]
        if not came.equals(wanted):
            raise WrongResultError(_difference(name, came, wanted, expected["id"]))


def check_equal(found: object, expected: object) -> None:
    """Compare what a lookup has found."""
    if found != expected:
        raise WrongResultError(f"{found!r:.200} came, {expected!r:.200} was expected.")


def _difference(name: str, came: pa.ChunkedArray, wanted: pa.ChunkedArray, ids: pa.ChunkedArray) -> str:
    if came.type != wanted.type:
        return f"Column {name} has the type {came.type}, not {wanted.type}."
    differs = pc.fill_null(pc.not_equal(came, wanted), True)
    count, first = pc.sum(differs).as_py(), pc.index(differs, True).as_py()
    place = f"the row with id {ids[first]} has {came[first].as_py()!r}, not {wanted[first].as_py()!r}"
    return f"Column {name} is wrong in {count:,} rows: {place}."
