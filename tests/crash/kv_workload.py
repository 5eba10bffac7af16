"""A store that is fed from a log, as the server does it: the log is synced, then the store is written.

The log is a file of batch numbers, and a batch is made from the seed and its number, so a test can tell what the rows
must be at any offset. Run as `python -m tests.crash.kv_workload <directory> <seed> <batches>`.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fluss.storage.kv.recovery import Recovery
from fluss.storage.kv.rocks import WRITE_ROWS_MAX, open_store
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.store import MEMORY_BYTES_MIN, KvState, KvStore

READY = "ready"
KEYS = 6_000
ROWS_MAX = 200
# Some batches are written in parts.
LARGE_SHARE = 0.02
LARGE_ROWS = WRITE_ROWS_MAX + 500
VALUE_BYTES_MAX = 400
CHECKPOINT_SHARE = 0.04
FLUSH_SHARE = 0.02

_NUMBER = struct.Struct("<q")


@dataclass
class Batch:
    puts: dict[bytes, bytes]
    deletes: list[bytes]


def batch(seed: int, number: int) -> Batch:
    chance = random.Random(f"{seed}/{number}")
    count = LARGE_ROWS if chance.random() < LARGE_SHARE else chance.randrange(ROWS_MAX)
    keys = [b"key-%d" % key for key in chance.sample(range(KEYS), count)]
    cut = chance.randrange(count + 1) if chance.random() < 0.5 else count
    puts = {key: b"%d:" % number + key * chance.randrange(VALUE_BYTES_MAX // len(key)) for key in keys[:cut]}
    return Batch(puts, keys[cut:])


@dataclass
class Truth:
    """The rows as of an offset."""

    seed: int
    offset: int = 0
    rows: dict[bytes, bytes] = field(default_factory=dict)

    def advance(self) -> Batch:
        made = batch(self.seed, self.offset)
        self.rows.update(made.puts)
        for key in made.deletes:
            self.rows.pop(key, None)
        self.offset += 1
        return made

    def advance_to(self, offset: int) -> None:
        while self.offset < offset:
            self.advance()

    @property
    def state(self) -> KvState:
        return KvState(self.offset, len(self.rows))


class Bucket:
    """The files of one bucket: `log`, `log_start`, `kv`, and two checkpoints."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory / "tables" / "1" / "0"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.path = self.directory / "kv"
        self.truth = Truth(seed)
        self.reasons: list[str] = []  # why the last recovery did not take what it found first
        self._resources = Resources(MEMORY_BYTES_MIN)
        self._open = partial(open_store, resources=self._resources)

    @property
    def log_end(self) -> int:
        log = self.directory / "log"
        return log.stat().st_size // _NUMBER.size if log.exists() else 0

    @property
    def log_start(self) -> int:
        data = (self.directory / "log_start").read_bytes() if (self.directory / "log_start").exists() else b""
        return _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else 0

    @property
    def checkpoints(self) -> list[Path]:
        """Newest first."""
        names = (path for path in self.directory.glob("checkpoint-*") if path.suffix != ".tmp")
        return sorted(names, key=lambda path: int(path.name.split("-")[1]), reverse=True)

    def recover(self, *, trust_live: bool = True, log_may_lack_rows: bool = False) -> KvStore:
        recovery = Recovery(self.path, self.log_start, self.log_end, self._open, log_may_lack_rows=log_may_lack_rows)
        self.reasons = recovery.reasons
        return recovery.run(self.checkpoints, trust_live=trust_live)

    def replay(self, store: KvStore) -> None:
        """Bring the store, and the truth, to the end of the log."""
        self.truth = Truth(self.truth.seed)
        self.truth.advance_to(store.state.covered_offset)
        while self.truth.offset < self.log_end:
            self._apply(store, self.truth.advance())

    def _apply(self, store: KvStore, made: Batch) -> None:
        store.write(list(made.puts), list(made.puts.values()), made.deletes, self.truth.state)

    def run(self, batches: int) -> None:
        """Log and write; flush and make checkpoints now and then."""
        store = self.recover()
        self.replay(store)
        chance = random.Random(f"{self.truth.seed}/{self.truth.offset}/steps")
        print(READY, flush=True)
        log = os.open(self.directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.fsync(log)
        _sync_directory(self.directory)
        for _ in range(batches):
            made = self.truth.advance()
            os.write(log, _NUMBER.pack(self.truth.offset))
            os.fdatasync(log)
            self._apply(store, made)
            what = chance.random()
            if what < CHECKPOINT_SHARE:
                self.checkpoint(store)
            elif what < CHECKPOINT_SHARE + FLUSH_SHARE:
                store.flush()
        os.close(log)
        store.close()

    def run_one(self, store: KvStore) -> None:
        """Log and write one batch."""
        made = self.truth.advance()
        with (self.directory / "log").open("ab") as log:
            log.write(_NUMBER.pack(self.truth.offset))
        self._apply(store, made)

    def checkpoint(self, store: KvStore) -> None:
        """Make one, let the log begin at the one before, remove those before that."""
        older = self.checkpoints
        path = self.directory / f"checkpoint-{self.truth.offset}"
        if path.exists():
            return
        assert store.checkpoint(path) == self.truth.state
        if older:
            offset = int(older[0].name.split("-")[1])
            temporary = self.directory / "log_start.tmp"
            with temporary.open("wb") as file:
                file.write(_NUMBER.pack(offset))
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.directory / "log_start")
            _sync_directory(self.directory)
        for path in older[1:]:
            remove(path)


def remove(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def rows_of(store: KvStore) -> dict[bytes, bytes]:
    snapshot = store.snapshot()
    rows: dict[bytes, bytes] = {}
    while True:
        page = snapshot.read(rows_max=1_000)
        rows.update(zip(page.keys, page.values, strict=True))
        if page.next_key is None:
            snapshot.close()
            return rows


def check_recovered(bucket: Bucket, store: KvStore) -> None:
    """The rows are those of the covered offset, or have a part of the next batch more; replay makes them exact."""
    offset = store.state.covered_offset
    assert bucket.log_start <= offset <= bucket.log_end
    truth = Truth(bucket.truth.seed)
    truth.advance_to(offset)
    assert store.state == truth.state
    found = rows_of(store)
    differing = {key for key in found.keys() | truth.rows.keys() if found.get(key) != truth.rows.get(key)}
    if differing:
        assert offset < bucket.log_end, "rows that are not in the log"
        coming = batch(truth.seed, offset)
        assert len(coming.puts) + len(coming.deletes) > WRITE_ROWS_MAX, "a batch of one part was torn"
        truth.advance()
        assert all(found.get(key) == truth.rows.get(key) for key in differing)
    bucket.replay(store)
    assert store.state == bucket.truth.state
    assert rows_of(store) == bucket.truth.rows


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


if __name__ == "__main__":
    Bucket(Path(sys.argv[1]), int(sys.argv[2])).run(int(sys.argv[3]))
