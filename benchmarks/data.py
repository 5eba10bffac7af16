"""The rows every corner writes: those of `fluss.bench`, and the forms of them that other clients need.

The workers import it in their own interpreters, where `fluss` may be another client: the file is loaded by its path.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def _rows_of_fluss_bench() -> Any:
    path = Path(__file__).parents[1] / "src" / "fluss" / "bench" / "data.py"
    spec = importlib.util.spec_from_file_location("rows_of_fluss_bench", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_rows = _rows_of_fluss_bench()
LOG_SCHEMA, KV_SCHEMA, PREFIX_SCHEMA = _rows.LOG_SCHEMA, _rows.KV_SCHEMA, _rows.PREFIX_SCHEMA
PROJECTED, ROWS_PER_PREFIX = _rows.PROJECTED, _rows.ROWS_PER_PREFIX
log_batches, kv_batches, payload = _rows.log_batches, _rows.kv_batches, _rows.payload
WrongResultError = _rows.WrongResultError

ROW_BYTES = 52
DATABASE = "bench"
BATCH_ROWS = 10_000

_SENSOR_BYTES = _rows.SENSOR_BYTES
# A row as Kafka gets it: the values one after another, the string with its length, and so 52 bytes as well.
_SERIALIZED = struct.Struct(f"<qi{_SENSOR_BYTES}sdqi")


def dicts(rows: int) -> Iterator[dict[str, Any]]:
    """Rows of a log one by one."""
    for batch in log_batches(rows, BATCH_ROWS):
        yield from batch.to_pylist()


def serialized(rows: int) -> list[bytes]:
    """The same rows as bytes."""
    found: list[bytes] = []
    for batch in log_batches(rows, BATCH_ROWS):
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


def kv_dicts(rows: int, version: int) -> Iterator[dict[str, Any]]:
    """One version of all keyed rows, in an order of its own."""
    for number in _rows.kv_ids(rows, version).tolist():
        yield {"id": number, "payload": payload(number, version)}


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
    table = pa.Table.from_batches(log_batches(rows, BATCH_ROWS))
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
