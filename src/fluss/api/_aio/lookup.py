"""Looking rows up in primary-key tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from fluss.api.awaiting import look, look_many, look_prefix, look_prefix_arrow
from fluss.client.lookuper import LookuperCore, PrefixLookuperCore, check_primary_key
from fluss.client.table import TableCore
from fluss.model.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa


class Lookuper:
    """Looks up rows by primary key. Lookups that are started side by side, from any thread, share requests."""

    def __init__(self, core: LookuperCore) -> None:
        self._core = core

    async def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """The row of a primary key, or None: a dict by column name, or a list or tuple in primary-key order."""
        return await look(self._core, pk)

    async def lookup_many(self, keys: Any) -> pa.Table:
        """One row per key, in their order; all null where there is none.

        Keys are a list of dicts, lists or tuples, or Arrow data with the primary-key columns.
        """
        return await look_many(self._core, keys)

    def __repr__(self) -> str:
        return f"Lookuper({self._core.info.table_path}, by {', '.join(self._core.info.primary_keys)})"


class PrefixLookuper:
    """Looks up all rows of a prefix: the partition columns, if any, and the bucket key."""

    def __init__(self, core: PrefixLookuperCore) -> None:
        self._core = core

    async def lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> list[dict[str, Any]]:
        """All rows of a prefix: a dict by column name, or a list or tuple in the order of `lookup_by`."""
        return await look_prefix(self._core, prefix)

    async def lookup_arrow(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """All rows of a prefix as Arrow."""
        return await look_prefix_arrow(self._core, prefix)

    def __repr__(self) -> str:
        return f"PrefixLookuper({self._core.info.table_path}, by {', '.join(self._core.columns)})"


class TablePrefixLookup:
    """Makes prefix lookupers. Obtain with `table.new_lookup().lookup_by(columns)`."""

    def __init__(self, core: TableCore, columns: Sequence[str]) -> None:
        self._core = core
        self._columns = list(columns)

    def create_lookuper(self) -> PrefixLookuper:
        """A lookuper; raises unless the columns are the partition columns and a bucket key that begins the key."""
        return PrefixLookuper(self._core.prefix_lookuper(self._columns))

    def __repr__(self) -> str:
        return f"TablePrefixLookup({self._core.info.table_path}, by {', '.join(self._columns)})"


class TableLookup:
    """Makes lookupers, and looks rows up itself with one of its own. Obtain with `table.new_lookup()`."""

    def __init__(self, core: TableCore, *, insert_if_not_exists: bool = False) -> None:
        check_primary_key(core.info)
        self._core = core
        self._insert_if_not_exists = insert_if_not_exists
        self._own: Lookuper | None = None

    def enable_insert_if_not_exists(self) -> Self:
        """Lookups that find nothing make a row with just the key, and numbered columns, and return it."""
        return type(self)(self._core, insert_if_not_exists=True)

    def create_lookuper(self) -> Lookuper:
        """A lookuper by primary key."""
        return Lookuper(self._core.lookuper(insert_if_not_exists=self._insert_if_not_exists))

    def _prefix_columns(self, columns: Sequence[str]) -> Sequence[str]:
        if self._insert_if_not_exists:
            raise InvalidRequestError("Lookups by prefix don't insert: what is missing there is not known.")
        if isinstance(columns, str):
            raise InvalidRequestError(f"lookup_by takes a list of column names to make a prefix of, not {columns!r}.")
        return columns

    def _lookuper(self) -> Lookuper:
        lookuper = self._own
        if lookuper is None:
            lookuper = self._own = self.create_lookuper()
        return lookuper

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Look up by a prefix: the partition columns, if any, and the bucket key, where the primary key begins."""
        return TablePrefixLookup(self._core, self._prefix_columns(column_names))

    async def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """The row of a primary key, or None."""
        return await self._lookuper().lookup(pk)

    async def lookup_many(self, keys: Any) -> pa.Table:
        """One row per key, in their order; all null where there is none."""
        return await self._lookuper().lookup_many(keys)

    def __repr__(self) -> str:
        inserting = ", insert_if_not_exists=True" if self._insert_if_not_exists else ""
        return f"TableLookup({self._core.info.table_path}{inserting})"
