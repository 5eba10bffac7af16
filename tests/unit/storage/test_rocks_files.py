"""Tables and manifests of RocksDB, checked without RocksDB: what it writes is good, and each changed byte is seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.storage.kv import rocks_settings
from fluss.storage.kv.rocks import RocksStore, open_store
from fluss.storage.kv.rocks_files import (
    CURRENT_NAME,
    TABLE_FORMAT_VERSION,
    DamagedRocksFileError,
    StoreManifest,
    UnknownEditError,
    check_table,
    manifest_name,
    table_name,
)
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.store import KvState
from tests.kit.storage.kv_tables import KV_MEMORY_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    opened = open_store(tmp_path / "kv", Resources(KV_MEMORY_BYTES))
    try:
        yield opened
    finally:
        opened.close()


def fill(store: RocksStore, chance: random.Random, rows: int = 2_000) -> None:
    keys = list({chance.randbytes(chance.randint(1, 30)) for _ in range(rows)})
    values = [chance.randbytes(chance.randint(0, 300)) for _ in keys]
    store.write(keys, values, [], KvState(store.state.covered_offset + 1, 0))
    store.flush()


def read_manifest(directory: Path) -> bytes:
    return (directory / manifest_name((directory / CURRENT_NAME).read_bytes())).read_bytes()


def check(data: bytes) -> None:
    check_table(lambda size_bytes, position: data[position : position + size_bytes], len(data))


def test_what_rocksdb_writes_is_good(store: RocksStore, tmp_path: Path) -> None:
    chance = random.Random(1)
    for _ in range(6):  # so often that tables are merged
        fill(store, chance)
    store.checkpoint(tmp_path / "checkpoint")
    store._rows.compact_range(None, None)
    for directory in (store.path, tmp_path / "checkpoint"):
        manifest = StoreManifest(read_manifest(directory))
        sizes = {path.name: path.stat().st_size for path in directory.glob("*.sst")}
        assert {table_name(number): size for number, size in manifest.tables.items()} == sizes
        assert manifest.cut_at is None
        for name in sizes:
            check((directory / name).read_bytes())
    assert rocks_settings.TABLE_FORMAT_VERSION == TABLE_FORMAT_VERSION


def test_each_changed_byte_of_a_small_table_is_seen(store: RocksStore) -> None:
    fill(store, random.Random(2), rows=5)
    for path in store.path.glob("*.sst"):
        good = path.read_bytes()
        check(good)
        for position in range(len(good)):
            with pytest.raises(DamagedRocksFileError):
                check(good[:position] + bytes([good[position] ^ 0x04]) + good[position + 1 :])
        for size_bytes in range(0, len(good), 7):
            with pytest.raises(DamagedRocksFileError):
                check(good[:size_bytes])


def test_changed_bytes_of_a_large_table_are_seen(store: RocksStore) -> None:
    chance = random.Random(3)
    fill(store, chance)
    good = max((path.read_bytes() for path in store.path.glob("*.sst")), key=len)
    for position in chance.sample(range(len(good)), 100):
        with pytest.raises(DamagedRocksFileError):
            check(good[:position] + bytes([good[position] ^ 0x80]) + good[position + 1 :])


def test_each_changed_byte_of_a_manifest_is_seen(store: RocksStore) -> None:
    chance = random.Random(4)
    for _ in range(3):
        fill(store, chance, rows=50)
    good = read_manifest(store.path)
    for position in range(len(good)):
        changed = good[:position] + bytes([good[position] ^ 0x04]) + good[position + 1 :]
        try:
            # A record that seems longer than the file looks like one that is being written.
            assert StoreManifest(changed).cut_at is not None
        except DamagedRocksFileError:
            pass


def test_a_manifest_that_is_being_written_tells_what_it_has_so_far(store: RocksStore) -> None:
    fill(store, random.Random(5), rows=50)
    good = read_manifest(store.path)
    tables = StoreManifest(good).tables
    seen = [StoreManifest(good[:size_bytes]).tables for size_bytes in range(len(good))]
    assert all(found.items() <= tables.items() for found in seen)
    assert {} in seen


def test_what_a_later_rocksdb_may_write_is_no_damage() -> None:
    from fluss.formats.batches.log_batch import crc32c
    from fluss.storage.kv.rocks_files import masked_crc

    content = b"\x8f\x03"  # a tag of its own
    crc = masked_crc(crc32c(b"\x01" + content))
    with pytest.raises(UnknownEditError):
        StoreManifest(crc.to_bytes(4, "little") + len(content).to_bytes(2, "little") + b"\x01" + content)


@pytest.mark.parametrize(
    "content", [b"", b"MANIFEST-000005", b"MANIFEST-\n", b"../MANIFEST-1\n", b"MANIFEST-1/2\n", b"\xff\n"]
)
def test_a_current_file_that_names_no_manifest(content: bytes) -> None:
    with pytest.raises(DamagedRocksFileError):
        manifest_name(content)
