"""Rows of workloads, and the check that what was read is what was written.

`benchmarks/` measures with the same rows. Its workers load this file alone, beside other clients that are imported as
`fluss`, so nothing of this package is imported here.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

# 52 bytes a row in Arrow: 8, 4 + 20, 8, 8 and 4.
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

# All of the same length, so that a column of them is made without a loop.
SENSORS: Final = np.array([f"sensor-warehouse-{number:03d}".encode() for number in range(1_000)])
SENSOR_BYTES: Final = SENSORS.dtype.itemsize
_QUALITIES: Final = 100
_START_US: Final = 1_767_225_600_000_000  # 2026-01-01
_STEP_US: Final = 1_000
# A payload has 100 characters.
_PAYLOAD_DIGITS, _PAYLOAD_REPEATS = 25, 4
_MULTIPLIER, _VERSION_STEP = 2_654_435_761, 40_503

Ids: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


def log_batches(rows: int, batch_rows: int, first: int = 0) -> list[pa.RecordBatch]:
    """`rows` rows with the ids `first`, `first` + 1 ...; the same in batches of any size."""
    starts = range(first, first + rows, batch_rows)
    return [_log_batch(start, min(batch_rows, first + rows - start)) for start in starts]


def kv_batches(rows: int, batch_rows: int, version: int) -> list[pa.RecordBatch]:
    """A version of the rows with the ids 0, 1, 2 ..., in an order of its own."""
    ids = kv_ids(rows, version)
    return [_kv_batch(ids[first : first + batch_rows], version) for first in range(0, rows, batch_rows)]


def kv_ids(rows: int, version: int) -> Ids:
    """The ids of a version in its order."""
    return np.random.default_rng(version).permutation(rows).astype(np.int64)


def payload(number: int, version: int) -> str:
    """What a version of a row with a key holds: text that does not compress to nothing."""
    return f"{number * _MULTIPLIER + version * _VERSION_STEP:0{_PAYLOAD_DIGITS}d}" * _PAYLOAD_REPEATS


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


def _log_batch(first: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(first, first + rows, dtype=np.int64)
    chance = _mixed(ids)
    sensors = SENSORS[chance % np.uint64(len(SENSORS))]
    qualities = (chance >> np.uint64(54)) % np.uint64(_QUALITIES)
    # Around 20, the more seldom the further away, with two decimals.
    thousandths = sum((chance >> np.uint64(shift)) % np.uint64(1_000) for shift in (10, 20, 30, 40))
    columns = [
        [ids],
        [_ends(rows, SENSOR_BYTES), sensors],
        [np.asarray(thousandths) / 100],
        [_START_US + ids * _STEP_US],
        [qualities.astype(np.int32)],
    ]
    return _from_buffers(LOG_SCHEMA, rows, columns)


def _mixed(ids: Ids) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Bits that look random and depend on the id alone."""
    bits = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(31)
    bits *= np.uint64(0xD6E8FEB86659FD93)
    return bits ^ (bits >> np.uint64(32))


def _kv_batch(ids: Ids, version: int) -> pa.RecordBatch:
    values = ids * _MULTIPLIER + version * _VERSION_STEP
    digits = np.empty((len(ids), _PAYLOAD_DIGITS), np.uint8)
    for place in range(_PAYLOAD_DIGITS - 1, -1, -1):
        digits[:, place] = values % 10 + ord("0")
        values //= 10
    payloads = np.tile(digits, _PAYLOAD_REPEATS)
    return _from_buffers(KV_SCHEMA, len(ids), [[ids], [_ends(len(ids), payloads.shape[1]), payloads]])


def _ends(rows: int, width: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(rows + 1, dtype=np.int32) * np.int32(width)


def _from_buffers(schema: pa.Schema, rows: int, columns: list[list[Any]]) -> pa.RecordBatch:
    # From buffers: `pa.array` would load pandas first, which takes a second and has no part in this.
    arrays = [
        pa.Array.from_buffers(field.type, rows, [None, *(pa.py_buffer(part.tobytes()) for part in parts)])
        for field, parts in zip(schema, columns, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


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
    import pyarrow.compute as pc

    differs = pc.fill_null(pc.not_equal(came, wanted), True)
    count, first = pc.sum(differs).as_py(), pc.index(differs, True).as_py()
    place = f"the row with id {ids[first]} has {came[first].as_py()!r}, not {wanted[first].as_py()!r}"
    return f"Column {name} is wrong in {count:,} rows: {place}."
