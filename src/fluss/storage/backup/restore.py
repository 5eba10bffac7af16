"""Restoring: a data directory made of a backup, after all of it was read and found good. All functions block."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

from fluss.model.errors import CorruptDataError, FlussError
from fluss.storage import files
from fluss.storage.backup.files import BackupManifest, HeldFile, Placer, make_target, remove_target
from fluss.storage.catalog.db import file_checksum
from fluss.storage.damage.checks import check_log
from fluss.storage.damage.scrub_files import database_damages
from fluss.storage.directory import CATALOG_NAME, VERSION_NAME, DataDirectory
from fluss.storage.failpoints import Site
from fluss.storage.kv.snapshot_files import list_snapshots

OnBytes = Callable[[int], None]


def check(backup: Path, manifest: BackupManifest, on_bytes: OnBytes = lambda _: None) -> None:
    """Raise unless all files are there and whole, and all rows up to the recorded ends can be read."""
    problem = next(_problems(backup, manifest, on_bytes), None)
    if problem is not None:
        raise CorruptDataError(f"The backup {backup} is damaged: {problem}. Use another backup.")


def _problems(backup: Path, manifest: BackupManifest, on_bytes: OnBytes) -> Iterator[str]:
    for name, size_bytes in manifest.files.items():
        try:
            found_bytes = os.stat(backup / name).st_size
        except OSError as error:
            yield f"{name}: {files.reason(error)}"
            continue
        if found_bytes != size_bytes:
            yield f"{name} has {found_bytes} bytes and should have {size_bytes}"
    if (problem := _catalog_problem(backup / CATALOG_NAME, manifest.catalog_crc)) is not None:
        yield f"{CATALOG_NAME}: {problem}"
    directory = DataDirectory.unlocked(backup)
    for bucket, start_offset, end_offset in manifest.buckets:
        path = directory.bucket_path(bucket)
        for damage in chain.from_iterable(database_damages(found.path) for found in list_snapshots(path)):
            yield f"{damage.path.relative_to(backup)}: {damage.reason}"
        checked = check_log(path, on_bytes)
        bad = checked.damage or checked.torn
        if bad is not None:
            yield bad.message
        elif (checked.start_offset, checked.end_offset) != (start_offset, end_offset):
            yield (
                f"{bucket} has the offsets {checked.start_offset} to {checked.end_offset} and should have "
                f"{start_offset} to {end_offset}"
            )


def _catalog_problem(path: Path, crc: int | None) -> str | None:
    try:
        if crc is not None and file_checksum(path)[1] != crc:
            return "it has other bytes than when the backup was made"
        # Immutable: it is only read, and no files are made beside it.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except (sqlite3.Error, OSError) as error:
        return str(error)
    return None if found == "ok" else str(found)


def restore(backup: Path, manifest: BackupManifest, data_dir: Path, on_bytes: OnBytes = lambda _: None) -> None:
    """Copy a checked backup to a directory that is empty or not there; it is on disk when this returns.

    The format version comes last: without it no server takes the directory for its own.
    """
    backup, data_dir = backup.resolve(), data_dir.absolute()
    if data_dir.resolve().is_relative_to(backup) or backup.is_relative_to(data_dir.resolve()):
        raise FlussError(f"{data_dir} and the backup lie in each other; name another directory.")
    try:
        was_made = make_target(data_dir)
    except OSError as error:
        raise FlussError(f"{data_dir} can't be made: {files.reason(error)}.") from error
    try:
        placer = Placer(data_dir)
        for name, size_bytes in manifest.files.items():
            if name != VERSION_NAME:
                placer.place(HeldFile(backup / name, name, size_bytes, is_final=False))
                on_bytes(size_bytes)
        placer.sync_directories()
        version = f"{manifest.format_version}\n".encode()
        files.replace(data_dir / VERSION_NAME, version, Site.BACKUP_FINISH, durable=True)
    except BaseException:
        remove_target(data_dir, was_made=was_made)
        raise
