"""What a program has besides its session: tables of its own, and a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from fluss.spark import Catalog
from fluss.sync import FlussConnection, FlussTable, TablePath

Row: TypeAlias = tuple[Any, ...]
Program: TypeAlias = Callable[[SparkSession, "Tables"], None]


@dataclass(frozen=True)
class Tables:
    """Tables of one database. What is not the subject of a program is done with the client, which is fast."""

    connection: FlussConnection
    catalog: Catalog
    database: str
    folder: Path

    @property
    def source(self) -> dict[str, str]:
        """The options that say where the tables are."""
        return self.catalog.options

    def create(self, name: str, columns: str, rows: Iterable[Sequence[Any]] = (), **keys: Any) -> str:
        """A new table with these rows; returns its full name. `keys` are those of `Catalog.create_table`."""
        full_name = f"{self.database}.{name}"
        self.catalog.create_table(full_name, columns, **keys)
        self.add(full_name, *rows)
        return full_name

    def attach(self, name: str, columns: str, rows: Iterable[Sequence[Any]] = (), **keys: Any) -> str:
        """The same, known to Spark's SQL by its name."""
        return self.catalog.attach(self.create(name, columns, rows, **keys))

    def add(self, table: str, *rows: Sequence[Any]) -> None:
        """Append rows, or upsert them if the table has a primary key."""
        found = self._table(table)
        keyed = found.get_table_info().has_primary_key()
        columns = zip(*rows, strict=True) if rows else ()
        arrays = [pa.array(values, field.type) for values, field in zip(columns, found.arrow_schema, strict=False)]
        with (found.new_upsert() if keyed else found.new_append()).create_writer() as writer:
            if rows:
                writer.write_arrow(pa.table(arrays, found.arrow_schema))

    def rows(self, table: str) -> list[Row]:
        """All rows of a table, sorted; nulls come last."""
        found = [tuple(row.values()) for row in self._table(table).new_scan().to_arrow().to_pylist()]
        return sorted(found, key=lambda row: [(value is None, value) for value in row])

    def path(self, name: str) -> str:
        """A path for a checkpoint or for files."""
        return str(self.folder / name)

    def _table(self, name: str) -> FlussTable:
        return self.connection.get_table(TablePath(*name.split(".")))
