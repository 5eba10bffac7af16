"""Killed at every step: each fail point there is, one after the other, in a process of its own.

After each kill the files are opened again: every acknowledged row is there, at its offset, once; offsets are dense;
tables and writer ids are as promised; and the store goes on working.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import encode_batch, parse_header
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints
from fluss.storage.failpoints import ENVIRONMENT_VARIABLE, NAMES, FailPoint, FailPointError
from fluss.storage.log.writer_state import REMEMBERED_BATCHES
from fluss.storage.store import Storage, StorageOptions
from tests.crash.storage import crash_driver
from tests.crash.storage.driven import KILLED, run_driver
from tests.kit.storage.logs import NOW_MS, read_all

KEPT_ROWS = 4  # of the table that keeps 400 bytes

# Points that only a start after a crash passes.
_NEEDS_CRASH = ("segment.cut.", "segment.recover.")
# Of primary-key tables, staged writes, lake snapshots, backups and repairs: they have tests of their own.
_ELSEWHERE = ("kv.", "staging.", "lake.", "backup.", "repair.")
_LEAVES_A_TORN_TAIL = "segment.append.torn_write:30"

# Later hits, where the first hit of a point is in a special place (the first segment, the first transaction).
_LATER = [
    *(f"catalog.commit.{step}:{count}" for step in ("before_commit", "after_commit") for count in range(2, 12)),
    *(f"segment.append.{step}:25" for step in ("before_write", "torn_write", "after_write")),
    *(f"segment.commit.{step}:12" for step in ("before_sync", "after_sync")),
    *(f"segment.create.{step}:4" for step in ("before_create", "after_create", "before_sync_directory")),
    "table.remove.after_remove:3",
    "partition.remove.after_remove:3",
]


async def check_promises(root: Path, told: list[list[str]]) -> None:
    storage = await Storage.open(StorageOptions(root, segment_size_bytes=crash_driver.SEGMENT_SIZE_BYTES))
    try:
        _check_catalog(storage, root, told)
        writer_id = storage.catalog.next_writer_id()
        assert writer_id not in {int(words[1]) for words in told if words[0] == "writer"}
        if storage.catalog.table_exists(crash_driver.MAIN):
            for bucket in range(crash_driver.BUCKETS):
                await _check_bucket(storage, bucket, told, writer_id)
        if storage.catalog.table_exists(crash_driver.EXPIRING):
            _check_expiring(storage, told)
        assert all(words == ["damaged"] for words in told if words[0] == "damaged"), "the scrubber found what is none"
    finally:
        await storage.close()


def _check_catalog(storage: Storage, root: Path, told: list[list[str]]) -> None:
    dropped = {words[1] for words in told if words[0] == "dropped"}
    for words in told:
        if words[0] == "database":
            assert storage.catalog.database_exists(words[1])
        if words[0] == "table":
            exists = storage.catalog.table_exists(TablePath("crash", words[2]))
            # A drop that was not acknowledged may have happened.
            assert exists != (words[1] in dropped) or (not exists and words[2].startswith("temporary"))
    _check_partitions(storage, root, told)
    known = {str(entry.table_id) for entry in storage.catalog.tables("crash")} if _has_crash(storage) else set()
    if (root / "tables").exists():
        assert {path.name for path in (root / "tables").iterdir()} <= known


def _check_partitions(storage: Storage, root: Path, told: list[list[str]]) -> None:
    promised = {words[1] for words in told if words[0] == "partition"}
    if not promised:
        return
    table = storage.catalog.table(crash_driver.PARTED)
    partitions = storage.catalog.partitions(table)
    names = {entry.name for entry in partitions}
    # A drop that was not acknowledged may have happened, and so may a creation.
    assert "first" in names
    assert not names & {words[1] for words in told if words[0] == "departed"}
    for words in told:
        if words[0] == "schema":
            assert table.schema_id >= int(words[1])
    for schema_id in range(2, table.schema_id + 1):
        assert storage.catalog.schema_json(table.table_id, schema_id) == f'"{schema_id}"'.encode()
    directory = root / "tables" / str(table.table_id)
    if directory.exists():
        assert {path.name for path in directory.iterdir()} <= {f"p{entry.partition_id}" for entry in partitions}


def _has_crash(storage: Storage) -> bool:
    return storage.catalog.database_exists("crash")


async def _check_bucket(storage: Storage, bucket: int, told: list[list[str]], writer_id: int) -> None:
    log = storage.bucket(TableBucket(storage.catalog.table(crash_driver.MAIN).table_id, bucket))
    rows = {header.base_offset: text.strip() for header, text in read_all(log)}
    assert len(set(rows.values())) == len(rows), "a row is there twice"
    for words in told:
        if words[0] == "ack" and int(words[1]) == bucket:
            assert rows.get(int(words[2])) == words[3], "an acknowledged row is lost"
        if words[0] == "seen" and int(words[1]) == bucket:
            assert log.high_watermark >= int(words[2]), "what a reader saw is gone"
    for header, _ in read_all(log)[-REMEMBERED_BATCHES:]:
        # A client that missed the answer sends the batch again: it is not stored twice.
        again = encode_batch(
            b"again", schema_id=1, record_count=3, writer_id=header.writer_id, batch_sequence=header.batch_sequence
        )
        repeated = log.append(again, parse_header(again), NOW_MS)
        assert (repeated.duplicate, repeated.base_offset) == (True, header.base_offset)
    batch = encode_batch(b"after", schema_id=1, record_count=1, writer_id=writer_id, batch_sequence=0)
    appended = log.append(batch, parse_header(batch), NOW_MS)
    await appended.durable
    assert appended.base_offset == max((header.next_offset for header, _ in read_all(log)[:-1]), default=0)


def _check_expiring(storage: Storage, told: list[list[str]]) -> None:
    """Removing from the start leaves no gap and takes none of the newest rows."""
    log = storage.bucket(TableBucket(storage.catalog.table(crash_driver.EXPIRING).table_id, 0))
    rows = {header.base_offset: text.strip() for header, text in read_all(log)}
    kept = [(int(words[1]), words[2]) for words in told if words[0] == "kept"]
    for offset, text in kept:
        assert rows.get(offset, text) == text
    for offset, text in kept[-KEPT_ROWS:]:
        assert rows[offset] == text
    for words in told:
        if words[0] == "start":
            assert log.log_start_offset >= int(words[1]), "what was removed is back"
    # Offsets are never used again.
    assert log.log_end_offset >= max((offset + 3 for offset, _ in kept), default=0)


def _run_with_environment(root: Path, fail_point: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", crash_driver.__name__, str(root), "first"]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: fail_point}
    repository = Path(__file__).parents[3]
    return subprocess.run(command, env=environment, cwd=repository, capture_output=True, text=True, check=False)


async def test_armed_by_the_environment(tmp_path: Path) -> None:
    done = _run_with_environment(tmp_path / "data", "segment.append.after_write:9")
    assert done.returncode == KILLED, done.stderr
    told = [line.split() for line in done.stdout.splitlines()]
    assert any(words[0] == "ack" for words in told)
    await check_promises(tmp_path / "data", told)


async def test_without_a_fail_point_the_driver_ends_well(tmp_path: Path) -> None:
    told: list[list[str]] = []
    for name in ("first", "second"):
        code, lines = run_driver(crash_driver.run, str(tmp_path / "data"), name, None)
        assert code == 0
        assert lines[-1] == ["done"]
        told += lines
    await check_promises(tmp_path / "data", told)


@pytest.mark.parametrize("spec", [*(name for name in NAMES if not name.startswith(_ELSEWHERE)), *_LATER])
async def test_killed_at(tmp_path: Path, spec: str) -> None:
    root = tmp_path / "parent" / "data"
    told: list[list[str]] = []
    if spec.startswith(_NEEDS_CRASH):
        code, told = run_driver(crash_driver.run, str(root), "first", _LEAVES_A_TORN_TAIL)
        assert code == KILLED
    code, lines = run_driver(crash_driver.run, str(root), "second", spec)
    assert code == KILLED, f"{spec} was never hit"
    assert lines[-1:] != [["done"]]
    told += lines
    await check_promises(root, told)


def test_every_name_is_a_step_of_a_site() -> None:
    assert len(NAMES) == len(set(NAMES)) > 35
    assert "segment.append.torn_write" in NAMES


def test_unknown_points_and_actions_are_refused() -> None:
    for spec in ("segment.append", "nonsense", "segment.append.after_write:1:explode", "segment.append.after_write:x"):
        with pytest.raises(ValueError, match=r"unknown|invalid literal"):
            FailPoint(spec)


def test_a_point_fires_once_at_its_count() -> None:
    point = FailPoint("segment.commit.before_sync:3:raise")
    site, step = failpoints.Site.SEGMENT_COMMIT, failpoints.Step.BEFORE_SYNC
    for _ in range(2):
        point.hit(site, step)
        point.hit(site, failpoints.Step.AFTER_SYNC)
    with pytest.raises(FailPointError):
        point.hit(site, step)
    point.hit(site, step)
