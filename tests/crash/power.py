"""Power loss, played: what was not synced vanishes, is torn, or reaches the disk in another order.

`PowerSupply` takes the place of the file layer's two sync calls and remembers what each makes durable: the bytes of a
file, the names in a directory. `image` then writes what a disk could hold if the power failed now. SQLite does its own
syncs; its files are taken as they were after the last commit.
"""

from __future__ import annotations

import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from fluss.storage import files
from fluss.storage.failpoints import Site

_CATALOG_NAMES = ("catalog.db", "catalog.db-wal")
_CATALOG_PREFIX = "catalog.db"
_SURVIVES_SHARE = 0.5
_SYNC_S_MAX = 0.002


class PowerSupply:
    """What of the directory `root` is durable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._catalog: dict[str, bytes] = {}
        self._begun = count()
        self._newest: dict[int, int] = {}
        if root.exists():
            self._adopt(root)

    def _adopt(self, root: Path) -> None:
        """What lies there at the start has outlived a power loss already."""
        for parent, _, names in os.walk(root):
            self._names[os.stat(parent).st_ino] = _listing(Path(parent))
            for name in names:
                path = Path(parent, name)
                self._contents[path.stat().st_ino] = path.read_bytes()
        self._catalog = self._read_catalog()

    @contextmanager
    def connected(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in ("_data_sync", "_full_sync"):
                patch.setattr(files, name, self._sync)
            patch.setattr(files, "around_commit", self._around_commit)
            yield

    def _sync(self, fd: int) -> None:
        """In place of a real sync: takes a little while, and then what was there at its beginning is durable."""
        begun = next(self._begun)
        status = os.fstat(fd)
        is_directory = stat.S_ISDIR(status.st_mode)
        # By name, for the descriptor may be open for writing only.
        path = Path(f"/proc/self/fd/{fd}")
        names = _listing(path) if is_directory else {}
        content = b"" if is_directory else path.read_bytes()
        time.sleep(random.uniform(0, _SYNC_S_MAX))
        with self._lock:
            # Two syncs of a file may overlap; the one that began first may end last, and knows less.
            if begun < self._newest.get(status.st_ino, 0):
                return
            self._newest[status.st_ino] = begun
            if is_directory:
                self._names[status.st_ino] = names
            else:
                self._contents[status.st_ino] = content

    def _around_commit(self, commit: Callable[[], None], site: Site) -> None:
        commit()
        self._catalog = self._read_catalog()

    def _read_catalog(self) -> dict[str, bytes]:
        paths = [self._root / name for name in _CATALOG_NAMES]
        return {path.name: path.read_bytes() for path in paths if path.exists()}

    def image(self, target: Path, chance: random.Random) -> None:
        """Write what the disk may hold after a power loss at this moment."""
        with self._lock:
            self._copy_directory(self._root, target, chance)
        for name, content in self._catalog.items():
            (target / name).write_bytes(content)

    def _copy_directory(self, source: Path, target: Path, chance: random.Random) -> None:
        target.mkdir()
        durable = self._names.get(source.stat().st_ino, {})
        for name, inode in sorted(_listing(source).items()):
            if name.startswith((_CATALOG_PREFIX, "server.")):
                continue
            if durable.get(name) != inode and chance.random() >= _SURVIVES_SHARE:
                continue
            path = source / name
            if path.is_dir():
                self._copy_directory(path, target / name, chance)
                continue
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            (target / name).write_bytes(_survivor(self._contents.get(inode, b""), content, chance))


def _listing(directory: Path) -> dict[str, int]:
    """Names and inodes."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _survivor(durable: bytes, written: bytes, chance: random.Random) -> bytes:
    """One of the things a file can hold whose bytes `durable` were synced and whose bytes `written` were not all."""
    kept = len(durable) if written.startswith(durable) else 0
    unsynced = written[kept:]
    if not unsynced:
        return chance.choice([durable, written])
    hole = chance.randint(0, len(unsynced))
    return chance.choice(
        [
            durable,
            written,
            durable + unsynced[:hole],
            durable + bytes(len(unsynced)),
            durable + bytes(hole) + unsynced[hole:],
            durable + unsynced[:hole] + bytes(len(unsynced) - hole),
        ]
    )
