"""A table read as a stream: where each micro-batch ends, and which parts its tasks read.

A micro-batch has the rows between two positions, the same ones however often it is run. Partitions that come later are
read from their beginning; those that are dropped end. A stream of a primary-key table has its changes: all of them with
`changelog`, otherwise the rows as inserts and updates left them, and no deletes. With `full` as `scan.startup.mode` its
current rows come first, as inserts. Where a table has history in a lake, `full` begins with that.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.spark.read.options import read_columns
from fluss.spark.read.parts import (
    BucketPart,
    BucketRange,
    BucketRowsAt,
    LakeBucket,
    LakeRows,
    SinglePart,
    group_parts,
    read_part,
    scan_of,
)
from fluss.spark.read.plan import bucket_offsets, chosen_partitions, split_ranges
from fluss.spark.source_options import SourceOptions, open_table
from fluss.spark.stream.offsets import (
    CURRENT_ROWS,
    Offsets,
    StreamOffset,
    beginning,
    check_stream_options,
    initial_offset,
    latest_offsets,
    limited,
    sample_range,
    snapshot_parts,
    without_unread,
)
from fluss.spark.waiting import told_shortly

if TYPE_CHECKING:
    import pyarrow as pa

Stored: TypeAlias = Mapping[str, Any]
"""A position as Spark keeps it"""

# A filter may leave nothing of the rows that are measured.
ROW_BYTES_MIN = 8

_log = logging.getLogger(__name__)


class FlussStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """What is the same in all versions of Spark. On the driver one reader lives as long as its query."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._read_options = check_stream_options(options)
        self.table_path = options.table_path
        self.was_cut = False
        """Whether a limit kept the last micro-batch from having all there was"""
        self._initial: Stored | None = None
        self._latest: StreamOffset | None = None
        """How far the stream could have read when it was last asked"""
        self._target: Offsets | None = None
        """Where the stream is to end, if it is to end"""

    @property
    def is_limited(self) -> bool:
        """Whether micro-batches have a limit."""
        return bool(self._read_options.rows_per_trigger_max or self._read_options.bytes_per_trigger_max)

    @told_shortly()
    def initialOffset(self) -> Stored:  # noqa: N802
        """Where a new stream begins."""
        if self._initial is None:
            with open_table(self._options) as opened:
                columns = read_columns(opened.info, self._schema, self._read_options.changelog)
                scan_of(opened, columns, self._read_options.filter)  # raises when the filter does not fit the table
                self._initial = initial_offset(opened, self._read_options).to_json()
        return self._initial

    def next_offset(self, start: Stored, *, is_limited: bool) -> Stored:
        """The end of the micro-batch that begins at `start`; `start` if there is nothing new."""
        with open_table(self._options) as opened:
            info = opened.info
            before = StreamOffset.from_json(start, info)
            latest = latest_offsets(opened, self._read_options)
        self._latest = StreamOffset(info.table_id, latest)
        first = beginning(info, self._read_options)
        starts = {key: before.offsets.get(key, first) for key in latest}
        _check_not_behind(info, starts, latest)
        if self._target is not None:
            latest = {key: max(starts[key], self._target.get(key, first)) for key in latest}
        reached = limited(starts, latest, self._rows_max(info, starts, latest)) if is_limited else latest
        self.was_cut = reached != latest
        ends = without_unread(reached, first)
        if ends == before.offsets and not (before.is_initial and before.lake):
            return start
        dropped = {key[0] for key in before.offsets.keys() - latest.keys() if key[0] is not None}
        for partition_id in dropped:
            _log.warning("The partition with id %d of %s was dropped: its rows end.", partition_id, info.table_path)
        first_start = before.offsets if before.is_initial else None
        lake = before.lake if before.is_initial else None
        return StreamOffset(info.table_id, ends, start=first_start, dropped=tuple(dropped), lake=lake).to_json()

    def _rows_max(self, info: TableInfo, starts: Offsets, ends: Offsets) -> int:
        """The limit in rows; one in bytes is that of rows as large, in Arrow's memory, as those that come next."""
        rows_max = self._read_options.rows_per_trigger_max or sys.maxsize
        bytes_max = self._read_options.bytes_per_trigger_max
        sample = None if bytes_max is None else sample_range(info, starts, ends)
        if bytes_max is None or sample is None:
            return rows_max
        sample_bytes = sum(batch.nbytes for batch in self.read(sample))
        row_bytes: int = max(ROW_BYTES_MIN, sample_bytes // (sample.end_offset - sample.start_offset))
        return min(rows_max, max(1, bytes_max // row_bytes))

    def prepare_to_end(self) -> None:
        """Read no further than the logs reach now."""
        with open_table(self._options) as opened:
            self._target = latest_offsets(opened, self._read_options)

    @told_shortly()
    def partitions(self, start: Stored, end: Stored) -> list[BucketPart]:
        """What the tasks of a micro-batch read."""
        if start == end:
            return []
        with open_table(self._options) as opened:
            info = opened.info
            before, after = StreamOffset.from_json(start, info), StreamOffset.from_json(end, info)
            # Notes in the end of a first micro-batch count in that one alone. Spark may have asked for an end before it
            # told where the stream is (triggerAvailableNowWrapper), and uses it as that of a later one.
            starts = after.start if before.is_initial and after.start is not None else before.offsets
            lake = after.lake if before.is_initial else None
            names = chosen_partitions(opened, self._read_options.partitions)
            if self._latest is None:  # planned before a restart of the driver, of a server that may have been another
                latest = latest_offsets(opened, self._read_options)
                _check_not_behind(info, {key: at for key, at in after.offsets.items() if key in latest}, latest)
            parts: list[SinglePart] = []
            ranges: list[BucketRange] = []
            if lake is not None:
                parts += snapshot_parts(opened, self._read_options, lake, names, starts, after.offsets)
            for key, stop in after.offsets.items():
                begin = starts.get(key, beginning(info, self._read_options))
                if begin >= stop or key[0] not in names:
                    continue
                if begin == CURRENT_ROWS:
                    if stop > 0:
                        parts.append(BucketRowsAt(info.table_id, *key, stop, stop, names[key[0]]))
                elif lake is None or not info.has_primary_key():  # otherwise it is merged with the lake's rows
                    ranges.append(BucketRange(info.table_id, *key, begin, stop, names[key[0]]))
            rows_wanted = self._read_options.rows_per_partition_max
            return group_parts([*parts, *split_ranges(opened, ranges, rows_wanted, in_order=True)], rows_wanted)

    def read(self, partition: BucketPart) -> Iterator[pa.RecordBatch]:
        """The rows of a part as Arrow batches; a partition that is gone has no more."""
        with told_shortly():
            yield from read_part(self._options, self._schema, partition, self._check_gone)

    def _check_gone(self, error: FlussError, part: SinglePart) -> None:
        """Raise unless the part is of a partition that is gone."""
        if isinstance(part, LakeRows):
            raise error
        # Together with its history it is read again, without what is gone.
        if error.error_code == ErrorCode.PARTITION_NOT_EXISTS and not isinstance(part, LakeBucket):
            _log.warning("%s", error.message)
        elif error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
            raise _expired(self._options, part) from error
        else:
            raise error

    def stop(self) -> None:
        """Spark calls this at the end, in the process that it runs for this reader alone.

        Where it has closed the connection, that process would go on to write to it and print what becomes of that.
        """
        if isinstance(sys.exception(), EOFError):
            os._exit(0)


def _check_not_behind(info: TableInfo, known: Offsets, ends: Offsets) -> None:
    for key, offset in known.items():
        if ends[key] < offset:
            where = "" if key[0] is None else f" of the partition with id {key[0]}"
            raise InvalidRequestError(
                f"The log of {info.table_path}, bucket {key[1]}{where}, ends at offset {ends[key]}, but the stream "
                f"knows rows up to {offset}: the server has lost them. Start with a new checkpoint to read what it has."
            )


def _expired(options: SourceOptions, part: BucketRange | BucketRowsAt | LakeBucket) -> InvalidRequestError:
    start, end = (part.offset,) * 2 if isinstance(part, BucketRowsAt) else (part.start_offset, part.end_offset)
    with open_table(options) as opened:
        path = opened.info.table_path
        earliest = bucket_offsets(opened, {part.partition_id: part.partition_name}, OffsetSpec.earliest())
    where = f"bucket {part.bucket}" + ("" if part.partition_name is None else f" of partition {part.partition_name!r}")
    return InvalidRequestError(
        f"Rows of {path}, {where}, expired before the stream read them: it is at offset {start} of {end}, and the log "
        f"begins at {earliest[part.partition_id, part.bucket]} now. To go on with what there is, start with a new "
        "checkpoint; to keep rows for longer, set the table's 'table.log.ttl'.",
        ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
    )
