"""Bad days of a bucket with rows: stores and logs that fail, damage, drops in the middle, too many open stores."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TablePath
from fluss.storage import failpoints, files
from fluss.storage.failpoints import Site
from fluss.storage.store import Storage
from tests.kit.storage.kv_tables import Row, Table, by_id, fold, opened, row
from tests.kit.storage.logs import crash_image

T = TablePath("fluss", "t")
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


async def code_of(future: asyncio.Future[int]) -> int:
    with pytest.raises(FlussError) as raised:
        await future
    return raised.value.error_code


@pytest.mark.parametrize("step", ["before_commit", "after_commit"])
async def test_a_store_that_fails_is_brought_up_from_the_log(tmp_path: Path, step: str) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "first"), row(2, "second")])).applied
        failpoints.arm(f"kv.commit.{step}:1:eio")
        batch = table.batch([row(1, "durable")], [2], writer_id=1, sequence=0)
        put = table.kv().put(batch)
        assert await put.appended == 5
        assert await code_of(put.applied) == ErrorCode.KV_STORAGE_EXCEPTION
        # The client tries again and is told that it was stored, once.
        assert await table.kv().put(batch).applied == 5
        assert await table.all_rows() == [row(1, "durable")]
        assert await table.kv().put(table.batch([row(2, "again")], writer_id=1, sequence=1)).applied == 6
        assert fold(table.changelog()) == {(1,): row(1, "durable"), (2,): row(2, "again")}
        assert await table.kv().row_count() == 2


class HeldCommit:
    """The next write to a store waits in its thread until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit = files.around_commit
        self._begun = threading.Event()
        self._released = threading.Event()
        monkeypatch.setattr(files, "around_commit", self._held)

    def _held(self, commit: Callable[[], None], site: Site) -> None:
        self._begun.set()
        assert self._released.wait(WAIT_S)
        self._commit(commit, site)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, WAIT_S)

    def release(self) -> None:
        self._released.set()


async def test_puts_behind_one_that_failed_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were folded on top of it, and it is in the log, so all of them count.

    The write that fails is held until they are in the log: how many puts one write takes is a matter of timing.
    """
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "0")])).applied
        failpoints.arm("kv.commit.before_commit:1:eio")
        write = HeldCommit(monkeypatch)
        first = table.kv().put(table.batch([row(1, "2"), row(2)]))
        await write.begun()
        behind = [table.kv().put(table.batch([row(1, str(number)), row(number)])) for number in range(3, 40)]
        await asyncio.gather(*(put.appended for put in behind))
        write.release()
        assert await code_of(first.applied) == ErrorCode.KV_STORAGE_EXCEPTION
        assert [await put.applied for put in behind] == [put.end_offset for put in behind]
        await has_all_rows(table, 39)


async def test_puts_that_fail_in_the_store_together(tmp_path: Path) -> None:
    """All that one write took are told to try again, however many those were; none behind them is."""
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "0")])).applied
        failpoints.arm("kv.commit.before_commit:1:eio")
        puts = [table.kv().put(table.batch([row(1, str(number)), row(number)])) for number in range(2, 40)]
        done = await asyncio.gather(*(put.applied for put in puts), return_exceptions=True)
        failed = [result for result in done if isinstance(result, FlussError)]
        assert failed
        assert failed == done[: len(failed)]
        assert all(error.is_retriable for error in failed)
        assert done[len(failed) :] == [put.end_offset for put in puts[len(failed) :]]
        await has_all_rows(table, 39)


async def has_all_rows(table: Table, last: int) -> None:
    """One put per number from 2 on, each of which wrote its number at key 1, too."""
    assert await table.all_rows() == by_id(fold(table.changelog()).values())
    assert await table.get(1) == row(1, str(last))
    assert await table.kv().row_count() == last


async def test_a_scan_ends_with_its_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(number) for number in range(100)])).applied
        scan = await table.kv().open_scan()
        await scan.read(100, 10)
        failpoints.arm("kv.commit.before_commit:1:eio")
        assert await code_of(table.kv().put(table.batch([row(1, "x")])).applied) == ErrorCode.KV_STORAGE_EXCEPTION
        with pytest.raises(FlussError, match="begin it again"):
            await scan.read(100, 10)
        assert await table.get(1) == row(1, "x")


def damage(kv: Path) -> None:
    """Turn bytes in the middle of the file with the rows, which is found when they are read."""
    file = max(kv.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[100 : len(data) // 2] = bytes(byte ^ 0x55 for byte in data[100 : len(data) // 2])
    file.write_bytes(data)


async def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(number, "x" * 50) for number in range(2_000)])).applied
        directory = storage.bucket_path(table.bucket())
    damage(directory / "kv")
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        with pytest.raises(FlussError) as found:
            await table.all_rows()
        assert found.value.is_retriable
        assert len(await table.all_rows()) == 2_000
        assert await table.kv().row_count() == 2_000
        await table.kv().put(table.batch([row(1, "after")])).applied
        assert await table.get(1) == row(1, "after")


@pytest.mark.parametrize("log_is_whole", [True, False])
async def test_damage_that_a_snapshot_shares_with_its_store(tmp_path: Path, log_is_whole: bool) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=4_000) as storage:
        table = await Table.create(storage)
        for number in range(20):
            await table.kv().put(table.batch([row(key, f"{number}") for key in range(40)])).applied
        directory = storage.bucket_path(table.bucket())
        (directory / "snapshots").mkdir()
        state = await table.kv().checkpoint(directory / "snapshots" / "made")
        (directory / "snapshots" / "made").rename(directory / "snapshots" / f"1-{state.covered_offset}")
        expected = await table.all_rows()
        if not log_is_whole:
            await storage.bucket(table.bucket()).remove_before(state.covered_offset)
    shared = max((directory / "kv").glob("*.sst"), key=lambda path: path.stat().st_size)
    assert shared.stat().st_nlink > 1
    data = bytearray(shared.read_bytes())
    data[20] ^= 1
    with shared.open("r+b") as file:
        file.write(data)
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        with pytest.raises(FlussError, match="checksum") as found:
            await table.all_rows()
        assert found.value.is_retriable
        if log_is_whole:
            assert await table.all_rows() == expected
        else:
            with pytest.raises(FlussError, match=rf"{shared.name}: damaged at byte") as found:
                await table.all_rows()
            assert not found.value.is_retriable


async def test_damage_is_mended_from_a_snapshot_when_the_log_begins_later(tmp_path: Path) -> None:
    offsets = []
    async with opened(tmp_path / "data", segment_size_bytes=4_000) as storage:
        table = await Table.create(storage)
        for number in range(30):
            await table.kv().put(table.batch([row(key, f"{number}") for key in range(number, number + 40)])).applied
            if number in (12, 20):
                directory = storage.bucket_path(table.bucket())
                (directory / "snapshots").mkdir(exist_ok=True)
                made = directory / "snapshots" / "made"
                state = await table.kv().checkpoint(made)
                made.rename(made.with_name(f"{number}-{state.covered_offset}"))
                offsets.append(state.covered_offset)
        expected = await table.all_rows()
        await storage.bucket(table.bucket()).remove_before(offsets[0])
        assert 0 < storage.bucket(table.bucket()).log_start_offset <= offsets[0]
    for file in (directory / "kv").iterdir():
        file.unlink()
    (directory / "kv" / "stray").touch()
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        assert await table.all_rows() == expected
        assert await table.kv().row_count() == len(expected)


async def test_a_bucket_that_cannot_be_rebuilt_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", segment_size_bytes=1_000) as storage:
        table = await Table.create(storage)
        for number in range(20):
            await table.kv().put(table.batch([row(number, "x" * 100)])).applied
        await storage.bucket(table.bucket()).remove_before(15)
        directory = storage.bucket_path(table.bucket())
    (directory / "kv" / "CURRENT").unlink()
    before = sorted(path.name for path in (directory / "kv").iterdir())
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        for _ in range(2):
            with pytest.raises(FlussError, match="can't be rebuilt"):
                await table.get(1)
            with pytest.raises(FlussError, match="can't be rebuilt"):
                await table.kv().put(table.batch([row(1)])).applied
        assert sorted(path.name for path in (directory / "kv").iterdir()) == before
        other = await Table.create(storage, name="other")
        await other.kv().put(other.batch([row(1)])).applied


async def test_nothing_of_a_failed_sync_reaches_the_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "safe")])).applied
        failpoints.arm("segment.commit.before_sync:1:eio")
        puts = [table.kv().put(table.batch([row(1, str(number)), row(number)])) for number in range(2, 12)]
        for put in puts:
            assert await code_of(put.applied) == ErrorCode.LOG_STORAGE_EXCEPTION
        # The log is read-only; what was there can be read.
        assert await code_of(table.kv().put(table.batch([row(5)])).appended) == ErrorCode.LOG_STORAGE_EXCEPTION
        assert await table.all_rows() == [row(1, "safe")]
        assert not table.kv()._unapplied
        assert table.kv()._queued_bytes == 0
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        assert await table.all_rows() == by_id(fold(table.changelog()).values()) == [row(1, "safe")]
        await table.kv().put(table.batch([row(1, "after")])).applied
        assert await table.get(1) == row(1, "after")


@pytest.mark.parametrize("step", ["before_write", "torn_write"])
async def test_a_failed_append_fails_its_put_alone(tmp_path: Path, step: str) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "a")])).applied
        failpoints.arm(f"segment.append.{step}:1:enospc")
        first = table.kv().put(table.batch([row(1, "lost")]))
        second = table.kv().put(table.batch([row(1, "b")]))
        assert await code_of(first.applied) == ErrorCode.LOG_STORAGE_EXCEPTION
        await second.applied
        assert table.changelog() == [("+I", row(1, "a")), ("-U", row(1, "a")), ("+U", row(1, "b"))]


@pytest.mark.parametrize(
    "point", ["kv.create.before_create", "kv.create.after_create", "kv.create.before_sync_directory"]
)
async def test_a_store_that_can_not_be_made(tmp_path: Path, point: str) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        failpoints.arm(f"{point}:1:enospc")
        put = table.kv().put(table.batch([row(1, "a")], writer_id=1, sequence=0))
        assert await code_of(put.applied) == ErrorCode.KV_STORAGE_EXCEPTION
        assert storage.bucket(table.bucket()).log_end_offset == 0
        await table.kv().put(table.batch([row(1, "a")], writer_id=1, sequence=0)).applied
        assert await table.get(1) == row(1, "a")


async def test_dropped_in_the_middle(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        kv = table.kv()
        await kv.put(table.batch([row(number) for number in range(1_000)])).applied
        scan = await kv.open_scan()
        directory = storage.bucket_path(table.bucket())
        dropping = asyncio.ensure_future(storage.catalog.drop_table(T))
        # Some are under way whenever the drop comes.
        puts = [kv.put(table.batch([row(key, "x") for key in range(200)])) for _ in range(20)]
        while not puts[-1].applied.done() or not puts[-1].applied.exception():
            puts.append(kv.put(table.batch([row(key, str(len(puts))) for key in range(200)])))
            await asyncio.wait([puts[-10].applied])
        reads = [asyncio.ensure_future(kv.get_many([table.key(1)])) for _ in range(5)]
        await dropping
        done = await asyncio.gather(*(put.applied for put in puts), return_exceptions=True)
        codes = {result.error_code for result in done if isinstance(result, FlussError)}
        assert codes == {ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION}
        assert all(isinstance(result, (int, FlussError)) for result in done)
        await asyncio.gather(*reads, return_exceptions=True)
        assert await code_of(kv.put(table.batch([row(1)])).applied) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        for call in (kv.get_many([b"x"]), kv.row_count(), kv.open_scan(), scan.read(10, 10)):
            with pytest.raises(FlussError):
                await call
        with pytest.raises(FlussError):
            storage.kv.bucket(table.bucket())
        await removed(storage, directory)
        assert len(storage.kv.pool) == 0
        again = await Table.create(storage)
        await again.kv().put(again.batch([row(1)])).applied
        assert await again.all_rows() == [row(1)]


async def removed(storage: Storage, directory: Path) -> None:
    while storage._removals:
        await asyncio.wait(storage._removals.values(), timeout=WAIT_S)
    assert not directory.exists()


async def test_dropped_while_its_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is replayed in hundreds of parts, so that the drop comes in between."""
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        for put in [table.kv().put(table.batch([row(number)])) for number in range(1_000)]:
            await put.applied
        image = crash_image(tmp_path / "data", "image")
    monkeypatch.setattr("fluss.storage.kv.engine.CHUNK_BYTES", 1)
    async with opened(image) as storage:
        table = Table(storage, T)
        put = table.kv().put(table.batch([row(1)]))
        while not len(storage.kv.pool):
            await asyncio.sleep(0)
        await storage.catalog.drop_table(T)
        assert await code_of(put.applied) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        await removed(storage, storage.bucket_path(table.bucket()))


async def test_durability_os(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", durability="os") as storage:
        table = await Table.create(storage)
        for number in range(10):
            await table.kv().put(table.batch([row(1, str(number)), row(number + 5)])).applied
            assert await table.get(1) == row(1, str(number))
        image = crash_image(tmp_path / "data", "image")
        expected = await table.all_rows()
    async with opened(image, durability="os") as storage:
        assert await Table(storage, T).all_rows() == expected


async def _with_a_shorter_log(tmp_path: Path, durability: str) -> Path:
    """A killed server's directory whose log has lost its last batch and its checkpoints; the store has all."""
    async with opened(tmp_path / "data", durability=durability) as storage:
        table = await Table.create(storage)
        await table.kv().put(table.batch([row(1, "kept")])).applied
        size_bytes = next(storage.bucket_path(table.bucket()).glob("*.log")).stat().st_size
        await table.kv().put(table.batch([row(1, "lost"), row(2, "lost")])).applied
        await storage.kv.pool.close()
        image = crash_image(tmp_path / "data", "killed")
        directory = image / storage.bucket_path(table.bucket()).relative_to(tmp_path / "data")
    log = next(directory.glob("*.log"))
    log.write_bytes(log.read_bytes()[:size_bytes])
    return image


async def test_a_store_ahead_of_a_log_that_lost_its_end_in_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With durability "os" that may be: the store is made again from what the log has."""
    image = await _with_a_shorter_log(tmp_path, "os")
    monkeypatch.setattr(files, "boot_id", lambda: b"another")
    async with opened(image, durability="os") as storage:
        assert await Table(storage, T).all_rows() == [row(1, "kept")]


@pytest.mark.parametrize("has_mark", [True, False])
async def test_a_store_ahead_of_its_log_stops_the_bucket(tmp_path: Path, has_mark: bool) -> None:
    """The log was on disk, so it lost rows: nothing is changed, and nobody reads the older ones as if they were new."""
    image = await _with_a_shorter_log(tmp_path, "fsync")
    if not has_mark:
        (image / "marks").unlink()
    kept = [*image.glob("tables/*/*/*.log"), *image.glob("tables/*/*/kv/*.sst")]
    before = [path.read_bytes() for path in kept]
    async with opened(image) as storage:
        table = Table(storage, T)
        if not has_mark:
            with pytest.raises(FlussError, match="the log has lost rows"):
                await table.all_rows()
        with pytest.raises(FlussError, match=r"fluss repair"):
            await table.kv().put(table.batch([row(3, "new")])).applied
    assert [path.read_bytes() for path in kept] == before


async def test_more_buckets_than_open_stores_and_logs(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    buckets = 6
    async with opened(tmp_path / "data", open_stores_max=2, open_logs_max=2) as storage:
        table = await Table.create(storage, bucket_count=buckets)
        models: list[dict[int, Row]] = [{} for _ in range(buckets)]

        async def work() -> None:
            for turn in range(25):
                bucket = chance.randrange(buckets)
                rows = [row(chance.randrange(30), f"{turn}") for _ in range(5)]
                deletes = [chance.randrange(30)]
                kv = table.kv(bucket)
                put = kv.put(table.batch(rows, deletes))
                models[bucket].update({kept["id"]: kept for kept in rows})
                models[bucket].pop(deletes[0], None)
                await (put.applied if turn % 3 else put.appended)
                await kv.get_many([table.key(1)])

        await asyncio.gather(*(work() for _ in range(4)))
        for bucket in range(buckets):
            await table.kv(bucket).settle()
            assert await table.all_rows(bucket) == by_id(models[bucket].values())
            assert by_id(fold(table.changelog(bucket)).values()) == by_id(models[bucket].values())
        while storage.kv.pool._closings:
            await asyncio.wait(storage.kv.pool._closings)
        assert len(storage.kv.pool) <= 2
    async with opened(tmp_path / "data") as storage:
        table = Table(storage, T)
        for bucket in range(buckets):
            assert await table.all_rows(bucket) == by_id(models[bucket].values())
