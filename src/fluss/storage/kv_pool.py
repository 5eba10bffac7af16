"""Open stores, at most so many at a time.

A store is opened when first used and stays open until others need its place, the longest unused first. One in use is
never closed; when all are, the limit is exceeded until the next is given back. Stores that hold many unflushed rows but
are not written to any more are flushed when memory gets short, for RocksDB flushes only those that are written to.
All calls come from worker threads.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fluss.model.errors import FlussError
from fluss.storage.kv_store import KvStore

_log = logging.getLogger(__name__)

OPEN_STORES_MAX: Final = 64


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()  # held while the store is opened or closed
        self.store: KvStore | None = None
        self.users = 0


class KvPool:
    def __init__(
        self,
        open_store: Callable[[Path], KvStore],
        is_pressed: Callable[[], bool],
        open_max: int = OPEN_STORES_MAX,
    ) -> None:
        self._open_store = open_store
        self._is_pressed = is_pressed
        self._open_max = open_max
        self._lock = threading.Lock()
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def use(self, path: Path) -> Iterator[KvStore]:
        """The open store of a bucket; it stays open until the block ends."""
        entry = self._take(path)
        try:
            with entry.lock:
                store = entry.store
                if store is None:
                    store = entry.store = self._open_store(path)
            yield store
        finally:
            self._give_back(path, entry)

    def discard(self, path: Path) -> None:
        """Close a store that nobody uses, if it is open."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None:
                return
            if entry.users:
                raise ValueError(f"{path} is in use")
            entry.users = 1
        self._close(path, entry)

    def close(self) -> None:
        """Close all; none may be in use."""
        for path in list(self._entries):
            self.discard(path)

    def relieve(self) -> None:
        """Flush the longest unused stores, one after another, until memory is no longer short."""
        for path in list(self._entries):
            if not self._is_pressed():
                return
            with self._lock:
                entry = self._entries.get(path)
                if entry is None or entry.users or entry.store is None:
                    continue
                entry.users += 1
            try:
                entry.store.flush()
            finally:
                self._give_back(path, entry)

    def _take(self, path: Path) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(path, _Entry())
            self._entries.move_to_end(path)
            entry.users += 1
            return entry

    def _give_back(self, path: Path, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            if entry.store is None and not entry.users:
                del self._entries[path]  # it could not be opened
            surplus = self._surplus()
        for surplus_path, surplus_entry in surplus:
            self._close(surplus_path, surplus_entry)

    def _surplus(self) -> list[tuple[Path, _Entry]]:
        """Take the longest unused that are too many."""
        excess = len(self._entries) - self._open_max
        idle = [(path, entry) for path, entry in self._entries.items() if not entry.users] if excess > 0 else []
        for _, entry in idle[:excess]:
            entry.users += 1
        return idle[:excess]

    def _close(self, path: Path, entry: _Entry) -> None:
        """Close a store that was taken for it; who asks for it meanwhile waits, and opens it again."""
        with entry.lock:
            store, entry.store = entry.store, None
            if store is not None:
                try:
                    store.close()
                except FlussError as error:
                    _log.error("%s could not be closed: %s", path, error)
        with self._lock:
            entry.users -= 1
            if not entry.users and entry.store is None:
                del self._entries[path]
