"""The partitions of the rows that a task writes: found, or created up to a bound that all tasks of a write share.

The driver notes the newest partition when the write begins. A task that meets rows of a missing partition counts those
that are newer, whoever created them, and creates none if there would be too many; a Flussbett server counts once more
when it creates one, so that tasks that ask at the same moment keep the bound together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fluss.formats.rows.partition_values import partition_names
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.partitions import spec_of_name
from fluss.spark.write.write_options import NEW_PARTITIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fluss.model.partitions import PartitionBound
    from fluss.spark.tables import OpenTable

_NAMES_SHOWN = 3


class WritePartitions:
    """Finds and creates the partitions of a table for one task; without a bound it creates none."""

    def __init__(self, opened: OpenTable, bound: PartitionBound | None) -> None:
        info = opened.info
        self._admin = opened.connection.get_admin()
        self._path = info.table_path
        self._keys = info.partition_keys
        columns = {column.name: column for column in info.schema.columns}
        self._columns = [columns[key] for key in self._keys]
        self._bound = bound
        self._known: set[str] = set()
        self._new_count = 0

    def provide(self, rows: pa.RecordBatch) -> None:
        """Create what partitions of the rows are missing, all or none of them as far as their number is known."""
        if self._bound is None:
            return
        missing = self._missing(partition_names(rows, self._columns)[1])
        self._check_count(self._bound, missing)
        for name in missing:
            self._create(self._bound, name)

    def split(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Keys of partitions that exist, and keys of those that do not, in which there is nothing to delete."""
        indexes, names = partition_names(keys, self._columns)
        missing = self._missing(names)
        if not missing:
            return keys, keys.slice(0, 0)
        is_missing = np.isin(names, missing)[indexes.to_numpy()]
        return keys.filter(pa.array(~is_missing)), keys.filter(pa.array(is_missing))

    def _missing(self, names: Sequence[str]) -> list[str]:
        """Those of these partitions that do not exist, each with a name that one may have."""
        if not self._known.issuperset(names):
            infos = self._admin.list_partition_infos(self._path)
            self._known = {info.partition_name for info in infos}
            if self._bound is not None:
                self._new_count = sum(info.partition_id > self._bound.newer_than_id for info in infos)
        missing = sorted(set(names) - self._known)
        for name in missing:
            spec_of_name(name, self._keys).check_values()
        return missing

    def _create(self, bound: PartitionBound, name: str) -> None:
        try:
            self._admin.create_partition(self._path, spec_of_name(name, self._keys), True, bound=bound)
        except FlussError as error:
            if error.error_code == ErrorCode.PARTITION_MAX_NUM_EXCEPTION:
                self._check_count(bound, self._missing([name]))
            raise
        self._known.add(name)

    def _check_count(self, bound: PartitionBound, missing: Sequence[str]) -> None:
        count = self._new_count + len(missing)
        if missing and count > bound.newer_max:
            shown = ", ".join(map(repr, missing[:_NAMES_SHOWN])) + (", ..." if len(missing) > _NAMES_SHOWN else "")
            raise InvalidRequestError(
                f"The rows are for at least {count} partitions that {self._path} did not have when the write began "
                f"({shown} among them); it may create {bound.newer_max}. Check the values of "
                f"{', '.join(map(repr, self._keys))}, or raise the bound: .option({NEW_PARTITIONS_MAX!r}, {count}).",
                ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
            )
