"""What the storage has of a primary-key table of `kv_model`: its rows and its changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import fluss
from fluss.formats.arrow.payload import decode_changes
from fluss.formats.batches.log_batch import walk
from fluss.formats.rows.values import ValueCodec
from fluss.model.paths import TableBucket
from fluss.storage.kv.bucket import KvBucket
from fluss.storage.store import Storage, StorageOptions
from tests.kit.loads.kv_model import ARROW_SCHEMA, SCHEMA, Change, Row, fold

PATH: Final = fluss.TablePath("fluss", "model")
BUCKET: Final = TableBucket(0, 0)
SEGMENT_SIZE_BYTES: Final = 32 << 10
READ_BYTES: Final = 1 << 20
_KINDS: Final = ("+A", "+I", "-U", "+U", "-D")
_CODEC: Final = ValueCodec({1: SCHEMA})


async def open_storage(root: Path) -> Storage:
    """With the table of the model in it, made if need be."""
    storage = await Storage.open(StorageOptions(root, segment_size_bytes=SEGMENT_SIZE_BYTES))
    if not storage.catalog.table_exists(PATH):
        descriptor = fluss.TableDescriptor(SCHEMA, bucket_count=1, bucket_keys=["id"])
        entry = await storage.catalog.create_table(PATH, descriptor.to_json().decode(), json.dumps(SCHEMA.to_json()), 1)
        assert entry.table_id == BUCKET.table_id
    return storage


async def open_bucket(storage: Storage) -> KvBucket:
    opening = storage.opening([BUCKET])
    if opening is not None:
        await opening
    return storage.kv.bucket(BUCKET)


def rows_of(values: list[bytes]) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in _CODEC.decode(values).columns), strict=True))  # type: ignore[arg-type]


async def read_rows(kv: KvBucket) -> tuple[int, dict[int, Row]]:
    """The rows by key, and the offset they are as of."""
    scan = await kv.open_scan()
    rows: list[Row] = []
    while page := await scan.read(READ_BYTES, 1_000):
        rows += rows_of(page)
    scan.close()
    assert len(rows) == len({row[0] for row in rows}) == await kv.row_count()
    return scan.log_offset, {row[0]: row for row in rows}


async def read_changes(storage: Storage) -> list[Change | None]:
    """By offset; None where a batch has changed nothing."""
    await open_bucket(storage)
    assert storage.bucket(BUCKET).log_start_offset == 0
    return changes_of(storage, BUCKET)


def changes_of(storage: Storage, bucket: TableBucket) -> list[Change | None]:
    """From the log's start on; None where a batch has changed nothing."""
    log = storage.bucket(bucket)
    start = log.log_start_offset
    changes: list[Change | None] = []
    while start + len(changes) < log.high_watermark:
        data = log.read(start + len(changes), READ_BYTES)
        for position, header in walk(data):
            assert header.base_offset == start + len(changes)
            if not header.record_count:
                changes.append(None)
                continue
            kinds, batch = decode_changes(memoryview(data), position, header, ARROW_SCHEMA)
            assert kinds is not None
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            changes += [(_KINDS[kind], row) for kind, row in zip(kinds, rows, strict=True)]
    return changes


async def check_whole(storage: Storage) -> list[Change | None]:
    """The table is the fold of its changelog; returns the changes."""
    changes = await read_changes(storage)
    offset, rows = await read_rows(await open_bucket(storage))
    assert offset == len(changes)
    assert rows == fold([change for change in changes if change])
    return changes
