"""Log scanners: records or batches of the buckets that are subscribed to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from fluss.api.awaiting import ITERATION_POLL_MS, ScannerWaiting, batches_to_latest, poll, wait
from fluss.api.conversions import bucket_offsets as by_bucket
from fluss.api.conversions import partition_bucket_offsets as by_partition
from fluss.api.conversions import to_duckdb, to_pandas, to_polars
from fluss.client.runtime import run
from fluss.client.scan.batches import to_record_batches, to_records, to_table
from fluss.client.scan.scanner import LogScannerCore
from fluss.formats.rows.records import ScanRecord, ScanRecords
from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.positions import Positions
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class LogScanner(ScannerWaiting):
    """Reads a table's log from the subscribed buckets. Obtain with `create_log_scanner()` and its siblings of a scan.

    A record scanner (`create_log_scanner`) has `poll`; a batch scanner (`create_record_batch_log_scanner`) has
    `poll_arrow`, `poll_record_batch`, and `to_arrow`, `to_arrow_batch_reader`, `to_pandas`, `to_polars`, `to_duckdb`,
    which read from the subscribed offsets to the latest and do not move the position of polls. Iterating yields
    records or batches without end. In a block it is closed at the end.

    Examples:
        >>> async with await clicks.new_scan().create_log_scanner() as scanner:
        ...     scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        ...     async for record in scanner:
        ...         print(record.row["url"])
        ...         if record.offset == 2:
        ...             break
        /
        /buy
        /bye
    """

    def __init__(self, core: LogScannerCore, *, records: bool) -> None:
        self._core = core
        self._records = records

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of what polls return.

        Examples:
            >>> scanner.arrow_schema.names
            ['id', 'url']
        """
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
        """Read a bucket, in a table without partitions. Blocks until the offset is known, in all facades.

        Args:
            bucket_id: The bucket. One that is subscribed already goes on from the new offset.
            start_offset: Where to begin: an offset, `EARLIEST_OFFSET` or `LATEST_OFFSET`.

        Raises:
            InvalidRequestError: There is no such bucket, or the table has partitions.

        Examples:
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        """
        run(self._core.subscribe({(None, bucket_id): start_offset}))

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int]) -> None:
        """Read several buckets, in a table without partitions. Blocks until the offsets are known, in all facades.

        Args:
            bucket_offsets: Where to begin, by bucket.

        Raises:
            InvalidRequestError: There is no such bucket, or the table has partitions.

        Examples:
            >>> buckets = range(clicks.get_table_info().num_buckets)
            >>> scanner.subscribe_buckets({bucket: fluss.EARLIEST_OFFSET for bucket in buckets})
        """
        run(self._core.subscribe(by_bucket(bucket_offsets)))

    def subscribe_partition(self, partition_id: int, bucket_id: int, start_offset: int) -> None:
        """Read a bucket of a partition. Blocks until the offset is known, in all facades.

        Args:
            partition_id: The partition, as `admin.list_partition_infos` numbers it.
            bucket_id: The bucket.
            start_offset: Where to begin: an offset, `EARLIEST_OFFSET` or `LATEST_OFFSET`.

        Raises:
            NotFoundError: There is no such partition.
            InvalidRequestError: There is no such bucket, or the table has no partitions.

        Examples:
            >>> (partition,) = await admin.list_partition_infos(visits.table_path)
            >>> async with await visits.new_scan().create_log_scanner() as days:
            ...     days.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
        """
        run(self._core.subscribe({(partition_id, bucket_id): start_offset}))

    def subscribe_partition_buckets(self, partition_bucket_offsets: Mapping[tuple[int, int], int]) -> None:
        """Read several buckets of partitions. Blocks until the offsets are known, in all facades.

        Args:
            partition_bucket_offsets: Where to begin, by partition id and bucket.

        Raises:
            NotFoundError: There is no such partition.
            InvalidRequestError: There is no such bucket, or the table has no partitions.

        Examples:
            >>> found = await admin.list_partition_infos(visits.table_path)
            >>> async with await visits.new_scan().create_log_scanner() as days:
            ...     days.subscribe_partition_buckets({(item.partition_id, 0): fluss.EARLIEST_OFFSET for item in found})
        """
        run(self._core.subscribe(by_partition(partition_bucket_offsets)))

    def subscribe_positions(self, positions: Mapping[TableBucket, int]) -> None:
        """Go on where another scanner of this table was. Blocks in all facades.

        Args:
            positions: What its `positions()` returned, or `Positions.from_json(...)`.

        Raises:
            InvalidRequestError: The positions are not of this table.

        Examples:
            >>> scanner.subscribe(0, 2)
            >>> stored = scanner.positions().to_json()
            >>> scanner.subscribe_positions(fluss.Positions.from_json(stored))
        """
        run(self._core.subscribe_positions(positions))

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket, in a table without partitions.

        Args:
            bucket_id: The bucket.

        Examples:
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> scanner.unsubscribe(0)
        """
        self._core.unsubscribe(None, bucket_id)

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition.

        Args:
            partition_id: The partition.
            bucket_id: The bucket.

        Examples:
            >>> (partition,) = await admin.list_partition_infos(visits.table_path)
            >>> async with await visits.new_scan().create_log_scanner() as days:
            ...     days.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
            ...     days.unsubscribe_partition(partition.partition_id, 0)
        """
        self._core.unsubscribe(partition_id, bucket_id)

    def is_partitioned(self) -> bool:
        """Tell whether the table has partitions, so that buckets are subscribed with `subscribe_partition`.

        Returns:
            True if it has.

        Examples:
            >>> scanner.is_partitioned()
            False
        """
        return self._core.info.is_partitioned()

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """List the subscribed buckets.

        Returns:
            Each bucket with the offset that its next poll goes on from.

        Examples:
            >>> scanner.subscribe(0, 2)
            >>> [(bucket.bucket_id, offset) for bucket, offset in scanner.get_subscribed_buckets()]
            [(0, 2)]
        """
        return list(self._core.positions().items())

    def positions(self) -> Positions:
        """Get how far the scanner has come; store it (`to_json()`) and go on with `subscribe_positions`.

        Returns:
            The offset that each bucket is read from next.

        Examples:
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> rows = await scanner.poll_arrow(timeout_ms=1_000)
            >>> list(scanner.positions().values())
            [3]
        """
        return Positions(self._core.positions())

    async def poll(self, timeout_ms: int) -> ScanRecords:
        """Get the next records, of a record scanner.

        Args:
            timeout_ms: How long to wait while there are none.

        Returns:
            Records by bucket, at most `scanner.log.max-poll-records`; empty if none came in time.

        Raises:
            InvalidRequestError: The scanner is for batches, or has no subscriptions.
            FlussError: The scanner is closed.
            CorruptDataError: A batch fails its checks.

        Examples:
            >>> records.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> for record in await records.poll(timeout_ms=1_000):
            ...     print(record.offset, record.row)
            0 {'id': 1, 'url': '/'}
            1 {'id': 2, 'url': '/buy'}
            2 {'id': 3, 'url': '/bye'}
        """
        self._check_records("poll")
        return to_records(await poll(self._core, timeout_ms, self._core.max_poll_records))

    async def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """Get the next batches, of a batch scanner.

        Args:
            timeout_ms: How long to wait while there are none.

        Returns:
            Arrow batches with bucket and offsets; empty if none came in time.

        Raises:
            InvalidRequestError: The scanner is for records, or has no subscriptions.
            FlussError: The scanner is closed.
            CorruptDataError: A batch fails its checks.

        Examples:
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> [(item.base_offset, item.batch.num_rows) for item in await scanner.poll_record_batch(timeout_ms=1_000)]
            [(0, 3)]
        """
        self._check_batches("poll_record_batch")
        return to_record_batches(await poll(self._core, timeout_ms))

    async def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """Get the next batches: the older spelling of `poll_record_batch`.

        Args:
            timeout_ms: How long to wait while there are none.

        Returns:
            Arrow batches with bucket and offsets; empty if none came in time.

        Raises:
            InvalidRequestError: The scanner is for records, or has no subscriptions.
            FlussError: The scanner is closed.

        Examples:
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> len(await scanner.poll_batches(timeout_ms=1_000))
            1
        """
        return await self.poll_record_batch(timeout_ms)

    async def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """Get the next rows, of a batch scanner.

        Args:
            timeout_ms: How long to wait while there are none.

        Returns:
            A PyArrow Table; without rows if none came in time.

        Raises:
            InvalidRequestError: The scanner is for records, or has no subscriptions.
            FlussError: The scanner is closed.
            CorruptDataError: A batch fails its checks.

        Examples:
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> (await scanner.poll_arrow(timeout_ms=1_000)).column("url").to_pylist()
            ['/', '/buy', '/bye']
        """
        self._check_batches("poll_arrow")
        return to_table(await poll(self._core, timeout_ms), self._core.arrow_schema)

    async def to_arrow(self) -> pa.Table:
        """Read all rows from the subscribed offsets to the latest. Does not move the position of polls.

        Returns:
            A PyArrow Table.

        Raises:
            InvalidRequestError: The scanner is for records.

        Examples:
            >>> scanner.subscribe(0, 1)
            >>> (await scanner.to_arrow()).num_rows
            2
        """
        self._check_batches("to_arrow")
        return to_table(await wait(self._core.read_to_latest()), self._core.arrow_schema)

    async def to_pandas(self) -> pd.DataFrame:
        """Read all rows from the subscribed offsets to the latest, as a DataFrame. Does not move the position of polls.

        Returns:
            A pandas DataFrame.

        Raises:
            InvalidRequestError: The scanner is for records.
            FlussError: pandas is not installed.

        Examples:
            >>> scanner.subscribe(0, 1)
            >>> (await scanner.to_pandas()).shape
            (2, 2)
        """
        self._check_batches("to_pandas")
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """Read all rows from the subscribed offsets to the latest, as a Polars DataFrame.

        It does not move the position of polls.

        Returns:
            A Polars DataFrame.

        Raises:
            InvalidRequestError: The scanner is for records.
            FlussError: Polars is not installed.

        Examples:
            >>> scanner.subscribe(0, 1)
            >>> (await scanner.to_polars()).shape
            (2, 2)
        """
        self._check_batches("to_polars")
        return to_polars(await self.to_arrow())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """Read all rows from the subscribed offsets to the latest, as a relation of DuckDB.

        It does not move the position of polls.

        Args:
            connection: A connection of DuckDB; None: its default one.

        Returns:
            A DuckDB relation.

        Raises:
            InvalidRequestError: The scanner is for records.
            FlussError: DuckDB is not installed.

        Examples:
            >>> scanner.subscribe(0, 1)
            >>> (await scanner.to_duckdb()).aggregate("max(id)").fetchall()
            [(3,)]
        """
        self._check_batches("to_duckdb")
        return to_duckdb(await self.to_arrow(), connection)

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Make a PyArrow reader over all rows from the subscribed offsets to the latest as of now, in bounded memory.

        Its reads block in all facades, and may be made in any thread. The position of polls does not move. With
        `fluss.aio`, as with pyfluss, the reader has its scanner for itself: subscriptions can't be changed until it is
        read to its end or dropped, and one dropped before its end takes the subscriptions with it.

        Returns:
            The reader.

        Raises:
            InvalidRequestError: The scanner is for records, or has no subscriptions.

        Examples:
            >>> scanner.subscribe(0, 1)
            >>> scanner.to_arrow_batch_reader().read_all().num_rows
            2
        """
        import pyarrow as pa

        self._check_batches("to_arrow_batch_reader")
        return pa.RecordBatchReader.from_batches(self._core.arrow_schema, batches_to_latest(self._core))

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
        """Stop reading and drop what was read ahead.

        Examples:
            >>> scanner.close()
        """
        self._core.close()

    def __repr__(self) -> str:
        kind = "records" if self._records else "batches"
        return f"LogScanner({self._core.table_path}, {kind}, buckets={len(self._core.positions())})"
