"""What the tables of all facades share: what a table is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.client.table import TableCore
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath

if TYPE_CHECKING:
    import pyarrow as pa


class FlussTableBase:
    """A table to read from and write to. Obtain with `conn.get_table(path)`."""

    def __init__(self, core: TableCore) -> None:
        self._core = core

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of the table's rows."""
        return self._core.arrow_schema

    @property
    def table_path(self) -> TablePath:
        return self._core.info.table_path

    def get_table_info(self) -> TableInfo:
        """Id, schema, distribution and properties."""
        return self._core.info

    def get_table_path(self) -> TablePath:
        """Database and name."""
        return self._core.info.table_path

    def has_primary_key(self) -> bool:
        """Whether rows are updated by key."""
        return self._core.info.has_primary_key()

    def __repr__(self) -> str:
        return f"FlussTable({self._core.info.table_path}, table_id={self._core.info.table_id})"

    def _repr_html_(self) -> str:
        return self._core.info._repr_html_()
