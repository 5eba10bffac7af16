"""Picking columns out of batches for readers that do not want all of them.

Batches of older schemas may lack columns that were added since. Apache Fluss refuses to project those; here they come
as nulls, because every client reads a projected batch with the columns it asked for, whatever schema the batch was
written with. New columns are always the last ones, so indexes mean the same in all schemas of a table.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from fluss.formats.arrow.layout import ArrowLayout
from fluss.formats.arrow.messages import ColumnSlicer
from fluss.formats.batches.log_batch import BatchHeader, payload_of, resized_header
from fluss.model.descriptor import LogFormat
from fluss.model.errors import CorruptDataError, ErrorCode, InvalidRequestError
from fluss.protocol.protobuf import Part
from fluss.server.tables.table_formats import schema_columns, table_format
from fluss.storage.catalog.catalog import Catalog, TableEntry
from fluss.storage.catalog.view import DefinitionCache

_INDEXES_SHOWN: Final = 20


class Projection:
    """Some columns of one table."""

    def __init__(self, catalog: Catalog, entry: TableEntry, indexes: tuple[int, ...]) -> None:
        self._catalog = catalog
        self._table_id = entry.table_id
        self._indexes = indexes
        self._target_json = catalog.schema_json(entry.table_id, entry.schema_id)
        self._slicers: dict[int, ColumnSlicer | None] = {}
        _check(indexes, len(schema_columns(self._target_json).types), table_format(entry.table_json).log_format)

    def apply(self, data: bytes, position: int, header: BatchHeader) -> tuple[list[Part], int]:
        """The batch at `position` with these columns only, in parts, and its size.

        The checksum is the old one, as clients know: they do not look at it when they project. Statistics are dropped.
        """
        slicer = self._slicer(header.schema_id) if header.record_count else None
        if slicer is None:
            return [memoryview(data)[position : position + header.size_bytes]], header.size_bytes
        changes, payload = payload_of(data, position, header)
        try:
            pieces, size_bytes = slicer.slice(payload)
        except CorruptDataError as error:
            # Not CORRUPT_RECORD: that is retriable, and the batch on disk stays as it is.
            raise CorruptDataError(
                f"The batch at offset {header.base_offset} can't be projected: {error.message}.",
                ErrorCode.CORRUPT_MESSAGE,
            ) from error
        if changes is not None:
            pieces.insert(0, changes)
            size_bytes += len(changes)
        head = resized_header(data, position, header, size_bytes)
        return [head, *pieces], len(head) + size_bytes

    def _slicer(self, schema_id: int) -> ColumnSlicer | None:
        """None when the batches of a schema have just the columns asked for."""
        try:
            return self._slicers[schema_id]
        except KeyError:
            batch_json = self._catalog.schema_json(self._table_id, schema_id)
            slicer = self._slicers[schema_id] = _slicer(batch_json, self._target_json, self._indexes)
            return slicer


def _check(indexes: tuple[int, ...], columns: int, log_format: LogFormat) -> None:
    if log_format is not LogFormat.ARROW:
        raise InvalidRequestError(
            f"Only ARROW log tables can be projected, this one is {log_format}; read all columns.",
            ErrorCode.INVALID_COLUMN_PROJECTION,
        )
    ascending = all(left < right for left, right in pairwise(indexes))
    if not indexes or not ascending or indexes[0] < 0 or indexes[-1] >= columns:
        raise InvalidRequestError(
            f"Projected columns must be ascending indexes from 0 to {columns - 1}, "
            f"not {list(indexes[:_INDEXES_SHOWN])}.",
            ErrorCode.INVALID_COLUMN_PROJECTION,
        )


@DefinitionCache
def _slicer(batch_json: bytes, target_json: bytes, indexes: tuple[int, ...]) -> ColumnSlicer | None:
    batch = schema_columns(batch_json)
    if indexes == tuple(range(len(batch.types))):
        return None
    target = schema_columns(target_json)
    there = [index for index in indexes if index < len(batch.types)]
    missing = [target.types[index] for index in indexes if index >= len(batch.types)]
    return ColumnSlicer(batch.layout, there, ArrowLayout(missing))
