"""The catalog of a directory, read and checked without changing anything there, whether or not a server runs on it.

A database is copied before SQLite opens it: to open one makes files beside it, even for a reader.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from fluss.model.errors import CorruptDataError, FlussError
from fluss.storage import files
from fluss.storage.catalog.catalog import changed_file, lost_text
from fluss.storage.catalog.db import CatalogContent, CatalogDatabase, look_at
from fluss.storage.directory import CATALOG_NAME, LOCK_NAME, TABLES_NAME
from fluss.storage.log.marks import CatalogMark

# SQLite's own files beside the database: what a killed server has committed last may be in them alone.
_COMPANIONS: Final = ("", "-wal")


def is_served(root: Path) -> bool:
    """Whether a server runs on a directory."""
    import fcntl

    try:
        fd = os.open(root / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class CatalogCheck(NamedTuple):
    """What a catalog says, and what is wrong with it."""

    content: CatalogContent | None  # None: it can't be read
    problem: str | None = None
    lost_changes: int = 0  # it is whole, but these are missing
    generation: int = 0


def check_catalog(root: Path, mark: CatalogMark | None, *, served: bool) -> CatalogCheck:
    """Come to the same as a server that opens the directory; a mark is to be read before the catalog."""
    path = root / CATALOG_NAME
    if not path.exists():
        is_missing = mark is not None or (root / TABLES_NAME).exists()
        return CatalogCheck(None, "the file is missing" if is_missing else None)
    # While a server runs, the file may be about to change.
    changed = None if served else changed_file(path, mark)
    try:
        with _copied(root, served=served) as copy:
            generation, problem = look_at(copy, check_all=True)
            if problem is not None:
                return CatalogCheck(None, problem)
            content = _load(copy)
    except (sqlite3.Error, FlussError, ValueError) as error:
        return CatalogCheck(None, f"it can't be opened: {error}")
    if mark is not None and generation < mark.generation:
        lost = mark.generation - generation
        return CatalogCheck(content, lost_text(lost), lost, generation)
    return CatalogCheck(content, changed, 0, generation)


def read_catalog(root: Path) -> CatalogContent:
    """What the catalog says; raises when it can't be read."""
    path = root / CATALOG_NAME
    try:
        with _copied(root, served=is_served(root)) as copy:
            return _load(copy)
    except sqlite3.Error as error:
        raise CorruptDataError(f"{path} can't be read: {error}. Restore the directory from a backup.") from error
    except OSError as error:
        raise FlussError(f"{path} can't be read: {files.reason(error)}.") from error


@contextmanager
def _copied(root: Path, *, served: bool) -> Iterator[Path]:
    path = root / CATALOG_NAME
    with TemporaryDirectory(prefix="fluss-catalog-") as temporary:
        copy = Path(temporary, CATALOG_NAME)
        if served:
            _copy_served(path, copy)
        else:
            for suffix in _COMPANIONS:
                source = path.with_name(path.name + suffix)
                if source.exists() or not suffix:
                    shutil.copyfile(source, copy.with_name(copy.name + suffix))
        yield copy


def _copy_served(path: Path, copy: Path) -> None:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def _load(copy: Path) -> CatalogContent:
    with closing(CatalogDatabase(copy)) as database:
        return database.load()
