"""Small tools for storage tests: batches with recognisable payloads, logs on real files, crash images."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fluss.formats.batches.log_batch import BatchHeader, encode_batch, parse_header, payload_of, verify_crc, walk
from fluss.model.clock import NO_SETTLING, Clock
from fluss.storage.catalog.catalog import Catalog, CatalogLimits
from fluss.storage.log.group_commit import GroupCommit
from fluss.storage.log.log import Appended, BucketLog, LogOptions

NOW_MS = 1_700_000_000_000
READ_BYTES = 1 << 20


def trusted(now_ms: Callable[[], int]) -> Clock:
    """A clock that is right, whatever it shows."""
    return Clock(NO_SETTLING, wall_ms=now_ms)


def make_batch(text: str, *, records: int = 3, writer_id: int = -1, sequence: int = -1) -> bytearray:
    return encode_batch(text.encode(), schema_id=1, record_count=records, writer_id=writer_id, batch_sequence=sequence)


def append(log: BucketLog, text: str, *, now_ms: int = NOW_MS, **fields: int) -> Appended:
    batch = make_batch(text, **fields)
    return log.append(batch, parse_header(batch), now_ms)


def parse(data: bytes) -> list[tuple[BatchHeader, str]]:
    """Headers and payload texts of whole, valid batches; anything else fails the test."""
    found = []
    size = 0
    for position, header in walk(data):
        verify_crc(data, position, header)
        found.append((header, bytes(payload_of(data, position, header)[1]).decode()))
        size += header.size_bytes
    assert size == len(data), "a read returned a cut batch"
    return found


def read_all(log: BucketLog, max_bytes: int = READ_BYTES) -> list[tuple[BatchHeader, str]]:
    """Everything readable; asserts that offsets are dense."""
    found: list[tuple[BatchHeader, str]] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        batches = parse(log.read(offset, max_bytes))
        assert batches, f"nothing at {offset}, high watermark {log.high_watermark}"
        for header, text in batches:
            assert header.base_offset == offset
            found.append((header, text))
            offset = header.next_offset
    assert offset == log.high_watermark
    assert log.read(offset, max_bytes) == b""
    return found


def texts(log: BucketLog) -> list[str]:
    return [text for _, text in read_all(log)]


def bucket_directory(root: Path) -> Path:
    return root / "tables" / "0" / "0"


@asynccontextmanager
async def opened(root: Path, options: LogOptions | None = None, **changes: object) -> AsyncIterator[BucketLog]:
    """A log on `root`, closed cleanly at the end."""
    root.mkdir(exist_ok=True)
    loop = asyncio.get_running_loop()
    commit = GroupCommit(loop, 2)
    log = BucketLog(bucket_directory(root), root, commit, loop, replace(options or LogOptions(), **changes))  # type: ignore[arg-type]
    try:
        yield log
    finally:
        await log.close()
        commit.close()


@asynccontextmanager
async def catalog(tmp_path: Path, limits: CatalogLimits | None = None) -> AsyncIterator[Catalog]:
    opened = await Catalog.open(tmp_path / "catalog.db", limits)
    try:
        yield opened
    finally:
        await opened.close()


def crash_image(root: Path, name: str) -> Path:
    """What a kill would leave now: the files as they are, without a clean close."""
    image = root.parent / name
    if image.exists():
        shutil.rmtree(image)
    shutil.copytree(root, image)
    return image


def log_files(root: Path, suffix: str = ".log") -> list[Path]:
    return sorted(bucket_directory(root).glob(f"*{suffix}"))
