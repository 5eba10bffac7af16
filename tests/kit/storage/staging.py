"""A query that writes to tables of three kinds through staging, and what they must hold after each of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fluss.formats.batches.log_batch import encode_batch
from fluss.model.aggregation import AggFunction
from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Column, Schema
from fluss.model.staging import StagedTask
from fluss.model.types import DataTypes
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.staging.commit import StagedKey, StagedRequest, query_name
from fluss.storage.store import Storage
from tests.kit.storage.kv_tables import SCHEMA, Row, Table
from tests.kit.storage.logs import read_all

QUERY: Final = "../a query/of mine"
LOG, ROWS, SUMS = TablePath("fluss", "log"), TablePath("fluss", "rows"), TablePath("fluss", "sums")
BUCKETS: Final = 2
TASKS: Final = 2
REQUESTS: Final = 2
PIECES: Final = 2  # batches of a request for each bucket
BATCHES_PER_BUCKET: Final = TASKS * REQUESTS * PIECES  # more than a log remembers of a writer
SUM_SCHEMA = Schema.of(
    [Column("id", DataTypes.bigint().not_null()), Column("total", DataTypes.bigint(), None, AggFunction("sum"))], ["id"]
)
AGGREGATION = {"table.merge-engine": "aggregation"}


def texts_of(batch_id: int, bucket: int) -> list[str]:
    """What a batch puts into a bucket, in order."""
    return [
        text(batch_id, task, request, piece, bucket)
        for task in range(TASKS)
        for request in range(REQUESTS)
        for piece in range(PIECES)
    ]


def text(batch_id: int, task: int, request: int, piece: int, bucket: int) -> str:
    return f"{batch_id}/{task}/{request}/{piece}/{bucket}"


def log_batch(content: str) -> memoryview:
    return memoryview(encode_batch(content.encode(), schema_id=1, record_count=1))


async def create_log(storage: Storage, path: TablePath = LOG, partitions: Sequence[str] = ()) -> TableEntry:
    keys = ["day"] if partitions else []
    return await storage.catalog.create_table(
        path, "{}", "{}", BUCKETS, ignore_if_exists=True, partition_keys=keys, partitions=partitions
    )


async def create_all(storage: Storage) -> None:
    await create_log(storage)
    for path, schema, properties in ((ROWS, SCHEMA, {}), (SUMS, SUM_SCHEMA, AGGREGATION)):
        if not storage.catalog.table_exists(path):
            await Table.create(storage, schema, path.table, bucket_count=BUCKETS, properties=properties)


async def stage(
    storage: Storage,
    table_id: int,
    batches: Sequence[tuple[TableBucket, memoryview]],
    *,
    query: str = QUERY,
    batch_id: int = 0,
    task: int = 0,
    attempt: int = 0,
    sequence: int = 0,
) -> None:
    key = StagedKey(table_id, query_name(query), batch_id, task, attempt, sequence)
    await storage.staging.stage(key, query, StagedRequest(batches))


def request_of(
    storage: Storage, path: TablePath, batch_id: int, task: int, number: int
) -> list[tuple[TableBucket, memoryview]]:
    """One request: some batches for each bucket."""
    table_id = storage.catalog.table(path).table_id
    found = []
    for piece in range(PIECES):
        for bucket in range(BUCKETS):
            content = text(batch_id, task, number, piece, bucket)
            records = log_batch(content) if path == LOG else Table(storage, path).batch(put_rows(path, content))
            found.append((TableBucket(table_id, bucket), records))
    return found


def put_rows(path: TablePath, content: str) -> list[Row]:
    numbers = content.split("/")
    batch_id, bucket = int(numbers[0]), int(numbers[-1])
    ids = [bucket, BUCKETS + bucket]
    if path == SUMS:
        return [{"id": key, "total": 10**batch_id} for key in ids]
    return [{"id": key, "name": content, "score": batch_id} for key in ids]


async def write(storage: Storage, path: TablePath, batch_id: int, attempt: int) -> bool:
    """Stage a batch, with an attempt that does not count, and commit it; whether it had been committed before."""
    table_id = storage.catalog.table(path).table_id
    for number_of_attempt in (attempt + 1, attempt):
        for task in range(TASKS):
            for number in range(REQUESTS):
                batches = request_of(storage, path, batch_id, task, number)
                await stage(
                    storage, table_id, batches, batch_id=batch_id, task=task, attempt=number_of_attempt, sequence=number
                )
    tasks = [StagedTask(task, attempt, REQUESTS) for task in range(TASKS)]
    return await storage.staging.commit(table_id, QUERY, batch_id, tasks)


async def check(storage: Storage, path: TablePath, batch_count: int) -> None:
    """Each of the first batches is in the table once, in order, and nothing else."""
    table_id = storage.catalog.table(path).table_id
    for bucket in range(BUCKETS):
        contents = [content for batch_id in range(batch_count) for content in texts_of(batch_id, bucket)]
        if path == LOG:
            log = await storage.opened(TableBucket(table_id, bucket))
            assert [content for _, content in read_all(log)] == contents
            continue
        rows = await Table(storage, path).all_rows(bucket)
        if path == SUMS:
            total = sum(BATCHES_PER_BUCKET * 10**batch_id for batch_id in range(batch_count))
            assert rows == ([{"id": key, "total": total} for key in (bucket, BUCKETS + bucket)] if contents else [])
        else:
            assert rows == (put_rows(path, contents[-1]) if contents else [])
        assert len(Table(storage, path).log_batches(bucket)) == len(contents)


def staged_files(storage: Storage) -> list[str]:
    return sorted(str(path.relative_to(storage.root)) for path in storage.root.glob("tables/*/staging/*"))
