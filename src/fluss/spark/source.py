"""The data source `fluss` as Spark sees it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource

from fluss.model.errors import InvalidRequestError
from fluss.spark.read.options import ReadOptions
from fluss.spark.source_options import SourceOptions
from fluss.spark.waiting import told_shortly

if TYPE_CHECKING:
    from fluss.spark.read.reader import FlussReader
    from fluss.spark.stream.reader import FlussStreamReader
    from fluss.spark.write.writer import FlussStreamWriter, FlussWriter


class FlussDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("fluss")`, `df.write.format("fluss").mode("append")`, and the same for streams."""

    @told_shortly()
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)
        self._made_in = os.getpid()

    @property
    def _reading(self) -> SourceOptions:
        """The options of reads."""
        return self._parsed

    @classmethod
    def name(cls) -> str:
        """What goes into `format(...)`."""
        return "fluss"

    @told_shortly()
    def schema(self) -> Any:
        """The table's columns, or those named by the option `columns`; with `changelog=true` those of changes before
        them. Not asked for if `.schema(...)` was given.
        """
        from fluss.spark.read.options import read_schema
        from fluss.spark.source_options import open_table

        options = ReadOptions.of(self._reading)
        with open_table(self._reading) as opened:
            return read_schema(opened.info, options.columns, options.changelog)

    @told_shortly()
    def reader(self, schema: Any) -> FlussReader:
        """A batch reader for these columns."""
        from fluss.spark.read.reader import FlussReader

        return FlussReader(self._reading, schema)

    @told_shortly()
    def streamReader(self, schema: Any) -> FlussStreamReader:  # noqa: N802
        """A reader of micro-batches of these columns."""
        if hasattr(datasource, "ReadLimit"):
            from fluss.spark.stream.reader_42 import AskedStreamReader

            return AskedStreamReader(self._reading, schema)
        from fluss.spark.stream.reader_41 import RememberingStreamReader

        return RememberingStreamReader(self._reading, schema)

    @told_shortly()
    def writer(self, schema: Any, overwrite: bool) -> FlussWriter:
        """A writer of a batch of rows of this schema."""
        from fluss.spark.write.writer import FlussWriter

        if overwrite:
            raise InvalidRequestError(
                f"{self._parsed.table_path} can't be overwritten: use .mode('append'), which appends to a log table "
                "and upserts into a primary-key table, or INSERT INTO. To empty it, drop it and create it again: "
                "catalog.drop_table(...), catalog.create_table(...)."
            )
        return FlussWriter(self._parsed, schema)

    @told_shortly()
    def streamWriter(self, schema: Any, overwrite: bool) -> FlussStreamWriter:  # noqa: N802
        """A writer of micro-batches of this schema."""
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise InvalidRequestError(
                "Streams are written with Spark 4.1 or newer; with 4.0, write each micro-batch by .foreachBatch(...)."
            )
        from fluss.spark.write.writer import FlussStreamWriter

        if overwrite:
            raise InvalidRequestError(
                f"{self._parsed.table_path} can't be overwritten by each micro-batch: use .outputMode('append'), or "
                ".outputMode('update') with .foreachBatch(...) and a batch write into a primary-key table."
            )
        # Spark ships this source, to where a micro-batch is committed, but makes a new one to plan it.
        return FlussStreamWriter(self._parsed, schema, plans=self._made_in == os.getpid())
