"""A union read as a DuckDB relation, which reads the lake's files itself, as far as a query needs them."""

from __future__ import annotations

import glob
import importlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fluss.lake.filesystem import check_place, open_filesystem
from fluss.lake.format import LakeFile
from fluss.lake.options import local_path
from fluss.lake.union.plan import UnionPlan
from fluss.lake.union.rows import UnionReader
from fluss.model.errors import FlussError
from fluss.model.trust import is_local


def load_duckdb() -> Any:
    """The module; raises when it is not there."""
    try:
        return importlib.import_module("duckdb")
    except ImportError as error:
        raise FlussError("duckdb is not installed; install flussbett[lake].") from error


class LakeRelation:
    """Builds the relation of a plan."""

    def __init__(self, duck: Any, reader: UnionReader, plan: UnionPlan) -> None:
        self._duck = duck
        self._reader = reader
        self._plan = plan
        empty = duck.from_arrow(reader.needed.empty_table())
        self._types = dict(zip(reader.needed.names, map(str, empty.types), strict=True))

    def build(self) -> Any:
        """All rows."""
        reader, plan = self._reader, self._plan
        fresh: list[pa.RecordBatch] = []
        touched: list[pa.Table] = []
        for bucket in plan.buckets:
            changes = reader.changes(bucket)
            if changes is not None:
                touched += [table.select(reader.key_names) for table in (changes.rows, changes.removed)]
            fresh += reader.tail_batches(bucket, changes)
            fresh += reader.lake_batches(plan, [file for file in bucket.files if file.has_deletes], changes)
        found = self._duck.from_arrow(pa.Table.from_batches(fresh, reader.schema))
        keys = self._duck.from_arrow(pa.concat_tables(touched)) if touched else None
        rest = [file for bucket in plan.buckets for file in bucket.files if not file.has_deletes]
        local = [file for file in rest if is_local(file.path)]
        remote = [file for file in rest if not is_local(file.path)]
        if local:
            found = self.rows_of(self._open_local(local), keys).union(found)
        if remote:
            found = self.rows_of(self.open_by_arrow(remote), keys).union(found)
        return found

    def _open_local(self, files: Sequence[LakeFile]) -> Any:
        for file in files:
            check_place(file.path, self._plan.source.properties)
        # What looks like a pattern, or like a partition in a folder's name, is not one.
        paths = [glob.escape(str(local_path(file.path))) for file in files]
        return self._duck.read_parquet(paths, hive_partitioning=False, union_by_name=True)

    def open_by_arrow(self, files: Sequence[LakeFile]) -> Any:
        """Files that DuckDB can't open itself; it is given what a query needs of them."""
        import pyarrow.dataset as ds

        opened = [open_filesystem(file.path, self._plan.source.properties) for file in files]
        return self._duck.from_arrow(
            ds.dataset([path for _, path in opened], self._plan.source.schema, "parquet", filesystem=opened[0][0])
        )

    def rows_of(self, opened: Any, keys: Any | None = None) -> Any:
        """Rows of the lake in the table's types, but for those whose key was touched."""
        there = set(opened.columns)
        columns = [
            f"CAST({quoted(name) if name in there else 'NULL'} AS {kind}) AS {quoted(name)}"
            for name, kind in self._types.items()
        ]
        rows = opened.select(", ".join(columns))
        if keys is not None:
            same = " AND ".join(f"l.{quoted(name)} = r.{quoted(name)}" for name in self._reader.key_names)
            rows = rows.set_alias("l").join(keys.set_alias("r"), same, how="anti")
        return rows.select(", ".join(map(quoted, self._reader.schema.names)))


def quoted(name: str) -> str:
    """A name as SQL has it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
