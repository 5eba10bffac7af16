"""What the log scanners of all facades share: subscriptions, and which calls belong to which kind of scanner."""

from __future__ import annotations

from collections.abc import Mapping

from fluss.api.arguments import bucket_offsets as by_bucket
from fluss.api.arguments import partition_bucket_offsets as by_partition
from fluss.client.runtime import run
from fluss.client.scanner import LogScannerCore
from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket


class LogScannerBase:
    """Reads a table's log from the subscribed buckets.

    A record scanner (`create_log_scanner`) has `poll`; a batch scanner (`create_record_batch_log_scanner`) has
    `poll_arrow`, `poll_record_batch`, `to_arrow` and `to_pandas`.
    """

    def __init__(self, core: LogScannerCore, *, records: bool) -> None:
        self._core = core
        self._records = records

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

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket."""
        self._core.unsubscribe(None, bucket_id)

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition."""
        self._core.unsubscribe(partition_id, bucket_id)

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """Subscribed buckets with the offset each poll goes on from."""
        return list(self._core.positions().items())

    def close(self) -> None:
        """Stop reading and drop what was read ahead."""
        self._core.close()

    def __repr__(self) -> str:
        kind = "records" if self._records else "batches"
        return f"LogScanner({self._core.table_path}, {kind}, buckets={len(self._core.positions())})"
