"""One damage to one file of a data directory, drawn by chance: what disks, and people, do to files.

The kinds of files are found by looking, so that one that comes new is damaged too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES, walk
from tests.kit.directory_image import DirectoryImage

SECTOR_BYTES: Final = 512
BYTES_MAX: Final = 16
GARBAGE_BYTES_MAX: Final = 600
HEADER_SHARE: Final = 0.3
CUT, OLD, DELETE = "cut", "old", "delete"

LAST_SEGMENT, SEALED_SEGMENT = "last segment", "sealed segment"
LAST_CHANGELOG, SEALED_CHANGELOG = "last changelog segment", "sealed changelog segment"
SEGMENTS: Final = frozenset({LAST_SEGMENT, SEALED_SEGMENT, LAST_CHANGELOG, SEALED_CHANGELOG})
STAGED_ROWS, LAKE_OFFSETS = "staged rows", "lake offsets"
INDEX, WRITERS = "index", "writers"
_STORE_PLACES: Final = {"kv": "store", "snapshots": "snapshot"}
_STORE_FILE: Final = re.compile(r"(?:\d+\.)?([A-Za-z]+)")
# Whatever becomes of these, all must be as before.
DISPOSABLE: Final = frozenset(
    {INDEX, WRITERS, "numbers", "catalog.db-shm", "server.lock", "server.pid", "server.log"}
    | {f"{place} {name}" for place in _STORE_PLACES.values() for name in ("LOCK", "LOG", "IDENTITY", "log")}
)
_HEAVY: Final = frozenset(
    {*SEGMENTS, "catalog.db", "catalog.db-wal", "marks", "store sst", "store MANIFEST", "snapshot sst", STAGED_ROWS}
)
_WEIGHT_HEAVY, _WEIGHT, _WEIGHT_DISPOSABLE = 6, 3, 1


class Damage(NamedTuple):
    path: str  # below the data directory
    kind: str  # of file
    how: str
    detail: str
    data: bytes | None  # the file as it is now; None: it is gone

    def __str__(self) -> str:
        return f"{self.how} of {self.path} ({self.kind}; {self.detail})"

    def apply(self, root: Path) -> None:
        """Change the file; rot stays within its inode, another file put in its place does not."""
        path = root / self.path
        if self.data is None:
            path.unlink()
        elif self.how == OLD:
            aside = path.with_name(path.name + ".put-back")
            aside.write_bytes(self.data)
            aside.replace(path)
        else:
            path.write_bytes(self.data)

    def undo(self, root: Path, image: DirectoryImage) -> None:
        """Restore the file, as from a backup."""
        (root / self.path).write_bytes(image.files[self.path].data)


def kinds(image: DirectoryImage) -> dict[str, list[str]]:
    """The files by their kinds."""
    stores = {
        str(PurePosixPath(name).parents[1]) for name in image.files if PurePosixPath(name).parts[-2:-1] == ("kv",)
    }
    last: dict[str, str] = {}
    for name in sorted(image.files):
        if _is_segment(name):
            last[str(PurePosixPath(name).parent)] = name
    found: dict[str, list[str]] = {}
    for name in image.in_order():
        found.setdefault(_kind(name, stores, last), []).append(name)
    return found


def _is_segment(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".log" and len(path.stem) == 20


def _kind(name: str, stores: set[str], last: Mapping[str, str]) -> str:
    path = PurePosixPath(name)
    parent = str(path.parent)
    for directory, place in _STORE_PLACES.items():
        if directory in path.parts:
            match = _STORE_FILE.match(path.name)
            return f"{place} {match[1] if match else path.name}"
    if "staging" in path.parts:
        return STAGED_ROWS
    if "lake-offsets" in path.parts:
        return LAKE_OFFSETS
    if _is_segment(name):
        is_last = last[parent] == name
        if parent in stores:
            return LAST_CHANGELOG if is_last else SEALED_CHANGELOG
        return LAST_SEGMENT if is_last else SEALED_SEGMENT
    return path.suffix[1:] if path.suffix in (".index", ".writers") else path.name


def draw(
    chance: random.Random, image: DirectoryImage, earlier: Sequence[DirectoryImage], *, under_way: bool = False
) -> Damage:
    """A damage that changes something; `under_way`: one that can happen to a log while a server reads it."""
    by_kind = kinds(image)
    names = sorted(SEGMENTS & by_kind.keys() if under_way else by_kind)
    ways = sorted(WAYS.keys() - {OLD, DELETE} if under_way else WAYS)
    while True:
        (kind,) = chance.choices(names, [_weight(name) for name in names])
        path = chance.choice(by_kind[kind])
        how = chance.choice(ways)
        before = image.files[path].data
        if how == OLD:
            versions = [found.files[path].data for found in earlier if path in found.files]
            versions = [data for data in versions if data != before]
            if versions:
                data = chance.choice(versions)
                return Damage(path, kind, how, f"{len(data)} of {len(before)} bytes", data)
            continue
        changed = WAYS[how](chance, before)
        if changed is not None and changed[0] != before:
            return Damage(path, kind, how, changed[1], changed[0])


def _weight(kind: str) -> int:
    if kind in _HEAVY:
        return _WEIGHT_HEAVY
    return _WEIGHT_DISPOSABLE if kind in DISPOSABLE else _WEIGHT


Changed = tuple[bytes | None, str] | None


def _flip_bit(chance: random.Random, data: bytes) -> Changed:
    if not data:
        return None
    at, bit = _place(chance, data), chance.randrange(8)
    return _patched(data, at, bytes([data[at] ^ 1 << bit])), f"bit {bit} of byte {at} of {len(data)}"


def _overwrite(chance: random.Random, data: bytes) -> Changed:
    if not data:
        return None
    at = _place(chance, data)
    patch = chance.randbytes(min(chance.randint(1, BYTES_MAX), len(data) - at))
    return _patched(data, at, patch), f"{len(patch)} bytes at {at} of {len(data)}"


def _place(chance: random.Random, data: bytes) -> int:
    """Anywhere; in a log often in a header, of which not all fields are in the checksum."""
    starts = [0, *_boundaries(data)]
    if len(starts) > 1 and chance.random() < HEADER_SHARE:
        return min(chance.choice(starts) + chance.randrange(HEADER_SIZE_BYTES), len(data) - 1)
    return chance.randrange(len(data))


def _zero_sector(chance: random.Random, data: bytes) -> Changed:
    if not data:
        return None
    at = chance.randrange(0, len(data), SECTOR_BYTES)
    size = min(SECTOR_BYTES, len(data) - at)
    return _patched(data, at, bytes(size)), f"{size} bytes at {at} of {len(data)}"


def _cut(chance: random.Random, data: bytes) -> Changed:
    """Anywhere; a log often between two batches, where nothing looks torn."""
    if len(data) < 2:
        return None
    at = chance.randrange(1, len(data))
    if chance.random() < 0.5:
        ends = _boundaries(data)
        at = chance.choice(ends) if ends else at
    return data[:at], f"at {at} of {len(data)}"


def _boundaries(data: bytes) -> list[int]:
    try:
        return [at for at, _ in walk(data) if at]
    except Exception:
        return []  # no log


def _empty(_: random.Random, data: bytes) -> Changed:
    return b"", f"of {len(data)} bytes"


def _append(chance: random.Random, data: bytes) -> Changed:
    size = chance.randint(1, GARBAGE_BYTES_MAX)
    kind = chance.choice(["zeros", "noise", "its own end", "its own beginning"])
    more = {
        "zeros": bytes(size),
        "noise": chance.randbytes(size),
        "its own end": data[-size:],
        "its own beginning": data[:size],
    }
    return data + more[kind], f"{len(more[kind])} bytes, {kind}, behind {len(data)}"


def _delete(_: random.Random, data: bytes) -> Changed:
    return None, f"{len(data)} bytes"


def _patched(data: bytes, at: int, patch: bytes) -> bytes:
    return data[:at] + patch + data[at + len(patch) :]


WAYS: Final[dict[str, Callable[[random.Random, bytes], Changed]]] = {
    "bit": _flip_bit,
    "bytes": _overwrite,
    "sector": _zero_sector,
    CUT: _cut,
    "empty": _empty,
    "append": _append,
    OLD: _delete,  # drawn from earlier images
    DELETE: _delete,
}
