"""The rows every corner writes. Imported by the workers in their own interpreters: no import of ours."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

# 52 bytes a row in Arrow: 8, 4 + 20, 8, 8 and 4.
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("sensor", pa.string()),
        ("reading", pa.float64()),
        ("at", pa.timestamp("us")),
        ("quality", pa.int32()),
    ]
)
ROW_BYTES = 52
PROJECTED = ["id", "reading"]
KV_SCHEMA = pa.schema([("id", pa.int64()), ("payload", pa.string())])
KV_PAYLOAD_BYTES = 100
PREFIX_SCHEMA = pa.schema([("owner", pa.int64()), ("id", pa.int64()), ("payload", pa.string())])
ROWS_PER_PREFIX = 10
DATABASE = "bench"
BATCH_ROWS = 10_000

# All of the same length, so that a column of them is made without a loop.
_SENSORS = np.array([f"warehouse-sensor-{number:03d}".encode() for number in range(1_000)])
_SENSOR_BYTES = _SENSORS.dtype.itemsize
_QUALITIES = 100
_START_US = 1_767_225_600_000_000  # 2026-01-01
_STEP_US = 1_000
_PAYLOAD_DIGITS = 25
_PAYLOAD_REPEATS = KV_PAYLOAD_BYTES // _PAYLOAD_DIGITS
_MULTIPLIER, _VERSION_STEP = 2_654_435_761, 40_503
# A row as Kafka gets it: the values one after another, the string with its length, and so 52 bytes as well.
_SERIALIZED = struct.Struct(f"<qi{_SENSOR_BYTES}sdqi")


def batches(rows: int, batch_rows: int = BATCH_ROWS, first: int = 0) -> list[pa.RecordBatch]:
    """`rows` rows with the ids `first`, `first` + 1 ... in batches; the same for everyone."""
    starts = range(first, first + rows, batch_rows)
    return [_batch(start, min(batch_rows, first + rows - start)) for start in starts]


def dicts(rows: int) -> Iterator[dict[str, Any]]:
    """The same rows one by one."""
    for batch in batches(rows):
        yield from batch.to_pylist()


def serialized(rows: int) -> list[bytes]:
    """The same rows as bytes."""
    found: list[bytes] = []
    for batch in batches(rows):
        ids, sensors, readings, times, qualities = (
            column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
            for column in batch.columns
        )
        lengths = [_SENSOR_BYTES] * batch.num_rows
        found.extend(map(_SERIALIZED.pack, ids, lengths, map(str.encode, sensors), readings, times, qualities))
    return found


def deserialized(value: bytes) -> tuple[Any, ...]:
    """The values of such a row: id, length of the string, string, reading, time and quality."""
    return _SERIALIZED.unpack(value)


def payload(number: int, version: int) -> str:
    """What a version of a keyed row holds: text that does not compress to nothing, the same for everyone."""
    return f"{number * _MULTIPLIER + version * _VERSION_STEP:0{_PAYLOAD_DIGITS}d}" * _PAYLOAD_REPEATS


def kv_dicts(rows: int, version: int) -> Iterator[dict[str, Any]]:
    """One version of all keyed rows, in an order of its own."""
    for number in _in_an_order(rows, version).tolist():
        yield {"id": number, "payload": payload(number, version)}


def kv_batches(rows: int, version: int) -> list[pa.RecordBatch]:
    """The same rows as Arrow."""
    ids = _in_an_order(rows, version)
    return [_kv_batch(ids[first : first + BATCH_ROWS], version) for first in range(0, rows, BATCH_ROWS)]


def prefix_row(number: int) -> dict[str, Any]:
    """A row of an owner who has ten of them."""
    return {"owner": number // ROWS_PER_PREFIX, "id": number, "payload": payload(number, 1)}


def sum_of_ids(rows: int) -> int:
    return rows * (rows - 1) // 2


def checksum(data: pa.Table) -> int:
    """A number that ties each value of a log table's rows to their id, whatever the order of the rows."""
    weights = data["id"].to_numpy().astype(np.uint64) * np.uint64(2) + np.uint64(1)
    return sum(int((_as_numbers(column) * weights).sum()) for column in data.columns) % 2**64


def checksum_of_rows(rows: int) -> int:
    """The sum of id times quality: what a reader of single rows adds up on its way."""
    table = pa.Table.from_batches(batches(rows))
    return int((table["id"].to_numpy() * table["quality"].to_numpy().astype(np.int64)).sum())


def _as_numbers(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.uint64]]:
    if pa.types.is_string(column.type):
        return np.concatenate([_string_tails(chunk) for chunk in column.chunks])
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: np.ndarray[Any, Any] = column.to_numpy()
    return values.view(np.uint64) if values.dtype == np.float64 else values.astype(np.uint64)


def _string_tails(strings: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The last eight bytes of each; a string of another length than ours stands for nothing."""
    _, ends, data = strings.buffers()
    bounds = np.frombuffer(ends, np.int32)[strings.offset : strings.offset + len(strings) + 1]
    if not (np.diff(bounds) == _SENSOR_BYTES).all():
        return np.zeros(len(strings), np.uint64)
    text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].reshape(-1, _SENSOR_BYTES)
    return np.ascontiguousarray(text[:, -8:]).view(np.uint64).reshape(-1)


def _in_an_order(rows: int, version: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(version).permutation(rows).astype(np.int64)


def _batch(first: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(first, first + rows, dtype=np.int64)
    chance = _mixed(ids)
    sensors = _SENSORS[chance % np.uint64(len(_SENSORS))]
    qualities = (chance >> np.uint64(54)) % np.uint64(_QUALITIES)
    # Around 20, the more seldom the further away, with two decimals.
    thousandths = sum((chance >> np.uint64(shift)) % np.uint64(1_000) for shift in (10, 20, 30, 40))
    columns = [
        [ids],
        [_ends(rows, _SENSOR_BYTES), sensors],
        [np.asarray(thousandths) / 100],
        [_START_US + ids * _STEP_US],
        [qualities.astype(np.int32)],
    ]
    return _from_buffers(SCHEMA, rows, columns)


def _mixed(ids: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Bits that look random and depend on the id alone: rows are the same in batches of any size."""
    bits = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(31)
    bits *= np.uint64(0xD6E8FEB86659FD93)
    return bits ^ (bits >> np.uint64(32))


def _kv_batch(ids: np.ndarray[Any, np.dtype[np.int64]], version: int) -> pa.RecordBatch:
    values = ids * _MULTIPLIER + version * _VERSION_STEP
    digits = np.empty((len(ids), _PAYLOAD_DIGITS), np.uint8)
    for place in range(_PAYLOAD_DIGITS - 1, -1, -1):
        digits[:, place] = values % 10 + ord("0")
        values //= 10
    payloads = np.tile(digits, _PAYLOAD_REPEATS)
    return _from_buffers(KV_SCHEMA, len(ids), [[ids], [_ends(len(ids), KV_PAYLOAD_BYTES), payloads]])


def _ends(rows: int, width: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(rows + 1, dtype=np.int32) * np.int32(width)


def _from_buffers(schema: pa.Schema, rows: int, columns: list[list[Any]]) -> pa.RecordBatch:
    # From buffers: `pa.array` would load pandas first, which takes a second and has no part in this.
    arrays = [
        pa.Array.from_buffers(field.type, rows, [None, *(pa.py_buffer(part.tobytes()) for part in parts)])
        for field, parts in zip(schema, columns, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)
