"""What the batch scanners of all facades share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.client.decode import to_record_batches, to_table
from fluss.client.fetched import FetchedBatch
from fluss.client.limit_scan import LimitScanCore
from fluss.model.paths import TableBucket
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa


class BatchScannerBase:
    """Reads the last rows of one bucket, once. Make one with `new_scan().limit(n).create_bucket_batch_scanner(bucket)`.

    The server is asked at the first read; afterwards, also after a failure, the scanner is spent.
    """

    def __init__(self, core: LimitScanCore) -> None:
        self._core = core

    @property
    def bucket(self) -> TableBucket:
        """The bucket that is read."""
        return self._core.bucket

    def _record_batch(self, fetched: FetchedBatch | None) -> RecordBatch | None:
        return None if fetched is None else to_record_batches([fetched])[0]

    def _table(self, fetched: FetchedBatch | None) -> pa.Table:
        return to_table([] if fetched is None else [fetched], self._core.arrow_schema)

    def __repr__(self) -> str:
        return f"BatchScanner({self._core.bucket})"
