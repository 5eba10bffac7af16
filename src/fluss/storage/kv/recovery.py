"""Opening a store after whatever happened to it: the newest good state that the log can be replayed on.

RocksDB syncs a file before its manifest names it, and we write to a store only what is durable in the log. So after a
crash or a power loss the store opens as of some offset that the log still has, and the log is replayed from there. What
else can be found is damage: the store does not open, or its offset lies before the log's start (it was made anew where
an old one should be, or an old one was put back). Then the same is asked of the checkpoints, newest first, and a good
one takes the store's place. Without one, a log that begins at 0 makes the store from nothing. Otherwise the bucket
stays closed, with the reasons, and its files as they were.

A store whose offset lies behind the log's end proves that the log has lost rows. It may be the only place that still
has them, so the bucket stays closed too. Only where a power loss may take acknowledged rows, with durability "os", the
store is given up: the log goes on from where it ends.

So the log is to be kept from the offset of the older of two checkpoints on: the newer one may be as damaged as the
store. A damaged block inside a good file shows only when it is read: the read fails with DamagedKvStoreError, and the
store is to be closed and recovered with `trust_live=False`. A file that a checkpoint shares with the store by a hard
link is damaged in both, which is why the older one matters, and why compaction, which reads all, may find it first. So
every block of a checkpoint is read before it takes the store's place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.batches.log_batch import verify_crc, walk
from fluss.formats.rows.values import ValueCodec
from fluss.model.errors import ErrorCode
from fluss.model.records import ChangeType
from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.kv.store import DamagedKvStoreError, KvState, KvStore, KvStoreError
from fluss.storage.kv.table import KvTable

# How much of a log is read and written to a store at a time.
CHUNK_BYTES: Final = 4 << 20

_UPDATE_BEFORE: Final = bytes([ChangeType.UpdateBefore])
# By change type, whether a row is left: what `ValueCodec.encode` takes for a place.
_PLACES: Final = (b"row", b"row", b"row", b"row", None)


def row_count_change(change_types: bytes) -> int:
    """Number of rows by which a table grows."""
    return change_types.count(ChangeType.Insert) - change_types.count(ChangeType.Delete)


def replay(store: KvStore, table: KvTable, data: bytes) -> None:
    """Write what whole batches of the log, read from the store's offset on, have changed."""
    offset, row_count = store.state.covered_offset, store.state.row_count
    rows: dict[bytes, bytes | None] = {}
    for position, header in walk(data):
        if header.next_offset <= offset:
            continue
        if header.base_offset != offset:
            raise KvStoreError(
                f"{files.shown(store.path)}: the store ends at {offset}, where no batch of the log begins; rebuild it."
            )
        verify_crc(data, position, header)
        change_types, batch = table.decode(data, position, header)
        rows.update(_rows(table, table.codec_of(header.schema_id), change_types, batch))
        offset = header.next_offset
        row_count += row_count_change(change_types)
    write(store, rows, KvState(offset, row_count))


def write(store: KvStore, rows: dict[bytes, bytes | None], state: KvState) -> None:
    """Put rows into a store, and remove those that are None."""
    keys, values, deletes = kernel.rows_in_order(rows)  # That takes RocksDB half the time.
    files.around_commit(lambda: store.write(keys, values, deletes, state), Site.KV_COMMIT)


def _rows(table: KvTable, codec: ValueCodec, change_types: bytes, batch: pa.RecordBatch) -> dict[bytes, bytes | None]:
    """What the changes leave at each of their keys."""
    changes = pa.array(memoryview(change_types), pa.uint8())
    if _UPDATE_BEFORE in change_types:
        batch = batch.filter(pc.not_equal(changes, ChangeType.UpdateBefore))
        change_types = change_types.translate(None, _UPDATE_BEFORE)
        changes = pa.array(memoryview(change_types), pa.uint8())
    keys = table.keys.encode(batch).to_pylist()
    left = batch.filter(pc.not_equal(changes, ChangeType.Delete))
    values = codec.encode(left, [_PLACES[change] for change in change_types])
    return dict(zip(keys, values, strict=True))


_log = logging.getLogger(__name__)

_Store = TypeVar("_Store", bound=KvStore)


class Recovery(Generic[_Store]):
    """Recovers the store in `path` for a log that has the offsets from `log_start` up to `log_end`."""

    def __init__(
        self,
        path: Path,
        log_start: int,
        log_end: int,
        open_store: Callable[[Path], _Store],
        *,
        log_may_lack_rows: bool = False,
    ) -> None:
        self._path = path
        self._log_may_lack_rows = log_may_lack_rows
        self._log_start = log_start
        self._log_end = log_end
        self._open_store = open_store
        self.reasons: list[str] = []  # why what was found first was not good

    def run(self, checkpoints: Iterable[Path], *, trust_live: bool = True) -> _Store:
        """The open store; replay the log from its covered offset. `checkpoints` come newest first."""
        if trust_live and self._path.exists():
            store = self._open_good(self._path)
            if store is not None:
                return store
        for checkpoint in checkpoints:
            source = self._open_good(checkpoint) if self._is_whole(checkpoint) else None
            if source is not None:
                try:
                    self._remove_live()
                    # By links, whole or not at all, and durable: as good as any checkpoint.
                    with files.creating(Site.KV_RESTORE):
                        source.checkpoint(self._path)
                finally:
                    source.close()
                _log.warning("%s is put back from %s", self._path, checkpoint.name)
                return self._open_store(self._path)
        if self._log_start > 0:
            raise DamagedKvStoreError(
                f"{files.shown(self._path)}: the rows can't be rebuilt, for the log begins at {self._log_start}; "
                f"restore the bucket from a backup ({'; '.join(self.reasons) or 'there is no store'}).",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        self._remove_live()
        return self._open_store(self._path)

    def _is_whole(self, checkpoint: Path) -> bool:
        """Whether no block of a checkpoint's files is damaged, which else shows only when it is read."""
        # Imported here: a server whose stores are good does without.
        from fluss.storage.damage.scrub_files import database_damages

        damages = database_damages(checkpoint)
        for damage in damages:
            self._note(f"{files.shown(damage.path)}: {damage.reason}")
        return not damages

    def _open_good(self, path: Path) -> _Store | None:
        try:
            store = self._open_store(path)
        except DamagedKvStoreError as error:
            self._note(error.message)
            return None
        offset = store.state.covered_offset
        if self._log_start <= offset <= self._log_end:
            return store
        store.close()
        text = f"{files.shown(path)} ends at {offset}, the log goes from {self._log_start} to {self._log_end}"
        if offset > self._log_end and not self._log_may_lack_rows:
            raise DamagedKvStoreError(
                f"{text}: the log has lost rows. The bucket stays closed and its files as they are; 'fluss repair' "
                "shows what a repair would lose.",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        self._note(text)
        return None

    def _note(self, reason: str) -> None:
        _log.error("%s: %s", self._path, reason)
        self.reasons.append(reason)

    def _remove_live(self) -> None:
        if self._path.exists():
            files.remove_tree(self._path, Site.KV_RESTORE)
