"""A table dropped from the lake: out of its catalog, out of the server's memory, and its files if that is wanted.

The catalog comes first. A job that is under way then can't commit any more, and nobody can register what is gone. If
the second step is not reached, tiering and reads say that the snapshot is missing, and the same call again ends it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluss.api.operations import LakeRegistry
from fluss.lake.filesystem import open_filesystem
from fluss.lake.format import LakeTable, LakeTotals
from fluss.lake.log_ranges import log_stretches
from fluss.lake.maintenance import OnServer, foreign_paths, listed_files, take_inventory, used_paths
from fluss.lake.options import LakeOptions
from fluss.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from fluss.model.infos import LakeSnapshot
from fluss.model.paths import TablePath
from fluss.model.trust import is_inside, is_local

if TYPE_CHECKING:
    from fluss.sync import FlussConnection


@dataclass(frozen=True)
class Loss:
    """What goes with a table of the lake."""

    on_server: OnServer
    location: str | None  # of its files; None: its metadata can't be read, or it is not in the lake any more
    totals: LakeTotals
    has_primary_key: bool = False
    row_count: int | None = None
    """Rows that only the lake has, of a log table or of one that the server does not have; None: not known"""
    problem: str | None = None
    """Why its metadata can't be read"""


@dataclass(frozen=True)
class Dropped:
    """What was done."""

    location: str | None
    files_removed: int = 0
    files_left: list[str] = field(default_factory=list)
    """Files that could not be removed, and why"""


class Drop:
    """One table that is to be dropped: what is there, and the deed."""

    def __init__(
        self,
        connection: FlussConnection,
        path: TablePath,
        *,
        warehouse: str | None = None,
        catalog: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._registry = LakeRegistry(connection)
        self._found = take_inventory(connection, path, warehouse, catalog)
        self._check_there()

    def check(self, *, start_over: bool = False, purge: bool = False) -> None:
        """Raise if this is not to be done, or needs to be asked for."""
        found = self._found
        if self._is_in_use and not start_over:
            raise InvalidRequestError(
                f"{found.table_path} is tiered to the lake at {self._place}, and its history there would be lost: say "
                "that you want to start over (--start-over), or first switch tiering off with 'fluss table alter "
                f"{found.table_path} --set table.datalake.enabled=false', or drop the table."
            )
        if self._is_to_forget and not self._registry.can_forget():
            raise InvalidRequestError(
                f"The server is not able to forget that rows of {found.table_path} are in the lake (Apache Fluss and "
                "older versions are not): drop the table there first.",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        if purge and found.lake is None:
            raise InvalidRequestError(
                f"Which files {found.table_path} has in the lake is not known: leave --purge out."
            )

    def loss(self) -> Loss:
        """What would be lost."""
        found, lake = self._found, self._found.lake
        if lake is None:
            problem = None if found.error is None else str(found.error)
            return Loss(found.on_server, None, LakeTotals(None, None, None, 0), problem=problem)
        keyed = found.info is not None and found.info.has_primary_key() and found.on_server is not OnServer.RECREATED
        rows = lake.totals.row_count
        if rows is not None and found.info is not None and found.on_server in (OnServer.TIERED, OnServer.OFF):
            rows = None if keyed else max(0, rows - _rows_kept(self._connection, found.table_path, found.known))
        return Loss(found.on_server, lake.location, lake.totals, keyed, rows)

    def run(self, *, start_over: bool = False, purge: bool = False) -> Dropped:
        """Drop the table."""
        self.check(start_over=start_over, purge=purge)
        found, lake = self._found, self._found.lake
        # Listed before: a table of the same name may be made at once, and gets the same folder.
        doomed = _files(self._options, lake) if purge and lake is not None else []
        self._options.open().drop_table(found.table_path)
        if self._is_to_forget:
            assert found.info is not None
            self._registry.forget(found.info)
        location = None if lake is None else lake.location
        if not purge or lake is None:
            return Dropped(location)
        left = _remove(lake, doomed)
        return Dropped(location, len(doomed) - len(left), left)

    def _check_there(self) -> None:
        found = self._found
        if found.error is not None and not found.is_damaged:
            raise found.error
        if found.lake is None and found.error is None and found.known is None:
            raise NotFoundError(f"There is no table {found.table_path} in the lake at {self._place}.")

    @property
    def _options(self) -> LakeOptions:
        assert self._found.options is not None
        return self._found.options

    @property
    def _place(self) -> str:
        return self._options.warehouse or self._options.uri or ""

    @property
    def _is_in_use(self) -> bool:
        """Whether tiering goes on with it, or its snapshots are in a lake that was not found here."""
        found = self._found
        if found.lake is None:
            return found.on_server is OnServer.TIERED or found.known is not None
        return found.on_server is OnServer.TIERED and bool(found.lake.snapshots())

    @property
    def _is_to_forget(self) -> bool:
        """Whether the server counts on this table of the lake."""
        return self._found.known is not None and (self._found.lake is None or self._found.is_registered)


def drop(
    connection: FlussConnection,
    path: TablePath,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    start_over: bool = False,
    purge: bool = False,
) -> Dropped:
    """Drop a table from the lake; the server's table of that name, if there is one, keeps its rows.

    A table that is still tiered is dropped with `start_over` only: the next round begins with what its log still has.
    Files stay where they are unless `purge` is set, and other tables' files stay in any case.
    """
    return Drop(connection, path, warehouse=warehouse, catalog=catalog).run(start_over=start_over, purge=purge)


def _rows_kept(connection: FlussConnection, path: TablePath, known: LakeSnapshot | None) -> int:
    """How many rows of a log table the lake and the server's log both have."""
    stretches = log_stretches(connection, connection.get_table(path), known)
    return sum(max(0, (item.tiered or 0) - item.earliest) for item in stretches)


def _files(options: LakeOptions, lake: LakeTable) -> list[str]:
    """Everything in the table's folder; if others are there, what it names and they do not."""
    listed = listed_files(lake)
    foreign = foreign_paths(options, lake)
    own = used_paths(lake) & listed.keys() if foreign else listed.keys()
    return sorted(own - foreign)


def _remove(lake: LakeTable, paths: Iterable[str]) -> list[str]:
    filesystem, root = open_filesystem(lake.location, lake.io_properties)
    left, folders = [], set()
    for path in paths:
        try:
            filesystem.delete_file(path)
        except OSError as error:
            left.append(f"{path}: {error}")
        folders |= {folder for folder in _parents(path) if is_inside(folder, [root])}
    if is_local(lake.location):
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):  # it has other files
                os.rmdir(folder)
    return left


def _parents(path: str) -> Iterable[str]:
    while path := os.path.dirname(path).rstrip("/"):
        yield path
