"""The data source `fluss` as Spark sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from fluss.model.errors import InvalidRequestError
from fluss.spark.options import SourceOptions
from fluss.spark.read_options import ReadOptions
from fluss.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from fluss.spark.reader import FlussReader
    from fluss.spark.writer import FlussWriter


class FlussDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("fluss")` and `df.write.format("fluss").mode("append")` for log tables."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """What goes into `format(...)`."""
        return "fluss"

    def schema(self) -> Any:
        """The table's columns, or those named by the option `columns`. Not asked for if `.schema(...)` was given."""
        from fluss.spark.tables import open_table
        from fluss.spark.types import spark_schema

        with open_table(self._parsed) as opened:
            return spark_schema(opened.info.schema, ReadOptions.of(self._parsed).columns)

    def reader(self, schema: Any) -> FlussReader:
        """A batch reader for these columns."""
        from fluss.spark.reader import FlussReader

        columns = ReadOptions.of(self._parsed).columns
        if columns is not None and columns != tuple(schema.fieldNames()):
            raise InvalidRequestError("Choose columns by .option('columns', ...) or by .schema(...), not by both.")
        return FlussReader(self._parsed, schema)

    def writer(self, schema: Any, overwrite: bool) -> FlussWriter:
        """A writer that appends rows of this schema."""
        from fluss.spark.writer import FlussWriter

        if overwrite:
            raise InvalidRequestError(
                f"Rows of the log table {self._parsed.table_path} can't be overwritten: use .mode('append')."
            )
        WriteOptions.of(self._parsed)
        return FlussWriter(self._parsed, schema)
