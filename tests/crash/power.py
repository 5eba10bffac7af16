"""Power loss, played: what was not synced vanishes, is torn, or reaches the disk in another order.

`PowerSupply` takes the place of the file layer's two sync calls and remembers what each makes durable: the bytes of a
file, the names in a directory. Writes since the last sync are known one by one, so that each can be lost, torn, or
there without an earlier one; a name that was made, renamed or removed since its directory was synced is as before or as
after. `image` writes what a disk could hold if the power failed now; with `lose_at` that is done at a step of the
workload's own, whichever thread takes it. What lies in the directory is found by walking, so files of any kind count.

SQLite and RocksDB do their own syncs. A catalog is taken as it was after its last commit or checkpoint. A store is
durable as of its last flush, and none is under way when an image is made; `test_kv_power_loss` looks into flushes.
After a loss the kernel's boot id is another one.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fluss.storage import files
from fluss.storage.catalog.db import CatalogDatabase
from fluss.storage.failpoints import Site
from fluss.storage.kv import rocks
from fluss.testing.sim.losses import Write, surviving_content, surviving_names

_CATALOG_NAMES = ("catalog.db", "catalog.db-wal")
_NOT_COPIED = ("catalog.db", "server.")
_UNUSED_OF_STORES = ("LOG", "LOCK")  # what RocksDB writes and never reads
_SLOW_SYNC_SHARE = 0.3
_SYNC_S_MAX = 0.0005

_boots = count(1)


class Loss(NamedTuple):
    """Where, when and how the power fails."""

    step: int
    target: Path
    chance: random.Random
    note: Callable[[], None]
    """Called when it fails, before the image is made: what is known to be safe by now must be in it."""


class PowerSupply:
    """What of the directory `root` is durable."""

    def __init__(self, root: Path, loss: Loss | None = None) -> None:
        self._root = root
        self._loss = loss
        self.is_lost = False
        self._lock = threading.RLock()
        self._contents: dict[int, bytes] = {}
        self._writes: dict[int, list[Write]] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._catalog: dict[str, bytes] = {}
        self._numbers = count()
        self._newest: dict[int, int] = {}
        self._steps = 0
        self._held: dict[int, int] = {}  # descriptors: a file that is removed must not give its inode to the next one
        self._boot_id = f"boot-{next(_boots)}".encode()
        if root.exists():
            self._adopt(root)
            self._catalog = self._read_catalog()

    def _adopt(self, root: Path) -> None:
        """What lies there has outlived a power loss already, or is as safe as that."""
        for parent, _, names in os.walk(root):
            self._names[self._hold(parent)] = _listing(Path(parent))
            for name in names:
                if not name.startswith(_UNUSED_OF_STORES):
                    path = Path(parent, name)
                    self._contents[self._hold(path)] = path.read_bytes()

    def _hold(self, path: Path | str) -> int:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        inode = os.fstat(fd).st_ino
        if inode in self._held:
            os.close(fd)
        else:
            self._held[inode] = fd
        return inode

    @contextmanager
    def connected(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in ("_data_sync", "_full_sync"):
                patch.setattr(files, name, self._sync)
            patch.setattr(files, "around_commit", self._around_commit)
            patch.setattr(CatalogDatabase, "_execute", self._watched_statement(CatalogDatabase._execute))
            patch.setattr(files, "boot_id", lambda: self._boot_id, raising=False)
            patch.setattr(os, "pwrite", self._watched_write(os.pwrite))
            patch.setattr(os, "ftruncate", self._watched_cut(os.ftruncate))
            for name in ("mkdir", "rmdir", "unlink", "link", "rename", "replace"):
                patch.setattr(os, name, self._alone(getattr(os, name)))
            for name in ("__init__", "flush", "checkpoint"):
                patch.setattr(rocks.RocksStore, name, self._watched_store(getattr(rocks.RocksStore, name)))
            try:
                yield
            finally:
                self.is_lost = True
                with self._lock:
                    for fd in self._held.values():
                        os.close(fd)
                    self._held.clear()

    # --- what is written

    def _alone(self, work: Callable[..., None]) -> Callable[..., None]:
        """Never while an image is made."""

        def alone(*arguments: Any, **named: Any) -> None:
            with self._lock:
                work(*arguments, **named)

        return alone

    def _watched_write(self, write: Callable[[int, Any, int], int]) -> Callable[[int, Any, int], int]:
        def watched(fd: int, data: Any, position: int) -> int:
            with self._lock:
                written = write(fd, data, position)
                self._note_write(fd, position, bytes(memoryview(data)[:written]))
            return written

        return watched

    def _watched_cut(self, cut: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def watched(fd: int, size_bytes: int) -> None:
            with self._lock:
                cut(fd, size_bytes)
                self._note_write(fd, size_bytes, None)

        return watched

    def _note_write(self, fd: int, position: int, data: bytes | None) -> None:
        if not self.is_lost:
            inode = self._hold(f"/proc/self/fd/{fd}")
            self._writes.setdefault(inode, []).append(Write(next(self._numbers), position, data))

    # --- what becomes durable

    def _sync(self, fd: int) -> None:
        """In place of a real sync: takes a little while, and then what was there at its beginning is durable."""
        self._step()
        with self._lock:  # Nobody goes on while an image is made: what comes after this sync must not be in it.
            if self.is_lost:
                return
        path = Path(f"/proc/self/fd/{fd}")  # by name, for the descriptor may be open for writing only
        with self._lock:
            begun = next(self._numbers)
            inode = os.fstat(fd).st_ino
            is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
            names = _listing(path) if is_directory else {}
            content = b"" if is_directory else path.read_bytes()
        if random.random() < _SLOW_SYNC_SHARE:
            time.sleep(random.uniform(0, _SYNC_S_MAX))
        with self._lock:
            # Two syncs of a file may overlap; the one that began first may end last, and knows less.
            if not self.is_lost and begun > self._newest.get(inode, 0):
                self._newest[inode] = begun
                self._hold(path)
                if is_directory:
                    self._names[inode] = names
                else:
                    self._contents[inode] = content
                    self._writes[inode] = [write for write in self._writes.get(inode, ()) if write.number > begun]
        self._step()

    def _around_commit(self, commit: Callable[[], None], site: Site) -> None:
        self._step()
        with self._lock:
            commit()
            self._catalog = self._read_catalog()
        self._step()

    def _watched_statement(self, execute: Callable[..., sqlite3.Cursor]) -> Callable[..., sqlite3.Cursor]:
        """Statements outside of transactions change files too: a checkpoint of the write-ahead log."""

        def watched(database: CatalogDatabase, statement: str, *values: Any) -> sqlite3.Cursor:
            if not statement.startswith("PRAGMA"):
                return execute(database, statement, *values)
            with self._lock:
                cursor = execute(database, statement, *values)
                if not cursor.connection.in_transaction:
                    self._catalog = self._read_catalog()
            self._step()
            return cursor

        return watched

    def _read_catalog(self) -> dict[str, bytes]:
        paths = [self._root / name for name in _CATALOG_NAMES]
        return {path.name: path.read_bytes() for path in paths if path.exists()}

    def _watched_store(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(store: rocks.RocksStore, path: Path | None = None, *arguments: Any, **named: Any) -> Any:
            with self._lock:
                result = work(store, *(() if path is None else (path,)), *arguments, **named)
                if not self.is_lost:
                    self._adopt(path or store.path)
            self._step()
            return result

        return watched

    # --- the loss

    def _step(self) -> None:
        with self._lock:
            self._steps += 1
            if self._loss is not None and self._steps == self._loss.step:
                self.lose()

    def lose(self) -> None:
        """Lose the power now, unless that has happened."""
        with self._lock:
            if not self.is_lost and self._loss is not None:
                self.is_lost = True
                self._loss.note()
                self.image(self._loss.target, self._loss.chance)

    def image(self, target: Path, chance: random.Random) -> None:
        """Write what the disk may hold after a power loss at this moment."""
        with self._lock:
            self._write_directory(self._root.stat().st_ino, self._root, target, chance)
            for name, content in self._catalog.items():
                (target / name).write_bytes(content)

    def _write_directory(self, inode: int, source: Path | None, target: Path, chance: random.Random) -> None:
        """`source` is where the directory is; None if it was removed."""
        target.mkdir()
        there = {} if source is None else _listing(source)
        places = {child: name for name, child in there.items()}
        for name, child in surviving_names(self._names.get(inode, {}), there, chance).items():
            if name.startswith(_NOT_COPIED) or name in _UNUSED_OF_STORES:
                continue
            path = source / places[child] if source is not None and child in places else None
            if child in self._names or (path is not None and path.is_dir()):
                self._write_directory(child, path, target / name, chance)
            else:
                (target / name).write_bytes(self._surviving_content(child, path, chance))

    def _surviving_content(self, inode: int, path: Path | None, chance: random.Random) -> bytes:
        durable = self._contents.get(inode, b"")
        if writes := self._writes.get(inode):
            return surviving_content(durable, writes, chance)
        try:
            written = durable if path is None else path.read_bytes()
        except FileNotFoundError:
            written = durable
        # What no write of ours has made is RocksDB's.
        return written if written == durable else written[: chance.randint(0, len(written))]


def _listing(directory: Path) -> dict[str, int]:
    """Names and inodes."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}
