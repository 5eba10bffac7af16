"""Looking at a RocksDB store, or at a snapshot of one, without changing a byte of it.

RocksDB writes beside the files that it opens, even if it may only read. So it is given a directory of its own, with
links to the large files, which it never writes to, and copies of the small ones. There it opens the store as the server
would.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rocksdict import Rdict

from fluss.storage import files
from fluss.storage.kv.manifest_check import CURRENT_NAME, manifest_problem
from fluss.storage.kv.rocks import STATE_KEY, decode_state
from fluss.storage.kv.rocks_settings import META_FAMILY, Resources
from fluss.storage.kv.store import EMPTY, MEMORY_BYTES_MIN, DamagedKvStoreError, KvState

_LARGE_SUFFIX: Final = ".sst"
_LEFT_OUT: Final = re.compile(r"LOCK|LOG(\..*)?")
_PAGE_ROWS: Final = 10_000


class StoreView:
    """A store that is only looked at. All that goes wrong is damage."""

    def __init__(self, path: Path, rows: Rdict) -> None:
        self._rows = rows
        self.state = self._read_state(path)

    def _read_state(self, path: Path) -> KvState:
        data: bytes | None = self._rows.get_column_family(META_FAMILY).get(STATE_KEY)
        if data is not None:
            return decode_state(data, path)
        if any(True for _ in self.values()):
            raise DamagedKvStoreError("it has rows but no offset")
        return EMPTY

    def values(self) -> Iterator[list[bytes]]:
        """All rows, a page at a time."""
        cursor = self._rows.iter()
        cursor.seek_to_first()
        page: list[bytes] = []
        while cursor.valid():
            page.append(cursor.value())
            if len(page) == _PAGE_ROWS:
                yield page
                page = []
            cursor.next()
        cursor.status()  # A damaged block ends an iteration as the last row does.
        if page:
            yield page


@contextmanager
def looked_at(path: Path) -> Iterator[StoreView]:
    """Open a store, to be read only; for one that is damaged, on the way or inside the block, raise that."""
    with TemporaryDirectory(prefix="fluss-store-") as temporary:
        copy = Path(temporary, path.name)
        try:
            _copy(path, copy)
            rows, families = Resources(MEMORY_BYTES_MIN).families()
            for options in (rows, *families.values()):
                options.set_disable_auto_compactions(True)
            database = Rdict(str(copy), rows, column_families=families)
            try:
                yield StoreView(path, database)
            finally:
                database.close()
        except DamagedKvStoreError:
            raise
        except Exception as error:
            raise DamagedKvStoreError(str(error).replace(str(copy), files.shown(path)).strip()) from error


def state_of(path: Path) -> KvState:
    """What a store covers; all of its rows are read. Raises DamagedKvStoreError for one that can't be used."""
    with looked_at(path) as store:
        for _ in store.values():
            pass
        return store.state


def _copy(path: Path, copy: Path) -> None:
    if not (path / CURRENT_NAME).exists():
        raise DamagedKvStoreError(f"it has no {CURRENT_NAME} file")  # RocksDB would make a new one.
    problem = manifest_problem(path)
    if problem is not None:
        raise DamagedKvStoreError(problem)
    copy.mkdir()
    for source in path.iterdir():
        if source.suffix == _LARGE_SUFFIX:
            os.symlink(source.absolute(), copy / source.name)
        elif not _LEFT_OUT.fullmatch(source.name):
            shutil.copyfile(source, copy / source.name)
