"""What the scan builders of all facades share: projection."""

from __future__ import annotations

from typing import Self

from fluss.client.scanner import LogScannerCore
from fluss.client.table import TableCore
from fluss.model.errors import InvalidRequestError


class TableScanBase:
    """Chooses columns and makes log scanners. Each call returns a new builder."""

    def __init__(self, core: TableCore, projection: tuple[int, ...] | None = None) -> None:
        self._core = core
        self._projection = projection

    def project(self, indices: list[int]) -> Self:
        """Read only these columns, by index, in this order."""
        count = len(self._core.info.schema.columns)
        for index in indices:
            if not isinstance(index, int) or not 0 <= index < count:
                raise InvalidRequestError(f"Column index {index!r} is not in the range 0 to {count - 1}.")
        if not indices or len(set(indices)) != len(indices):
            raise InvalidRequestError(f"A projection names each column once and at least one, not {indices}.")
        return type(self)(self._core, tuple(indices))

    def project_by_name(self, names: list[str]) -> Self:
        """Read only these columns, by name, in this order."""
        known = self._core.info.schema.column_names
        for name in names:
            if name not in known:
                raise InvalidRequestError(f"No column {name!r} in {self._core.info.table_path}; it has {known}.")
        return self.project([known.index(name) for name in names])

    def _scanner(self) -> LogScannerCore:
        return self._core.log_scanner(None if self._projection is None else list(self._projection))

    def __repr__(self) -> str:
        columns = "all" if self._projection is None else list(self._projection)
        return f"TableScan({self._core.info.table_path}, columns={columns})"
