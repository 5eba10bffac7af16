"""The snapshots of a bucket on disk: directories `snapshots/<snapshot id>-<log offset>`, each a whole RocksDB database.

A snapshot is there when it has that name, and not before: it is made, and removed, under names that do not count, and
gets or loses its own by a rename that is synced. One that was found damaged is renamed and stays until two newer ones
are there. Ids only grow: the newest is never removed, so the next is the one behind the greatest of all names. The
modification time of a snapshot is that of the newest log file which it covers, which tells whether the bucket changed.

All calls block and are made in threads.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.log.segment import LOG_SUFFIX, list_base_offsets, segment_path

_log = logging.getLogger(__name__)

SNAPSHOTS_NAME: Final = "snapshots"
SNAPSHOTS_KEPT: Final = 2
_DAMAGED_SUFFIX: Final = ".damaged"
_REMOVED_SUFFIX: Final = ".removed"
_NAME: Final = re.compile(r"(\d+)-(\d+)(\.damaged)?", re.ASCII)
# What a reader of a snapshot needs; the order in which it is told of them.
_FILE_NAMES: Final = (
    re.compile(r"CURRENT"),
    re.compile(r"MANIFEST-\d+"),
    re.compile(r"OPTIONS-\d+"),
    re.compile(r"\d+\.sst"),
)


class Snapshot(NamedTuple):
    """The rows of a bucket as of a changelog offset: all before it is in them."""

    snapshot_id: int
    log_offset: int
    path: Path


def list_snapshots(bucket_path: Path) -> list[Snapshot]:
    """The good ones, newest first."""
    return [snapshot for snapshot, is_damaged in _found(bucket_path) if not is_damaged]


def newest_log_offset(bucket_path: Path) -> int:
    """How far a bucket's log reached when its newest snapshot was made; 0 without one."""
    return max((snapshot.log_offset for snapshot in list_snapshots(bucket_path)), default=0)


def files_of(snapshot: Snapshot) -> list[Path]:
    """The files to copy for a reader; none if the snapshot is gone."""
    try:
        names = sorted(os.listdir(snapshot.path))
    except FileNotFoundError:
        return []
    return [snapshot.path / name for pattern in _FILE_NAMES for name in names if pattern.fullmatch(name)]


def recovery_candidates(bucket_path: Path, log_end: int) -> Iterator[Path]:
    """Snapshots to recover a store from, newest first. To ask for another says that the one before is not good.

    Call it whenever a store is opened. A snapshot behind the log's end is not good: the log has lost what that was made
    of, as it may in a power loss with durability "os", and other rows will take its offsets.
    """
    snapshots = list_snapshots(bucket_path)
    for snapshot in snapshots:
        if snapshot.log_offset > log_end:
            set_aside(snapshot)
    return _candidates([snapshot for snapshot in snapshots if snapshot.log_offset <= log_end])


def _candidates(snapshots: Sequence[Snapshot]) -> Iterator[Path]:
    for snapshot in snapshots:
        yield snapshot.path
        set_aside(snapshot)


def set_aside(snapshot: Snapshot) -> None:
    """Rename a snapshot that is not good, so that it does not count; it stays until two newer ones are there."""
    _log.error("%s is not good and is set aside", snapshot.path)
    files.rename(snapshot.path, snapshot.path.with_name(snapshot.path.name + _DAMAGED_SUFFIX), Site.KV_CHECKPOINT)


def log_modified_ns(bucket_path: Path) -> int:
    """The time when the bucket's log was last written to; 0 if it never was."""
    offsets = list_base_offsets(bucket_path)
    try:
        return os.stat(segment_path(bucket_path, offsets[-1], LOG_SUFFIX)).st_mtime_ns if offsets else 0
    except FileNotFoundError:
        return 0  # removed in this moment


def has_changed(bucket_path: Path) -> bool:
    """Whether the log has more than the newest snapshot."""
    modified_ns = log_modified_ns(bucket_path)
    newest = next(iter(list_snapshots(bucket_path)), None)
    return modified_ns != (0 if newest is None else newest.path.stat().st_mtime_ns)


def cover(snapshot: Snapshot, modified_ns: int) -> None:
    """Note that a snapshot has all of a log that was written to at this time."""
    files.set_modified_ns(snapshot.path, modified_ns)


def begin(bucket_path: Path) -> Path:
    """A directory to be made for the next snapshot, under a name that does not count."""
    parent = bucket_path / SNAPSHOTS_NAME
    if not parent.exists():
        files.make_directory(parent, Site.KV_CHECKPOINT)
        files.sync_directory(bucket_path, Site.KV_CHECKPOINT)
    snapshot_id = max((snapshot.snapshot_id for snapshot, _ in _found(bucket_path)), default=-1) + 1
    return parent / f"{snapshot_id}{files.TEMPORARY_SUFFIX}"


def finish(made: Path, log_offset: int, covers_modified_ns: int) -> Snapshot:
    """Give a snapshot its name; it is durable when this returns."""
    snapshot_id = int(made.name.removesuffix(files.TEMPORARY_SUFFIX))
    path = made.with_name(f"{snapshot_id}-{log_offset}")
    files.set_modified_ns(made, covers_modified_ns)
    files.rename(made, path, Site.KV_CHECKPOINT)
    return Snapshot(snapshot_id, log_offset, path)


def tidy(bucket_path: Path, leased_ids: Collection[int]) -> None:
    """Remove what is neither one of the two newest nor leased, and what was begun or removed half way."""
    parent = bucket_path / SNAPSHOTS_NAME
    good = list_snapshots(bucket_path)
    keep = {snapshot.path.name for snapshot in good[:SNAPSHOTS_KEPT]}
    keep.update(snapshot.path.name for snapshot in good if snapshot.snapshot_id in leased_ids)
    if len(good) < SNAPSHOTS_KEPT:
        # There is nothing better yet.
        keep.update(snapshot.path.name for snapshot, is_damaged in _found(bucket_path) if is_damaged)
    for name in _names(parent):
        if name in keep:
            continue
        path = parent / name
        if _NAME.fullmatch(name):
            removed = path.with_name(name + _REMOVED_SUFFIX)
            files.rename(path, removed, Site.KV_CHECKPOINT_REMOVE)
            path = removed
        files.remove_tree(path, Site.KV_CHECKPOINT_REMOVE)


def _found(bucket_path: Path) -> list[tuple[Snapshot, bool]]:
    """All snapshots, newest first, and whether they are damaged."""
    parent = bucket_path / SNAPSHOTS_NAME
    found = [
        (Snapshot(int(match[1]), int(match[2]), parent / name), match[3] is not None)
        for name in _names(parent)
        if (match := _NAME.fullmatch(name))
    ]
    return sorted(found, reverse=True)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
