"""A disk below `fluss.storage.files`: what is written lies in real files, and what is durable is known apart.

`SimDisk` takes the place of the module `os` there. It does each call on real files, so that everybody can read them,
and keeps of each file what syncs have covered, and of each directory the names that were there at its last sync. After
a power loss `lose_power` puts files in place that such a disk could hold; after a kill of the process, `reopen` leaves
everything as it was written. Either way the files are new ones, for those who had the old ones open hold their locks
for ever.

SQLite does its own I/O: a commit that has returned is durable, and one that has not is not there.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from fluss.testing.sim.losses import Write, apply, surviving_content, surviving_names
from fluss.testing.sim.scheduler import NS, Scheduler

_CATALOG_NAME: Final = "catalog.db"
_SHARED_MEMORY_NAME: Final = "catalog.db-shm"
_LOCK_NAME: Final = "server.lock"
_PAGE_BYTES: Final = 4096


class _Node:
    """A file or a directory."""

    __slots__ = ("durable", "durable_names", "is_directory", "names", "synced", "writes")

    def __init__(self, is_directory: bool) -> None:
        self.is_directory = is_directory
        self.durable = bytearray()
        self.writes: list[Write] = []
        self.synced = 0
        """When the newest sync that has ended had begun"""
        self.names: dict[str, _Node] = {}
        self.durable_names: dict[str, _Node] = {}


class DiskFaults:
    """What goes wrong with a disk, and how long its syncs take. Shares are of calls."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.sync_s_max = 0.002
        self.slow_sync_share = 0.0
        self.slow_sync_s_max = 2.0
        self.sync_error_share = 0.0
        self.write_error_share = 0.0
        self.read_error_share = 0.0
        self.full_until_s = 0.0
        self.no_descriptors_until_s = 0.0
        self.counts: dict[str, int] = {}

    def struck(self, share: float, name: str) -> bool:
        """Whether a fault strikes this time."""
        if not share or self.chance.random() >= share:
            return False
        self.counts[name] = self.counts.get(name, 0) + 1
        return True


class SimDisk:
    """The disk of a host, mounted at `root`. In the place of `os` for `fluss.storage.files`."""

    def __init__(self, root: Path, scheduler: Scheduler, wall_ns: Callable[[], int]) -> None:
        self.root = root
        self.faults = DiskFaults(scheduler.chance)
        self._scheduler = scheduler
        self._wall_ns = wall_ns
        self._top = _Node(True)
        self._open: dict[int, _Node] = {}
        self._numbers = count(1)
        self._generation = 0
        self.syncs = 0
        self.written_bytes = 0
        root.mkdir()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # --- in the place of os

    def open(self, path: Path | str, flags: int, mode: int = 0o777) -> int:
        self._refuse(self.faults.no_descriptors_until_s, errno.EMFILE, "no descriptor")
        node = self._find(Path(path))
        if flags & os.O_CREAT and node is None:
            self._refuse_if_full()
        fd = os.open(path, flags, mode)
        if node is None:
            node = self._place(Path(path), _Node(stat.S_ISDIR(os.fstat(fd).st_mode)))
        elif flags & os.O_TRUNC:
            self._note(node, 0, None)
        if node is not None:
            self._open[fd] = node
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        os.close(fd)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        if self.faults.struck(self.faults.read_error_share, "read error"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, size_bytes, position)

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        view = memoryview(data).cast("B")
        if self.faults.struck(self.faults.write_error_share, "write error"):
            part = self._write(fd, view[: self.faults.chance.randint(0, len(view))], position)
            self._scheduler.trace.add("write error", part)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._refuse_if_full()
        return self._write(fd, view, position)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)
        node = self._open.get(fd)
        if node is not None:
            self._note(node, size_bytes, None)

    def fsync(self, fd: int) -> None:
        self._sync(fd)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd)

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        self._refuse_if_full()
        os.mkdir(path, mode)
        self._place(Path(path), _Node(True))
        self._scheduler.trace.add("mkdir", self._name(path))

    def rmdir(self, path: Path | str) -> None:
        os.rmdir(path)
        self._displace(Path(path))

    def unlink(self, path: Path | str) -> None:
        os.unlink(path)
        self._displace(Path(path))
        self._scheduler.trace.add("unlink", self._name(path))

    def link(self, path: Path, target: Path, *, follow_symlinks: bool = True) -> None:
        os.link(path, target, follow_symlinks=follow_symlinks)
        node = self._find(Path(path))
        if node is not None:
            self._place(Path(target), node)

    def rename(self, path: Path, target: Path) -> None:
        os.rename(path, target)
        node = self._displace(Path(path))
        if node is not None:
            self._place(Path(target), node)
        self._scheduler.trace.add("rename", self._name(path), self._name(target))

    replace = rename

    # --- what is durable

    def _write(self, fd: int, data: memoryview, position: int) -> int:
        written = os.pwrite(fd, data, position)
        node = self._open.get(fd)
        if node is not None:
            content = bytes(data[:written])
            self._note(node, position, content)
            self._scheduler.trace.add("write", position, content)
            wall_ns = self._wall_ns()
            os.utime(fd, ns=(wall_ns, wall_ns))
        self.written_bytes += written
        return written

    def _note(self, node: _Node, position: int, data: bytes | None) -> None:
        node.writes.append(Write(next(self._numbers), position, data))

    def _sync(self, fd: int) -> None:
        node = self._open.get(fd)
        begun = next(self._numbers)
        names = None if node is None else dict(node.names)
        self._scheduler.sleep(self._sync_s())
        self.syncs += 1
        if self.faults.struck(self.faults.sync_error_share, "sync error"):
            if node is not None:
                self._lose(node, begun)
            self._scheduler.trace.add("sync error")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        # Two syncs of a file may overlap; the one that began first may end last, and knows less.
        if node is None or names is None or node.synced > begun:
            return
        node.synced = begun
        if node.is_directory:
            node.durable_names = names
            return
        for write in node.writes:
            if write.number < begun:
                apply(node.durable, write.position, write.data)
        node.writes = [write for write in node.writes if write.number > begun]

    def _lose(self, node: _Node, begun: int) -> None:
        """A failed sync has brought any part of the writes to the disk, and no later one will bring the rest."""
        tried = [write for write in node.writes if write.number < begun]
        if tried:
            node.durable = bytearray(surviving_content(node.durable, tried, self.faults.chance))
        node.writes = [write for write in node.writes if write.number > begun]

    def _sync_s(self) -> float:
        faults = self.faults
        if faults.struck(faults.slow_sync_share, "slow sync"):
            return faults.chance.random() * faults.slow_sync_s_max
        return faults.chance.random() ** 2 * faults.sync_s_max

    def _refuse_if_full(self) -> None:
        self._refuse(self.faults.full_until_s, errno.ENOSPC, "write to a full disk")

    def _refuse(self, until_s: float, code: int, name: str) -> None:
        if self._scheduler.now_ns < until_s * NS:
            self.faults.counts[name] = self.faults.counts.get(name, 0) + 1
            raise OSError(code, os.strerror(code))

    # --- names

    def _name(self, path: Path | str) -> str:
        return os.path.relpath(path, self.root)

    def _parts(self, path: Path) -> tuple[str, ...] | None:
        return path.relative_to(self.root).parts if path.is_relative_to(self.root) else None

    def _find(self, path: Path) -> _Node | None:
        parts = self._parts(path)
        if parts is None:
            return None
        node: _Node | None = self._top
        for part in parts:
            if node is None:
                return None
            node = node.names.get(part)
        return node

    def _place(self, path: Path, node: _Node) -> _Node | None:
        parent = self._find(path.parent)
        if parent is None:
            return None
        parent.names[path.name] = node
        return node

    def _displace(self, path: Path) -> _Node | None:
        parent = self._find(path.parent)
        return None if parent is None else parent.names.pop(path.name, None)

    # --- ends

    def reopen(self) -> None:
        """Put all that was written into new files, as after a kill."""
        old = self._set_aside()
        for source, target in self._pairs(old):
            if source.name == _CATALOG_NAME or source.name.startswith(f"{_CATALOG_NAME}-"):
                shutil.copyfile(source, target)
            else:
                os.link(source, target)

    def lose_power(self, chance: Random) -> None:
        """Put files in place that the disk may hold after a power loss at this moment."""
        old = self._set_aside()
        self._write_image(self._top, self.root, chance)
        for name in (_CATALOG_NAME, f"{_CATALOG_NAME}-wal"):
            if (old / name).exists():
                shutil.copyfile(old / name, self.root / name)
        self._top = self._adopted(self.root)

    def rot(self, chance: Random) -> str | None:
        """Flip a bit of some stored file that lies on the disk; its name, or None where there is nothing."""
        paths = [path for path in sorted(self.root.rglob("*.log")) if path.stat().st_size]
        if not paths:
            return None
        path = chance.choice(paths)
        position = chance.randrange(path.stat().st_size)
        with path.open("r+b") as file:
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ (1 << chance.randrange(8))]))
        self._scheduler.trace.add("rot", self._name(path), position)
        return self._name(path)

    def _set_aside(self) -> Path:
        self._generation += 1
        old = self.root.with_name(f"{self.root.name}-{self._generation}")
        self.root.rename(old)
        self.root.mkdir()
        self._open.clear()
        return old

    def _pairs(self, old: Path) -> Iterator[tuple[Path, Path]]:
        for parent, directories, names in os.walk(old):
            target = self.root / Path(parent).relative_to(old)
            directories.sort()
            for directory in directories:
                (target / directory).mkdir()
            for name in sorted(names):
                if name not in (_LOCK_NAME, _SHARED_MEMORY_NAME):
                    yield Path(parent, name), target / name

    def _write_image(self, node: _Node, target: Path, chance: Random) -> None:
        for name, child in surviving_names(node.durable_names, node.names, chance).items():
            if name.startswith(_CATALOG_NAME) or name == _LOCK_NAME:
                continue
            path = target / name
            if child.is_directory:
                path.mkdir()
                self._write_image(child, path, chance)
            else:
                content = surviving_content(child.durable, child.writes, chance) if child.writes else child.durable
                path.write_bytes(content)

    def _adopted(self, path: Path) -> _Node:
        """What lies there has outlived a power loss already."""
        node = _Node(path.is_dir())
        if node.is_directory:
            node.names = {child.name: self._adopted(child) for child in sorted(path.iterdir())}
            node.durable_names = dict(node.names)
        else:
            node.durable = bytearray(path.read_bytes())
            wall_ns = self._wall_ns()
            os.utime(path, ns=(wall_ns, wall_ns))
        return node
