"""What lookups share in all facades: which rows can be looked up, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from fluss.client.lookuper import LookuperCore, PrefixLookuperCore, check_primary_key
from fluss.client.table import TableCore
from fluss.model.errors import InvalidRequestError


class LookuperBase:
    """Looks up rows by primary key. Lookups that are started side by side, from any thread, share requests."""

    def __init__(self, core: LookuperCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"Lookuper({self._core.info.table_path}, by {', '.join(self._core.info.primary_keys)})"


class PrefixLookuperBase:
    """Looks up all rows of a prefix: the partition columns, if any, and the bucket key."""

    def __init__(self, core: PrefixLookuperCore) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"PrefixLookuper({self._core.info.table_path}, by {', '.join(self._core.columns)})"


Lookuper = TypeVar("Lookuper", bound=LookuperBase)
PrefixLookuper = TypeVar("PrefixLookuper", bound=PrefixLookuperBase)


class TablePrefixLookupBase(Generic[PrefixLookuper]):
    """Makes prefix lookupers. Obtain with `table.new_lookup().lookup_by(columns)`."""

    _lookuper_class: type[PrefixLookuper]

    def __init__(self, core: TableCore, columns: Sequence[str]) -> None:
        self._core = core
        self._columns = list(columns)

    def create_lookuper(self) -> PrefixLookuper:
        """A lookuper; raises unless the columns are the partition columns and a bucket key that begins the key."""
        return self._lookuper_class(self._core.prefix_lookuper(self._columns))

    def __repr__(self) -> str:
        return f"TablePrefixLookup({self._core.info.table_path}, by {', '.join(self._columns)})"


class TableLookupBase(Generic[Lookuper]):
    """Makes lookupers, and looks rows up itself with one of its own. Obtain with `table.new_lookup()`."""

    _lookuper_class: type[Lookuper]

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
        return self._lookuper_class(self._core.lookuper(insert_if_not_exists=self._insert_if_not_exists))

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

    def __repr__(self) -> str:
        inserting = ", insert_if_not_exists=True" if self._insert_if_not_exists else ""
        return f"TableLookup({self._core.info.table_path}{inserting})"
