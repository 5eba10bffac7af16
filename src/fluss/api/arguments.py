"""Arguments in all the spellings that the facades accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluss.model.errors import InvalidRequestError
from fluss.model.offsets import OffsetSpec


def offset_spec(spec: OffsetSpec | str | None, offset_type: str | None, timestamp: int | None) -> OffsetSpec:
    """`OffsetSpec.latest()`, or the older spelling `offset_type="latest"` (or "earliest", or "timestamp")."""
    kind = spec if spec is not None else offset_type
    if isinstance(kind, OffsetSpec):
        return kind
    if kind == "earliest":
        return OffsetSpec.earliest()
    if kind == "latest":
        return OffsetSpec.latest()
    if kind == "timestamp":
        if timestamp is None:
            raise InvalidRequestError("offset_type='timestamp' needs timestamp=<milliseconds since 1970>.")
        return OffsetSpec.timestamp(timestamp)
    raise InvalidRequestError(f"Pass offset_spec=OffsetSpec.earliest(), .latest() or .timestamp(ms), not {kind!r}.")


def bucket_offsets(offsets: Mapping[int, int]) -> dict[tuple[int | None, int], int]:
    """`{bucket: offset}` as the scanner's core takes it."""
    return {(None, bucket): offset for bucket, offset in offsets.items()}


def partition_bucket_offsets(offsets: Mapping[tuple[int, int], int]) -> dict[tuple[int | None, int], int]:
    """`{(partition id, bucket): offset}` as the scanner's core takes it."""
    return {(partition, bucket): offset for (partition, bucket), offset in offsets.items()}


def arrow_table(data: Any) -> Any:
    """A PyArrow table from anything that speaks Arrow's C stream interface (a PyArrow or Polars table, a reader)."""
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all()
    raise InvalidRequestError(
        f"write_arrow takes a PyArrow Table or anything with __arrow_c_stream__, not {type(data).__name__}."
    )


def pandas_table(frame: Any) -> Any:
    """A PyArrow table from a pandas DataFrame, without its index."""
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False)
