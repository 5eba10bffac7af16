"""What tells damage from a write that was cut off, in logs and in the catalog."""

from __future__ import annotations

import logging
import random
import shutil
import struct
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import walk
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints, files
from fluss.storage.directory import DataDirectoryError
from fluss.storage.log.index import CorruptBatchError
from fluss.storage.log.marks import CatalogMark, Mark, Marks
from fluss.storage.log.segment import list_aside
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import READ_BYTES, append, crash_image, parse, texts

T = TablePath("fluss", "t")
BUCKET = TableBucket(0, 0)
ROWS = [f"row {number}" for number in range(20)]
A, B = TableBucket(1, 0), TableBucket(1, 2, 7)


async def _killed(tmp_path: Path, **options: object) -> Path:
    """The directory of a server that was killed when all rows were acknowledged."""
    storage = await Storage.open(StorageOptions(tmp_path / "data", **options))  # type: ignore[arg-type]
    try:
        await storage.catalog.create_table(T, "{}", "{}", 1)
        log = storage.bucket(BUCKET)
        for number, row in enumerate(ROWS):
            await append(log, row, records=1, writer_id=5, sequence=number).durable
        return crash_image(tmp_path / "data", "killed")
    finally:
        await storage.close()


def _segment(root: Path) -> Path:
    (path,) = (root / "tables" / "0" / "0").glob("*.log")
    return path


def _flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


async def _assert_stopped(root: Path, position: int, good_rows: int) -> None:
    """The bucket is read-only and its files as they are; rows up to the damage can be read, the rest is an error."""
    path = _segment(root)
    before = path.read_bytes()
    storage = await Storage.open(StorageOptions(root))
    try:
        log = await storage.opened(BUCKET)
        assert log.high_watermark == len(ROWS), "an offset that was used must not be free"
        if good_rows:
            assert [text for _, text in parse(log.read(0, READ_BYTES))] == ROWS[:good_rows]
        with pytest.raises(CorruptBatchError, match=rf"{path.name}: corrupt batch at byte {position}\b"):
            log.read(good_rows, READ_BYTES)
        with pytest.raises(FlussError, match=rf"{path.name}: .*read-only; 'fluss repair'"):
            append(log, "new", records=1)
        with pytest.raises(FlussError, match="read-only"):
            append(log, ROWS[-1], records=1, writer_id=5, sequence=len(ROWS) - 1)
    finally:
        await storage.close()
    assert path.read_bytes() == before
    assert not list_aside(path.parent)


def _bounds(path: Path) -> list[int]:
    return [position for position, _ in walk(path.read_bytes())]


async def test_a_flipped_bit_behind_the_last_checkpoint_cuts_nothing(tmp_path: Path) -> None:
    root = await _killed(tmp_path)
    position = _bounds(_segment(root))[2]
    _flip(_segment(root), position + 30)
    await _assert_stopped(root, position, 2)


async def test_a_log_that_ends_at_an_earlier_batch_is_damaged(tmp_path: Path) -> None:
    root = await _killed(tmp_path)
    path = _segment(root)
    position = _bounds(path)[15]
    path.write_bytes(path.read_bytes()[:position])
    await _assert_stopped(root, position, 15)


async def test_a_changed_commit_time_is_found(tmp_path: Path) -> None:
    """It is outside of the batch's own checksum."""
    root = await _killed(tmp_path)
    _flip(_segment(root), _bounds(_segment(root))[4] + 13)
    storage = await Storage.open(StorageOptions(root))
    try:
        log = await storage.opened(BUCKET)
        with pytest.raises(FlussError, match="checksum of commit times"):
            append(log, "new")
        for verify in (True, False):
            with pytest.raises(CorruptBatchError, match=r"byte 0: the checksum of commit times"):
                log.read(4, READ_BYTES, verify=verify)
    finally:
        await storage.close()


async def test_a_log_without_its_files_is_damaged(tmp_path: Path) -> None:
    root = await _killed(tmp_path)
    path = _segment(root)
    path.unlink()
    storage = await Storage.open(StorageOptions(root))
    try:
        log = await storage.opened(BUCKET)
        assert log.high_watermark == len(ROWS)
        with pytest.raises(FlussError, match=rf"{path.name}: can't be read: No such file"):
            log.read(0, READ_BYTES)
        with pytest.raises(FlussError, match=rf"{path.name}: .*the file is missing"):
            append(log, "new")
    finally:
        await storage.close()


async def test_a_first_segment_that_is_gone_is_not_taken_for_retention(tmp_path: Path) -> None:
    root = await _killed(tmp_path, segment_size_bytes=400)
    first, *_ = sorted((root / "tables" / "0" / "0").glob("*.log"))
    first.unlink()
    storage = await Storage.open(StorageOptions(root))
    try:
        log = await storage.opened(BUCKET)
        assert log.log_start_offset == 0
        with pytest.raises(FlussError, match=rf"{first.name}: can't be read: No such file"):
            log.read(0, READ_BYTES)
    finally:
        await storage.close()


@pytest.mark.parametrize("same_boot", [True, False], ids=["kill", "power loss"])
async def test_what_lies_behind_the_mark_is_cut_and_kept_aside(
    tmp_path: Path, same_boot: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unsynced bytes reach the disk in any order: a good batch behind a bad one is an ordinary power loss."""
    root = await _killed(tmp_path)
    path = _segment(root)
    whole = path.read_bytes()
    last = _bounds(path)[-1]
    behind = bytes(40) + whole[last:]
    path.write_bytes(whole + behind)
    if not same_boot:
        monkeypatch.setattr(files, "boot_id", lambda: b"another")
    storage = await Storage.open(StorageOptions(root))
    try:
        with caplog.at_level(logging.WARNING):
            log = await storage.opened(BUCKET)
        assert texts(log) == ROWS
        assert append(log, "new", records=1).base_offset == len(ROWS)
    finally:
        await storage.close()
    (aside,) = list_aside(path.parent)
    assert aside.read_bytes() == behind
    told = "nothing of it was acknowledged" if same_boot else "what was acknowledged last may be among it"
    assert told in caplog.text


async def test_a_mark_that_can_not_be_written_acknowledges_nothing(tmp_path: Path) -> None:
    storage = await Storage.open(StorageOptions(tmp_path / "data"))
    try:
        await storage.catalog.create_table(T, "{}", "{}", 1)
        log = await storage.opened(BUCKET)
        await append(log, "first").durable
        failpoints.arm("marks.write.before_write:1:eio")
        with pytest.raises(FlussError, match="read-only"):
            await append(log, "second").durable
        assert texts(log) == ["first"]
    finally:
        failpoints.disarm()
        await storage.close()


async def test_a_mark_that_is_there_though_its_write_failed_names_no_rows_that_were_cut(tmp_path: Path) -> None:
    # Seed 56 of the simulation: after the restart the bucket was taken for damaged.
    storage = await Storage.open(StorageOptions(tmp_path / "data"))
    try:
        await storage.catalog.create_table(T, "{}", "{}", 1)
        failpoints.arm("marks.write.after_write:2:eio")
        with pytest.raises(FlussError, match="read-only"):
            for text in ("first", "second"):
                await append(await storage.opened(BUCKET), text).durable
    finally:
        failpoints.disarm()
        await storage.close()
    storage = await Storage.open(StorageOptions(tmp_path / "data"))
    try:
        await append(await storage.opened(BUCKET), "third").durable
    finally:
        await storage.close()


# --- the catalog


async def _refused(root: Path, match: str) -> None:
    before = {path.name: path.read_bytes() for path in root.glob("catalog.db*") if path.suffix != ".db-shm"}
    with pytest.raises(DataDirectoryError, match=match):
        await Storage.open(StorageOptions(root))
    assert {name: (root / name).read_bytes() for name in before} == before, "a refused catalog was changed"


async def test_a_rotten_bit_in_the_wal_of_the_catalog_is_refused(tmp_path: Path) -> None:
    """SQLite drops the frame and all behind it: tables would be gone, and their numbers given out again."""
    root = await _killed(tmp_path)
    wal = root / "catalog.db-wal"
    _flip(wal, len(wal.read_bytes()) - 100)
    await _refused(root, r"catalog\.db: the catalog is damaged: the last \d+ changes are missing")


async def test_a_rotten_bit_in_the_catalog_is_refused(tmp_path: Path) -> None:
    """SQLite has no checksums in its database file."""
    await _killed(tmp_path)
    path = tmp_path / "data" / "catalog.db"
    _flip(path, len(path.read_bytes()) // 2)
    await _refused(tmp_path / "data", r"catalog\.db: the catalog is damaged: it has other bytes")


async def test_an_old_catalog_that_was_put_back_is_refused(tmp_path: Path) -> None:
    storage = await Storage.open(StorageOptions(tmp_path / "data"))
    await storage.close()
    shutil.copy(tmp_path / "data" / "catalog.db", tmp_path / "old.db")
    storage = await Storage.open(StorageOptions(tmp_path / "data"))
    await storage.catalog.create_table(T, "{}", "{}", 1)
    await storage.close()
    shutil.copy(tmp_path / "old.db", tmp_path / "data" / "catalog.db")
    await _refused(tmp_path / "data", r"catalog\.db")


async def test_folders_stay_when_nothing_vouches_for_the_catalog(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = await _killed(tmp_path)
    (root / "marks").unlink()
    shutil.copytree(root / "tables" / "0", root / "tables" / "00")
    (root / "tables" / "00").rename(root / "tables" / "0_")
    storage = await Storage.open(StorageOptions(root))
    await storage.catalog.drop_table(T)
    await storage.close()
    (root / "marks").unlink()
    (root / "tables" / "0_").rename(root / "tables" / "0")
    storage = await Storage.open(StorageOptions(root))
    await storage.close()
    assert (root / "tables" / "0").exists()
    assert "is of no table of the catalog" in caplog.text
    storage = await Storage.open(StorageOptions(root))
    await storage.close()
    assert not (root / "tables" / "0").exists()


# --- the file


def _mark(end_offset: int) -> Mark:
    return Mark(1, 2, 3, end_offset, 4)


def test_marks_are_found_again(tmp_path: Path) -> None:
    marks = Marks.open(tmp_path / "marks")
    marks.put_catalog(CatalogMark(3, True, 4096, 17))
    for end_offset in range(10, 15):
        marks.put(A, _mark(end_offset))
        marks.put(B, _mark(2 * end_offset)._replace(is_synced=False))
    marks.sync()
    marks.close()
    found = Marks.read(tmp_path / "marks")
    assert found.catalog == CatalogMark(3, True, 4096, 17)
    assert found.get(A) == _mark(14)
    assert found.get(B) == _mark(28)._replace(is_synced=False)


def test_a_damaged_slot_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    marks = Marks.open(path)
    marks.put(A, _mark(10))
    marks.sync()
    marks.put(A, _mark(11))
    marks.close()
    whole = path.read_bytes()
    (at,) = (at for at in range(192, 384, 64) if struct.pack("<q", 11) in whole[at : at + 64])
    for bit in range(8 * 60):
        path.write_bytes(whole)
        _flip(path, at + bit // 8, bit % 8)
        assert Marks.read(path).get(A) == _mark(10)


def test_a_synced_mark_is_never_written_over(tmp_path: Path) -> None:
    """A write may be torn, and what follows it is lost with the power: what was synced last must be left."""
    path = tmp_path / "marks"
    marks = Marks.open(path)
    chance = random.Random(7)
    synced = 0
    for end_offset in range(1, 300):
        marks.put(A, _mark(end_offset))
        if chance.random() < 0.2:
            marks.sync()
            synced = end_offset
        slots = [path.read_bytes()[at : at + 64] for at in range(192, 384, 64)]
        ends = [struct.unpack_from("<q", slot, 52)[0] for slot in slots]
        assert end_offset in ends
        assert synced in ends or not synced
    marks.close()


def test_marks_written_while_others_are_synced_leave_both_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the sync under way gets as far as the disk is not known: what the one before it left must be there."""
    path = tmp_path / "marks"
    marks = Marks.open(path)
    sync, synced, numbers = files.sync, 0, iter(range(1, 1_000))

    def stored() -> list[int]:
        slots = [path.read_bytes()[at : at + 64] for at in range(192, 384, 64)]
        return [struct.unpack_from("<q", slot, 52)[0] for slot in slots]

    def slow_sync(fd: int, site: failpoints.Site) -> None:
        under_way = max(stored())
        for _ in range(3):
            marks.put(A, _mark(next(numbers)))
            assert {synced, under_way} <= {0, *stored()}
        sync(fd, site)

    monkeypatch.setattr(files, "sync", slow_sync)
    for _ in range(20):
        marks.put(A, _mark(next(numbers)))
        under_way = max(stored())
        marks.sync()
        synced = under_way
    marks.close()


async def test_a_log_shorter_than_its_lake_snapshot_is_damaged(tmp_path: Path) -> None:
    """Without marks, too: the lake's offsets prove what the log had."""
    storage = await Storage.open(StorageOptions(tmp_path / "data"))
    try:
        properties = '{"properties": {"table.datalake.enabled": "true"}, "custom_properties": {}}'
        table = await storage.catalog.create_table(T, properties, "{}", 1)
        for row in ROWS:
            await append(storage.bucket(BUCKET), row, records=1).durable
        offsets_path = await storage.lake.prepare(table, {BUCKET: len(ROWS)}, merge=True)
        await storage.lake.commit(table.table_id, 1, offsets_path, readable=True, earliest_to_keep=None)
        root = crash_image(tmp_path / "data", "killed")
    finally:
        await storage.close()
    path = _segment(root)
    position = _bounds(path)[15]
    path.write_bytes(path.read_bytes()[:position])
    (root / "marks").unlink()
    storage = await Storage.open(StorageOptions(root))
    try:
        log = await storage.opened(BUCKET)
        assert log.high_watermark == len(ROWS), "an offset that was used must not be free"
        with pytest.raises(FlussError, match=rf"{path.name}: .*the log reached {len(ROWS)}"):
            append(log, "new")
    finally:
        await storage.close()


def test_more_buckets_than_the_file_has_room_for(tmp_path: Path) -> None:
    marks = Marks.open(tmp_path / "marks")
    buckets = [TableBucket(1, bucket) for bucket in range(1_000)]
    for bucket in buckets:
        marks.put(bucket, _mark(bucket.bucket_id))
    size_bytes = (tmp_path / "marks").stat().st_size
    for bucket in buckets[:500]:
        marks.forget(bucket)
    for bucket_id in range(500):
        marks.put(TableBucket(2, bucket_id), _mark(bucket_id))
    marks.close()
    assert (tmp_path / "marks").stat().st_size == size_bytes, "places of buckets that are gone are used again"
    found = Marks.read(tmp_path / "marks")
    assert set(found.buckets) == {*buckets[500:], *(TableBucket(2, bucket_id) for bucket_id in range(500))}


def test_a_mark_of_another_boot_is_a_lower_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks.open(tmp_path / "marks")
    marks.put(A, _mark(10))
    marks.put(B, _mark(10)._replace(is_synced=False))
    marks.close()
    monkeypatch.setattr(files, "boot_id", lambda: b"another")
    found = Marks.read(tmp_path / "marks")
    assert found.get(A) == _mark(10)._replace(is_exact=False)
    assert found.get(A) is not None
    assert [found.get(bucket).is_certain for bucket in (A, B)] == [True, False]  # type: ignore[union-attr]
