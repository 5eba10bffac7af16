"""Picking columns out of batches for readers that do not want all of them.

pyarrow is imported by the first `apply`, in its worker thread: it takes longer to load than all the rest of a server.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from fluss.formats.log_batch import BatchHeader, encode_batch, stamp, walk
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Schema
from fluss.storage.catalog import TableEntry

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.formats.arrow_payload import Codec


class Projection:
    """Some columns of one table. It can be applied in any thread."""

    def __init__(self, entry: TableEntry, schema_json: bytes, indexes: tuple[int, ...]) -> None:
        self._table_json = entry.table_json
        self._schema_json = schema_json
        self._indexes = indexes
        columns = len(_schema(schema_json).columns)
        self.is_identity = len(indexes) == columns
        _check(indexes, columns)

    def apply(self, data: bytes) -> bytes:
        """The batches in `data` with these columns only; their lengths and checksums are new, the rest stays."""
        return b"".join(self._project(data, position, header) for position, header in walk(data))

    def _project(self, data: bytes, position: int, header: BatchHeader) -> bytes | bytearray:
        from fluss.formats.arrow_payload import decode_changes, encode

        if header.record_count == 0:
            return data[position : position + header.size_bytes]
        changes, batch = decode_changes(data, position, header, _arrow_schema(self._schema_json))
        projected = encode_batch(
            encode(batch.select(list(self._indexes)), _codec(self._table_json)),
            schema_id=header.schema_id,
            record_count=header.record_count,
            writer_id=header.writer_id,
            batch_sequence=header.batch_sequence,
            change_types=changes,
        )
        stamp(projected, 0, header.base_offset, header.commit_timestamp_ms)
        return projected


def _check(indexes: tuple[int, ...], columns: int) -> None:
    ascending = all(left < right for left, right in pairwise(indexes))
    if not indexes or not ascending or indexes[0] < 0 or indexes[-1] >= columns:
        raise InvalidRequestError(
            f"Projected columns must be ascending indexes from 0 to {columns - 1}, not {list(indexes[:20])}.",
            ErrorCode.INVALID_COLUMN_PROJECTION,
        )


@lru_cache(maxsize=256)
def _schema(schema_json: bytes) -> Schema:
    return Schema.from_json(json.loads(schema_json))


@lru_cache(maxsize=256)
def _arrow_schema(schema_json: bytes) -> pa.Schema:
    from fluss.model.arrow_types import arrow_schema

    return arrow_schema(_schema(schema_json))


@lru_cache(maxsize=256)
def _codec(table_json: bytes) -> Codec:
    from fluss.formats.arrow_payload import Codec

    return Codec.of(TableDescriptor.from_json(table_json).properties)
