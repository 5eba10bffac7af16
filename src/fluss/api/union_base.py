"""What the union scans of all facades share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.client.table import TableCore
from fluss.model.errors import FlussError
from fluss.model.predicates import Predicate

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.lake.union.reader import UnionRead


class UnionScanBase:
    """Reads a table's history in the lake and the fresh rows behind it as one, each row once.

    Make one with `new_scan().union()`. Each read is of the rows as of its call. Columns have the table's types, but the
    lake keeps times in microseconds, and finer ones are cut to these. Rows of partitions that were dropped since they
    were tiered are history, and are read.
    """

    def __init__(
        self,
        core: TableCore,
        projection: tuple[int, ...] | None,
        predicate: Predicate | None,
        warehouse: str | None,
        catalog: Mapping[str, str] | None,
        mode: str,
    ) -> None:
        try:
            from fluss.lake.union.reader import UnionRead
        except ImportError as error:
            raise FlussError(f"{error.name} is not installed; install flussbett[lake].") from error
        self._core = core
        self._mode = mode
        self._read: UnionRead = UnionRead(core, projection, predicate, warehouse, catalog, mode)

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """A PyArrow reader over all rows as of now, in bounded memory but for the keys that fresh changes touch.

        Its reads block, and may be made in any thread.
        """
        return self._read.batch_reader()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"UnionScan({self._core.info.table_path}, mode={self._mode!r})"
