"""Log scanners: records or batches of the buckets that are subscribed to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from fluss.api.arguments import bucket_offsets as by_bucket
from fluss.api.arguments import partition_bucket_offsets as by_partition
from fluss.api.awaiting import ITERATION_POLL_MS, ScannerWaiting, poll, wait
from fluss.api.results import to_duckdb, to_pandas, to_polars
from fluss.client.decode import to_record_batches, to_records, to_table
from fluss.client.runtime import run
from fluss.client.scanner import LogScannerCore
from fluss.formats.records import ScanRecord, ScanRecords
from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.positions import Positions
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class LogScanner(ScannerWaiting):
    """Reads a table's log from the subscribed buckets.

    A record scanner (`create_log_scanner`) has `poll`; a batch scanner (`create_record_batch_log_scanner`) has
    `poll_arrow`, `poll_record_batch`, and `to_arrow`, `to_arrow_batch_reader`, `to_pandas`, `to_polars`, `to_duckdb`,
    which read from the subscribed offsets to the latest and do not move the position of polls. Iterating yields
    records or batches without end.
    """

    def __init__(self, core: LogScannerCore, *, records: bool) -> None:
        self._core = core
        self._records = records

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of what polls return."""
        return self._core.arrow_schema

    def _check_records(self, call: str) -> None:
        if not self._records:
            raise InvalidRequestError(f"{call} needs a record scanner: use new_scan().create_log_scanner().")

    def _check_batches(self, call: str) -> None:
        if self._records:
            raise InvalidRequestError(
                f"{call} needs a batch scanner: use new_scan().create_record_batch_log_scanner()."
            )

    def subscribe(self, bucket_id: int, start_offset: int) -> None:
        """Read a bucket from an offset, `EARLIEST_OFFSET` or `LATEST_OFFSET` on."""
        run(self._core.subscribe({(None, bucket_id): start_offset}))

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Read several buckets: `{bucket id: start offset}`."""
        run(self._core.subscribe(by_bucket(bucket_offsets)))

    def subscribe_partition(self, partition_id: int, bucket_id: int, start_offset: int) -> None:
        """Read a bucket of a partition."""
        run(self._core.subscribe({(partition_id, bucket_id): start_offset}))

    def subscribe_partition_buckets(self, partition_bucket_offsets: Mapping[tuple[int, int], int]) -> None:
        """Read several buckets of partitions: `{(partition id, bucket id): start offset}`."""
        run(self._core.subscribe(by_partition(partition_bucket_offsets)))

    def subscribe_positions(self, positions: Mapping[TableBucket, int]) -> None:
        """Go on from the `positions()` of a scanner of this table."""
        run(self._core.subscribe_positions(positions))

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket."""
        self._core.unsubscribe(None, bucket_id)

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition."""
        self._core.unsubscribe(partition_id, bucket_id)

    def is_partitioned(self) -> bool:
        """Whether the table has partitions, so that buckets are subscribed with `subscribe_partition`."""
        return self._core.info.is_partitioned()

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """Subscribed buckets with the offset each poll goes on from."""
        return list(self._core.positions().items())

    def positions(self) -> Positions:
        """The offset each bucket is read from next; store it (`to_json()`) and go on with `subscribe_positions`."""
        return Positions(self._core.positions())

    async def poll(self, timeout_ms: int) -> ScanRecords:
        """The next records, at the latest after `timeout_ms`; empty if none came."""
        self._check_records("poll")
        return to_records(await poll(self._core, timeout_ms, self._core.max_poll_records))

    async def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """The next batches with bucket and offsets, at the latest after `timeout_ms`."""
        self._check_batches("poll_record_batch")
        return to_record_batches(await poll(self._core, timeout_ms))

    async def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """The older spelling of `poll_record_batch`."""
        return await self.poll_record_batch(timeout_ms)

    async def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """The next rows as a PyArrow Table, at the latest after `timeout_ms`."""
        self._check_batches("poll_arrow")
        return to_table(await poll(self._core, timeout_ms), self._core.arrow_schema)

    async def to_arrow(self) -> pa.Table:
        """All rows from the subscribed offsets to the latest, as a PyArrow Table. Does not move the poll position."""
        self._check_batches("to_arrow")
        return to_table(await wait(self._core.read_to_latest()), self._core.arrow_schema)

    async def to_pandas(self) -> pd.DataFrame:
        """All rows from the subscribed offsets to the latest, as a DataFrame. Does not move the poll position."""
        self._check_batches("to_pandas")
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """All rows from the subscribed offsets to the latest, as a Polars DataFrame."""
        self._check_batches("to_polars")
        return to_polars(await self.to_arrow())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """All rows from the subscribed offsets to the latest, as a DuckDB relation of `connection`."""
        self._check_batches("to_duckdb")
        return to_duckdb(await self.to_arrow(), connection)

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """A PyArrow reader over all rows from the subscribed offsets to the latest as of now, in bounded memory.

        Its reads block, and may be made in any thread.
        """
        import pyarrow as pa

        self._check_batches("to_arrow_batch_reader")
        return pa.RecordBatchReader.from_batches(self._core.arrow_schema, self._core.batches_to_latest())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    async def __aiter__(self) -> AsyncIterator[ScanRecord | RecordBatch]:
        read = self.poll if self._records else self.poll_record_batch
        while True:
            for item in await read(ITERATION_POLL_MS):
                yield item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading and drop what was read ahead."""
        self._core.close()

    def __repr__(self) -> str:
        kind = "records" if self._records else "batches"
        return f"LogScanner({self._core.table_path}, {kind}, buckets={len(self._core.positions())})"
