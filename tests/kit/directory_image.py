"""A data directory as bytes in memory: taken once, written out as often as it is to be damaged.

Files that share their bytes by hard links, as the snapshots of a store do, still share them in a copy: rot in one of
them is rot in all.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_TAKES_MAX: Final = 10
_HEX: Final = re.compile(r"[0-9a-f]{32}")


class FileCopy(NamedTuple):
    data: bytes
    modified_ns: int
    inode: int


@dataclass
class DirectoryImage:
    """By paths relative to the data directory."""

    files: dict[str, FileCopy] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)  # with their modification times

    @classmethod
    def take(cls, root: Path) -> DirectoryImage:
        """What lies in `root`, where nobody writes; what databases clean up meanwhile may be gone."""
        for _ in range(_TAKES_MAX):
            try:
                return cls._take(root)
            except FileNotFoundError:
                continue
        raise AssertionError(f"{root} changes all the time")

    @classmethod
    def _take(cls, root: Path) -> DirectoryImage:
        image = cls()
        for parent, _, names in os.walk(root):
            image.directories[os.path.relpath(parent, root)] = os.stat(parent).st_mtime_ns
            for name in names:
                path = Path(parent, name)
                status = path.stat()
                copy = FileCopy(path.read_bytes(), status.st_mtime_ns, status.st_ino)
                image.files[str(path.relative_to(root))] = copy
        return image

    def write(self, root: Path) -> None:
        """Make `root`, which must not exist."""
        for directory in sorted(self.directories):
            os.mkdir(root / directory)
        first: dict[int, Path] = {}
        for name, copy in self.files.items():
            path = root / name
            if copy.inode in first:
                os.link(first[copy.inode], path)
                continue
            first[copy.inode] = path
            path.write_bytes(copy.data)
            os.utime(path, ns=(copy.modified_ns, copy.modified_ns))
        for directory, modified_ns in self.directories.items():
            os.utime(root / directory, ns=(modified_ns, modified_ns))

    def in_order(self) -> list[str]:
        """The files in an order that does not depend on names made at random."""
        return sorted(self.files, key=lambda name: (_HEX.sub("", name), self.files[name].data, name))

    def links(self, name: str) -> list[str]:
        """All names of a file."""
        inode = self.files[name].inode
        return [other for other, copy in self.files.items() if copy.inode == inode]
