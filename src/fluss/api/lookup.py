"""Looking rows up in primary-key tables, awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluss.api.lookup_base import LookuperBase, PrefixLookuperBase, TableLookupBase, TablePrefixLookupBase
from fluss.client.runtime import bridge

if TYPE_CHECKING:
    import pyarrow as pa


class Lookuper(LookuperBase):
    __doc__ = LookuperBase.__doc__

    async def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """The row of a primary key, or None: a dict by column name, or a list or tuple in primary-key order."""
        return await self._core.begin(pk)

    async def lookup_many(self, keys: Any) -> pa.Table:
        """One row per key, in their order; all null where there is none.

        Keys are a list of dicts, lists or tuples, or Arrow data with the primary-key columns.
        """
        return await bridge(self._core.lookup_many(keys))


class PrefixLookuper(PrefixLookuperBase):
    __doc__ = PrefixLookuperBase.__doc__

    async def lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> list[dict[str, Any]]:
        """All rows of a prefix: a dict by column name, or a list or tuple in the order of `lookup_by`."""
        return await self._core.begin(prefix)

    async def lookup_arrow(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """All rows of a prefix as Arrow."""
        return await self._core.begin_arrow(prefix)


class TablePrefixLookup(TablePrefixLookupBase[PrefixLookuper]):
    __doc__ = TablePrefixLookupBase.__doc__
    _lookuper_class = PrefixLookuper


class TableLookup(TableLookupBase[Lookuper]):
    __doc__ = TableLookupBase.__doc__
    _lookuper_class = Lookuper

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Look up by a prefix: the partition columns, if any, and the bucket key, where the primary key begins."""
        return TablePrefixLookup(self._core, self._prefix_columns(column_names))

    async def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """The row of a primary key, or None."""
        return await self._lookuper().lookup(pk)

    async def lookup_many(self, keys: Any) -> pa.Table:
        """One row per key, in their order; all null where there is none."""
        return await self._lookuper().lookup_many(keys)
