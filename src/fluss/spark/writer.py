"""Appending a DataFrame to a log table.

At least once: every task appends its rows and waits until the server has stored them, and the write succeeds when all
tasks have. A task that Spark runs again, and a write that fails half-way and is repeated by the user, append their rows
again; rows that were stored stay stored. Count on exactly one copy of a row only if no task failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from fluss.model.errors import InvalidRequestError
from fluss.spark.matching import check_write_schema
from fluss.spark.options import SourceOptions
from fluss.spark.tables import open_table

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RowsAppended(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: its rows are stored."""

    rows: int


class FlussWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Checks the schema on the driver, appends in tasks. Holds plain values only, because Spark pickles it."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        with open_table(options) as opened:
            check_write_schema(opened.info.table_path, opened.info.schema, schema)
            self._table_id = opened.info.table_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsAppended:
        """Append all batches of a task and wait until they are stored."""
        from fluss.spark.convert import to_table

        rows = 0
        with open_table(self._options) as opened:
            info, arrow_schema = opened.info, opened.table.arrow_schema
            if info.table_id != self._table_id:
                raise InvalidRequestError(f"{info.table_path} was dropped and created again during the write.")
            writer = opened.table.new_append().create_writer()
            for batch in iterator:
                writer.write_arrow_batch(to_table(batch, arrow_schema, info.table_path))
                rows += batch.num_rows
            writer.flush()
        return RowsAppended(rows)
