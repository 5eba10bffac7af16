"""The rows every corner writes. Imported by the worker in both interpreters: no import of ours."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("sensor", pa.string()), ("reading", pa.float64()), ("at", pa.timestamp("us"))])
KV_SCHEMA = pa.schema([("id", pa.int64()), ("payload", pa.string())])
KV_PAYLOAD_BYTES = 100
DATABASE = "bench"
BATCH_ROWS = 10_000

# All of the same length, so that a column of them is made without a loop.
_SENSOR_BYTES = 12
_SENSORS = np.array([f"sensor-{number:05d}".encode() for number in range(5_000)], dtype=f"S{_SENSOR_BYTES}")
_START = dt.datetime(2026, 1, 1)
_START_US = int(_START.replace(tzinfo=dt.UTC).timestamp() * 1_000_000)
_STEP_US = 1_000
_PAYLOAD_DIGITS = 25
_PAYLOAD_REPEATS = KV_PAYLOAD_BYTES // _PAYLOAD_DIGITS


def batches(rows: int) -> list[pa.RecordBatch]:
    """`rows` rows with the ids 0, 1, 2 ... in batches; the same for everyone."""
    random = np.random.default_rng(7)
    return [_batch(random, first, min(BATCH_ROWS, rows - first)) for first in range(0, rows, BATCH_ROWS)]


def dicts(rows: int) -> Iterator[dict[str, Any]]:
    """The same rows one by one."""
    for batch in batches(rows):
        yield from batch.to_pylist()


def row(number: int) -> dict[str, Any]:
    """A single small row."""
    at = _START + dt.timedelta(microseconds=number * _STEP_US)
    return {"id": number, "sensor": "sensor-00001", "reading": 20.5, "at": at}


def payload(number: int, version: int) -> str:
    """What a version of a keyed row holds: text that does not compress to nothing, the same for everyone."""
    return f"{number * 2654435761 % 2**64 + version * 40503:0{_PAYLOAD_DIGITS}d}" * _PAYLOAD_REPEATS


def kv_dicts(rows: int, version: int) -> Iterator[dict[str, Any]]:
    """One version of all keyed rows, in an order of its own."""
    for number in np.random.default_rng(version).permutation(rows).tolist():
        yield {"id": number, "payload": payload(number, version)}


def kv_batches(rows: int, version: int) -> list[pa.RecordBatch]:
    """The same rows as Arrow."""
    items = list(kv_dicts(rows, version))
    return [
        pa.RecordBatch.from_pylist(items[first : first + BATCH_ROWS], KV_SCHEMA) for first in range(0, rows, BATCH_ROWS)
    ]


def sum_of_ids(rows: int) -> int:
    return rows * (rows - 1) // 2


def _batch(random: np.random.Generator, first: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(first, first + rows, dtype=np.int64)
    sensors = _SENSORS[random.integers(0, len(_SENSORS), rows)]
    ends = np.arange(rows + 1, dtype=np.int32) * _SENSOR_BYTES
    readings = random.normal(20.0, 5.0, rows).round(2)
    columns = [[ids], [ends, sensors], [readings], [_START_US + ids * _STEP_US]]
    # From buffers: `pa.array` would load pandas first, which takes a second and has no part in this.
    arrays = [
        pa.Array.from_buffers(field.type, rows, [None, *(pa.py_buffer(part.tobytes()) for part in parts)])
        for field, parts in zip(SCHEMA, columns, strict=True)
    ]
    return pa.record_batch(arrays, schema=SCHEMA)
