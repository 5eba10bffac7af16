"""Fetched batches into what users read; for the caller's own thread."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.client.scan.fetched import FetchedBatch
from fluss.formats import kernel
from fluss.formats.rows.python_rows import to_rows
from fluss.formats.rows.records import ScanRecord, ScanRecords
from fluss.model.paths import TableBucket
from fluss.model.records import ChangeType, RecordBatch

_CHANGE_TYPES = tuple(ChangeType)


def to_records(batches: Sequence[FetchedBatch]) -> ScanRecords:
    """Rows as records, by bucket."""
    by_bucket: dict[TableBucket, list[ScanRecord]] = {}
    for fetched in batches:
        records = kernel.records_of_rows(
            to_rows(fetched.batch) if fetched.rows is None else fetched.rows,
            fetched.base_offset,
            None if fetched.offsets is None else fetched.offsets.to_pylist(),
            fetched.timestamp_ms,
            _CHANGE_TYPES,
            fetched.change_types,
        )
        by_bucket.setdefault(fetched.bucket, []).extend(records)
    return ScanRecords(by_bucket)


def to_table(batches: Sequence[FetchedBatch], schema: pa.Schema) -> pa.Table:
    """Rows as one table; nothing is copied. Batches of other schemas are padded with null, and bring their columns."""
    if all(fetched.batch.schema == schema for fetched in batches):
        return pa.Table.from_batches([fetched.batch for fetched in batches], schema=schema)
    tables = [schema.empty_table(), *(pa.Table.from_batches([fetched.batch]) for fetched in batches)]
    return pa.concat_tables(tables, promote_options="default")


def to_record_batches(batches: Sequence[FetchedBatch]) -> list[RecordBatch]:
    """Arrow batches with bucket and offsets."""
    return [RecordBatch(fetched.batch, fetched.bucket, fetched.base_offset, fetched.last_offset) for fetched in batches]
