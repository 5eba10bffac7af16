"""Changes as Arrow rows: what happened, where in the log and when, in front of the table's columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from fluss.client.scan.fetched import FetchedBatch
from fluss.client.write.routing import row_numbers
from fluss.formats.arrow.layout import numbers_array, texts_array
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ChangeType

_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(LOG_OFFSET, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("ms", tz="UTC")),
)
_TIMESTAMP = _FIELDS[2].type


_SHORT = texts_array([change.short_string() for change in ChangeType])


def changelog_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of changes of rows of `schema`."""
    return pa.schema([*_FIELDS, *schema])


def with_changes(fetched: FetchedBatch) -> FetchedBatch:
    """The same rows with what happened to each in front."""
    count = fetched.row_count
    kinds = pa.repeat(_SHORT[ChangeType.AppendOnly], count)
    if fetched.change_types is not None:
        kinds = _SHORT.take(change_types_array(fetched.change_types))
    offsets = fetched.offsets
    if offsets is None:
        offsets = row_numbers(fetched.base_offset + count, fetched.base_offset)
    times = numbers_array(np.full(count, fetched.timestamp_ms, np.int64), _TIMESTAMP)
    return replace(fetched, batch=_joined(kinds, offsets, times, fetched.batch))


def as_inserts(rows: pa.RecordBatch, log_offset: int) -> pa.RecordBatch:
    """Rows that are there, as changes: when each was made is not known."""
    kinds = pa.repeat(_SHORT[ChangeType.Insert], rows.num_rows)
    offsets = numbers_array(np.full(rows.num_rows, log_offset, np.int64))
    return _joined(kinds, offsets, pa.nulls(rows.num_rows, _TIMESTAMP), rows)


def change_types_array(change_types: bytes) -> pa.Array:
    """Change types, one per row, as Arrow has them; nothing is copied."""
    return pa.Array.from_buffers(pa.uint8(), len(change_types), [None, pa.py_buffer(change_types)])


def _joined(kinds: pa.Array, offsets: pa.Array, times: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([kinds, offsets, times, *rows.columns], schema=changelog_schema(rows.schema))
