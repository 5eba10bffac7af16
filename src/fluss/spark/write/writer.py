"""Writing a DataFrame: appends to log tables; upserts, deletes and changes of primary-key tables.

Every task writes its rows and waits until the server has stored them; the write succeeds when all tasks have. Rows that
were stored stay stored, whatever fails later, and a task that Spark runs again writes its rows again. So:

- appends are at least once: count on one copy of a row only if no task failed;
- upserts, deletes and changes leave the same rows however often they are repeated, where the last write of a key wins;
- an aggregating table counts repeated rows again.

Changes of one key are made in their order where they come in one Spark partition; between partitions there is no order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from fluss.spark.errors import told_shortly
from fluss.spark.foreign_options import STREAM_OPTIONS
from fluss.spark.source_options import SourceOptions, bad_option
from fluss.spark.write.plan import WritePlan
from fluss.spark.write.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RowsStored(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: its rows are stored."""

    row_count: int


class FlussWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Checks the schema on the driver, writes in tasks. Holds plain values only, because Spark pickles it."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        options.refuse(STREAM_OPTIONS, "streams that are written (df.writeStream)")
        if WriteOptions.of(options).exactly_once:
            raise bad_option(
                "The option 'exactly.once' is for streams (df.writeStream): a batch write has no name under which a "
                "repetition could be recognised. Leave it out."
            )
        self._options, self._schema = options, schema
        self._plan = WritePlan.early(options, schema)

    @told_shortly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsStored:
        """Write all batches of a task and wait until they are stored."""
        return store_rows(self._plan or WritePlan.make(self._options, self._schema), iterator)


def store_rows(plan: WritePlan, iterator: Iterator[pa.RecordBatch]) -> RowsStored:
    """What a task does whose rows are visible as soon as they are stored."""
    from fluss.spark.write.task import store, with_rows

    batches = with_rows(iterator)
    if batches is None:
        return RowsStored(0)
    with plan.open() as opened:
        return RowsStored(store(plan, opened, batches))
