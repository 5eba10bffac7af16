"""Reading a log table: one Spark partition per bucket.

The first and the last offset of each bucket are fixed when Spark plans the query: a query reads the same rows however
often its tasks run, and appends that come later are not seen; load the table again to see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

from fluss.model.errors import InvalidRequestError
from fluss.model.offsets import OffsetSpec
from fluss.spark.matching import check_read_schema
from fluss.spark.options import SourceOptions
from fluss.spark.ranges import BucketRange, read_range
from fluss.spark.tables import OpenTable, open_table
from fluss.spark.types import spark_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import LogScanner


class FlussReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, reads in tasks. Holds plain values only, because Spark pickles it."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[BucketRange]:
        """One range of offsets per bucket, as the log is now."""
        with open_table(self._options) as opened:
            info = opened.info
            check_read_schema(info.table_path, info.schema, self._schema)
            buckets = list(range(info.num_buckets))
            admin = opened.connection.get_admin()
            starts = admin.list_offsets(info.table_path, buckets, OffsetSpec.earliest())
            ends = admin.list_offsets(info.table_path, buckets, OffsetSpec.latest())
            return [BucketRange(info.table_id, None, bucket, starts[bucket], ends[bucket]) for bucket in buckets]

    def read(self, partition: BucketRange) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow batches."""
        if partition.start_offset >= partition.end_offset:
            return
        from fluss.spark.convert import to_spark

        with open_table(self._options) as opened:
            info = opened.info
            if info.table_id != partition.table_id:
                raise InvalidRequestError(f"{info.table_path} was dropped and created again; load it again.")
            columns = check_read_schema(info.table_path, info.schema, self._schema)
            arrow_schema = spark_arrow_schema(columns)
            with _scanner(opened, [column.name for column in columns]) as scanner:
                for batch in read_range(scanner, partition):
                    yield to_spark(batch, arrow_schema)


def _scanner(opened: OpenTable, names: list[str]) -> LogScanner:
    scan = opened.table.new_scan()
    if names != opened.info.schema.column_names:
        scan = scan.project_by_name(names)
    return scan.create_record_batch_log_scanner()
