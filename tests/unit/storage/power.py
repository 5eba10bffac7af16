"""A disk that loses power: records what the storage layer asks of the operating system, and makes what may be left.

The rules are harsher than any real file system's. Bytes written since the last finished sync of their file survive
sector by sector, or not at all. A name made, changed or removed since the last finished sync of its directory
survives, or not. A sync covers what was done before it began.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECTOR_BYTES = 64

Event = tuple[Any, ...]


class RecordingOs:
    """Stands in for the `os` module in `fluss.storage.files`; syncs take a moment, so that appends overlap."""

    def __init__(self, root: Path) -> None:
        self.events: list[Event] = []
        self._root = root
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()
        self._random = random.Random(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def record(self, *event: Any) -> int:
        with self._lock:
            self.events.append(event)
            return len(self.events) - 1

    def _record_of(self, kind: str, fd: int, *rest: Any) -> int:
        """An event of an open file, under the name that it has now."""
        with self._lock:
            self.events.append((kind, self._paths[fd], *rest))
            return len(self.events) - 1

    def _name(self, path: str | Path) -> str:
        return os.path.relpath(path, self._root)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        existed = os.path.exists(path)
        fd = os.open(path, flags, mode)
        self._paths[fd] = self._name(path)
        if not existed:
            self.record("create", self._paths[fd])
        elif flags & os.O_TRUNC:
            self.record("truncate", self._paths[fd], 0)
        return fd

    def mkdir(self, path: Path, mode: int) -> None:
        os.mkdir(path, mode)
        self.record("mkdir", self._name(path))

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        written = os.pwrite(fd, data, position)
        self._record_of("write", fd, position, bytes(data[:written]))
        return written

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        self._record_of("truncate", fd, size)

    def replace(self, source: Path, target: Path) -> None:
        old, new = self._name(source), self._name(target)
        with self._lock:
            os.replace(source, target)
            self.events.append(("rename", old, new))
            self._paths.update({fd: new for fd, path in self._paths.items() if path == old})

    rename = replace

    def unlink(self, path: Path) -> None:
        os.unlink(path)
        self.record("unlink", self._name(path))

    def fdatasync(self, fd: int) -> None:
        began = self._record_of("sync begins", fd)
        time.sleep(self._random.choice((0, 0, 0.0005, 0.001)))
        self._record_of("sync ends", fd, began)

    fsync = fdatasync


class UnsyncedOs:
    """The `os` module with syncs that return at once, for files that no power loss will meet."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdatasync(self, fd: int) -> None:
        pass

    fsync = fdatasync


@dataclass
class _Inode:
    directory: bool = False
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Event]] = field(default_factory=list)


class Disk:
    """Replays events and says what power loss may leave of them."""

    def __init__(self) -> None:
        # The names as a running system sees them; durable names are in the directories' own inodes.
        self._names: dict[str, _Inode] = {".": _Inode(directory=True)}
        self._durable_names: dict[str, _Inode] = {}
        # Per directory: changes of names that are not durable yet, as (event index, {name: inode or None}).
        self._pending_names: dict[str, list[tuple[int, dict[str, _Inode | None]]]] = {}

    def replay(self, events: list[Event]) -> None:
        for index, event in enumerate(events):
            handler: Callable[..., None] | None = getattr(self, "_on_" + event[0].replace(" ", "_"), None)
            if handler is not None:
                handler(index, *event[1:])

    def _change_names(self, index: int, changes: dict[str, _Inode | None]) -> None:
        for name, inode in changes.items():
            if inode is None:
                self._names.pop(name, None)
            else:
                self._names[name] = inode
        parent = os.path.dirname(next(iter(changes))) or "."
        self._pending_names.setdefault(parent, []).append((index, changes))

    def _on_create(self, index: int, path: str) -> None:
        self._change_names(index, {path: _Inode()})

    def _on_mkdir(self, index: int, path: str) -> None:
        self._change_names(index, {path: _Inode(directory=True)})

    def _on_rename(self, index: int, source: str, target: str) -> None:
        self._change_names(index, {target: self._names[source], source: None})

    def _on_unlink(self, index: int, path: str) -> None:
        self._change_names(index, {path: None})

    def _on_write(self, index: int, path: str, position: int, data: bytes) -> None:
        self._names[path].pending.append((index, ("write", position, data)))

    def _on_truncate(self, index: int, path: str, size: int) -> None:
        self._names[path].pending.append((index, ("truncate", size)))

    def _on_sync_ends(self, _: int, path: str, began: int) -> None:
        inode = self._names[path]
        if inode.directory:
            pending = self._pending_names.get(path, [])
            for index, changes in pending:
                if index < began:
                    _apply_names(self._durable_names, changes)
            self._pending_names[path] = [item for item in pending if item[0] >= began]
        else:
            for index, event in inode.pending:
                if index < began:
                    _apply(inode.durable, event)
            inode.pending = [item for item in inode.pending if item[0] >= began]

    def leave(self, target: Path, rng: random.Random) -> None:
        """Write what one power loss leaves below `target`."""
        names = dict(self._durable_names)
        for pending in self._pending_names.values():
            for _, changes in pending:
                if rng.random() < 0.5:
                    _apply_names(names, changes)
        keep = rng.choice((0.0, 0.5, 0.9, 1.0))
        for name in sorted(names):
            path = target / name
            if not path.parent.is_dir():
                continue  # its directory's own name was lost
            if names[name].directory:
                path.mkdir()
            else:
                path.write_bytes(_leave_content(names[name], keep, rng))


def _apply_names(names: dict[str, _Inode], changes: dict[str, _Inode | None]) -> None:
    for name, inode in changes.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _apply(content: bytearray, event: Event) -> None:
    if event[0] == "truncate":
        del content[event[1] :]
        return
    _, position, data = event
    if len(content) < position + len(data):
        content.extend(bytes(position + len(data) - len(content)))
    content[position : position + len(data)] = data


def _leave_content(inode: _Inode, keep: float, rng: random.Random) -> bytes:
    content = bytearray(inode.durable)
    for _, event in inode.pending:
        if event[0] == "truncate":
            if rng.random() < keep:
                _apply(content, event)
            continue
        _, position, data = event
        for start in range(0, len(data), SECTOR_BYTES):
            if rng.random() < keep:
                _apply(content, ("write", position + start, data[start : start + SECTOR_BYTES]))
    return bytes(content)
