"""Looking rows up in primary-key tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from fluss.api.awaiting import look, look_many, look_prefix, look_prefix_arrow
from fluss.client.lookup.lookuper import LookuperCore, PrefixLookuperCore, check_primary_key
from fluss.client.table import TableCore
from fluss.model.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa


class Lookuper:
    """Looks up rows by primary key. Obtain with `table.new_lookup().create_lookuper()`.

    Lookups that are started side by side, from any thread, share requests.

    Examples:
        >>> lookuper = users.new_lookup().create_lookuper()
        >>> await lookuper.lookup({"id": 2})
        {'id': 2, 'name': 'bob'}
    """

    def __init__(self, core: LookuperCore) -> None:
        self._core = core

    async def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """Look up the row of a primary key.

        Args:
            pk: The key: a dict by column name, or a list or tuple in the order of the primary key.

        Returns:
            The row as a dict, or None if there is none.

        Raises:
            SchemaMismatchError: A column of the key is missing, or a value does not fit it.
            FlussError: The connection is closed.

        Examples:
            >>> await lookuper.lookup([1])
            {'id': 1, 'name': 'ada'}
            >>> await lookuper.lookup([99])
        """
        return await look(self._core, pk)

    async def lookup_many(self, keys: Any) -> pa.Table:
        """Look up the rows of many primary keys at once.

        Args:
            keys: A list of dicts, lists or tuples, or Arrow data with the primary-key columns.

        Returns:
            A PyArrow Table with one row per key, in their order; all null where there is none.

        Raises:
            SchemaMismatchError: A column of the key is missing, or a value does not fit it.
            FlussError: The connection is closed.

        Examples:
            >>> (await lookuper.lookup_many([[2], [99]])).to_pylist()
            [{'id': 2, 'name': 'bob'}, {'id': None, 'name': None}]
        """
        return await look_many(self._core, keys)

    def __repr__(self) -> str:
        return f"Lookuper({self._core.info.table_path}, by {', '.join(self._core.info.primary_keys)})"


class PrefixLookuper:
    """Looks up all rows of a prefix: the partition columns, if any, and the bucket key.

    Obtain with `table.new_lookup().lookup_by(columns).create_lookuper()`.

    Examples:
        >>> lookuper = orders.new_lookup().lookup_by(["customer"]).create_lookuper()
        >>> [row["item"] for row in await lookuper.lookup([1])]
        ['tea', 'milk']
    """

    def __init__(self, core: PrefixLookuperCore) -> None:
        self._core = core

    async def lookup(self, prefix: Mapping[str, Any] | Sequence[Any]) -> list[dict[str, Any]]:
        """Look up all rows of a prefix.

        Args:
            prefix: The prefix: a dict by column name, or a list or tuple in the order of `lookup_by`.

        Returns:
            Rows as dicts, in the order of their keys.

        Raises:
            SchemaMismatchError: A column of the prefix is missing, or a value does not fit it.
            FlussError: The connection is closed.

        Examples:
            >>> [row["number"] for row in await lookuper.lookup({"customer": 1})]
            [1, 2]
        """
        return await look_prefix(self._core, prefix)

    async def lookup_arrow(self, prefix: Mapping[str, Any] | Sequence[Any]) -> pa.Table:
        """Look up all rows of a prefix as Arrow.

        Args:
            prefix: The prefix: a dict by column name, or a list or tuple in the order of `lookup_by`.

        Returns:
            A PyArrow Table, in the order of the keys.

        Raises:
            SchemaMismatchError: A column of the prefix is missing, or a value does not fit it.
            FlussError: The connection is closed.

        Examples:
            >>> (await lookuper.lookup_arrow([1])).column("item").to_pylist()
            ['tea', 'milk']
        """
        return await look_prefix_arrow(self._core, prefix)

    def __repr__(self) -> str:
        return f"PrefixLookuper({self._core.info.table_path}, by {', '.join(self._core.columns)})"


class TablePrefixLookup:
    """Makes prefix lookupers. Obtain with `table.new_lookup().lookup_by(columns)`.

    Examples:
        >>> orders.new_lookup().lookup_by(["customer"])
        TablePrefixLookup(shop.orders, by customer)
    """

    def __init__(self, core: TableCore, columns: Sequence[str]) -> None:
        self._core = core
        self._columns = list(columns)

    def create_lookuper(self) -> PrefixLookuper:
        """Make a lookuper by prefix.

        Returns:
            The lookuper.

        Raises:
            InvalidRequestError: The columns are not the partition columns and a bucket key that begins the primary key.

        Examples:
            >>> orders.new_lookup().lookup_by(["customer"]).create_lookuper()
            PrefixLookuper(shop.orders, by customer)
        """
        return PrefixLookuper(self._core.prefix_lookuper(self._columns))

    def __repr__(self) -> str:
        return f"TablePrefixLookup({self._core.info.table_path}, by {', '.join(self._columns)})"


class TableLookup:
    """Makes lookupers, and looks rows up itself with one of its own. Obtain with `table.new_lookup()`.

    Examples:
        >>> await users.new_lookup().lookup([1])
        {'id': 1, 'name': 'ada'}
    """

    def __init__(self, core: TableCore, *, insert_if_not_exists: bool = False) -> None:
        check_primary_key(core.info)
        self._core = core
        self._insert_if_not_exists = insert_if_not_exists
        self._own: Lookuper | None = None

    def enable_insert_if_not_exists(self) -> Self:
        """Let lookups that find nothing make a row with just the key, and numbered columns, and return it.

        Returns:
            A new maker of lookupers.

        Examples:
            >>> await users.new_lookup().enable_insert_if_not_exists().lookup([7])
            {'id': 7, 'name': None}
        """
        return type(self)(self._core, insert_if_not_exists=True)

    def create_lookuper(self) -> Lookuper:
        """Make a lookuper by primary key.

        Returns:
            The lookuper.

        Raises:
            InvalidRequestError: Lookups have to insert, and a column that is not of the key is NOT NULL.

        Examples:
            >>> users.new_lookup().create_lookuper()
            Lookuper(shop.users, by id)
        """
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
        """Look up by a prefix of the primary key.

        Args:
            column_names: The partition columns, if any, and the bucket key, where the primary key begins.

        Returns:
            A maker of prefix lookupers.

        Raises:
            InvalidRequestError: Lookups insert, or the columns are no list.

        Examples:
            >>> lookuper = orders.new_lookup().lookup_by(["customer"]).create_lookuper()
        """
        return TablePrefixLookup(self._core, self._prefix_columns(column_names))

    async def lookup(self, pk: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | None:
        """Look up the row of a primary key, with a lookuper of its own.

        Args:
            pk: The key: a dict by column name, or a list or tuple in the order of the primary key.

        Returns:
            The row as a dict, or None if there is none.

        Raises:
            SchemaMismatchError: A column of the key is missing, or a value does not fit it.
            FlussError: The connection is closed.

        Examples:
            >>> await lookup.lookup([2])
            {'id': 2, 'name': 'bob'}
        """
        return await self._lookuper().lookup(pk)

    async def lookup_many(self, keys: Any) -> pa.Table:
        """Look up the rows of many primary keys at once.

        Args:
            keys: A list of dicts, lists or tuples, or Arrow data with the primary-key columns.

        Returns:
            A PyArrow Table with one row per key, in their order; all null where there is none.

        Raises:
            SchemaMismatchError: A column of the key is missing, or a value does not fit it.
            FlussError: The connection is closed.

        Examples:
            >>> (await lookup.lookup_many([[2], [99]])).to_pylist()
            [{'id': 2, 'name': 'bob'}, {'id': None, 'name': None}]
        """
        return await self._lookuper().lookup_many(keys)

    def __repr__(self) -> str:
        inserting = ", insert_if_not_exists=True" if self._insert_if_not_exists else ""
        return f"TableLookup({self._core.info.table_path}{inserting})"
