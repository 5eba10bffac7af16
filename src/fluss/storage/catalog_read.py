"""Reading the catalog of a directory without changing anything there, whether or not a server runs on it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fluss.model.errors import CorruptDataError, FlussError
from fluss.storage import files
from fluss.storage.catalog_db import CatalogContent, CatalogDatabase
from fluss.storage.directory import CATALOG_NAME, LOCK_NAME

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


def read_catalog(root: Path) -> CatalogContent:
    """What the catalog says; raises when it can't be read."""
    path = root / CATALOG_NAME
    try:
        with TemporaryDirectory(prefix="fluss-catalog-") as temporary:
            copy = Path(temporary, CATALOG_NAME)
            if is_served(root):
                _copy_served(path, copy)
            else:
                for suffix in _COMPANIONS:
                    source = path.with_name(path.name + suffix)
                    if source.exists() or not suffix:
                        shutil.copyfile(source, copy.with_name(copy.name + suffix))
            return _load(copy)
    except sqlite3.Error as error:
        raise CorruptDataError(f"{path} can't be read: {error}. Restore the directory from a backup.") from error
    except OSError as error:
        raise FlussError(f"{path} can't be read: {files.reason(error)}.") from error


def _copy_served(path: Path, copy: Path) -> None:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def _load(copy: Path) -> CatalogContent:
    with closing(CatalogDatabase(copy)) as database:
        return database.load()
