"""Looking rows up in primary-key tables, blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluss.api.lookup_base import LookuperBase, PrefixLookuperBase, TableLookupBase, TablePrefixLookupBase

if TYPE_CHECKING:
    import pyarrow as pa


class Lookuper(LookuperBase):
    __doc__ = LookuperBase.__doc__

    def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """The row of a primary key, or None: a dict by column name, or a list or tuple in primary-key order."""
        return self._core.lookup(pk)

    def lookup_many(self, keys: Any) -> pa.Table:
        """One row per key, in their order; all null where there is none.

        Keys are a list of dicts, lists or tuples, or Arrow data with the primary-key columns.
        """
        return self._core.look_many(keys)


class PrefixLookuper(PrefixLookuperBase):
    __doc__ = PrefixLookuperBase.__doc__

    def lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> list[dict[str, Any]]:
        """All rows of a prefix: a dict by column name, or a list or tuple in the order of `lookup_by`."""
        return self._core.lookup(prefix)

    def lookup_arrow(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """All rows of a prefix as Arrow."""
        return self._core.lookup_arrow(prefix)


class TablePrefixLookup(TablePrefixLookupBase[PrefixLookuper]):
    __doc__ = TablePrefixLookupBase.__doc__
    _lookuper_class = PrefixLookuper


class TableLookup(TableLookupBase[Lookuper]):
    __doc__ = TableLookupBase.__doc__
    _lookuper_class = Lookuper

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Look up by a prefix: the partition columns, if any, and the bucket key, where the primary key begins."""
        return TablePrefixLookup(self._core, self._prefix_columns(column_names))

    def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """The row of a primary key, or None."""
        return self._lookuper().lookup(pk)

    def lookup_many(self, keys: Any) -> pa.Table:
        """One row per key, in their order; all null where there is none."""
        return self._lookuper().lookup_many(keys)
