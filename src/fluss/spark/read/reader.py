"""Reading a table in a batch query.

A log table gives its rows, a primary-key table its current rows, and with `changelog=true` either gives its changes.
The offsets are fixed when Spark plans the query: a query reads the same rows however often its tasks run and however
late, and what is written later is not seen; load the table again to see it. A table that has history in a lake gives
it, too, with the rows that came since.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

from fluss.spark.errors import told_shortly
from fluss.spark.read.lake_plan import plan_lake_parts, reads_lake
from fluss.spark.read.options import ReadOptions
from fluss.spark.read.parts import BucketPart, read_part, scan_of
from fluss.spark.read.plan import plan_parts
from fluss.spark.read.read_columns import check_chosen_once, read_columns
from fluss.spark.source_options import SourceOptions
from fluss.spark.tables import open_table

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_OPTIONS = ("scan.startup.mode", "scan.startup.timestamp", "maxRowsPerTrigger", "maxBytesPerTrigger")


class FlussReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, reads in tasks. Holds plain values only, because Spark pickles it."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        options.refuse(STREAM_OPTIONS, "streams")
        check_chosen_once(ReadOptions.of(options).columns, schema)
        self._options = options
        self._schema = schema

    @told_shortly()
    def partitions(self) -> list[BucketPart]:
        """The parts of the table as it is now."""
        read_options = ReadOptions.of(self._options)
        with open_table(self._options) as opened:
            columns = read_columns(opened.info, self._schema, read_options.changelog)
            scan_of(opened, columns, read_options.filter)  # raises when the filter does not fit the table
            parts = plan_lake_parts(opened, read_options) if reads_lake(opened.info, read_options) else None
            return plan_parts(opened, read_options) if parts is None else parts

    def read(self, partition: BucketPart) -> Iterator[pa.RecordBatch]:
        """The rows of a part as Arrow batches."""
        with told_shortly():
            yield from read_part(self._options, self._schema, partition)
