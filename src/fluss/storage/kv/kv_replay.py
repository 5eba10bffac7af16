"""The changelog read back into a store: what brings one that is behind to the end of the log."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats import kernel
from fluss.formats.batches.log_batch import verify_crc, walk
from fluss.formats.rows.values import ValueCodec
from fluss.model.records import ChangeType
from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.kv.store import KvState, KvStore, KvStoreError
from fluss.storage.kv.table import KvTable

# How much of a log is read and written to a store at a time.
CHUNK_BYTES: Final = 4 << 20

_UPDATE_BEFORE: Final = bytes([ChangeType.UpdateBefore])
# By change type, whether a row is left: what `ValueCodec.encode` takes for a place.
_PLACES: Final = (b"row", b"row", b"row", b"row", None)


def row_count_change(change_types: bytes) -> int:
    """By how many rows a table grows."""
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
