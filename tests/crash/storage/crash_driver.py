"""A process to be killed: writes rows, tables and writer ids, and tells on standard output what it was promised.

Each line goes out with one `write`, after the promise and before the next step, so the reader of the pipe knows
exactly what was acknowledged when the process died. Run as `python -m tests.crash.storage.crash_driver <data directory>
<run name>`, or through `run` in a forked process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from multiprocessing.connection import Connection

from fluss.formats.batches.log_batch import encode_batch, parse_header
from fluss.model.paths import TableBucket, TablePath
from fluss.storage.catalog.catalog import AlteredTable
from fluss.storage.damage.scrub import Scrubber
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.log.log import Appended, BucketLog
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions
from tests.crash.storage.driver_output import drive, tell

SEGMENT_SIZE_BYTES = 400
BUCKETS = 2
MAIN = TablePath("crash", "main")
PARTED = TablePath("crash", "parted")
EXPIRING = TablePath("crash", "expiring")
EXPIRING_JSON = '{"custom_properties": {"log.retention.size-bytes": "400"}}'


class Writer:
    """Rows with texts that occur once, in order."""

    def __init__(self, storage: Storage, run: str, writer_id: int) -> None:
        self._storage = storage
        self._run = run
        self._writer_id = writer_id
        self._sequences = [0] * BUCKETS

    def log(self, bucket: int) -> BucketLog:
        return self._storage.bucket(TableBucket(self._storage.catalog.table(MAIN).table_id, bucket))

    def append(self, bucket: int) -> tuple[str, Appended]:
        sequence = self._sequences[bucket]
        self._sequences[bucket] += 1
        text = f"{self._run}/{self._writer_id}/{bucket}/{sequence}"
        batch = encode_batch(
            text.ljust(40).encode(), schema_id=1, record_count=3, writer_id=self._writer_id, batch_sequence=sequence
        )
        return text, self.log(bucket).append(batch, parse_header(batch), time.time_ns() // 1_000_000)

    async def write(self, bucket: int, rows: int) -> None:
        """Append rows in one go, then wait; the more rows, the more syncs and seals overlap with appends."""
        appended = [self.append(bucket) for _ in range(rows)]
        for text, item in appended:
            await item.durable
            tell("ack", bucket, item.base_offset, text)
        tell("seen", bucket, self.log(bucket).high_watermark)


async def expire(storage: Storage, run: str) -> None:
    """Write more than is kept, and remove the rest."""
    entry = await storage.catalog.create_table(EXPIRING, EXPIRING_JSON, "{}", 1, ignore_if_exists=True)
    bucket = TableBucket(entry.table_id, 0)
    for number in range(12):
        text = f"{run}/expiring/{number}"
        batch = encode_batch(text.ljust(40).encode(), schema_id=1, record_count=3)
        item = storage.bucket(bucket).append(batch, parse_header(batch), time.time_ns() // 1_000_000)
        await item.durable
        tell("kept", item.base_offset, text)
    await Retention(storage).run_once()
    tell("start", storage.bucket(bucket).log_start_offset)


async def scrub(storage: Storage) -> None:
    scrubber = Scrubber(storage, KvSnapshots(storage, storage.kv.bucket), bytes_per_second=1 << 30)
    await scrubber.run_once()
    tell("damaged", *(finding.file for finding in scrubber.report.findings))


async def main(data_dir: str, run: str) -> None:
    storage = await Storage.open(StorageOptions(data_dir, segment_size_bytes=SEGMENT_SIZE_BYTES))
    catalog = storage.catalog
    await catalog.create_database("crash", "{}", ignore_if_exists=True)
    tell("database", "crash")
    entry = await catalog.create_table(MAIN, "{}", "{}", BUCKETS, ignore_if_exists=True)
    tell("table", entry.table_id, entry.path.table)
    writer_id = catalog.next_writer_id()
    tell("writer", writer_id)
    writer = Writer(storage, run, writer_id)
    for rows in (1, 1, 2, 20, 1, 5):
        for bucket in range(BUCKETS):
            await writer.write(bucket, rows)
    temporary = await catalog.create_table(TablePath("crash", f"temporary-{run}"), "{}", "{}", 1)
    tell("table", temporary.table_id, temporary.path.table)
    batch = encode_batch(b"short-lived", schema_id=1, record_count=1)
    log = storage.bucket(TableBucket(temporary.table_id, 0))
    await log.append(batch, parse_header(batch), 0).durable
    await catalog.drop_table(temporary.path)
    tell("dropped", temporary.table_id, temporary.path.table)
    await change_partitions(storage, run)
    await expire(storage, run)
    await writer.write(0, 3)
    await scrub(storage)
    await storage.close()
    tell("done")


async def change_partitions(storage: Storage, run: str) -> None:
    """Make and drop partitions, and give their table a second schema."""
    catalog = storage.catalog
    entry = await catalog.create_table(
        PARTED, "{}", "{}", 1, ignore_if_exists=True, partition_keys=["day"], partitions=["first"]
    )
    tell("partition", "first")
    altered = await catalog.alter_table(PARTED, lambda entry, _: AlteredTable("{}", f'"{entry.schema_id + 1}"'))
    assert altered is not None
    tell("schema", altered.schema_id)
    name = f"day-{run}"
    await catalog.create_partitions(entry.table_id, [name])
    tell("partition", name)
    batch = encode_batch(b"short-lived", schema_id=1, record_count=1)
    log = storage.bucket(TableBucket(entry.table_id, 0, catalog.partition(entry, name).partition_id))
    await log.append(batch, parse_header(batch), 0).durable
    await catalog.drop_partitions(entry.table_id, [name])
    tell("departed", name)


def run(data_dir: str, name: str, fail_point: str | None, output: Connection) -> None:
    """The driver as a multiprocessing target, with a pipe for its output."""
    drive(main(data_dir, name), fail_point, output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
