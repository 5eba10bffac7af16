"""Picking columns out of batches, and which batches a fetch with a filter or a projection gets.

Batches of older schemas may lack columns that were added since. Apache Fluss refuses to project those; here they come
as nulls, because every client reads a projected batch with the columns it asked for, whatever schema the batch was
written with. New columns are always the last ones, so indexes mean the same in all schemas of a table.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from fluss.formats.arrow.layout import ArrowLayout
from fluss.formats.arrow.messages import ColumnSlicer
from fluss.formats.batches.log_batch import BatchHeader, payload_of, resized_header, walk
from fluss.model.descriptor import LogFormat
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.protocol.protobuf import Part
from fluss.server.read.filter import BatchFilter
from fluss.server.tables.formats import schema_columns, table_format
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


# One fetch looks at so many batches, fewer with a large filter; the rest is for the next one, so that nobody holds the
# loop for long.
BATCHES_PER_FETCH_MAX: Final = 1_000

# Parts smaller than this on average are put together.
_PART_SIZE_MIN_BYTES: Final = 16 << 10


class Picked(NamedTuple):
    parts: list[Part]
    size_bytes: int
    filtered_end_offset: int | None  # where to go on, if batches at the end were left out
    cost: int  # in batches


class BatchPicker:
    """A filter, a projection, or both."""

    def __init__(self, batch_filter: BatchFilter | None, projection: Projection | None) -> None:
        self._filter = batch_filter
        self._cost = 1 if batch_filter is None else batch_filter.cost
        self._projection = projection

    @property
    def filters(self) -> bool:
        """Whether batches may be left out."""
        return self._filter is not None

    def pick(self, data: bytes, bytes_max: int, batches_max: int, kept_end_offset: int) -> Picked:
        """The batches to send, at least one if there is any; they end where a limit is reached.

        The batch that ends at `kept_end_offset` is never filtered out.
        """
        parts: list[Part] = []
        size_bytes = cost = 0
        filtered_end_offset: int | None = None
        for position, header in walk(data):
            if cost >= batches_max:
                break
            cost += self._cost
            if header.next_offset != kept_end_offset and not self._may_match(data, position, header):
                filtered_end_offset = header.next_offset
                continue
            try:
                pieces, piece_bytes = self._project(data, position, header)
            except FlussError:
                if not parts and filtered_end_offset is None:
                    raise
                # What is good comes first, the error next time.
                break
            if parts and size_bytes + piece_bytes > bytes_max:
                break
            # Parts keep all of `data` in memory, and sending them has its price: only large ones are worth it.
            parts += pieces if piece_bytes >= len(pieces) * _PART_SIZE_MIN_BYTES else [b"".join(pieces)]
            size_bytes += piece_bytes
            filtered_end_offset = None
        if 2 * size_bytes < len(data) or size_bytes < len(parts) * _PART_SIZE_MIN_BYTES:
            parts = [b"".join(parts)] if parts else []
        return Picked(parts, size_bytes, filtered_end_offset, cost)

    def _may_match(self, data: bytes, position: int, header: BatchHeader) -> bool:
        return self._filter is None or self._filter.may_match(data, position, header)

    def _project(self, data: bytes, position: int, header: BatchHeader) -> tuple[list[Part], int]:
        if self._projection is None:
            return [memoryview(data)[position : position + header.size_bytes]], header.size_bytes
        return self._projection.apply(data, position, header)
