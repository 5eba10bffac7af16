"""The store of a bucket's rows."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.storage.kv import rocks
from fluss.storage.kv.rocks import WRITE_ROWS_MAX, RocksStore, open_store
from fluss.storage.kv.rocks_settings import SMALL_FILE_BYTES_MAX, SMALL_FILES_MAX, Resources
from fluss.storage.kv.store import (
    EMPTY,
    MEMORY_BYTES_MIN,
    DamagedKvStoreError,
    KvState,
    KvStore,
    KvStoreBusyError,
    KvStoreError,
)

MIB = 1 << 20


@pytest.fixture(scope="module")
def resources() -> Resources:
    return Resources(MEMORY_BYTES_MIN)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    bucket = tmp_path / "tables" / "7" / "0"
    bucket.mkdir(parents=True)
    return bucket / "kv"


@pytest.fixture
def store(path: Path, resources: Resources) -> Iterator[RocksStore]:
    opened = open_store(path, resources)
    yield opened
    opened.close()


def put(store: KvStore, rows: dict[bytes, bytes], state: KvState) -> None:
    store.write(list(rows), list(rows.values()), [], state)


def numbered(count: int, value: bytes = b"value") -> dict[bytes, bytes]:
    return {b"%06d" % number: value for number in range(count)}


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_rows_and_state(store: RocksStore) -> None:
    assert store.state == EMPTY
    store.write([b"a", b"b", b""], [b"1", b"", b"no key"], [], KvState(3, 3))
    assert store.get_many([b"b", b"x", b"a", b"", b"a"]) == [b"", None, b"1", b"no key", b"1"]
    store.write([b"a"], [b"2"], [b"b", b"was never there"], KvState(5, 2))
    assert store.get_many([b"a", b"b"]) == [b"2", None]
    assert store.get_many([]) == []
    assert store.state == KvState(5, 2)
    store.write([], [], [], KvState(6, 2))
    assert store.state == KvState(6, 2)


def test_what_was_written_is_there_after_closing(path: Path, resources: Resources) -> None:
    store = open_store(path, resources)
    put(store, numbered(1_000), KvState(1_000, 1_000))
    store.close()
    store = open_store(path, resources)
    assert store.state == KvState(1_000, 1_000)
    assert store.get_many([b"000999"]) == [b"value"]
    store.close()


@pytest.mark.parametrize("deletes", [0, 10, WRITE_ROWS_MAX + 1])
@pytest.mark.parametrize("puts", [0, WRITE_ROWS_MAX, 3 * WRITE_ROWS_MAX + 7])
def test_large_batches_are_written_whole(store: RocksStore, puts: int, deletes: int) -> None:
    gone = {b"gone" + key: b"" for key in numbered(deletes)}
    put(store, gone, KvState(1, deletes))
    store.write(list(numbered(puts)), list(numbered(puts).values()), list(gone), KvState(2, puts))
    page = store.scan(rows_max=100_000)
    assert page.keys == list(numbered(puts))
    assert store.state == KvState(2, puts)


def test_scan_by_prefix_and_page(store: RocksStore) -> None:
    keys = [b"a", b"a\x00", b"ab", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff\x01"]
    put(store, {key: key * 2 for key in keys}, KvState(8, 8))
    assert store.scan().keys == sorted(keys)
    for prefix in (b"", b"a", b"ab", b"a\xff", b"\xff", b"\xff\xff", b"c"):
        expected = sorted(key for key in keys if key.startswith(prefix))
        found: list[bytes] = []
        from_key: bytes | None = None
        while True:
            page = store.scan(prefix, from_key, rows_max=1)
            assert page.values == [key * 2 for key in page.keys]
            found += page.keys
            from_key = page.next_key
            if from_key is None:
                break
        assert found == expected
    assert store.scan(b"a", from_key=b"", rows_max=2).keys == [b"a", b"a\x00"]
    assert store.scan(b"a", from_key=b"b").keys == []


def test_pages_are_limited_by_bytes_but_have_a_row(store: RocksStore) -> None:
    put(store, numbered(10, b"x" * 1_000), KvState(1, 10))
    assert len(store.scan(size_bytes_max=3_000).keys) == 3
    assert len(store.scan(size_bytes_max=1).keys) == 1


def test_a_snapshot_stays_as_it_was(store: RocksStore) -> None:
    put(store, numbered(100), KvState(100, 100))
    snapshot = store.snapshot()
    first = snapshot.read(rows_max=10)
    store.write([b"new", b"000050"], [b"", b"changed"], list(numbered(30)), KvState(132, 71))
    store.flush()
    assert snapshot.state == KvState(100, 100)
    rest = snapshot.read()
    assert first.keys + rest.keys == list(numbered(100))
    assert set(first.values + rest.values) == {b"value"}
    assert rest.next_key is None
    assert snapshot.read().keys == []
    assert len(store.scan().keys) == 71


def test_a_snapshot_ends_with_its_store(path: Path, resources: Resources) -> None:
    store = open_store(path, resources)
    snapshot = store.snapshot()
    store.close()
    with pytest.raises(KvStoreError, match="tables/7/0/kv: the snapshot is closed"):
        snapshot.read()
    open_store(path, resources).close()


def test_snapshots_beside_writes_hold_whole_batches(store: RocksStore) -> None:
    """Every batch sets all keys to its number, so a snapshot has one number only, that of its state."""
    keys = list(numbered(2 * WRITE_ROWS_MAX))
    store.write(keys, [b"0"] * len(keys), [], KvState(0, len(keys)))

    def write() -> None:
        for number in range(1, 20):
            store.write(keys, [b"%d" % number] * len(keys), [], KvState(number, len(keys)))

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        snapshot = store.snapshot()
        page = snapshot.read(rows_max=100_000)
        assert len(page.keys) == len(keys)
        assert set(page.values) == {b"%d" % snapshot.state.covered_offset}
        snapshot.close()
    writer.join()


def test_a_checkpoint_is_a_store_of_its_own(store: RocksStore, path: Path, resources: Resources) -> None:
    put(store, numbered(1_000), KvState(10, 1_000))
    directory = path.with_name("checkpoint")
    assert store.checkpoint(directory) == KvState(10, 1_000)
    store.write([], [], list(numbered(1_000)), KvState(20, 0))
    linked = {file.name for file in directory.glob("*.sst")}
    assert linked
    assert all((directory / name).stat().st_nlink > 1 for name in linked)
    checkpoint = open_store(directory, resources)
    assert checkpoint.state == KvState(10, 1_000)
    assert checkpoint.scan().keys == list(numbered(1_000))
    checkpoint.close()
    for file in directory.iterdir():
        file.unlink()
    store.flush()
    assert store.scan().keys == []


def test_a_checkpoint_is_not_made_over_something(store: RocksStore, path: Path) -> None:
    directory = path.with_name("checkpoint")
    directory.mkdir()
    with pytest.raises(KvStoreError, match=r"tables/7/0/kv: .*exists"):
        store.checkpoint(directory)
    put(store, numbered(1), KvState(1, 1))


def test_files_are_what_old_rocksdb_reads(store: RocksStore, path: Path) -> None:
    """Format version 5 and CRC32c, as the footer of a file says it; Java's RocksDB 6.20 knows no newer."""
    put(store, numbered(10), KvState(1, 10))
    store.flush()
    for file in path.glob("*.sst"):
        footer = file.read_bytes()[-53:]
        assert footer[0] == 1  # CRC32c
        assert int.from_bytes(footer[41:45], "little") == 5
        assert footer[45:] == bytes.fromhex("f7cff485b741e288")


def test_size(store: RocksStore) -> None:
    put(store, {b"%d" % key: os.urandom(1_000) for key in range(1_000)}, KvState(1, 1_000))
    store.flush()
    assert 1_000_000 < store.size_bytes() < 1_200_000


def test_flush_leaves_nothing_to_lose(store: RocksStore, path: Path, tmp_path: Path, resources: Resources) -> None:
    put(store, numbered(500), KvState(7, 500))
    store.flush()
    copy = tmp_path / "tables" / "copy"
    copy.mkdir()
    for file in path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    other = open_store(copy, resources)
    assert other.state == KvState(7, 500)
    assert len(other.scan().keys) == 500
    other.close()


@pytest.mark.parametrize("left", ["000009.sst", "LOG", "anything"])
def test_files_without_a_database_are_not_taken_for_an_empty_one(path: Path, resources: Resources, left: str) -> None:
    path.mkdir()
    (path / left).write_bytes(b"x")
    with pytest.raises(DamagedKvStoreError, match="tables/7/0/kv: the store has files but no CURRENT"):
        open_store(path, resources)
    assert names(path) == {left}


def test_rows_without_a_state_are_refused(path: Path, resources: Resources) -> None:
    store = open_store(path, resources)
    put(store, numbered(5), KvState(5, 5))
    store._meta.delete(rocks.STATE_KEY)
    store.close()
    with pytest.raises(DamagedKvStoreError, match="tables/7/0/kv: the store has rows but no offset"):
        open_store(path, resources)


def test_a_newer_store_is_refused(path: Path, resources: Resources) -> None:
    store = open_store(path, resources)
    store._meta.put(rocks.STATE_KEY, bytes([rocks._STATE_VERSION + 1]) + b"?" * 40)
    store.close()
    with pytest.raises(KvStoreError, match="Upgrade flussbett"):
        open_store(path, resources)
    with pytest.raises(KvStoreError, match="Upgrade flussbett"):
        open_store(path, resources)


def test_a_store_is_opened_once(store: RocksStore, path: Path, resources: Resources) -> None:
    with pytest.raises(KvStoreError, match=r"tables/7/0/kv: .*lock") as raised:
        open_store(path, resources)
    assert str(path) not in raised.value.message
    assert not isinstance(raised.value, DamagedKvStoreError)


def test_a_write_waits_for_a_stalled_store_only_so_long(store: RocksStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "STALL_WAIT_S_MAX", 0.05)
    limits = ("level0_slowdown_writes_trigger", "level0_stop_writes_trigger")
    store._rows.set_options({"level0_file_num_compaction_trigger": "9", **dict.fromkeys(limits, "1")})
    put(store, numbered(1), KvState(1, 1))
    store.flush()
    with pytest.raises(KvStoreBusyError, match="tables/7/0/kv: the store could not take a batch") as raised:
        put(store, numbered(2), KvState(2, 2))
    assert raised.value.is_retriable
    assert store.state == KvState(1, 1)
    assert store.get_many([b"000000", b"000001"]) == [b"value", None]
    store._rows.set_options(dict.fromkeys(limits, "20"))
    put(store, numbered(2), KvState(2, 2))
    assert store.get_many([b"000001"]) == [b"value"]


def file_count(directory: Path) -> int:
    return len(list(directory.glob("*.sst")))


@pytest.mark.parametrize("rising", [True, False])
def test_files_of_many_small_checkpoints_are_merged(path: Path, store: RocksStore, rising: bool) -> None:
    order = list(range(300))
    if not rising:
        random.Random(1).shuffle(order)
    most = 0
    for number in range(0, 300, 3):
        rows = {b"%06d" % key: b"value %d" % key for key in order[number : number + 3]}
        put(store, rows, KvState(number + 3, number + 3))
        checkpoint = path.with_name(f"checkpoint-{number}")
        store.checkpoint(checkpoint)
        most = max(most, file_count(checkpoint))
    assert most <= SMALL_FILES_MAX + 8  # the last level, what is on its way there, and the state
    assert store.scan().keys == [b"%06d" % key for key in range(300)]


def test_a_merge_leaves_large_files_and_earlier_checkpoints_alone(path: Path, store: RocksStore) -> None:
    put(store, {b"a%03d" % key: os.urandom(64 << 10) for key in range(100)}, KvState(1, 100))
    store.checkpoint(path.with_name("first"))
    large = {file.name for file in path.glob("*.sst") if file.stat().st_size >= SMALL_FILE_BYTES_MAX}
    assert large
    before = {file.name: file.read_bytes() for file in path.with_name("first").glob("*.sst")}
    for number in range(60):
        put(store, {b"b%06d" % number: b"value"}, KvState(number + 2, number + 101))
        store.checkpoint(path.with_name(f"checkpoint-{number}"))
    assert large <= {file.name for file in path.glob("*.sst")}
    assert {file.name: file.read_bytes() for file in path.with_name("first").glob("*.sst")} == before
    assert len(store.scan(size_bytes_max=1 << 30).keys) == 160


def test_a_checkpoint_without_changes_makes_no_file(path: Path, store: RocksStore) -> None:
    put(store, numbered(10), KvState(10, 10))
    store.checkpoint(path.with_name("first"))
    names = {file.name for file in path.glob("*.sst")}
    store.checkpoint(path.with_name("second"))
    assert {file.name for file in path.glob("*.sst")} == names


_FULL_DISK = """
import sys
from pathlib import Path
from tests.unit.storage.test_rocks import fill
fill(Path(sys.argv[1]))
"""


def fill(path: Path) -> None:
    """Run in a process whose files can't grow beyond 1 MiB: the store says so, reads go on, nothing wrong is kept."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
    store = open_store(path, Resources(MEMORY_BYTES_MIN))
    keys = [b"%d" % key for key in range(500)]
    error: FlussError | None = None
    for number in range(1, 100):
        try:
            rows = {key + b"/%d" % number: os.urandom(1_000) for key in keys}
            put(store, rows, KvState(number, 500 * number))
            store.flush()
        except FlussError as raised:
            error = raised
            break
    assert error is not None, "no error"
    assert error.error_code == ErrorCode.KV_STORAGE_EXCEPTION
    assert "tables/7/0/kv" in error.message
    with pytest.raises(KvStoreError, match="File too large"):
        put(store, rows, KvState(number, 500 * number))
    with pytest.raises(KvStoreError, match="tables/7/0/kv"):
        store.checkpoint(path.with_name("checkpoint"))
    assert not path.with_name("checkpoint").exists()
    assert store.get_many([b"0/1", b"0/99"])[1] is None
    store.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store = open_store(path, Resources(MEMORY_BYTES_MIN))
    whole = store.state.covered_offset
    assert 0 < whole <= number
    assert len(store.scan(rows_max=100_000, size_bytes_max=1 << 30).keys) == 500 * whole
    put(store, rows, KvState(number + 1, 500 * number))
    store.flush()
    store.close()


def test_a_full_disk(path: Path) -> None:
    command = [sys.executable, "-c", _FULL_DISK, str(path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


_FEW_DESCRIPTORS = """
import sys
from pathlib import Path
from tests.unit.storage.test_rocks import open_with_few_descriptors
open_with_few_descriptors(Path(sys.argv[1]))
"""


def open_with_few_descriptors(path: Path) -> None:
    """Run in a process of its own: a store is opened with any number of descriptors, and never taken for damaged."""
    store = open_store(path, Resources(MEMORY_BYTES_MIN))
    for number in range(10):
        put(store, {b"%d" % number: b"value"}, KvState(number + 1, number + 1))
        store.checkpoint(path.with_name(f"checkpoint-{number}"))
    store.close()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    refused = 0
    for limit in range(used - 2, used + 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            with closing(open_store(path, Resources(MEMORY_BYTES_MIN))) as store:
                store.scan()
        except DamagedKvStoreError as error:
            raise AssertionError("a good store counts as damaged") from error
        except (KvStoreError, OSError):
            refused += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert refused, "no limit was too low"
    store = open_store(path, Resources(MEMORY_BYTES_MIN))
    assert store.state == KvState(10, 10)
    assert len(store.scan().keys) == 10
    store.close()


def test_a_store_that_gets_no_descriptors_is_not_damaged(path: Path) -> None:
    command = [sys.executable, "-c", _FEW_DESCRIPTORS, str(path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_memory_stays_within_the_budget_of_all_stores(tmp_path: Path) -> None:
    resources = Resources(16 * MIB)
    stores = []
    for number in range(4):
        (tmp_path / "tables" / str(number)).mkdir(parents=True)
        stores.append(open_store(tmp_path / "tables" / str(number) / "kv", resources))
    chance = random.Random(1)
    rows = [chance.randbytes(1_000) for _ in range(1_000)]
    for offset in range(1, 60):
        store = chance.choice(stores)
        store.write([b"%d" % chance.randrange(100_000) for _ in rows], rows, [], KvState(offset, 0))
        assert resources.memtables_bytes < 16 * MIB
        assert resources.cache.get_usage() < 20 * MIB
    for store in stores:
        store.close()


def test_a_block_with_a_large_row_is_kept(path: Path) -> None:
    """Small rows lie in it, too."""
    resources = Resources(64 * MIB)
    store = RocksStore(path, resources)
    store.write([b"a", b"b"], [b"small", bytes(8 * MIB)], [], KvState(2, 2))
    store.flush()
    before = resources.cache.get_usage()
    assert store.get_many([b"a"]) == [b"small"]
    assert resources.cache.get_usage() - before > 8 * MIB
    store.close()


def test_a_budget_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        Resources(1)
