"""Rows of a data file that later snapshots deleted: by position, or by the values of some columns.

This package's own tiering leaves no such deletes unless it is asked for merge-on-read; Apache Fluss's always does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.lake.filesystem import open_filesystem
from fluss.lake.format import EqualityDelete, LakeFile

if TYPE_CHECKING:
    import pyarrow as pa


class Deletes:
    """What was deleted from one data file."""

    def __init__(self, file: LakeFile, properties: Mapping[str, str]) -> None:
        self._positions = _positions(file, properties) if file.position_deletes else None
        self._keys: dict[tuple[int, ...], pa.Table] = {}
        for field_ids in {item.field_ids for item in file.equality_deletes}:
            same = [item for item in file.equality_deletes if item.field_ids == field_ids]
            self._keys[field_ids] = _keys(same, properties)

    @property
    def field_ids(self) -> set[int]:
        """Columns that must be read to know which rows are gone."""
        return {number for field_ids in self._keys for number in field_ids}

    def kept(self, batch: pa.RecordBatch, first: int, names: Mapping[int | None, str]) -> pa.RecordBatch:
        """The rows of a batch that are still there; `first` is the position of its first row in the file."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._positions is not None:
            places = pa.array(range(first, first + batch.num_rows), pa.int64())
            batch = batch.filter(pc.invert(pc.is_in(places, value_set=self._positions)))
        for field_ids, gone in self._keys.items():
            batch = _without(batch, [names[number] for number in field_ids], gone)
        return batch


def _without(batch: pa.RecordBatch, columns: list[str], gone: pa.Table) -> pa.RecordBatch:
    import pyarrow as pa

    rows = pa.table({"__row": pa.array(range(batch.num_rows), pa.int64())})
    for place, name in enumerate(columns):
        rows = rows.append_column(f"k{place}", batch.column(name).cast(gone.schema.field(place).type))
    kept = rows.join(gone, keys=gone.schema.names, join_type="left anti")
    return batch.take(kept["__row"].combine_chunks().sort())


def _positions(file: LakeFile, properties: Mapping[str, str]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found = []
    for location in file.position_deletes:
        filesystem, path = open_filesystem(location, properties)
        rows = pq.read_table(path, columns=["file_path", "pos"], filesystem=filesystem)
        found.append(rows.filter(pc.equal(rows["file_path"], file.path))["pos"].combine_chunks())
    return pa.concat_arrays([item.cast(pa.int64()) for item in found])


def _keys(deletes: list[EqualityDelete], properties: Mapping[str, str]) -> pa.Table:
    """The values of deleted rows, columns named k0, k1, … in the order of the field ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for item in deletes:
        filesystem, path = open_filesystem(item.path, properties)
        with filesystem.open_input_file(path) as source:
            parquet = pq.ParquetFile(source)
            names = {int(column.metadata[b"PARQUET:field_id"]): column.name for column in parquet.schema_arrow}
            rows = parquet.read(columns=[names[number] for number in item.field_ids])
            rows = rows.select([names[number] for number in item.field_ids])
        tables.append(rows.rename_columns([f"k{place}" for place in range(len(item.field_ids))]))
    return pa.concat_tables(tables)
